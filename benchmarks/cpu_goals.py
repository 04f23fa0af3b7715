"""What rows of a CPU's results shall reach, and of those that do not, why."""

from __future__ import annotations

from conditions import (
    ELEMENTWISE,
    ENTROPY,
    LAYER,
    NORMS,
    Goal,
    Reason,
    all_of,
    any_of,
    backward,
    eager,
    first_of,
    forward,
    from_mib,
    has,
    is_of,
)
from contenders import OURS
from results import Row

GOALS = (
    Goal("the textbook kernel", 0, 0, is_of("vector_add")),
    Goal("both passes", 0, 0, has(direction="both")),
    Goal("fused_op", 0, 1.0, forward("fused_op"), eager=1.5),
    Goal("fused_op backward", 0, 0, backward("fused_op"), eager=1.3),
    Goal("elementwise", 0, 0, is_of(*ELEMENTWISE), eager=1.0),
    Goal("swiglu", 0, 0, is_of("swiglu"), eager=1.0),
    Goal("sums", 0, 0, is_of("reduce_sum"), eager=1.0),
    Goal("layer norm", 0, 0, forward(LAYER), eager=1.0),
    Goal("layer norm backward", 0, 0, backward(LAYER), eager=1.3),
    Goal("linear_scan (eager loops over time)", 0, 0, is_of("linear_scan"), eager=20),
    Goal("others", 0, 0, lambda row: True, eager=1.0),
)

# What `relu` takes beside torch's own function where its code is in no cache, at most, in us.
COLD_CALL_US = 92


def waits_for_pages(row: Row) -> bool:
    """Whether it takes three times as long as to move the bytes, and about as long as PyTorch."""
    ratio = eager(row)
    return row.of_floor(OURS) <= 1 / 3 and ratio is not None and ratio >= 0.9


def near_eager(row: Row) -> bool:
    """Rows that shall be as fast, and no faster."""
    goal = first_of(GOALS, row)
    return goal is not None and goal.eager == 1.0 and "eager" in row.times


def differs_by_a_call(row: Row) -> bool:
    return row.times[OURS].us - row.times["eager"].us <= COLD_CALL_US


def quartiles_overlap(row: Row) -> bool:
    """Ours and PyTorch's."""
    return row.times[OURS].quartiles[0] <= row.times["eager"].quartiles[1]


# The first that is for a row; `benchmarks/NOTES.md` has the measurements.
REASONS: tuple[Reason, ...] = (
    Reason(
        "float64: std::exp of one number after the other, where PyTorch's is of vectors",
        is_of("swiglu", ENTROPY, dtype="float64"),
    ),
    Reason(
        "a page fault for each 4 KiB of a new result: most of the time, of PyTorch's calls too, as "
        "counted",
        all_of(is_of(*ELEMENTWISE, LAYER, *NORMS, "linear_scan"), from_mib(32), waits_for_pages),
    ),
    Reason(
        "a call whose code is in no cache takes 57 to 92 us more than torch's own function, as "
        "timed of relu after copies",
        all_of(near_eager, differs_by_a_call),
    ),
    Reason(
        "25 to 35 ns a row more than PyTorch in the caches, as timed, besides the call's cost",
        any_of(
            forward("mymul", form="other operands rows"),
            forward("mymul", form="other operands columns"),
        ),
    ),
    Reason(
        "not told apart: the quartiles of ours and PyTorch's overlap",
        all_of(near_eager, quartiles_overlap),
    ),
)
