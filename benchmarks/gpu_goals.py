"""What rows of a GPU's results shall reach, and of those that do not, why."""

from __future__ import annotations

import torch
from conditions import (
    ELEMENTWISE,
    ENTROPY,
    LAYER,
    MISALIGNED,
    NORMS,
    SMALL,
    TEXTBOOK,
    TRANSPOSED,
    Goal,
    Reason,
    all_of,
    any_of,
    backward,
    before,
    best,
    both,
    channels,
    columns,
    first_of,
    forward,
    from_mib,
    has,
    is_of,
    mib,
    of_columns,
    whole,
)
from contenders import OURS
from results import Row


def sums(row: Row) -> bool:
    """Whether an operand was broadcast, to which the backward sums."""
    return row.form not in ("", MISALIGNED, TRANSPOSED)


def partials(row: Row) -> bool:
    """Whether blocks leave partial sums for a second kernel, on an H200.

    All do but strips that fill it in clusters, csrc/cuda/column_strips.cuh, and sums of rows that
    a block has.
    """
    if row.form == "other operands columns":
        return False
    if row.operator == "reduce_sum" and row.form != "dim 0":
        return row.form in ("all", "dim 0, 2")
    tensors = {"reduce_sum": 1, "fused_op": 3}.get(row.operator)
    if tensors is None or len(row.sizes) > 2 or not whole(row):
        return True
    strips = columns(row) * getattr(torch, row.dtype).itemsize // 128
    blocks = 118 if tensors * mib(row) <= 16 else 264 if tensors == 1 else 198
    very_large = row.sizes[0] >= 32768 and mib(row) >= 256
    return 8 * strips < blocks or row.sizes[0] < 256 or very_large


def small_kernel(row: Row) -> bool:
    """Whether it takes about as long to start as to run, and has no tiles."""
    return row.form != TRANSPOSED and mib(row) <= 16


def as_fast(row: Row) -> bool:
    """As the others, within what runs of one binary differ by, and near what memory gives."""
    ratio = best(row)
    near = 0.97 if row.times[OURS].us < 25 else 0.985
    return ratio is not None and ratio >= near and row.of_floor(OURS) >= 0.94


GOALS = (
    Goal("the textbook kernel", 0, 0, is_of(TEXTBOOK)),
    Goal("relu, both passes (others write a mask)", 0, 0.98, both("relu")),
    Goal("cross entropy, both passes", 0.85, 1.0, both(ENTROPY, dtype="bfloat16")),
    Goal("both passes", 0, 0, has(direction="both")),
    Goal("relu backward (others read a mask)", 0.97, 0, backward("relu")),
    Goal("one operand transposed", 0.90, 0.97, has(form=TRANSPOSED)),
    Goal("small ones", 0, 1.0, all_of(
        is_of(*ELEMENTWISE, "reduce_sum", LAYER), lambda row: row.shape in SMALL
    )),
    Goal("elementwise", 0.97, 0.98, forward(*ELEMENTWISE)),
    Goal("square backward", 0.97, 0.98, backward("square")),
    Goal("fused_op backward, 256 columns", 0.80, 1.1, all_of(
        backward("fused_op"), of_columns(256, 256)
    )),
    Goal("fused_op backward, 4095 columns", 0.85, 1.1, all_of(
        backward("fused_op"), of_columns(4095, 4095)
    )),
    Goal("fused_op backward", 0.90, 1.2, backward("fused_op")),
    Goal("products backward, with sums", 0.85, 0.98, all_of(
        backward(*ELEMENTWISE, "swiglu"), sums
    )),
    Goal("products backward", 0.95, 0.98, backward(*ELEMENTWISE)),
    Goal("sums, from 128 MiB", 0.95, 1.0, all_of(is_of("reduce_sum"), from_mib(128))),
    Goal("smaller sums", 0, 0, is_of("reduce_sum")),
    Goal("layer norm 16 x 4194304", 0.58, 1.2, forward(LAYER, shape="16x4194304")),
    Goal("layer norm 16 x 4194304, backward", 0.50, 1.2, backward(LAYER, shape="16x4194304")),
    Goal("layer norm 2048 x 65536", 0.85, 1.0, forward(LAYER, shape="2048x65536")),
    Goal("layer norm 2048 x 65536, backward", 0.70, 1.0, backward(LAYER, shape="2048x65536")),
    Goal("layer norm, misaligned", 0, 1.0, is_of(LAYER, form=MISALIGNED)),
    Goal("layer norm, 256 and 4095 columns", 0.90, 1.0, all_of(
        forward(LAYER), lambda row: columns(row) in (256, 4095)
    )),
    Goal("layer norm", 0.95, 1.0, forward(LAYER)),
    Goal("layer norm backward, 256, 4095 and 16384 columns", 0.75, 1.0, all_of(
        backward(LAYER), lambda row: columns(row) in (256, 4095, 16384)
    )),
    Goal("layer norm backward", 0.85, 1.0, backward(LAYER)),
    Goal("linear_scan, few channels", 0, 1.5, all_of(
        is_of("linear_scan"), lambda row: row.form.startswith("dim"),
        lambda row: channels(row) < 32768,
    )),
    Goal("linear_scan, misaligned", 0, 1.5, is_of("linear_scan", form=MISALIGNED)),
    Goal("linear_scan", 0.85, 1.5, forward("linear_scan")),
    Goal("linear_scan backward", 0.80, 1.5, backward("linear_scan")),
    Goal("swiglu", 0.97, 0.99, forward("swiglu")),
    Goal("swiglu backward", 0.95, 0.99, backward("swiglu")),
    Goal("norms of a sum, misaligned", 0, 1.0, is_of(*NORMS, form=MISALIGNED)),
    Goal("norms of a sum", 0.93, 1.0, forward(*NORMS)),
    Goal("norms of a sum, backward", 0.85, 1.0, backward(*NORMS)),
    Goal("bn_relu", 0.97, 0.99, forward("bn_relu")),
    Goal("cross entropy", 0.90, 1.0, forward(ENTROPY, dtype="bfloat16")),
)  # fmt: skip


def bound_by_memory(row: Row) -> bool:
    """Whether others are about as near the floor as the goal lets them be."""
    ratio, goal = best(row), first_of(GOALS, row)
    if ratio is None or goal is None or row.of_floor(OURS) < max(goal.floor, 0.85):
        return False
    return ratio / row.of_floor(OURS) < goal.best + 0.02


# The first that is for a row.
REASONS = (
    Reason(
        "measured before blocks of the same columns ran one after the other",
        all_of(before("2026-11-26T01:40"), forward("fused_op", shape="16x4194304")),
    ),
    Reason(
        "others' forward writes a byte that their backward reads, 18 bytes an element; ours 20",
        both("relu"),
    ),
    Reason("as fast as others, but for what two runs of one binary differ by", as_fast),
    Reason(
        "measured before rows that a block has registers for had kernels of their own",
        all_of(
            before("2026-11-28T13:36"),
            any_of(is_of("linear_scan", form=""), is_of("linear_scan", form=MISALIGNED)),
            of_columns(1024, 32768),
        ),
    ),
    Reason(
        "a second kernel, which brings the segments of rows together, takes 3.2 to 3.7 us, as "
        "counted on an H200",
        all_of(
            forward(ENTROPY, form=""),
            any_of(has(shape="2048x65536"), has(shape="16x4194304")),
        ),
    ),
    Reason(
        "the floor's operation reads half of what this does from memory, and what it writes stays "
        "in the L2 cache, of 128 MiB 13 to 20 % of it, as counted on an H200",
        all_of(forward(ENTROPY, form="", dtype="bfloat16"), whole, lambda row: mib(row) <= 128),
    ),
    Reason(
        "two kernels, and the floor is that of one, which of 2 MB takes 4.4 us",
        all_of(both(ENTROPY, form=""), lambda row: mib(row) <= 16),
    ),
    Reason("others read a byte where ours reads the input, as counted", backward("relu")),
    Reason(
        "1.3 to 1.7 times the instructions of others: 55 to 76 % of the slots for them taken, "
        "others' 47 to 54, as counted on an H200",
        all_of(
            forward("linear_scan", form="", dtype="bfloat16"),
            of_columns(1024, 2048),
            lambda row: mib(row) <= 32,
        ),
    ),
    Reason(
        "one wave of warps, which wait for what they read and then compute: 61 % of the "
        "instruction slots taken, others' 75, as counted on an H200",
        all_of(
            backward("swiglu", form="other operands columns", dtype="bfloat16"), small_kernel, whole
        ),
    ),
    Reason(
        "2.5 times the instructions of others, as counted on an H200; as many as PyTorch's relu "
        "has over as many bytes, which takes as long",
        all_of(
            forward("myadd_out", form="other operands rows", dtype="bfloat16"), whole, from_mib(64)
        ),
    ),
    Reason(
        "a quarter of the warps that fit (128 registers a thread), two thirds of the instruction "
        "slots taken, as counted",
        all_of(
            backward("swiglu", dtype="bfloat16"),
            any_of(has(form="other operands rows"), has(form="other operands scalars")),
            from_mib(64),
        ),
    ),
    Reason(
        "half of the warps that fit (64 registers a thread), of swiglu three quarters of the "
        "instruction slots taken, as counted",
        all_of(
            backward("mymul", "swiglu", form="other operands columns", dtype="bfloat16"),
            from_mib(64),
        ),
    ),
    Reason(
        "tiles: 0.9 to 1.9 times the instructions of others, and 34 to 72 % of the warps that fit, "
        "others' 44 to 72, as counted",
        all_of(has(form=TRANSPOSED), whole),
    ),
    Reason(
        "sums of rows and of columns in one kernel, bound by instructions, as counted",
        all_of(backward("affine", form="a[M, 1], b[N]"), from_mib(64)),
    ),
    Reason(
        "tiles ask of each access where it begins: 230 instructions for 16 bytes",
        all_of(has(form=TRANSPOSED, dtype="bfloat16"), lambda row: not whole(row)),
    ),
    Reason(
        "the L2 cache is 92 % busy, as counted: rows begin within its sectors",
        all_of(has(form=TRANSPOSED, dtype="float32"), lambda row: not whole(row)),
    ),
    Reason(
        "1.3 to 1.5 times the instructions of rows that are whole accesses, as counted",
        all_of(
            any_of(is_of(LAYER), backward("fused_op")),
            of_columns(4095, 4095),
        ),
    ),
    Reason(
        "an access is its own word and the next thread's, exchanged and shifted",
        is_of("linear_scan", form=MISALIGNED),
    ),
    Reason(
        "few rows, whose tiles wait for the slowest of those before them",
        all_of(is_of("linear_scan", form=""), lambda row: row.sizes[0] <= 16),
    ),
    Reason(
        "planes of 49 elements: every sixth access has two channels, and each warp goes both ways",
        forward("bn_relu", shape="128x512x7x7", form="channels first"),
    ),
    Reason(
        "measured before whole rows had kernels of their own for inputs that are not aligned",
        all_of(
            before("2026-11-28T21:40"),
            forward(LAYER, *NORMS, form=MISALIGNED),
            lambda row: columns(row) % 8 == 0,
        ),
    ),
    Reason(
        "every access to what does not lie as the output does is two and a shift",
        all_of(
            lambda row: not whole(row) and row.form != TRANSPOSED,
            lambda row: (row.operator, row.direction) != ("affine", "backward"),
        ),
    ),
    Reason(
        "a quarter of the warps (128 registers a thread), and 4 us or more in the kernel that adds "
        "up partial sums, as counted",
        all_of(backward(LAYER), of_columns(1024, 8192), from_mib(64)),
    ),
    Reason(
        "the kernel that adds up partial sums costs 4 us, and blocks end at different times",
        any_of(
            all_of(is_of("reduce_sum"), lambda row: not row.form.startswith("dim 1"), partials),
            all_of(
                any_of(
                    backward("fused_op", LAYER, *NORMS), all_of(backward("affine", "swiglu"), sums)
                ),
                lambda row: mib(row) <= 64,
                partials,
            ),
        ),
    ),
    Reason(
        "the kernel that adds up partial sums takes 7 of the 263 us, as counted",
        backward("add_rms_norm", shape="4096x16384", dtype="float32"),
    ),
    Reason(
        "59 % of the warps that fit, others' 95, of bfloat16, as counted",
        is_of("reduce_sum", shape="4096x16384", form="dim 1"),
    ),
    Reason(
        "two thirds of the warps that fit (44 registers a thread), others' nearly all (29 to 32)",
        any_of(is_of("reduce_sum", form="dim 1, 2"), is_of("reduce_sum", shape="16x4194304")),
    ),
    Reason(
        "of 128 MiB the floor's operation leaves 13 to 20 % in the L2 cache, unwritten, of which a "
        "sum reads all, as counted on an H200",
        all_of(
            is_of("reduce_sum"),
            lambda row: 128 <= mib(row) <= 256 and row.of_floor(OURS) < 0.95,
            lambda row: row.floor_of != "sum",
        ),
    ),
    Reason(
        "others' forward wrote a byte, which their backward, one kernel for so many columns, reads "
        "where ours reads the output: 5 bytes an element for 6, of float32 9 for 12",
        all_of(backward("fused_op"), of_columns(16384, 1 << 30)),
    ),
    Reason(
        "1.4 to 4.2 times the instructions of others, a warp of whose serves a row and asks for "
        "parameters before it is reduced, as counted; neither alone explains it",
        all_of(forward(LAYER, *NORMS), of_columns(1, 1024)),
    ),
    Reason(
        "statistics take a pass of their own: 41 of the 123 us of bfloat16, as counted",
        forward(LAYER, shape="16x4194304"),
    ),
    Reason(
        "statistics take a pass of their own: 169 of the 376 us of float32, as counted",
        backward(LAYER, shape="16x4194304"),
    ),
    Reason(
        "40 to 60 % of the warps that fit, others' 72 to 86, as counted",
        all_of(forward(LAYER, *NORMS), of_columns(2048, 2048)),
    ),
    Reason(
        "the L2 cache is 86 to 92 % busy, as counted: parameters are read for every row",
        all_of(forward(LAYER, *NORMS), of_columns(4096, 16384)),
    ),
    Reason(
        "the sum is read once more: the bytes of five tensors for four",
        forward(*NORMS, shape="16x4194304"),
    ),
    Reason(
        "rows too long for registers are read twice: the bytes of six tensors for four",
        backward(*NORMS, shape="16x4194304"),
    ),
    Reason(
        "each pass reads the sum again, from the L2 cache",
        forward(*NORMS, shape="2048x65536", dtype="bfloat16"),
    ),
    Reason(
        "blocks of a cluster share a row, and read nothing while they wait for each other",
        all_of(is_of(LAYER, *NORMS), of_columns(16385, 131072)),
    ),
    Reason(
        "measured before rows that a warp has for itself had kernels of their own",
        all_of(before("2026-11-27T16:30"), forward("linear_scan", form=""), of_columns(17, 1024)),
    ),
    Reason(
        "21 to 39 % of the warps that fit, others' 36 to 88, and 1.0 to 1.9 times their "
        "instructions, as counted on an H200",
        all_of(forward("linear_scan", form=""), of_columns(256, 256)),
    ),
    Reason(
        "a third of the warps that fit (80 registers a thread), which wait for loads, as counted",
        all_of(forward("linear_scan", dtype="bfloat16"), of_columns(1 << 18, 1 << 22)),
    ),
    Reason(
        "four rows a thread: parameters are read four times, three of them from the L2 cache",
        forward("bn_relu", shape="16x4194304"),
    ),
    Reason(
        "rows lie 8 and 16 MiB apart: with nothing read twice the memory is busy for 78 and 81 % "
        "of the time, as counted",
        forward("fused_op", shape="16x4194304"),
    ),
    Reason(
        "rows of 256 columns: those of a thread lie 16 KiB apart, which is 2 to 3 % faster than "
        "side by side; farther apart is no better, as tried",
        any_of(
            forward("bn_relu", shape="65536x256", dtype="float32"),
            forward("bn_relu", shape="512x1024x256", dtype="float32"),
        ),
    ),
    Reason(
        "0.4 us more than the floor's operation, which has no parameters to wait for",
        all_of(small_kernel, forward("bn_relu")),
    ),
    Reason(
        "0.6 us more than the floor's operation, which computes nothing",
        all_of(small_kernel, forward("swiglu"), sums),
    ),
    Reason(
        "205 instructions an access, 95 % of those that the memory leaves time for, as counted",
        any_of(
            *(
                forward("swiglu", form=f"other operands {other}", dtype="bfloat16")
                for other in ("columns", "scalars")
            )
        ),
    ),
    Reason(
        "0.3 to 0.7 us more than others', whose instructions are 0.9 to 1.5 of ours, as counted "
        "on an H200",
        all_of(small_kernel, forward("swiglu")),
    ),
    Reason(
        "1.3 to 4.7 times the instructions of others around few accesses, as counted",
        all_of(small_kernel, any_of(forward(*ELEMENTWISE), is_of("reduce_sum"))),
    ),
    Reason(
        "0.4 to 1.1 us more than others', as counted, whose instructions are 0.3 to 1.4 of ours",
        all_of(small_kernel, backward(*ELEMENTWISE)),
    ),
    Reason("bound by memory: at the floor itself it would hardly be reached", bound_by_memory),
    Reason(
        "0.1 us more than others', whose instructions are 1.2 of ours, as counted on an H200",
        all_of(small_kernel, backward("swiglu"), lambda row: not sums(row)),
    ),
    Reason(
        "memory is busy for 87 to 89 % of the time, and the kernel that adds up partial sums takes "
        "4 to 6 us more, as counted on an H200",
        backward("add_rms_norm", dtype="float32"),
    ),
)
