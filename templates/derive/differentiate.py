"""Gradients of expressions: reverse mode over their nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .graph import COLUMN, ROW, Node, add, const, in_order, make, row_sum
from .operations import OPERATIONS


def gradients(
    outputs: Sequence[Node],
    given: Sequence[Node],
    leaves: Sequence[Node],
    added: Callable[[Node, Node], Node] = add,
) -> list[Node]:
    """For each leaf what it gets of the gradients of outputs.

    One for each column gets a term of each row; one for each row a sum of terms as they are, whose
    factors are NaN, perhaps, of a row without elements, where the sum is 0.

    Args:
        outputs: of which.
        given: the gradient of each.
        leaves: by which.
        added: the sum of two gradients that arrive at one expression.
    """
    arrived: dict[Node, Node] = {}
    of_rows = {leaf for leaf in leaves if leaf.op == "row"}
    for node in in_order(outputs):
        if of_rows & {*node.args}:
            of_rows.add(node)

    def summed(arg: Node, part: Node) -> Node:
        if arg not in of_rows or part.is_number:
            return row_sum(part)
        if not part.extent & COLUMN:
            (main, *_) = (leaf for leaf in leaves if leaf.op == "tensor")
            part = make("expand", part, main)
        return make("row_sum", part)

    def arrive(node: Node, part: Node) -> None:
        arrived[node] = added(arrived[node], part) if node in arrived else part

    for output, gradient in zip(outputs, given, strict=True):
        arrive(output, gradient)
    # What the first output is made of comes first.
    for node in reversed(list(in_order(outputs[::-1]))):
        if node not in arrived or not node.args:
            continue
        derivative = OPERATIONS[node.op].derivative
        if derivative is None:
            continue
        for arg, part in zip(node.args, derivative(arrived[node], node, *node.args), strict=True):
            if part is not None and not arg.is_number:
                is_summed = arg.extent == ROW and node.extent & COLUMN
                arrive(arg, summed(arg, part) if is_summed else part)
    return [arrived.get(leaf, const(0)) for leaf in leaves]
