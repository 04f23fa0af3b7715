"""How an operator's calls may be divided among devices: what follows from its line of shapes.

One way to divide a call is said by a placement for each of its tensors: the dimension whose pieces
lie on different devices; None, where every device has the whole; :data:`SUM`, where every device
has a tensor of the full shape, and their sum is what is meant. DTensor calls these `Shard(dim)`,
`Replicate()` and `Partial()`. That every device may have the whole of everything goes without
saying.

`registration.register_sharding` adds what no line says, and `distributed.py` hands all of it over
to DTensor. `check_sharding` of the battery divides calls accordingly, without any other device, and
compares what the pieces give with the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from extension_cpp.notation import NO_BATCH, Shape
from extension_cpp.shapes import Operator, Sizes, is_absent

SUM: Final = "sum"
Placement: TypeAlias = int | Literal["sum"] | None
# Of a call: the placements of its results, and of its tensors. Of these there is one for each
# tensor argument, a list for a list; what stands for an argument that is None does not count.
Sharding: TypeAlias = tuple[Sequence[Placement], Sequence[Any]]
# It gets all arguments of a call, keyword-only ones as keywords. What stands for a tensor has
# `shape` and `ndim`.
Rule: TypeAlias = Callable[..., Iterable[Sharding]]


def sharding_rule(line: Operator, along: Sequence[str] = ()) -> Rule:
    """The rule that follows from a line of shapes.

    Calls may be divided along the dimensions that a ``*name`` or ``...`` stands for, of whose
    entries each is computed by itself, as a batch is; and along the sizes that are given. A tensor
    that lacks the dimension, or is broadcast over it, is whole everywhere. A result that lacks it
    is a sum over it where it is a gradient: where the operator is called ``..._backward``, or the
    line gives the result all dimensions of an argument (``=name``). Along a dimension that another
    result lacks, or something that is written to, calls are not divided.

    Args:
        line: the operator.
        along: sizes of the line, as ``"n"`` of ``*rows n, n -> *rows n``, of whose entries each is
            computed by itself, too.

    Raises:
        ValueError: a size that is none of the line's, or stands in a sum, twice in a shape, or for
            a number among the arguments.
    """
    shapes = (*line.notation.inputs, *line.notation.outputs)
    for name in along:
        _check_size(line, name, shapes)
    stars = dict.fromkeys(shape.star_symbol for shape in shapes)
    symbols = [star for star in stars if star is not None and star not in NO_BATCH]

    def rule(*args: Any, **kwargs: Any) -> Iterator[Sharding]:
        tensors = [[t.shape for t in each] for each in line.tensors(args, kwargs)]
        lengths = _lengths(line.notation.inputs, tensors)
        for star in symbols:
            for following in reversed(range(lengths.get(star, 0))):
                yield from _Axis(star, following).sharding(line, tensors, lengths)
        for name in along:
            yield from _Axis(name).sharding(line, tensors, lengths)

    return rule


def placements_passed(inputs: Sequence[Any], values: Sequence[Any]) -> list[Placement]:
    """A placement for each tensor of a call.

    Args:
        inputs: those of a sharding.
        values: what the call passes for its tensor arguments: lists for lists.
    """
    passed: list[Placement] = []
    for said, value in zip(inputs, values, strict=True):
        pairs = (
            zip(said, value, strict=True) if isinstance(value, (list, tuple)) else [(said, value)]
        )
        passed += [placement for placement, tensor in pairs if tensor is not None]
    return passed


def _check_size(line: Operator, name: str, shapes: Sequence[Shape]) -> None:
    dims = [[dim for dim in shape.dims if name in dim.names] for shape in shapes]
    if not any(dims) or not name.isidentifier():
        raise ValueError(f"{line.name}: {line.line} has no size {name!r} to divide calls along")
    twice = any(len(each) > 1 for each in dims)
    if name in line.notation.numbers or twice or any(dim.terms for each in dims for dim in each):
        raise ValueError(
            f"{line.name}: calls cannot be divided along {name!r}, which in {line.line} stands for "
            "a number, in a sum, or twice in a shape"
        )


def _lengths(shapes: Sequence[Shape], tensors: Sequence[Sequence[Sizes]]) -> dict[Any, int]:
    """How many dimensions each ``*name`` stands for."""
    lengths: dict[Any, int] = {}
    for shape, each in zip(shapes, tensors, strict=True):
        for sizes in each:
            length = len(sizes) - shape.single
            lengths[shape.star_symbol] = max(length, lengths.get(shape.star_symbol, 0))
    return lengths


@dataclasses.dataclass(frozen=True)
class _Axis:
    """What a call is divided along: a size, or one of the dimensions of a ``*name``."""

    symbol: str
    following: int = 0  # dimensions of the same *name

    def dimension(self, shape: Shape, ndim: int) -> int | None:
        """Which of a tensor's dimensions it is."""
        for position, dim in enumerate(shape.dims):
            if dim.symbol == self.symbol:
                if shape.star is None or position < shape.star:
                    return position
                found = ndim - (len(shape.dims) - position) - self.following
                return found if found >= position else None
        return None

    def sharding(
        self, line: Operator, tensors: Sequence[Sequence[Sizes]], lengths: Mapping[Any, int]
    ) -> Iterator[Sharding]:
        """The one along it, or none."""
        arguments = line.notation.arguments
        found = [
            [(self.dimension(shape, len(sizes)), sizes) for sizes in each]
            for shape, each in zip(line.notation.inputs, tensors, strict=True)
        ]
        # What is 1 where another is not is broadcast.
        wide = any(d is not None and sizes[d] != 1 for each in found for d, sizes in each)
        inputs: list[list[Placement]] = [
            [None if d is None or (wide and sizes[d] == 1) else d for d, sizes in each]
            for each in found
        ]
        if not any(d is not None for each in inputs for d in each):
            return
        outputs: list[Placement] = []
        for shape in line.notation.outputs:
            if is_absent(tensors, shape):
                outputs.append(None)
                continue
            if shape.like is None:
                ndim = shape.single + lengths.get(shape.star_symbol, 0)
                placement: Placement = self.dimension(shape, ndim)
            else:
                (placement,) = inputs[shape.like]
            if placement is None and not _is_gradient(line, shape):
                return
            outputs.append(SUM if placement is None else placement)
        if any(None in inputs[k] for k in line.written):
            return
        pairs = zip(arguments, inputs, strict=True)
        yield outputs, [each if a.is_list else next(iter(each), None) for a, each in pairs]


def _is_gradient(line: Operator, result: Shape) -> bool:
    """Whether a result that lacks a dimension is a sum over it."""
    return result.like is not None or line.name.partition(".")[0].endswith("_backward")
