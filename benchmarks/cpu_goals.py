"""What rows of a CPU's results shall reach, and of those that do not, why."""

from __future__ import annotations

from conditions import (
    ELEMENTWISE,
    ENTROPY,
    LAYER,
    Goal,
    Reason,
    all_of,
    any_of,
    backward,
    first_of,
    forward,
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
        "a call whose code is in no cache takes 57 to 92 us more than torch's own function, as "
        "timed of relu after copies",
        all_of(near_eager, differs_by_a_call),
    ),
    Reason(
        "up to 42 ns a row more than PyTorch in the caches, as timed, the call's cost included",
        all_of(
            any_of(
                forward("mymul", form="other operands rows"),
                forward("mymul", form="other operands columns"),
            ),
            lambda row: row.dtype != "float16",
        ),
    ),
    Reason(
        "in the caches nine tenths of PyTorch's time, by one thread, as timed",
        backward(LAYER),
    ),
    Reason(
        "not told apart: the quartiles of ours and PyTorch's overlap",
        all_of(near_eager, quartiles_overlap),
    ),
)
