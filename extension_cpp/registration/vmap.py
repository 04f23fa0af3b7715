"""Batching rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from extension_cpp.registration.dispatch import library, lookup
from extension_cpp.registration.signature import Signature


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
    overload = lookup(op)
    signature = Signature(overload)

    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        inputs, keyword_only = signature.fill_defaults(args, kwargs)
        return func(info, signature.pad(in_dims, None), *inputs, **keyword_only)

    torch.library.register_vmap(signature.name, rule, lib=library(overload.namespace))
