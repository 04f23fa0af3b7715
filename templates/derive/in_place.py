"""A definition that writes to its arguments, as one that returns what it would write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from schema import Argument, Schema

from .graph import WIDE
from .refusal import NotDerived, in_a_line

# Values of the arguments for which it is asked what a function writes to.
NUMBERS = {"float": 0.5, "int": 1}


def written_by(
    function: Callable[..., Any], schema: Schema, dtypes: Mapping[str, str], place: str
) -> list[str]:
    """The tensors that a function writes to, in the order of its arguments.

    Args:
        function: which returns nothing.
        schema: of its arguments.
        dtypes: of the tensors that have one of their own.
        place: what it is called in a refusal.

    Raises:
        NotDerived: it writes to none, or to one that an operator does not write to here.
    """
    found: set[str] = set()
    for is_on in (False, True):
        arguments = {a.name: value_of(a, is_on, dtypes.get(a.name, "")) for a in schema.arguments}
        before = {a.name: arguments[a.name]._version for a in schema.tensors}
        try:
            function(**arguments)
        except Exception as error:
            raise NotDerived(
                f"--from {place}: the definition does not run: {in_a_line(error)}"
            ) from None
        found |= {name for name, version in before.items() if arguments[name]._version != version}
    written = [a for a in schema.tensors if a.name in found]
    if not written:
        raise NotDerived(
            f"--from {place}: the function returns nothing, and writes to no argument; return the "
            "new values, or write them, as x.copy_(y) does"
        )
    for argument in written:
        if argument.type == "Tensor?":
            raise NotDerived(
                f"--from {place}: it writes to '{argument.name}', which may be None; write a "
                "function for each case"
            )
        if dtypes.get(argument.name, WIDE) != WIDE:
            raise NotDerived(
                f"--from {place}: it writes to '{argument.name}', which is "
                f"{dtypes[argument.name]}; what is written to is floating"
            )
    return [a.name for a in written]


def value_of(argument: Argument, is_on: bool, dtype: str) -> Any:
    if argument.type == "bool":
        return is_on
    if not argument.is_tensor:
        return NUMBERS[argument.type]
    kind = "float32" if dtype in ("", WIDE) else dtype
    return torch.full((2, 3), 0.5).to(getattr(torch, kind))


def returning(function: Callable[..., Any], written: Sequence[str]) -> Callable[..., Any]:
    """The function of the same arguments that returns what it would write, and writes to none."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        own = {name: arguments[name].clone() for name in written}
        function(**(arguments | own))
        results = tuple(own.values())
        return results if len(results) > 1 else results[0]

    return call
