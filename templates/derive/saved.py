"""What the backward keeps of the forward."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .graph import FLOAT8, GRADIENT, INTEGERS, Node, const, in_order, inputs_of, make, replaced
from .rounding import are_steady

OUTPUT = "output"

# What results are made by that the backward may be given instead of what they are made of.
SUMS = ("add", "sub")


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


def on_results(
    results: Mapping[str, Node],
    gradients: Sequence[Node],
    tensors: Collection[str],
    wide: Collection[str],
) -> tuple[Node, ...] | None:
    """The gradients of results that are sums in place of the summands, where that is less to read.

    Args:
        results: that have a value for each element and may have a gradient, and what they are to be
            called.
        gradients: of the inputs.
        tensors: those with a value for each element.
        wide: the results that are as they were computed. Others are rounded where the tensors are
            of half types.
    """
    read = inputs_of(gradients) & {*tensors}
    exact = [name for name in results if name in wide]
    # Of those that are equal one that is exact.
    for names in ([*(n for n in results if n not in wide), *exact], exact):
        leaves = {n: make("tensor", value=n) for n in names if results[n].op in SUMS}
        found = replaced(gradients, {results[n]: leaf for n, leaf in leaves.items()})
        is_less = len(inputs_of(found) & {*tensors, *leaves}) < len(read)
        if is_less and are_steady(found, [leaf for n, leaf in leaves.items() if n not in wide]):
            return found
    return None


def saved_tensors(gradients: Sequence[Node], tensors: Sequence[str]) -> list[str]:
    """The tensors, of the inputs or results in their order, that the gradients are made of."""
    names = inputs_of(gradients)
    return [name for name in tensors if name in names]
