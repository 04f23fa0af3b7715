"""Derivatives by reference: an operator's definition in PyTorch's operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    DispatchKeySet,
    _any_requires_grad,
    _are_functorch_transforms_active,
    _AutoDispatchBelowAutograd,
    _is_any_autocast_enabled,
)
from torch._ops import OpOverload

from extension_cpp.checks import check_dtype, check_shape
from extension_cpp.registration.forward_mode import any_tangent
from extension_cpp.registration.function import autograd_function, below_autograd
from extension_cpp.registration.signature import Signature, is_differentiable, nest, tensors_in


class Reference:
    """What an operator computes, in PyTorch's operations."""

    def __init__(self, signature: Signature, function: Callable[..., Any]) -> None:
        self._signature = signature
        self._function = function

    def pairs(
        self, output: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Iterator[tuple[Tensor | None, Tensor | None]]:
        """Yields each tensor that a call of the operator returned, and that of the reference.

        The second is None where there is nothing to differentiate or compare.

        Args:
            output: what the operator returned.
            args: the call's positional arguments.
            kwargs: its keyword-only ones.

        Raises:
            RuntimeError: If the reference does not return what the operator returns.
        """
        name = self._signature.name
        inputs, keyword_only = self._signature.fill_defaults(args, kwargs)
        with _no_autocast():  # the operator's own rule was applied before
            returned = self._function(*map(_widen, inputs), **keyword_only)
        flat, lengths = self._signature.flatten_output(output)
        expected = self._signature.flatten_reference(returned, lengths)
        for k, (value, like) in enumerate(zip(flat, expected, strict=True)):
            if value is None or (like is None and _may_be_left_out(value)):
                yield value, None
                continue
            label = f"output {k} of the reference"
            check_dtype(name, label, like, _wide(value.dtype))
            check_shape(name, label, like, value.shape)
            yield value, like


# By the name of the operator.
references: dict[str, Reference] = {}


def reference_kernel(
    op: OpOverload, signature: Signature, reference: Reference
) -> Callable[..., Any]:
    """Makes the kernel for the ``Autograd`` key of an operator that has a reference."""
    below = below_autograd(op)

    # Takes the inputs, too: an output requires a gradient wherever one of them does, if only None.
    def forward(ctx: Any, value: list[Tensor], *_: Tensor | None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx._value = value
        return value[0]

    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        needs_expected = ctx.needs_input_grad[1]
        return None, grad if needs_expected else None, *[None] * (len(ctx.needs_input_grad) - 2)

    def jvp(ctx: Any, _: None, tangent: Tensor | None, *__: Tensor | None) -> Tensor | None:
        return torch.zeros_like(ctx._value[0]) if tangent is None else tangent

    apply = autograd_function(op, forward=forward, backward=backward, jvp=jvp)

    def kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        in_transform = _are_functorch_transforms_active()
        has_tangent = any_tangent(args, in_transform)
        with _AutoDispatchBelowAutograd():
            output = below(keyset, *args, **kwargs)
        if not has_tangent and not (torch.is_grad_enabled() and _any_requires_grad(*args)):
            return output
        inputs = list(tensors_in(args))
        taken = list(inputs)
        results: list[Tensor | None] = []
        for value, expected in reference.pairs(output, args, kwargs):
            if value is None or not is_differentiable(value):
                results.append(value)
                continue
            if expected is not None:
                if has_tangent and (expected._is_view() or any(expected is t for t in taken)):
                    expected = expected.clone()  # its tangent, too: results may be written to
                taken.append(expected)
                expected = expected.to(value.dtype)
            values = [value]
            results.append(apply(in_transform, values, expected, *inputs))
            values.clear()  # else the graph refers to itself, and is never freed
        output = nest(results, signature.flatten_output(output)[1])
        return output if signature.returns > 1 else output[0]

    return kernel


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Makes float32 the type that autocast casts to, which no input is narrower than.

    Without autocast's dispatch keys there would be none at this level of differentiation alone:
    torch.func gives the others the keys of its caller.
    """
    dtypes = {}
    if _is_any_autocast_enabled():
        dtypes = {device: torch.get_autocast_dtype(device) for device in ("cpu", "cuda")}
    try:
        for device in dtypes:
            torch.set_autocast_dtype(device, torch.float32)
        yield
    finally:
        for device, dtype in dtypes.items():
            torch.set_autocast_dtype(device, dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _widen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_widen(element) for element in value]
    return value.to(_wide(value.dtype)) if isinstance(value, Tensor) else value


def _may_be_left_out(value: Tensor) -> bool:
    return not is_differentiable(value) or value.numel() == 0
