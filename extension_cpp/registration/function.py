"""What Autograd kernels are made of: the call of the next level, and autograd functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch._C import DispatchKeySet, _after_autograd_keyset
from torch._functorch.utils import enable_single_level_autograd_function
from torch._ops import OpOverload
from torch.autograd.function import Function, _SingleLevelFunction

from extension_cpp.registration.dispatch import raise_out_of_memory


def below_autograd(op: OpOverload) -> Callable[..., Any]:
    """Returns the call of an operator's next level or, after the last one, of its kernel."""
    redispatch = op._handle.redispatch_boxed

    def below(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        try:
            return redispatch(keyset & _after_autograd_keyset, *args, **kwargs)
        except RuntimeError as error:
            raise_out_of_memory(error)
            raise

    return below


def autograd_function(
    op: OpOverload,
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    jvp: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Returns ``apply(in_transform, *args)`` of an autograd function that has these parts."""
    parts = {"forward": forward, "backward": backward} | ({} if jvp is None else {"jvp": jvp})
    ordinary = function_class(op, Function, parts)
    single_level = function_class(op, _SingleLevelFunction, parts)

    def apply(in_transform: bool, *args: Any) -> Any:
        if not in_transform:
            return ordinary.apply(*args)
        with enable_single_level_autograd_function():
            return single_level.apply(*args)

    return apply


def function_class(op: OpOverload, base: Any, parts: Mapping[str, Callable[..., Any]]) -> Any:
    name = "".join(word.capitalize() for word in op._opname.split("_"))  # seen in grad_fn
    return type(name, (base,), {part: staticmethod(function) for part, function in parts.items()})
