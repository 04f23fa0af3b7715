"""A definition that writes to its arguments, as one that returns what it would write."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from schema import Argument, Schema

from .graph import WIDE
from .refusal import NotDerived, in_a_line

# Values of the numbers for which it is asked what a function writes to.
NUMBERS = {"float": 0.5, "int": 1}
MOST_CALLS = 64


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
        NotDerived: it writes to none, or to one that an operator does not write to here; or in half
            types it writes something else.
    """
    found: set[str] = set()
    choices = [a.name for a in schema.arguments if a.type in ("bool", "Tensor?")]
    for values in itertools.islice(
        itertools.product((True, False), repeat=len(choices)), MOST_CALLS
    ):
        chosen = dict(zip(choices, values, strict=True))
        arguments = arguments_of(schema, chosen, dtypes)
        tensors = {n: t for n, t in arguments.items() if isinstance(t, torch.Tensor)}
        before = {name: tensor._version for name, tensor in tensors.items()}
        try:
            result = function(**arguments)
        except Exception as error:
            if None in arguments.values():  # of which the trace tells, with the line
                continue
            raise NotDerived(
                f"--from {place}: the definition does not run: {in_a_line(error)} (called with "
                "tensors of the shape (2, 3), to see what it writes to)"
            ) from None
        if result is not None:
            raise NotDerived(
                f"--from {place}: its annotation says that it returns nothing, and it returns "
                f"{type(result).__name__}; return nothing, or all new values and write none"
            )
        found |= {name for name, tensor in tensors.items() if before[name] != tensor._version}
        check_half(function, arguments_of(schema, chosen, dtypes, "bfloat16"), tensors, place)
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


def arguments_of(
    schema: Schema, chosen: Mapping[str, bool], dtypes: Mapping[str, str], own: str = "float32"
) -> dict[str, Any]:
    """Those of a call, in which each tensor has a value of its own.

    Args:
        schema: of the function.
        chosen: the switches, and which of the tensors that may be None are there.
        dtypes: of the tensors that have one of their own.
        own: that of the others.
    """

    def value(a: Argument, number: float) -> Any:
        if a.type == "bool":
            return chosen[a.name]
        if not a.is_tensor:
            return NUMBERS[a.type]
        if not chosen.get(a.name, True):
            return None
        dtype = dtypes.get(a.name, "")
        dtype = {"": own, WIDE: "float32"}.get(dtype, dtype)
        return torch.full((2, 3), number).to(getattr(torch, dtype))

    return {a.name: value(a, 0.75 + k / 8) for k, a in enumerate(schema.arguments)}


def check_half(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    expected: Mapping[str, torch.Tensor],
    place: str,
) -> None:
    """Refuses what is a copy in half types, and else the tensor itself, to which it writes.

    No trace sees the difference.

    Args:
        function: which writes.
        arguments: of a call in a half type.
        expected: the tensors of the same call in float32, after it.
        place: what it is called in a refusal.
    """
    try:
        function(**arguments)
    except Exception:
        return  # as CPUs have no kernel for some half types
    for name, whole in expected.items():
        half = arguments[name]
        if not torch.allclose(whole.double(), half.double(), rtol=0.05, atol=0.05, equal_nan=True):
            raise NotDerived(
                f"--from {place}: in bfloat16 it writes something else than in float32; what "
                "x.to(y.dtype) makes there is a copy, which no write reaches and which keeps its "
                "value: give what it makes a name of its own, by operations, not by writes"
            )


def returning(function: Callable[..., Any], written: Sequence[str]) -> Callable[..., Any]:
    """The function of the same arguments that returns what it would write, and writes to none."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        own = {name: arguments[name].clone() for name in written}
        function(**(arguments | own))
        results = tuple(own.values())
        return results if len(results) > 1 else results[0]

    return call
