"""Operators that write to their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    DispatchKeySet,
    _after_ADInplaceOrView_keyset,
    _after_autograd_keyset,
    _any_requires_grad,
    _are_functorch_transforms_active,
    _AutoDispatchBelowADInplaceOrView,
    _AutoDispatchBelowAutograd,
    _len_torch_dispatch_stack,
)
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version

from extension_cpp.registration.direct import call_directly
from extension_cpp.registration.dispatch import implement, lookup
from extension_cpp.registration.forward_mode import any_tangent
from extension_cpp.registration.function import autograd_function
from extension_cpp.registration.inductor import LoweringOfWrites
from extension_cpp.registration.no_autograd import refuse, sizes_of
from extension_cpp.registration.signature import Signature, is_differentiable, tensors_in


def register_mutation(op: str | OpOverload) -> None:
    """Makes an operator that writes to its arguments, and returns nothing, safe under transforms.

    A write bumps the tensor's version counter, so that backward notices when a saved tensor was
    overwritten. The operator has no derivative: a gradient through what it wrote raises a
    RuntimeError in backward, unless it is zero everywhere; a call with a tangent, or on what
    ``torch.func.grad`` and its like differentiate, raises one at once. Other calls work, on tensors
    that require gradients too; but a leaf that requires a gradient and was written to in grad mode
    raises in every backward that reaches it. Update parameters under ``torch.no_grad()``. A tensor
    of ``torch.inference_mode()`` has no version, and may be written to outside of it, too.

    Under ``torch.compile`` the call with such a leaf raises; and the operator may be given a copy
    of an argument that shares memory with what it writes to: its result must not depend on that.
    A clone of a graph's input, or a view of it, that is saved for backward and taken before a write
    to that input, is the value after the write under inductor, for PyTorch's own writes as well:
    write to a clone, and copy it back outside of the graph.

    Args:
        op: The operator, ``"namespace::name"``. Its schema marks what it writes to as
            ``Tensor(a!)`` and ends in ``-> ()``.

    Raises:
        RuntimeError: If the schema mutates nothing or returns something.
    """
    overload = lookup(op)
    signature = Signature(overload)
    signature.require_mutation()
    no_derivative = (
        f"{signature.name}: a derivative was asked for, but this operator writes to its arguments "
        "and has none"
    )
    message = f"{no_derivative}. Detach its inputs or call it under torch.no_grad()"
    # torch.no_grad() turns off reverse mode alone.
    forward_message = f"{no_derivative}. Detach its inputs"
    lowering = LoweringOfWrites(overload, signature)

    def forward(ctx: Any, written: Tensor, *inputs: Any) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.sizes = sizes_of((written, *inputs))
        ctx.mark_dirty(written)
        return written

    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        return refuse([grad], ctx.sizes, message)

    def leaf_hook(grad: Tensor) -> Tensor | None:
        return refuse([grad], [grad.shape], message)[0]

    give_history = autograd_function(overload, forward=forward, backward=backward)

    def autograd_kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> None:
        tensors = list(tensors_in((*args, *kwargs.values())))
        in_transform = _are_functorch_transforms_active()
        needs_grad = torch.is_grad_enabled() and _any_requires_grad(*tensors)
        # Within a transform what is written to may come from outside, and refuse nothing later.
        if needs_grad and in_transform:
            raise RuntimeError(message)
        if any_tangent(tensors, in_transform):
            raise RuntimeError(forward_message)
        written = list(signature.written(args, kwargs)) if needs_grad else []
        leaves = [base for base in map(_base, written) if base.is_leaf and base.requires_grad]
        if leaves and _is_traced_by_dynamo(leaves):
            # A graph can give its inputs no hooks.
            raise RuntimeError(
                f"{signature.name}: torch.compile would write to a leaf that requires a gradient "
                "without a trace. Call it under torch.no_grad()"
            )
        with _AutoDispatchBelowAutograd():
            overload.redispatch(keyset & _after_autograd_keyset, *args, **kwargs)
        for tensor in written:
            base = _base(tensor)
            if base.is_leaf and base.requires_grad:  # a leaf can have no history
                if leaf_hook not in (base._backward_hooks or {}).values():
                    base.register_hook(leaf_hook)
            elif is_differentiable(tensor):
                # One at a time: a function with several outputs may not write to views.
                give_history(False, tensor, *tensors)

    def version_kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> None:
        if _len_torch_dispatch_stack() > 0:
            lowering.install()
        with _AutoDispatchBelowADInplaceOrView():
            overload.redispatch(keyset & _after_ADInplaceOrView_keyset, *args, **kwargs)
        for tensor in signature.written(args, kwargs):
            if not tensor.is_inference():
                increment_version(tensor)

    def negative_kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> None:
        # PyTorch's own, which resolves lazily negated tensors, fails where nothing is returned.
        inputs, keyword_only = signature.fill_defaults(args, kwargs)
        resolved_inputs, resolved_keyword_only = torch.utils._pytree.tree_map_only(
            Tensor, torch.resolve_neg, (inputs, keyword_only)
        )
        overload(*resolved_inputs, **resolved_keyword_only)
        for tensor, resolved in zip(
            tensors_in(signature.written_values(inputs, keyword_only)),
            tensors_in(signature.written_values(resolved_inputs, resolved_keyword_only)),
            strict=True,
        ):
            if tensor is not resolved:
                tensor.copy_(resolved)

    implement(overload, "Autograd", autograd_kernel)
    implement(overload, "ADInplaceOrView", version_kernel)
    implement(overload, "Negative", negative_kernel)
    call_directly(overload, written=signature.written_positions)


def _base(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base


def _is_traced_by_dynamo(tensors: Iterable[Tensor]) -> bool:
    # Other tracers have no such context, or come later, with tensors that are no FakeTensor.
    return TracingContext.try_get() is not None and any(isinstance(t, FakeTensor) for t in tensors)
