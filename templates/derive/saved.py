"""What the backward keeps of the forward."""

from __future__ import annotations

from collections.abc import Sequence

from .graph import FLOAT8, GRADIENT, INTEGERS, Node, const, in_order, inputs_of, make, replaced

OUTPUT = "output"


def on_output(output: Node, gradients: Sequence[Node]) -> tuple[Node, ...] | None:
    """The gradients of the output's value in place of the inputs', where that is as exact.

    It is where they do no more than look on which side of its kink a relu is. Of a softmax, and of
    its logarithm, they are as exact as PyTorch's in the tensor's dtype, which are of the output,
    too, and passes over the row are saved.
    """
    value = make("tensor", value=OUTPUT)
    if output.op == "relu":
        by = {make("le", output.args[0], const(0)): make("le", value, const(0))}
    elif output.op == "softmax":
        by = {output: value}
    elif output.op == "log_softmax":
        by = {make("softmax", output.args[0]): make("exp", value)}
    else:
        return None
    found = replaced(gradients, by)
    names = {n.value for n in in_order(found) if n.op in ("tensor", *INTEGERS, *FLOAT8)}
    return found if names <= {GRADIENT, OUTPUT} else None


def saved_tensors(gradients: Sequence[Node], tensors: Sequence[str]) -> list[str]:
    """The tensors, of the inputs in their order or the output, that the gradients are made of."""
    names = inputs_of(gradients)
    return [name for name in (*tensors, OUTPUT) if name in names]
