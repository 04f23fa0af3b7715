"""Batching rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch._ops import OpOverload

from extension_cpp.registration.dispatch import library, lookup_each
from extension_cpp.registration.signature import Signature
from extension_cpp.shapes import batching_rule


@overload
def register_vmap(op: str | OpOverload, func: Callable[..., tuple[Any, Any]] | None, /) -> None: ...


@overload
def register_vmap(op: str | OpOverload, /, *more: str | OpOverload) -> None: ...


def register_vmap(op: str | OpOverload, /, *rest: Any) -> None:
    """Registers the batching rule of an operator: what ``torch.vmap`` calls instead of looping.

    As :func:`torch.library.register_vmap`, except that ``in_dims`` and ``args`` have one entry per
    positional argument of the schema, those left at their defaults included.

    Args:
        op: The operator, ``"namespace::name"``.
        *rest: ``func(info, in_dims, *args)``, which receives keyword-only arguments as keywords and
            returns ``(output, out_dims)``. It may call the operator, on the batch as a whole, or
            for each example, as ``by_example`` of batching.py does. None: what follows from the
            line of shapes in the operator's C++ source. Or further operators, for each of which
            that follows, as for the first.

    Raises:
        ValueError: If there is no function, and no line for the operator.
        NotImplementedError: If no batching rule follows from the line; or if a keyword-only
            argument is a tensor.
    """
    ops, func = lookup_each(op, *rest)
    for each in ops:
        _register(each, func or batching_rule(each.name()))


def _register(op: OpOverload, rule_of_op: Callable[..., tuple[Any, Any]]) -> None:
    signature = Signature(op)

    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        inputs, keyword_only = signature.fill_defaults(args, kwargs)
        return rule_of_op(info, signature.pad(in_dims, None), *inputs, **keyword_only)

    torch.library.register_vmap(signature.name, rule, lib=library(op.namespace))
