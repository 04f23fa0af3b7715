"""Fake kernels: what an operator returns for tensors without memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

import torch
from torch._ops import OpOverload

from extension_cpp.registration.dispatch import library, lookup_each
from extension_cpp.registration.inductor import StableStrides
from extension_cpp.shapes import fake_kernel


@overload
def register_fake(op: str | OpOverload, func: Callable[..., Any] | None, /) -> None: ...


@overload
def register_fake(op: str | OpOverload, /, *more: str | OpOverload) -> None: ...


def register_fake(op: str | OpOverload, /, *rest: Any) -> None:
    """Registers the fake kernel of an operator, by which compilers know what it returns.

    As :func:`torch.library.register_fake`, which is the one to take as a decorator.

    Args:
        op: The operator, ``"namespace::name"``.
        *rest: A function of the schema's arguments that returns outputs with the shapes, strides
            and dtypes of the kernel's, and raises what the kernel raises. None: what follows from
            the line of shapes in the operator's C++ source. Or further operators, for each of which
            that follows, as for the first.

    Raises:
        ValueError: If there is no function, and no line for the operator.
    """
    ops, func = lookup_each(op, *rest)
    for each in ops:
        name = each.name()
        kernel = _with_lowering(each, func or fake_kernel(name))
        torch.library.register_fake(name, kernel, lib=library(each.namespace))


def _with_lowering(op: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The same kernel, by which inductor, whose traces call it first, gets to know the operator."""
    if op._schema.is_mutable:  # it has no outputs
        return kernel
    lowering = StableStrides(op)

    @functools.wraps(kernel)
    def fake(*args: Any, **kwargs: Any) -> Any:
        lowering.install()
        return kernel(*args, **kwargs)

    return fake
