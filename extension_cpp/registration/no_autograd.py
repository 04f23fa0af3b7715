"""Operators without a derivative formula: an error where one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from extension_cpp.registration.autograd import implement_autograd, register_autograd
from extension_cpp.registration.dispatch import library, lookup
from extension_cpp.registration.forward_mode import LinearContext
from extension_cpp.registration.sharding import register_sharding
from extension_cpp.registration.signature import Signature, is_differentiable, nest, tensors_in


def register_no_autograd(op: str | OpOverload) -> None:
    """Declares that a functional operator has no derivative formula.

    Calls work, on tensors that require gradients too. A gradient that is asked for in backward (or
    by ``torch.func.grad`` and its like) raises a RuntimeError that names the operator, and so does
    a call with a tangent.

    Args:
        op: The operator, ``"namespace::name"``. It neither mutates nor aliases its arguments.

    Raises:
        RuntimeError: If the operator mutates or aliases an argument, or returns nothing.
        NotImplementedError: If a keyword-only argument is a tensor.
    """
    overload = lookup(op)
    signature = Signature(overload)
    signature.require_functional()
    no_formula = (
        f"{signature.name}: a derivative was asked for, but this operator has no derivative formula"
    )
    message = (
        f"{no_formula}. Detach its inputs, call it under torch.no_grad(), or give it a formula "
        "with register_autograd"
    )
    forward_message = (  # torch.no_grad() turns off reverse mode alone
        f"{no_formula}. Detach its inputs, or give it a formula with register_autograd"
    )

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any, **keyword_only: Any) -> None:
        ctx.set_materialize_grads(False)
        flat, ctx.lengths = signature.flatten_inputs(inputs)
        ctx.sizes = sizes_of(flat)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if isinstance(ctx, LinearContext):  # forward mode: there is no later to put it off to
            raise RuntimeError(forward_message)
        return nest(refuse(grads, ctx.sizes, message), ctx.lengths)

    implement_autograd(overload, signature, backward, setup_context)


# An operator, so that torch.compile, which traces backward before anyone asks for a gradient, puts
# the error into the graph instead of running into it. It looks at the gradient: for outputs that a
# loss does not depend on, compiled graphs get zeros, and of zeros nothing is lost.
_refusal = library(f"{__name__.partition('.')[0]}_registration")
_refusal.define(
    "refuse_gradient(Tensor[] grads, SymInt[] size, str message) -> Tensor",
    tags=(torch.Tag.cudagraph_unsafe,),
)


@torch.library.impl(_refusal, "refuse_gradient", "CompositeExplicitAutograd")
def _refuse_gradient(grads: Sequence[Tensor], size: Sequence[int], message: str) -> Tensor:
    if any(grad.is_meta or grad.any() for grad in grads):
        raise RuntimeError(message)
    return grads[0].new_zeros(size)


@torch.library.register_fake(f"{_refusal.ns}::refuse_gradient", lib=_refusal)
def _refuse_gradient_fake(grads: Sequence[Tensor], size: Sequence[int], message: str) -> Tensor:
    return grads[0].new_empty(size)


@torch.library.register_vmap(f"{_refusal.ns}::refuse_gradient", lib=_refusal)
def _refuse_gradient_vmap(
    info: Any, in_dims: Any, grads: Sequence[Tensor], size: Sequence[int], message: str
) -> tuple[Tensor, None]:
    return getattr(torch.ops, _refusal.ns).refuse_gradient(grads, size, message), None


register_sharding(f"{_refusal.ns}::refuse_gradient", lambda grads, size, message: ())


def _refuse_gradient_setup_context(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    grads, _, ctx.message = inputs
    ctx.sizes = sizes_of(grads)


def _refuse_gradient_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return list(refuse([grad], ctx.sizes, ctx.message)), None, None


register_autograd(
    f"{_refusal.ns}::refuse_gradient",
    _refuse_gradient_backward,
    setup_context=_refuse_gradient_setup_context,
)


def refuse(
    grads: Iterable[Any], sizes: Sequence[Sequence[int] | None], message: str
) -> tuple[Tensor | None, ...]:
    """Returns gradients of these sizes whose computation raises, unless what came in is zero."""
    given = list(tensors_in(grads))
    if not given:
        return (None,) * len(sizes)
    refuse = getattr(torch.ops, _refusal.ns).refuse_gradient
    return tuple(None if size is None else refuse(given, size, message) for size in sizes)


def sizes_of(values: Iterable[Any]) -> list[Sequence[int] | None]:
    """The shapes of what can have a gradient."""
    return [
        value.shape if isinstance(value, Tensor) and is_differentiable(value) else None
        for value in values
    ]
