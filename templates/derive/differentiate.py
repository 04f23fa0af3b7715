"""Gradients of an expression: reverse mode over its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .graph import GRADIENT, Node, add, const, in_order, make
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
    arrived: dict[Node, Node] = {output: make("tensor", value=GRADIENT)}
    for node in reversed(list(in_order([output]))):
        gradient = arrived.get(node)
        if gradient is None or not node.args:
            continue
        derivative = OPERATIONS[node.op].derivative
        if derivative is None:
            continue
        for arg, part in zip(node.args, derivative(gradient, node, *node.args), strict=True):
            if part is not None and not arg.is_number:
                arrived[arg] = added(arrived[arg], part) if arg in arrived else part
    return [arrived.get(make("tensor", value=name), const(0)) for name in tensors]
