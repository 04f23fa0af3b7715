"""Looks operators up, and registers kernels for dispatch keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload


def lookup(op: str | OpOverload) -> OpOverload:
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


def lookup_each(
    op: str | OpOverload, *rest: Any
) -> tuple[list[OpOverload], Callable[..., Any] | None]:
    """The operators of a registration, and its function: of one operator, after it."""
    if len(rest) == 1 and not isinstance(rest[0], str | OpOverload):
        return [lookup(op)], rest[0]
    return [lookup(each) for each in (op, *rest)], None


@functools.cache
def library(namespace: str) -> torch.library.Library:
    # Registrations live as long as this object: for good, being cached. It outlives this module, so
    # that a package that is imported anew replaces what it registered before.
    libraries = torch.library.__dict__.setdefault("_extension_libraries", {})
    earlier = libraries.get((__name__, namespace))
    if earlier is not None:
        earlier._destroy()
    libraries[__name__, namespace] = torch.library.Library(namespace, "FRAGMENT")
    return libraries[__name__, namespace]


def implement(op: OpOverload, key: str, kernel: Callable[..., Any]) -> None:
    """Registers ``kernel(keyset, *args, **kwargs)`` for a dispatch key."""
    library(op.namespace).impl(op, kernel, key, with_keyset=True)


def raise_out_of_memory(error: RuntimeError) -> None:
    """Raises a ``torch.OutOfMemoryError`` that lost its type as what it is; ignores other errors.

    The stable ABI hands a text over, and no type. Kernels that run in Python put it right; under
    ``torch.inference_mode()`` there is none.
    """
    lost = "CUDA out of memory. Tried to allocate"
    if type(error) is RuntimeError and str(error).startswith(lost):
        raise torch.OutOfMemoryError(str(error)) from None
