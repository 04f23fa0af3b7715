"""What rounding an operand makes of an expression."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .graph import Node, in_order, is_const

# How far a value may be off: about as much as what was rounded, of its own size; or of 1; or a
# gradient, which is linear in those that come, by such factors.
OF_ITSELF, OF_ONE, GRADIENT = "of itself", "of one", "gradient"

BOUNDED = ("sigmoid", "tanh", "erf")
SAME = ("neg", "abs", "expand", "detach", "col_sum")
LINEAR = ("add", "sub", "mul", "row_sum", "mean", *SAME)


def are_steady(gradients: Sequence[Node], rounded: Collection[Node]) -> bool:
    """Whether gradients of what was rounded are off by no more than that was, by their size.

    What is left of a number less another may be nothing but rounding; so may a sum over a row of
    both signs. An exponential of 100 is another number.
    """
    known = dict.fromkeys(rounded, OF_ITSELF)
    for node in in_order(gradients):
        if node not in known and any(arg in known for arg in node.args):
            error = error_of(node, known)
            if error is None:
                return False
            known[node] = error
    return True


def error_of(node: Node, known: Mapping[Node, str]) -> str | None:
    """How far it may be off; None where that is unknown."""
    errors = {known[arg] for arg in node.args if arg in known}
    divides_by = known.get(node.args[1], OF_ITSELF) if node.op == "div" else OF_ITSELF
    if divides_by != OF_ITSELF:
        return None
    if node.is_gradient:
        return GRADIENT if node.op in (*LINEAR, "div") else None
    if node.op in BOUNDED:
        return OF_ONE
    if node.op in (*SAME, "mul", "div"):
        return OF_ONE if OF_ONE in errors else OF_ITSELF
    if node.op in ("add", "sub") and errors == {OF_ONE}:
        return OF_ONE if all(arg in known or is_const(arg) for arg in node.args) else None
    if errors != {OF_ITSELF}:
        return None
    if node.op == "pow":
        return OF_ITSELF if is_const(node.args[1]) else None
    if node.op in ("sqrt", "rsqrt", "reciprocal", "vector_norm"):
        return OF_ITSELF
    adds_up = node.op in ("add", "row_sum", "mean") and all(map(is_not_negative, node.args))
    return OF_ITSELF if adds_up else None


def is_not_negative(node: Node) -> bool:
    """Whether it is known to be so; a number argument, as an epsilon, is taken to be."""
    if is_const(node):
        return isinstance(node.value, (int, float)) and node.value >= 0
    first, *others = node.args or [node]
    if node.op == "pow":
        (exponent,) = others
        is_even = is_const(exponent) and exponent.value in (2, 4)
        return is_even or is_not_negative(first)
    if node.op == "mul":
        return node.args[0] is node.args[1] or all(map(is_not_negative, node.args))
    if node.op in ("add", "div", "row_sum", "mean", "expand", "detach"):
        return all(map(is_not_negative, node.args))
    return node.op in ("number", "abs", "sqrt", "rsqrt", "vector_norm", "sigmoid", "cols")
