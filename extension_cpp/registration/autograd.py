"""Derivatives, for every kind of differentiation.

:func:`register_autograd` is a drop-in for :func:`torch.library.register_autograd`. That one serves
``loss.backward()`` alone: with it ``torch.func.grad`` raises, and ``torch.func.jvp`` and
forward-mode AD give zeros in silence. Here the same two functions, ``setup_context`` and
``backward``, serve every transform, nested in any way, eager or compiled.

How it works. PyTorch calls an operator's kernel for the ``Autograd`` dispatch key once per level of
differentiation: once for ``loss.backward()`` and ``fwAD.dual_level()``, and once more for each
enclosing ``torch.func.grad`` or ``torch.func.jvp``, innermost first, with tensors wrapped for that
level. The kernel that is registered here does the same at each of them:

1. No input requires a gradient or carries a tangent: it calls the operator below autograd, which is
   the next level or, after the last one, the device.
2. Otherwise it applies an autograd function whose forward is that same call. Within a transform
   this is one of PyTorch's single-level functions, because the kernel is called for the other
   levels anyway.
3. Reverse mode is ``backward``. Forward mode follows from it: ``backward`` maps gradients ``u`` of
   the outputs to ``J^T u``, which is linear in ``u``, so that its own vector-Jacobian product with
   the inputs' tangents ``t`` is ``J t``. All this asks for is a differentiable ``backward``.

With a ``reference`` in place of a formula, 2 and 3 are another call: that of the reference, whose
operations record the derivative of this level, and of all others, by themselves. Each output of the
operator then takes over the history and the tangent of the reference's.
"""

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
    _is_fwd_grad_enabled,
)
from torch._ops import OpOverload
from torch.autograd import forward_ad as fwAD
from torch.autograd.function import Function

from extension_cpp.registration.direct import call_directly, without_autograd
from extension_cpp.registration.dispatch import implement, lookup
from extension_cpp.registration.forward_mode import (
    LinearContext,
    any_tangent,
    no_saved_tensors_hooks,
    transpose,
    unpack_dual,
)
from extension_cpp.registration.function import autograd_function, below_autograd, function_class
from extension_cpp.registration.reference import Reference, reference_kernel, references
from extension_cpp.registration.signature import Lengths, Signature, nest


def register_autograd(
    op: str | OpOverload,
    backward: Callable[..., Any] | None = None,
    *,
    setup_context: Callable[..., None] | None = None,
    reference: Callable[..., Any] | None = None,
) -> None:
    """Registers the derivative of an operator, for every kind of differentiation.

    Either by formula: a drop-in for :func:`torch.library.register_autograd`, with the same
    conventions. Double backward, forward-mode AD and ``torch.func`` are right where ``backward`` is
    differentiable: made of PyTorch's operations and of operators that are themselves registered
    here. Save inputs and outputs only. A tensor that ``setup_context`` computes itself counts as a
    constant in double backward, as in any ``torch.autograd.Function``.

    Or by ``reference``: the operator's definition in PyTorch's operations, whose derivatives, of
    every order, become those of the operator. The values stay the kernel's. A call of which a
    derivative is wanted costs the reference's computation, too, and what PyTorch saves for the
    reference's backward. So a formula is for the operators that a model calls, and a reference for
    those that ``backward`` calls, of which derivatives are wanted for second ones and in forward
    mode alone::

        register_autograd(
            "extension_cpp::square_backward",
            reference=lambda grad_output, input: 2 * grad_output * input,
        )

    Args:
        op: The operator, ``"namespace::name"``. It neither mutates nor aliases its arguments.
        backward: ``backward(ctx, *grads)`` receives one gradient per output (a list for a
            ``Tensor[]``) and returns one per positional argument: a tensor, None, or a list of
            these for a ``Tensor[]``.
        setup_context: ``setup_context(ctx, inputs, output)``, or ``setup_context(ctx, inputs,
            keyword_only_inputs, output)`` where the schema has keyword-only arguments. ``inputs``
            and ``ctx.needs_input_grad`` have one entry per positional argument of the schema,
            those left at their defaults included.
        reference: ``reference(*inputs, **keyword_only_inputs)`` returns what the operator returns,
            or None for an output that is None, an integer or empty. Half types come as float32, in
            which kernels compute, and what it returns for outputs of half types is to be float32.

    Raises:
        RuntimeError: If the operator mutates or aliases an argument, or returns nothing. A call
            raises it where the reference does not return what the operator returns.
        NotImplementedError: If a keyword-only argument is a tensor.
        TypeError: If there are both a formula and a reference, or neither.
    """
    overload = lookup(op)
    signature = Signature(overload)
    signature.require_functional()
    if reference is None and backward is not None:
        implement_autograd(overload, signature, backward, setup_context)
        references.pop(signature.name, None)
    elif reference is not None and backward is None and setup_context is None:
        found = references[signature.name] = Reference(signature, reference)
        implement(overload, "Autograd", reference_kernel(overload, signature, found))
        call_directly(overload)
    else:
        raise TypeError(
            f"{signature.name}: register_autograd takes either backward, with or without "
            "setup_context, or reference alone"
        )


def implement_autograd(
    op: OpOverload,
    signature: Signature,
    backward_formula: Callable[..., Any],
    setup_context: Callable[..., None] | None,
) -> None:
    """Registers a formula for calls of every kind."""
    implement(op, "Autograd", _autograd_kernel(op, signature, backward_formula, setup_context))
    call_directly(op, _record_directly(op, signature, backward_formula, setup_context))


def _record_directly(
    op: OpOverload,
    signature: Signature,
    backward_formula: Callable[..., Any],
    setup_context: Callable[..., None] | None,
) -> Callable[..., Any] | None:
    """What :func:`call_directly` wants, where the schema is simple enough."""
    if not signature.is_simple:
        return None
    call = op.overloadpacket.op

    def forward(ctx: Any, *args: Any) -> Any:
        output = without_autograd(call, args)
        if setup_context is not None:
            setup_context(ctx=ctx, inputs=args, output=output)
        return output

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        input_grads = backward_formula(ctx, *grads)
        return signature.flatten_grads(input_grads, signature.positional, None)

    apply = function_class(op, Function, {"forward": forward, "backward": backward}).apply

    def record(args: tuple[Any, ...]) -> Any:
        inputs = signature.as_dispatched(args)
        return NotImplemented if inputs is None else apply(*inputs)

    return record


def _autograd_kernel(
    op: OpOverload,
    signature: Signature,
    backward_formula: Callable[..., Any],
    setup_context: Callable[..., None] | None,
) -> Callable[..., Any]:
    """Makes the kernel for the ``Autograd`` key that the top of this file describes."""
    below = below_autograd(op)

    def save(ctx: Any, call: _Call, args: Sequence[Any], output: Any) -> None:
        if setup_context is None:
            return
        inputs, keyword_only = signature.fill_defaults(args, call.kwargs)
        if keyword_only:
            setup_context(ctx=ctx, inputs=inputs, keyword_only_inputs=keyword_only, output=output)
        else:
            setup_context(ctx=ctx, inputs=inputs, output=output)

    def run(ctx: Any, call: _Call, args: Sequence[Any]) -> Any:
        with _AutoDispatchBelowAutograd():
            output = below(call.keyset, *args, **call.kwargs)
            save(ctx, call, args, output)
        return output

    def forward(ctx: Any, call: _Call, *flat: Any) -> tuple[Any, ...]:
        args = nest(flat, call.lengths)
        # By the schema, and for good: several threads may run the backward of one graph at a time.
        needs_input_grad = nest(ctx.needs_input_grad[1:], call.lengths)
        ctx.needs_input_grad = signature.pad(needs_input_grad, False)
        if call.in_transform:
            # PyTorch turns both modes off here, for this level; the levels below need them.
            with call.modes():
                output = run(ctx, call, args)
        else:
            output = run(ctx, call, args)
        flat_output, call.output_lengths = signature.flatten_output(output)
        ctx._given = len(flat)
        ctx._lengths, ctx._output_lengths = call.lengths, call.output_lengths
        if call.has_tangent:
            ctx._call, call.inputs, call.output = call, flat, output
        return flat_output

    def backward(ctx: Any, *flat_grads: Any) -> tuple[Any, ...]:
        grads = nest(flat_grads, ctx._output_lengths)
        input_grads = backward_formula(ctx, *grads)
        return None, *signature.flatten_grads(input_grads, ctx._given, ctx._lengths)

    def jvp(ctx: Any, *_: Any) -> tuple[Tensor | None, ...]:
        call: _Call = ctx._call
        with call.modes(), torch.enable_grad(), no_saved_tensors_hooks():
            primals, tangents = zip(*map(unpack_dual, call.inputs), strict=True)
            has_tangent = [tangent is not None for tangent in tangents]
            linear = LinearContext(signature.pad(nest(has_tangent, call.lengths), False))
            save(linear, call, nest(primals, call.lengths), call.output)
            seeds = [linear._seed(output) for output in signature.flatten_output(call.output)[0]]
            input_grads = signature.flatten_grads(
                backward_formula(linear, *nest(seeds, call.output_lengths)),
                len(tangents),
                call.lengths,
            )
            return transpose(
                signature.name, seeds, input_grads, tangents, create_graph=call.grad_mode
            )

    apply = autograd_function(op, forward=forward, backward=backward, jvp=jvp)

    def kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        in_transform = _are_functorch_transforms_active()
        has_tangent = any_tangent(args, in_transform)
        if not has_tangent and not (torch.is_grad_enabled() and _any_requires_grad(*args)):
            with _AutoDispatchBelowAutograd():
                return below(keyset, *args, **kwargs)
        flat, lengths = signature.flatten_inputs(args)
        call = _Call(keyset, kwargs, lengths, in_transform, has_tangent)
        flat_output = apply(in_transform, call, *flat)
        call.inputs = call.output = None  # else the graph refers to itself, and is never freed
        output = nest(flat_output, call.output_lengths)
        return output if signature.returns > 1 else output[0]

    return kernel


class _Call:
    """One call of an operator at one level of differentiation."""

    # Kept for forward mode: the inputs, flat, and the output, as the operator returned it.
    inputs: Any = None
    output: Any = None
    output_lengths: Lengths = None

    def __init__(
        self,
        keyset: DispatchKeySet,
        kwargs: dict[str, Any],
        lengths: Lengths,
        in_transform: bool,
        has_tangent: bool,
    ) -> None:
        self.keyset = keyset
        self.kwargs = kwargs
        self.lengths = lengths
        self.in_transform = in_transform
        self.has_tangent = has_tangent
        self.grad_mode = torch.is_grad_enabled()
        self.fwd_grad_mode = _is_fwd_grad_enabled()

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Differentiates as the caller does."""
        with (
            torch.set_grad_enabled(self.grad_mode),
            fwAD._set_fwd_grad_enabled(self.fwd_grad_mode),
        ):
            yield
