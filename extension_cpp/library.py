"""Registers what an operator does under autograd, vmap and autocast.

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

Where an operator has no formula, :func:`register_no_autograd` and :func:`register_mutation` turn
the derivative that would be lost into an error that names the operator.

This is the one file of the package whose workings rest on private parts of PyTorch: what it imports
from ``torch._C``, ``torch._functorch``, ``torch._ops`` and ``torch.autograd.function``, and
``torch._VF``. PyTorch's own ``torch.library`` and ``torch.func`` are built on these names, which
are the same from 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C import (
    DispatchKey,
    DispatchKeySet,
    _after_ADInplaceOrView_keyset,
    _after_autograd_keyset,
    _any_requires_grad,
    _are_functorch_transforms_active,
    _AutoDispatchBelowADInplaceOrView,
    _AutoDispatchBelowAutograd,
    _ExcludeDispatchKeyGuard,
    _is_fwd_grad_enabled,
    _len_torch_dispatch_stack,
)
from torch._functorch.utils import enable_single_level_autograd_function
from torch._ops import OpOverload
from torch.autograd import forward_ad as fwAD
from torch.autograd.function import Function, FunctionCtx, _SingleLevelFunction
from torch.autograd.graph import increment_version
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

__all__ = [
    "register_autocast",
    "register_autograd",
    "register_mutation",
    "register_no_autograd",
    "register_vmap",
]


def register_autograd(
    op: str | OpOverload,
    backward: Callable[..., Any],
    *,
    setup_context: Callable[..., None] | None = None,
) -> None:
    """Registers the backward formula of an operator, for every kind of differentiation.

    A drop-in for :func:`torch.library.register_autograd`, with the same conventions. Double
    backward, forward-mode AD and ``torch.func`` are right where ``backward`` is differentiable:
    made of PyTorch's operations and of operators that are themselves registered here.

    Save inputs and outputs only. A tensor that ``setup_context`` computes itself counts as a
    constant in double backward, as in any ``torch.autograd.Function``.

    Args:
        op: The operator, ``"namespace::name"``. It neither mutates nor aliases its arguments.
        backward: ``backward(ctx, *grads)`` receives one gradient per output (a list for a
            ``Tensor[]``) and returns one per positional argument: a tensor, None, or a list of
            these for a ``Tensor[]``.
        setup_context: ``setup_context(ctx, inputs, output)``, or ``setup_context(ctx, inputs,
            keyword_only_inputs, output)`` where the schema has keyword-only arguments. ``inputs``
            and ``ctx.needs_input_grad`` have one entry per positional argument of the schema,
            those left at their defaults included.

    Raises:
        RuntimeError: If the operator mutates or aliases an argument, or returns nothing.
        NotImplementedError: If a keyword-only argument is a tensor.
    """
    overload = _lookup(op)
    signature = _Signature(overload)
    signature.require_functional()
    kernel = _autograd_kernel(overload, signature, backward, setup_context)
    _implement(overload, "Autograd", kernel)


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
    overload = _lookup(op)
    signature = _Signature(overload)
    signature.require_functional()
    message = (
        f"{signature.name}: a derivative was asked for, but this operator has no derivative "
        "formula. Detach its inputs, call it under torch.no_grad(), or give it a formula with "
        "register_autograd"
    )

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any, **keyword_only: Any) -> None:
        ctx.set_materialize_grads(False)
        flat, ctx.lengths = signature.flatten_inputs(inputs)
        ctx.sizes = _sizes(flat)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if isinstance(ctx, _LinearContext):  # forward mode: there is no later to put it off to
            raise RuntimeError(message)
        return _nest(_refuse(grads, ctx.sizes, message), ctx.lengths)

    kernel = _autograd_kernel(overload, signature, backward, setup_context)
    _implement(overload, "Autograd", kernel)


def register_mutation(op: str | OpOverload) -> None:
    """Makes an operator that writes to its arguments, and returns nothing, safe under autograd.

    A write bumps the tensor's version counter, so that backward notices when a saved tensor was
    overwritten. The operator has no derivative: a gradient through what it wrote raises a
    RuntimeError in backward; a call with a tangent, or on what ``torch.func.grad`` and its like
    differentiate, raises one at once. Other calls work, on tensors that require gradients too; but
    a leaf that requires a gradient and was written to in grad mode raises in every backward that
    reaches it. Update parameters under ``torch.no_grad()``.

    Args:
        op: The operator, ``"namespace::name"``. Its schema marks what it writes to as
            ``Tensor(a!)`` and ends in ``-> ()``.

    Raises:
        RuntimeError: If the schema mutates nothing or returns something.
    """
    overload = _lookup(op)
    signature = _Signature(overload)
    signature.require_mutation()
    message = (
        f"{signature.name}: a derivative was asked for, but this operator writes to its arguments "
        "and has none. Detach its inputs or call it under torch.no_grad()"
    )

    def forward(ctx: Any, written: Tensor, *inputs: Any) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.sizes = _sizes((written, *inputs))
        ctx.mark_dirty(written)
        return written

    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        return _refuse([grad], ctx.sizes, message)

    def leaf_hook(grad: Tensor) -> Tensor | None:
        return _refuse([grad], [grad.shape], message)[0]

    give_history = _autograd_function(overload, forward=forward, backward=backward)

    def autograd_kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> None:
        tensors = list(_tensors((*args, *kwargs.values())))
        in_transform = _are_functorch_transforms_active()
        needs_grad = torch.is_grad_enabled() and _any_requires_grad(*tensors)
        # Within a transform what is written to may come from outside, and refuse nothing later.
        if (needs_grad and in_transform) or _has_tangent(tensors, in_transform):
            raise RuntimeError(message)
        with _AutoDispatchBelowAutograd():
            overload.redispatch(keyset & _after_autograd_keyset, *args, **kwargs)
        if not needs_grad:
            return
        for tensor in signature.written(args, kwargs):
            base = tensor if tensor._base is None else tensor._base
            if base.is_leaf and base.requires_grad:  # a leaf can have no history
                if leaf_hook not in (base._backward_hooks or {}).values():
                    base.register_hook(leaf_hook)
            elif _is_differentiable(tensor):
                # One at a time: a function with several outputs may not write to views.
                give_history(False, tensor, *tensors)

    def version_kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> None:
        with _AutoDispatchBelowADInplaceOrView():
            overload.redispatch(keyset & _after_ADInplaceOrView_keyset, *args, **kwargs)
        for tensor in signature.written(args, kwargs):
            if not tensor.is_inference():
                increment_version(tensor)

    _implement(overload, "Autograd", autograd_kernel)
    _implement(overload, "ADInplaceOrView", version_kernel)


def register_vmap(op: str | OpOverload, func: Callable[..., tuple[Any, Any]]) -> None:
    """Registers the batching rule of an operator: what ``torch.vmap`` calls instead of looping.

    As :func:`torch.library.register_vmap`, except that ``in_dims`` and ``args`` have one entry per
    positional argument of the schema, those left at their defaults included.

    Args:
        op: The operator, ``"namespace::name"``.
        func: ``func(info, in_dims, *args)``, which receives keyword-only arguments as keywords and
            returns ``(output, out_dims)``. It may call the operator, on the batch as a whole.

    Raises:
        NotImplementedError: If a keyword-only argument is a tensor.
    """
    overload = _lookup(op)
    signature = _Signature(overload)

    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        inputs, keyword_only = signature.fill_defaults(args, kwargs)
        return func(info, signature.pad(in_dims, None), *inputs, **keyword_only)

    torch.library.register_vmap(signature.name, rule, lib=_library(overload.namespace))


def register_autocast(
    op: str | OpOverload,
    policy: Literal["lower_precision", "float32", "promote"],
    *,
    devices: Sequence[str] = ("cpu", "cuda"),
) -> None:
    """Registers what an operator does to its inputs under ``torch.autocast``.

    As with PyTorch's own operators, this concerns the floating-point tensors on autocast's device
    that are not float64.

    Args:
        op: The operator, ``"namespace::name"``.
        policy: ``"lower_precision"`` casts them to autocast's dtype, ``"float32"`` to float32,
            ``"promote"`` to the widest of their dtypes.
        devices: The device types it holds for. On others inputs are left as they are, which is what
            some of PyTorch's own operators do on the CPU.

    Raises:
        ValueError: If there is no such policy.
    """
    overload = _lookup(op)
    if policy not in ("lower_precision", "float32", "promote"):
        raise ValueError(
            f"{overload.name()}: the autocast policy must be 'lower_precision', 'float32' or "
            f"'promote', got {policy!r}"
        )
    for device_type in devices:
        kernel = _autocast_kernel(overload, policy, device_type)
        _implement(overload, f"Autocast{device_type.upper()}", kernel)


def _autograd_kernel(
    op: OpOverload,
    signature: _Signature,
    backward_formula: Callable[..., Any],
    setup_context: Callable[..., None] | None,
) -> Callable[..., Any]:
    """Makes the kernel for the ``Autograd`` key that the top of this file describes."""
    redispatch = op._handle.redispatch_boxed

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
            output = redispatch(call.keyset & _after_autograd_keyset, *args, **call.kwargs)
            save(ctx, call, args, output)
        return output

    def forward(ctx: Any, call: _Call, *flat: Any) -> tuple[Any, ...]:
        args = _nest(flat, call.lengths)
        # By the schema, and for good: several threads may run the backward of one graph at a time.
        needs_input_grad = _nest(ctx.needs_input_grad[1:], call.lengths)
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
        grads = _nest(flat_grads, ctx._output_lengths)
        input_grads = backward_formula(ctx, *grads)
        return None, *signature.flatten_grads(input_grads, ctx._given, ctx._lengths)

    def jvp(ctx: Any, *_: Any) -> tuple[Tensor | None, ...]:
        call: _Call = ctx._call
        with call.modes(), torch.enable_grad():
            primals, tangents = zip(*map(_unpack_dual, call.inputs), strict=True)
            has_tangent = [tangent is not None for tangent in tangents]
            linear = _LinearContext(signature.pad(_nest(has_tangent, call.lengths), False))
            save(linear, call, _nest(primals, call.lengths), call.output)
            seeds = [linear._seed(output) for output in signature.flatten_output(call.output)[0]]
            input_grads = signature.flatten_grads(
                backward_formula(linear, *_nest(seeds, call.output_lengths)),
                len(tangents),
                call.lengths,
            )
            return _transpose(
                signature.name, seeds, input_grads, tangents, create_graph=call.grad_mode
            )

    apply = _autograd_function(op, forward=forward, backward=backward, jvp=jvp)

    def kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        in_transform = _are_functorch_transforms_active()
        has_tangent = _has_tangent(args, in_transform)
        if not has_tangent and not (torch.is_grad_enabled() and _any_requires_grad(*args)):
            with _AutoDispatchBelowAutograd():
                return redispatch(keyset & _after_autograd_keyset, *args, **kwargs)
        flat, lengths = signature.flatten_inputs(args)
        call = _Call(keyset, kwargs, lengths, in_transform, has_tangent)
        flat_output = apply(in_transform, call, *flat)
        call.inputs = call.output = None  # else the graph refers to itself, and is never freed
        output = _nest(flat_output, call.output_lengths)
        return output if signature.returns > 1 else output[0]

    return kernel


class _Call:
    """One call of an operator at one level of differentiation."""

    # Kept for forward mode: the inputs, flat, and the output, as the operator returned it.
    inputs: Any = None
    output: Any = None
    output_lengths: _Lengths = None

    def __init__(
        self,
        keyset: DispatchKeySet,
        kwargs: dict[str, Any],
        lengths: _Lengths,
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


class _LinearContext(FunctionCtx):
    """The ``ctx`` of a backward formula that is called as a linear function, for forward mode.

    What is saved keeps its history, because the tangents that come out are differentiable too.
    """

    def __init__(self, needs_input_grad: tuple[Any, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self._materialize_grads = True
        self._non_differentiable: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *args: Tensor) -> None:
        self._non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        self._materialize_grads = value

    def _seed(self, output: Any) -> Tensor | None:
        """Makes the gradient of an output at which the formula is called; its value is no matter.

        It requires a gradient itself if the output is differentiable.
        """
        if not isinstance(output, Tensor):
            return None
        if _is_differentiable(output) and all(output is not t for t in self._non_differentiable):
            return torch.zeros_like(output, requires_grad=True)
        return torch.zeros_like(output) if self._materialize_grads else None


def _transpose(
    name: str,
    seeds: Sequence[Tensor | None],
    input_grads: Sequence[Tensor | None],
    tangents: Sequence[Tensor | None],
    *,
    create_graph: bool,
) -> tuple[Tensor | None, ...]:
    """Returns the outputs' tangents, given input gradients that are linear in the ``seeds``."""
    variables = [seed for seed in seeds if seed is not None and seed.requires_grad]
    pairs = [
        # Autograd sums a gradient that is larger than its input; the transpose of that expands.
        (grad, tangent.expand(grad.shape))
        for grad, tangent in zip(input_grads, tangents, strict=True)
        if grad is not None and tangent is not None
    ]
    results: Sequence[Tensor | None] = [None] * len(variables)
    if pairs and variables:
        if all(grad.requires_grad for grad, _ in pairs):
            results = torch.autograd.grad(
                [grad for grad, _ in pairs],
                variables,
                [tangent for _, tangent in pairs],
                create_graph=create_graph,
                allow_unused=True,
            )
        if all(result is None for result in results):
            raise RuntimeError(
                f"{name}: forward-mode AD needs a backward formula that is differentiable. Make "
                "it of PyTorch's operations and of operators that have a formula themselves, and "
                "let it return None, not zeros, for an input that does not matter"
            )
    found = iter(results)
    return tuple(
        None if seed is None or not seed.requires_grad else _or_zeros(next(found), seed)
        for seed in seeds
    )


def _or_zeros(tangent: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if tangent is None else tangent


def _autograd_function(
    op: OpOverload,
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    jvp: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Returns ``apply(in_transform, *args)`` of an autograd function that has these parts."""
    name = "".join(word.capitalize() for word in op._opname.split("_"))  # seen in grad_fn
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    if jvp is not None:
        members["jvp"] = staticmethod(jvp)
    ordinary: Any = type(name, (Function,), dict(members))
    single_level: Any = type(name, (_SingleLevelFunction,), dict(members))

    def apply(in_transform: bool, *args: Any) -> Any:
        if not in_transform:
            return ordinary.apply(*args)
        with enable_single_level_autograd_function():
            return single_level.apply(*args)

    return apply


# Whether torch.compile has traced a call with tangents. The graphs that it makes enter a dual level
# without setting forward_ad's variable, so that from then on the tensors have to be asked.
_graphs_have_tangents = False


def _has_tangent(values: Iterable[Any], in_transform: bool) -> bool:
    """Whether a tensor carries a tangent at this level. To ask is slow: only where one may."""
    global _graphs_have_tangents
    if not (in_transform or fwAD._current_level >= 0 or _graphs_have_tangents):
        return False
    tracing = _len_torch_dispatch_stack() > 0
    # The question is not part of what is traced.
    with disable_proxy_modes_tracing() if tracing else contextlib.nullcontext():
        found = any(_unpack_dual(tensor)[1] is not None for tensor in _tensors(values))
    _graphs_have_tangents |= found and tracing
    return found


def _unpack_dual(value: Any) -> tuple[Any, Tensor | None]:
    """Returns a tensor's primal and tangent; the primal keeps its history and its other levels."""
    if not isinstance(value, Tensor):
        return value, None
    # fwAD.unpack_dual goes by forward_ad's variable.
    primal, tangent = torch._VF._unpack_dual(value, level=0)
    return primal, tangent


def _is_differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


_Lengths = Sequence[int | None] | None
"""Where lists of tensors were before they were spread: the length of each, None for other values.

None as a whole if there were none.
"""


class _Signature:
    """What has to be known of an operator's schema.

    The dispatcher strips trailing arguments that equal their defaults, and autograd functions see
    only tensors that are arguments or results themselves. Hence arguments are filled up for users,
    and a ``Tensor[]`` is spread for autograd functions; values are called flat then.
    """

    def __init__(self, op: OpOverload) -> None:
        schema = op._schema
        arguments, returns = schema.arguments, schema.returns
        positional = [argument for argument in arguments if not argument.kwarg_only]
        keyword_only = [argument for argument in arguments if argument.kwarg_only]
        self.name = op.name()
        self.returns = len(returns)
        self._schema = str(schema)
        self._aliases = any(value.alias_info is not None for value in (*arguments, *returns))
        self._has_keyword_only_tensors = any("Tensor" in str(a.type) for a in keyword_only)
        self._written = [
            argument.name if argument.kwarg_only else position
            for position, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self._defaults = tuple(argument.default_value for argument in positional)
        self._keyword_only_defaults = {a.name: a.default_value for a in keyword_only}
        self._input_lists = [_is_tensor_list(argument) for argument in positional]
        self._output_lists = [_is_tensor_list(value) for value in returns]

    def require_functional(self) -> None:
        if self._aliases or not self.returns:
            raise RuntimeError(
                f"{self.name}: autograd is for operators that return new tensors and leave their "
                "arguments alone; for one that writes to its arguments and returns nothing there "
                f"is register_mutation. The schema is {self._schema}"
            )
        if self._has_keyword_only_tensors:
            raise NotImplementedError(
                f"{self.name}: keyword-only tensors get no gradients; make them positional. The "
                f"schema is {self._schema}"
            )

    def require_mutation(self) -> None:
        if not self._written or self.returns:
            raise RuntimeError(
                f"{self.name}: register_mutation is for operators that write to an argument, "
                f"Tensor(a!), and return nothing, -> (). The schema is {self._schema}"
            )

    def fill_defaults(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs = (*args, *self._defaults[len(args) :])
        return inputs, {**self._keyword_only_defaults, **kwargs}

    def pad(self, values: Sequence[Any], value: Any) -> tuple[Any, ...]:
        """Extends what there is for each argument that was given to the stripped ones."""
        return (*values, *[value] * (len(self._defaults) - len(values)))

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
        """Yields the tensors that a call writes to."""
        inputs, keyword_only = self.fill_defaults(args, kwargs)
        for key in self._written:
            yield from _tensors([inputs[key] if isinstance(key, int) else keyword_only[key]])

    def flatten_inputs(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], _Lengths]:
        return _flatten(args, self._input_lists)

    def flatten_output(self, output: Any) -> tuple[tuple[Any, ...], _Lengths]:
        return _flatten(output if self.returns > 1 else (output,), self._output_lists)

    def flatten_grads(self, grads: Any, flat_inputs: int, lengths: _Lengths) -> tuple[Any, ...]:
        """Fits what a backward formula returned to the flat arguments that were given."""
        grads = grads if isinstance(grads, tuple) else (grads,)
        given = flat_inputs if lengths is None else len(lengths)
        if len(grads) < given or any(grad is not None for grad in grads[given:]):
            raise RuntimeError(
                f"{self.name}: backward must return one gradient, or None, for each of the "
                f"{len(self._defaults)} positional arguments, but it returned {len(grads)}"
            )
        if lengths is None:
            return grads[:given]
        flat: list[Any] = []
        for position, length in enumerate(lengths):
            grad = grads[position]
            if length is None:
                flat.append(grad)
            elif grad is None:
                flat.extend([None] * length)
            elif isinstance(grad, (list, tuple)) and len(grad) == length:
                flat.extend(grad)
            else:
                raise RuntimeError(
                    f"{self.name}: backward must return a list of {length} gradients, or None, "
                    f"for argument {position}"
                )
        return tuple(flat)


def _is_tensor_list(value: torch.Argument) -> bool:
    kind = str(value.type)
    return "List[" in kind and "Tensor" in kind


def _flatten(values: Sequence[Any], are_lists: Sequence[bool]) -> tuple[tuple[Any, ...], _Lengths]:
    if not any(are_lists):
        return tuple(values), None
    flat: list[Any] = []
    lengths: list[int | None] = []
    for value, is_list in zip(values, are_lists, strict=False):
        if is_list and value is not None:
            flat.extend(value)
            lengths.append(len(value))
        else:
            flat.append(value)
            lengths.append(None)
    return tuple(flat), lengths


def _nest(flat: Sequence[Any], lengths: _Lengths) -> tuple[Any, ...]:
    """Undoes :func:`_flatten`."""
    if lengths is None:
        return tuple(flat)
    values = iter(flat)
    return tuple(
        next(values) if length is None else list(itertools.islice(values, length))
        for length in lengths
    )


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _lookup(op: str | OpOverload) -> OpOverload:
    if isinstance(op, OpOverload):
        return op
    namespace, _, qualified = op.partition("::")
    name, _, overload = qualified.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except (AttributeError, RuntimeError) as error:
        raise RuntimeError(
            f"there is no operator {op!r} to register anything for: the library that defines its "
            "schema has to be loaded first, and it is spelled namespace::name"
        ) from error


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    # Registrations live as long as this object: for good, being cached.
    return torch.library.Library(namespace, "FRAGMENT")


def _implement(op: OpOverload, key: str, kernel: Callable[..., Any]) -> None:
    """Registers ``kernel(keyset, *args, **kwargs)`` for a dispatch key."""
    _library(op.namespace).impl(op, kernel, key, with_keyset=True)


# An operator, so that torch.compile, which traces backward before anyone asks for a gradient, puts
# the error into the graph instead of running into it.
_refusal = _library(f"{__name__.partition('.')[0]}_library")
_refusal.define("refuse_gradient(Tensor grad, SymInt[] size, str message) -> Tensor")


@torch.library.impl(_refusal, "refuse_gradient", "CompositeExplicitAutograd")
def _refuse_gradient(grad: Tensor, size: Sequence[int], message: str) -> Tensor:
    raise RuntimeError(message)


@torch.library.register_fake(f"{_refusal.ns}::refuse_gradient", lib=_refusal)
def _refuse_gradient_fake(grad: Tensor, size: Sequence[int], message: str) -> Tensor:
    return grad.new_empty(size)


@torch.library.register_vmap(f"{_refusal.ns}::refuse_gradient", lib=_refusal)
def _refuse_gradient_vmap(
    info: Any, in_dims: Any, grad: Tensor, size: Sequence[int], message: str
) -> tuple[Tensor, None]:
    return getattr(torch.ops, _refusal.ns).refuse_gradient(grad, size, message), None


def _refuse(
    grads: Iterable[Any], sizes: Sequence[Sequence[int] | None], message: str
) -> tuple[Tensor | None, ...]:
    """Returns gradients of these sizes whose computation raises, unless no gradient came in."""
    grad = next(_tensors(grads), None)
    if grad is None:
        return (None,) * len(sizes)
    refuse = getattr(torch.ops, _refusal.ns).refuse_gradient
    return tuple(None if size is None else refuse(grad, size, message) for size in sizes)


def _sizes(values: Iterable[Any]) -> list[Sequence[int] | None]:
    return [value.shape if isinstance(value, Tensor) else None for value in values]


def _autocast_kernel(op: OpOverload, policy: str, device_type: str) -> Callable[..., Any]:
    key = getattr(DispatchKey, f"Autocast{device_type.upper()}")

    def is_eligible(value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.device.type == device_type
            and value.is_floating_point()
            and value.dtype != torch.float64
        )

    def choose_dtype(values: Iterable[Any]) -> torch.dtype | None:
        if policy == "lower_precision":
            return torch.get_autocast_dtype(device_type)
        if policy == "float32":
            return torch.float32
        dtypes = [tensor.dtype for tensor in _tensors(values) if is_eligible(tensor)]
        return functools.reduce(torch.promote_types, dtypes) if dtypes else None

    def cast(value: Any, dtype: torch.dtype | None) -> Any:
        if isinstance(value, (list, tuple)):
            return [cast(element, dtype) for element in value]
        return value.to(dtype) if is_eligible(value) else value

    def kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        dtype = choose_dtype((*args, *kwargs.values()))
        with _ExcludeDispatchKeyGuard(DispatchKeySet(key)):
            return op(
                *(cast(value, dtype) for value in args),
                **{name: cast(value, dtype) for name, value in kwargs.items()},
            )

    return kernel
