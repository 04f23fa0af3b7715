"""Gradients of an expression: reverse mode over its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .graph import COLUMN, GRADIENT, ROW, Node, add, const, in_order, make, row_sum
from .operations import OPERATIONS


def gradients(
    output: Node, tensors: Sequence[str], added: Callable[[Node, Node], Node] = add
) -> list[Node]:
    """For each tensor what its element gets of the gradient of the output's.

    Args:
        output: of which.
        tensors: by which.
        added: the sum of two gradients that arrive at one expression.
    """
    leaves = [make("tensor", value=name) for name in tensors]
    return gradients_by(output, leaves, make("tensor", value=GRADIENT), added)


def gradients_by(
    output: Node,
    leaves: Sequence[Node],
    gradient: Node,
    added: Callable[[Node, Node], Node] = add,
) -> list[Node]:
    """For each leaf what it gets of the gradient: one for each column, a term of each row."""
    arrived: dict[Node, Node] = {output: gradient}
    for node in reversed(list(in_order([output]))):
        given = arrived.get(node)
        if given is None or not node.args:
            continue
        derivative = OPERATIONS[node.op].derivative
        if derivative is None:
            continue
        for arg, part in zip(node.args, derivative(given, node, *node.args), strict=True):
            if part is not None and not arg.is_number:
                if arg.extent == ROW and node.extent & COLUMN:
                    part = row_sum(part)
                arrived[arg] = added(arrived[arg], part) if arg in arrived else part
    return [arrived.get(leaf, const(0)) for leaf in leaves]
