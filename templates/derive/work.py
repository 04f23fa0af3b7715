"""How many instructions a formula takes: about, on a GPU and in float32."""

from __future__ import annotations

from collections.abc import Container, Sequence

from .graph import Node, in_order

# Of NVIDIA's machine code, on its usual path, for what is not one or two.
INSTRUCTIONS = {
    **{"exp": 8, "exp2": 4, "expm1": 16, "log": 12, "log2": 11, "log10": 13, "log1p": 18},
    **{"sin": 20, "cos": 20, "tan": 30, "asin": 20, "acos": 22, "atan": 18, "atan2": 35},
    **{"sinh": 20, "cosh": 15, "tanh": 13, "asinh": 35, "acosh": 35, "atanh": 30},
    **{"erf": 20, "erfc": 35, "sigmoid": 15, "plain_softplus": 22},
    **{"div": 9, "reciprocal": 8, "sqrt": 8, "rsqrt": 4, "pow": 45, "hypot": 20, "fmod": 25},
    "where": 2,
}
# Of a number, whose reciprocal is computed once.
DIVISION_BY_NUMBER = 2


def work(nodes: Sequence[Node], known: Container[Node] = ()) -> int:
    """The instructions for an element of lowered expressions, besides what is known."""
    return sum(instructions(node) for node in in_order(nodes, known) if node not in known)


def instructions(node: Node) -> int:
    if not node.args or node.is_number:
        return 0
    if node.op == "div" and node.args[1].is_number:
        return DIVISION_BY_NUMBER
    return INSTRUCTIONS.get(node.op, 1)


def is_worth_saying(count: int, tensors: int) -> bool:
    """Whether csrc/cuda/elementwise.cuh does something about it, of tensors of half types."""
    return tensors <= 3 and count >= 7 * tensors
