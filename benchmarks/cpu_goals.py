"""What rows of a CPU's results shall reach, and of those that do not, why."""

from __future__ import annotations

from conditions import ELEMENTWISE, LAYER, Goal, Reason, backward, forward, has, is_of

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

# The first that is for a row.
REASONS: tuple[Reason, ...] = ()
