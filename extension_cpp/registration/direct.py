"""Calls from Python that need not pass through the kernel of the ``Autograd`` key.

PyTorch calls that kernel for every call of an operator, and it is Python: to get there and back
costs a small call more than everything else. But most calls come from Python themselves, where what
the kernel finds out can be asked for less. So ``torch.ops.namespace.name(...)`` asks first:

1. A derivative cannot be wanted: the operator is called with autograd left out. Where it writes to
   arguments, their versions are counted up here.
2. ``loss.backward()`` alone can come of it: the autograd function is applied right here.
3. Something else is going on, a transform, a tangent, a mode, a trace, a tensor that is not plain:
   the call takes its usual way through the dispatcher. So does every call that is not made from
   Python, or of an overload, such as ``torch.ops.namespace.name.default``.

All three are the same operator, with the same results. ``torch.compile``, ``torch.jit.script`` and
their like see what they always saw: an ``OpOverloadPacket``. What else is registered for the
``Autograd`` key later, by other means than this package's, calls from Python may not meet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    DispatchKey,
    _are_functorch_transforms_active,
    _is_any_autocast_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C import _dispatch_tls_is_dispatch_key_excluded as is_excluded
from torch._C import _dispatch_tls_is_dispatch_key_included as is_included
from torch._C import _dispatch_tls_set_dispatch_key_excluded as set_excluded
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace
from torch.autograd import forward_ad as fwAD
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from extension_cpp.registration import forward_mode
from extension_cpp.registration.dispatch import raise_out_of_memory

# Of every device. Autograd of nested tensors and of unusual ones, which has keys of its own, stays.
_AUTOGRAD = DispatchKey.AutogradFunctionality

# Under which PyTorch counts what is written to tensors.
_VERSIONS = DispatchKey.ADInplaceOrView

# What an argument, or an element of a list, may be besides a tensor.
_INERT = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})


def call_directly(
    op: OpOverload, record: Callable[..., Any] | None = None, written: Sequence[int] = ()
) -> None:
    """Makes calls of an operator from Python skip its ``Autograd`` kernel where they can.

    The operator's namespace, too, is found faster than before.

    Args:
        op: The operator. It is left alone where its name has several overloads.
        record: ``record(args)`` calls the operator so that ``loss.backward()`` passes through it,
            where nothing else can come of the call; or returns ``NotImplemented``.
        written: The positions of what it writes to. Such calls skip the kernel that counts writes,
            too, and count them.
    """
    packet = op.overloadpacket
    if packet.overloads() == ["default"] and not packet._has_torchbind_op_overload:
        call = functools.partial(_write_without_autograd, written) if written else without_autograd
        # The object stays the same: others hold it already, as a key of tables, too.
        packet.__class__ = _packet_class(packet.op, record, call)
    namespace = getattr(torch.ops, op.namespace)
    if type(namespace) is _OpNamespace:
        namespace.__class__ = _DirectNamespace


class _DirectNamespace(_OpNamespace):
    """One that finds its operators as any object does.

    Modules have a way of their own, and where their class has a ``__getattr__``, too, Python comes
    to it by a call of its own, which takes as long as the rest of ``torch.ops.namespace.name``.
    """

    __getattribute__ = object.__getattribute__
    __module__ = _OpNamespace.__module__  # by which generated code calls operators


def _packet_class(
    op: Callable[..., Any], record: Callable[..., Any] | None, call: Callable[..., Any]
) -> Any:
    class DirectPacket(OpOverloadPacket):
        # Every line counts here: the questions cost a fifth of a small call. Hence one function.
        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            if (
                is_excluded(_AUTOGRAD)  # by a kernel that calls, or in inference mode
                or kwargs
                or _are_functorch_transforms_active()
                or _len_torch_dispatch_stack()
                or _len_torch_function_stack()
                or fwAD._current_level >= 0
                or forward_mode.graphs_have_tangents
                or _is_tracing()  # by torch.jit.trace, which records from where a call comes
            ):
                return op(*args, **kwargs)
            requires_grad = False
            for value in args:
                kind = type(value)
                if kind is Tensor or kind is Parameter:
                    # One that outlived its transform looks like any other, and hides the one that
                    # may require a gradient.
                    if is_functorch_wrapped_tensor(value):
                        return op(*args)
                    if value.requires_grad:
                        requires_grad = True
                elif kind is list or kind is tuple:
                    for each in value:  # a loop, whose instructions are at hand, as those above
                        if type(each) not in _INERT:
                            return op(*args)
                elif kind not in _INERT:  # such as a tensor of a subclass, which has its say
                    return op(*args)
            if requires_grad and torch.is_grad_enabled():
                if record is None or _has_layers_above():
                    return op(*args)
                output = record(args)
                return op(*args) if output is NotImplemented else output
            return call(op, args)

    return DirectPacket


def without_autograd(op: Callable[..., Any], args: Iterable[Any]) -> Any:
    """Calls an operator with autograd, which is not left out already, left out."""
    try:
        # Within the try: a signal, such as Ctrl-C, may raise as soon as this returns.
        set_excluded(_AUTOGRAD, True)
        return op(*args)
    except RuntimeError as error:
        raise_out_of_memory(error)
        raise
    finally:
        set_excluded(_AUTOGRAD, False)


def _write_without_autograd(
    written: Sequence[int], op: Callable[..., Any], args: Sequence[Any]
) -> None:
    """The same of an operator that writes to arguments, whose versions are counted up after it."""
    if is_excluded(_VERSIONS):  # somebody wants them not to be
        without_autograd(op, args)
        return
    try:
        set_excluded(_VERSIONS, True)
        # In a call of its own: a signal may raise between two calls of one `finally`, too.
        without_autograd(op, args)
    finally:
        set_excluded(_VERSIONS, False)
    for position in written:
        # Lists that come here have no tensors.
        tensor = args[position] if position < len(args) else None
        if isinstance(tensor, Tensor) and not tensor.is_inference():
            increment_version(tensor)


def _has_layers_above() -> bool:
    """Whether something comes before autograd: what is differentiated is not this call."""
    return _is_any_autocast_enabled() or is_included(DispatchKey.PreDispatch)
