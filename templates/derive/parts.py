"""A definition of tensors with several parts (packed.py), as one of their parts."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

import torch
from schema import Schema

from .definition import RESULT, TAKEN, Definition
from .derived import another_shape, cases_of, is_of_rows
from .packed import MOST_PARTS, PASS_PARTS, PASS_ROWS, Packed, Packs, check_counts
from .refusal import NotDerived, taken
from .saved import OUTPUT
from .trace import Traced
from .variant import Result

Made = TypeVar("Made")

# Nothing that C++ or a macro has, and not what generated functions call.
NAME = re.compile(r"(?!_)(?!.*__)[A-Za-z]\w*", re.ASCII)
NO_NAMES = TAKEN | {"math", "F", "real_math", "columns", "output"}


@dataclass
class InParts(Definition):
    """The definition, of which some tensors are taken apart.

    Attributes:
        whole: as its author has it.
        parts: the names of the parts of each tensor that has several.
        counts: how many parts each result has.
    """

    has_parts = True

    # It follows a field with a default.
    whole: Definition = field(default=None)  # type: ignore[assignment]
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    counts: Sequence[int] = ()

    @property
    def other_shapes(self) -> dict[str, str]:
        if self.shapes is not None or self.said_shapes:
            is_said = "--shapes" if self.shapes is not None else "a shape in an annotation"
            raise NotDerived(
                f"{self.place}: of tensors with several parts its definition says the shapes, and "
                f"{is_said} is for functions that look at whole rows: leave it out"
            )
        return {}

    def named(self, *types: str) -> list[str]:
        """Of the parts of an optional tensor, which are there together, the first alone."""
        names = super().named(*types)
        if types != ("Tensor?",):
            return names
        others = {name for parts in self.parts.values() for name in parts[1:]}
        return [name for name in names if name not in others]

    def tensors(self, given: Container[str]) -> tuple[list[str], list[str]]:
        optional = super().named("Tensor?")
        groups = [self.parts_of(name) for name in self.whole.named("Tensor?")]
        absent = [name for group in groups if group[0] not in given for name in group]
        return [n for n in super().named("Tensor", "Tensor?") if n not in absent], [
            name for name in optional if name in absent
        ]

    def parts_of(self, name: str) -> Sequence[str]:
        """Those of a tensor, or the tensor."""
        return self.parts.get(name, (name,))

    def wholes(self, names: Container[str]) -> list[str]:
        """The tensors of which some part is among these."""
        tensors = self.whole.named("Tensor", "Tensor?")
        return [t for t in tensors if any(part in names for part in self.parts_of(t))]

    def unused(self, used: Container[str]) -> list[str]:
        names = [a.name for a in self.whole.schema.arguments]
        return [n for n in names if not any(part in used for part in self.parts_of(n))]

    def shapes_that_broadcast(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        """With one for all parts of a tensor, which say how many columns there are."""
        shapes = [(2, 1, 3), (4, 3), (3,), (1, 3)]
        wholes = [next(w for w in self.wholes([name])) for name in names]
        order = [*dict.fromkeys(wholes)]
        return [shapes[order.index(whole) % len(shapes)] for whole in wholes]

    def renamed(self, results: Sequence[Result]) -> list[Result]:
        """The results, of which parts are called as what they are of."""
        names: list[str] = []
        for r, count in enumerate(self.counts):
            whole = f"{OUTPUT}{r}" if len(self.counts) > 1 else OUTPUT
            own = results[len(names)].name
            names += (
                [f"{whole}_{k}" for k in range(1, count + 1)]
                if count > 1
                else [whole if RESULT.fullmatch(own) else own]
            )
        for name in names:
            if {name, f"grad_{name}"} & {a.name for a in self.whole.schema.arguments}:
                raise taken(f"the argument's name '{name}'")
        return [dataclasses.replace(r, name=n) for r, n in zip(results, names, strict=True)]


def in_parts(
    definition: Definition,
    times: Mapping[str, int],
    counts: Sequence[int],
    names: Mapping[str, Sequence[str]] = {},
) -> Definition:
    """The definition, of which these tensors and results have so many parts."""
    if not times and not counts:
        return definition
    if definition.wide:
        raise NotDerived(
            f"{definition.place}: beside tensors of several parts none is float32 by its "
            f"annotation, as '{definition.wide[0]}' is; annotate it as Tensor, or pass the parts "
            "as tensors of their own"
        )
    schema = definition.schema
    counts = counts or [1] * schema.outputs
    own = {a.name for a in schema.arguments}
    parts = {
        name: names.get(name) or numbered(name, times[name], own)
        for name in definition.named("Tensor", "Tensor?")
        if name in times
    }
    arguments = [
        dataclasses.replace(argument, name=name)
        for argument in schema.arguments
        for name in parts.get(argument.name, (argument.name,))
    ]
    said = definition.result_dtypes
    said = [*said, *[""] * (len(counts) - len(said))]
    inherited = {f.name: getattr(definition, f.name) for f in dataclasses.fields(Definition)}
    inherited |= {
        "schema": Schema(schema.text, schema.name, arguments, sum(counts)),
        "dtypes": {
            part: dtype
            for name, dtype in definition.dtypes.items()
            for part in parts.get(name, (name,))
        },
        "result_dtypes": [d for d, count in zip(said, counts, strict=True) for _ in range(count)],
    }
    for name in ("function", "carried"):
        inherited[name] = of_parts(getattr(definition, name), parts, counts)
    return InParts(**inherited, whole=definition, parts=parts, counts=counts)


def numbered(name: str, count: int, taken: Container[str]) -> list[str]:
    """Names for the parts of a tensor: x1 and x2."""
    stem = f"{name}_" if name[-1].isdigit() else name
    while any(
        f"{prefix}{stem}{k}" in taken for k in range(1, count + 1) for prefix in ("", "grad_")
    ):
        stem = f"{stem}_"
    return [f"{stem}{k}" for k in range(1, count + 1)]


def of_parts(
    function: Callable[..., Any], parts: Mapping[str, Sequence[str]], counts: Sequence[int]
) -> Callable[..., Any]:
    """A function as one of parts, of tensors and of what stands for them in a trace."""

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        for name, names in parts.items():
            own = [given.pop(part) for part in names]
            if own[0] is None:
                given[name] = None
            elif isinstance(own[0], Traced):
                given[name] = Packed.of(own)
            else:
                given[name] = torch.cat(own, -1)
        result = function(**given)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(counts):
            return result
        if any(isinstance(each, (Traced, Packed)) for each in results):
            check_counts(results, counts)
            return tuple(
                part
                for each in results
                for part in (each.parts if isinstance(each, Packed) else (each,))
            )
        return tuple(
            part
            for each, count in zip(results, counts, strict=True)
            for part in (each.chunk(count, -1) if count > 1 else (each,))
        )

    return call


def taken_apart(definition: Definition, made: Callable[[Definition], Made]) -> Made:
    """What is made of a definition, once it is known which of its tensors have several parts.

    Raises:
        NotDerived: the parts do not fit together, or `made` raises it.
    """
    times: dict[str, int] = {}
    counts: Sequence[int] = ()
    while True:
        current = in_parts(definition, times, counts)
        try:
            if isinstance(current, InParts):
                current = in_parts(definition, times, counts, names_of_parts(current))
            return made(current)
        except Packs as found:
            if not found.names:
                if counts:
                    raise another_shape(definition.place) from None
                counts = found.counts
                continue
            wholes = current.wholes(found.names) if isinstance(current, InParts) else found.names
            for name in wholes:
                times[name] = times.get(name, 1) * found.times
                if times[name] > MOST_PARTS:
                    raise NotDerived(
                        f"{found.line}'{name}' would have {times[name]} parts, and there are at "
                        f"most {MOST_PARTS}, of tensors that meet where they have as many columns; "
                        f"{PASS_PARTS}"
                    ) from None
            counts = ()


def names_of_parts(definition: InParts) -> dict[str, list[str]]:
    """What the author calls the parts of each tensor that has several, where all have names.

    Raises:
        NotDerived: it looks at whole rows.
    """
    watched = PartNames(definition)
    function = watched.watching(definition.function)
    again = dataclasses.replace(definition, function=function)
    if is_of_rows(again, *cases_of(again)):
        packed = " and ".join(f"'{name}'" for name in definition.parts)
        raise NotDerived(
            f"{definition.place}: it looks at whole rows, and these are of whole tensors, while "
            f"{packed or 'a result'} has several parts; {PASS_ROWS}"
        )
    names = [name for parts in definition.parts.values() for name in parts]
    wanted = {name: watched.found.get(name, "") for name in names}
    known = {a.name for a in definition.whole.schema.arguments}
    chosen: dict[str, list[str]] = {}
    for whole, parts in definition.parts.items():
        own = [wanted[part] for part in parts]
        if all(is_fit(name, known) and [*wanted.values()].count(name) == 1 for name in own):
            chosen[whole] = own
    return chosen


def is_fit(name: str, arguments: Container[str]) -> bool:
    """Whether it can be that of a part."""
    if not NAME.fullmatch(name) or name in NO_NAMES or RESULT.match(name):
        return False
    return name not in arguments and f"grad_{name}" not in arguments


class PartNames:
    """What the lines of a definition call the parts of its tensors."""

    def __init__(self, definition: Definition) -> None:
        self.file = inspect.unwrap(definition.function).__code__.co_filename
        self.found: dict[str, str] = {}

    def watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**given: Any) -> Any:
            previous = sys.gettrace()
            sys.settrace(self.enter)
            try:
                return function(**given)
            finally:
                sys.settrace(previous)

        return call

    def enter(self, frame: FrameType, event: str, _: object) -> Any:
        return self.look if frame.f_code.co_filename == self.file else None

    def look(self, frame: FrameType, event: str, _: object) -> Any:
        for name, value in frame.f_locals.items():
            if isinstance(value, Traced) and not value.node.args and not value.node.is_number:
                self.found.setdefault(str(value.node.value), name)
        return self.look
