"""Tensors that hold several side by side in their last dimension, in traces.

A gate and what it gates, or the halves that a rotation turns: `x.chunk(2, -1)`. What a definition
takes apart like that is traced as its parts, each a tensor with a value for each element; what
meets it whole is taken apart, too. So formulas know of elements alone.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .graph import ARGUMENTS, COLUMN, Node, cols, const, in_order, is_const, make
from .refusal import NotDerived, line_of_definition, refuse
from .rows_vocabulary import ROWS
from .trace import (
    BOTH_MOMENTS,
    OF_NUMPY,
    OF_TWO,
    Integer,
    Real,
    Recorder,
    Sizes,
    Traced,
    known_as,
    no_argument,
    no_such_call,
)
from .vocabulary import unknown

# Of more parts, functors would have more arguments than registers.
MOST_PARTS = 8

PASS_PARTS = (
    "pass the parts as tensors of their own, f(*x.chunk(2, -1)): these are views, and read where "
    "they lie"
)
PASS_ROWS = (
    "pass the parts as tensors of their own, f(*x.chunk(2, -1)), of which rows are copied, or "
    "start from --template kernel"
)
EQUAL_PARTS = (
    "say x.chunk(2, dim=-1), or x[..., : x.shape[-1] // 2] and x[..., x.shape[-1] // 2 :], of as "
    "many parts; tensors of parts that are not equal are passed as several"
)
SIDE_BY_SIDE = (
    "pass x[..., ::2] and x[..., 1::2] as tensors of their own, which are views and read where "
    "they lie, or start from --template kernel"
)


@known_as("Tensor")
class Packed(Tensor):
    """A tensor of several parts, all with the same number of columns.

    Attributes:
        parts: from the first columns to the last.
    """

    parts: tuple[Traced, ...]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __iter__(self) -> Any:
        raise unknown("__iter__")

    @staticmethod
    def of(parts: Iterable[Traced]) -> Packed:
        packed = Tensor._make_subclass(Packed, EMPTY)
        packed.parts = tuple(parts)
        return packed


EMPTY = torch.empty(0)
Value: TypeAlias = "Traced | Packed"


class Packs(NotDerived):
    """What a trace found out of tensors that it took for whole: it starts over with their parts.

    Attributes:
        names: arguments, and parts of arguments.
        times: of how many parts each of them is.
        counts: how many parts each result has, where that was found out.
    """

    def __init__(self, names: Iterable[str], times: int, counts: Sequence[int] = ()) -> None:
        super().__init__(f"{line_of_definition()}this is of parts of tensors; {PASS_PARTS}")
        self.names, self.times, self.counts = [*names], times, tuple(counts)
        self.line = line_of_definition()


def parts_of(value: Value) -> tuple[Traced, ...]:
    return value.parts if isinstance(value, Packed) else (value,)


def tensors_in(*parts: Traced) -> list[str]:
    """The tensors of which they are made, by the names that they have in the trace."""
    leaves = in_order([part.node for part in parts])
    names = [str(n.value) for n in leaves if n.op in ARGUMENTS and not n.is_number]
    return [*dict.fromkeys(names)]


def in_columns(node: Node) -> Fraction | None:
    """What a number is that is made of numbers of columns alone, as how many times these."""
    if node.op == "cols":
        return Fraction(1)
    if node.op == "neg":
        (part,) = map(in_columns, node.args)
        return None if part is None else -part
    if node.op == "mul":
        for one, other in (node.args, node.args[::-1]):
            if is_const(one) and (part := in_columns(other)) is not None:
                return part * Fraction(one.value)  # type: ignore[arg-type]
    if node.op == "floor_divide" and is_const(node.args[1]) and (by := node.args[1].value):
        part = in_columns(node.args[0])
        return None if part is None else part / Fraction(by)
    if node.op in ("add", "sub"):
        a, b = map(in_columns, node.args)
        return None if a is None or b is None else a + b if node.op == "add" else a - b
    return None


class PackedSizes(Sizes):
    """The shape of a tensor of so many parts."""

    def __init__(self, dtype: torch.dtype, count: int) -> None:
        super().__init__(dtype)
        columns = make("mul", const(count), cols())
        self.last = Integer.of(columns, count * self.last.value)


class PartsRecorder(Recorder):
    """A Recorder that knows tensors of several parts."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = {OF_NUMPY.get(k, k): v for k, v in (kwargs or {}).items()}
        name = function.__name__
        if name in OF_PARTS and holds_value((*args, *kwargs.values())):
            try:
                found = getattr(self, OF_PARTS[name])(*args, **kwargs)
            except TypeError:
                raise no_such_call(name, kwargs) from None
            if found is not None:
                return found
        given = (*args, *kwargs.values())
        packed = [each for each in given if isinstance(each, Packed)]
        if not packed:
            return super().__torch_function__(function, types, args, kwargs)
        count = len(packed[0].parts)
        if name == "size" or (name == "__get__" and function.__self__.__name__ == "shape"):
            sizes = PackedSizes(self.dtype, count)
            return sizes[given[1]] if given[1:] else sizes
        of_rows = name in {*ROWS, *BOTH_MOMENTS, "aminmax"}
        if of_rows or (name in OF_TWO and not (given[1:] and isinstance(given[1], Tensor))):
            raise refuse(
                f"{name} looks at whole rows, and here these are {count} parts of a tensor",
                instead=PASS_ROWS,
            )
        return self.by_parts(function, types, args, kwargs, count)

    def by_parts(self, function: Any, types: Any, args: Any, kwargs: Any, count: int) -> Any:
        """An elementwise function of each of the parts; what is whole is found to have some."""
        given = (*args, *kwargs.values())
        packed = [each.parts for each in given if isinstance(each, Packed)]
        common = math.lcm(*map(len, packed))
        for parts in packed:
            if len(parts) < common:
                raise Packs(tensors_in(*parts), common // len(parts))
        for each in given:
            if isinstance(each, Traced) and each.extent and (names := tensors_in(each)):
                raise Packs(names, count)

        def part(value: Any, k: int) -> Any:
            return value.parts[k] if isinstance(value, Packed) else value

        found = [
            super(PartsRecorder, self).__torch_function__(
                function,
                types,
                tuple(part(a, k) for a in args),
                {name: part(a, k) for name, a in kwargs.items()},
            )
            for k in range(count)
        ]
        if not all(isinstance(each, Traced) for each in found):
            return found[0]  # a dtype, or a device
        # What is written to is what it was.
        is_same = isinstance(args[0], Packed) and all(map(operator.is_, found, args[0].parts))
        return args[0] if is_same else Packed.of(found)

    # ----- taken apart

    def cut(self, value: Value, ends: Sequence[Fraction], may_be_more: bool = False) -> list[Any]:
        """The pieces between these numbers of columns, of those that a part has."""
        parts = parts_of(value)
        times = math.lcm(*(end.denominator for end in ends))
        if times > 1 and (may_be_more or not isinstance(value, Packed)):
            if not (names := tensors_in(*parts)):
                raise refuse("this takes apart what is no tensor's", instead=EQUAL_PARTS)
            raise Packs(names, times)
        if times > 1:
            raise refuse("these parts are not equal to those before", instead=EQUAL_PARTS)
        pieces = [parts[int(a) : int(b)] for a, b in itertools.pairwise(ends)]
        if not all(pieces):
            raise refuse("a part of this has no columns", instead=EQUAL_PARTS)
        return [
            value if len(each) == len(parts) else each[0] if len(each) == 1 else Packed.of(each)
            for each in pieces
        ]

    def chunk(self, input: Any, chunks: Any, dim: Any = 0) -> Any:
        check_last("chunk", dim)
        if type(chunks) is not int or chunks < 1:
            raise refuse("the number of parts is no number of the definition", instead=EQUAL_PARTS)
        whole = len(parts_of(input))
        ends = [Fraction(k * whole, chunks) for k in range(chunks + 1)]
        return tuple(self.cut(input, ends, may_be_more=True))

    def split(self, input: Any, split_size_or_sections: Any, dim: Any = 0) -> Any:
        check_last("split", dim)
        sizes, whole = split_size_or_sections, Fraction(len(parts_of(input)))
        if not isinstance(sizes, (list, tuple)):
            size = number_of_columns(sizes)
            if size <= 0 or (whole / size).denominator > 1:
                raise refuse("split in parts that are not equal", instead=EQUAL_PARTS)
            return self.chunk(input, int(whole / size), -1)
        ends = [*itertools.accumulate(map(number_of_columns, sizes), initial=Fraction(0))]
        if ends[-1] != whole:
            raise refuse("split in parts that are not all of it", instead=EQUAL_PARTS)
        return tuple(self.cut(input, ends))

    def sliced(self, input: Any, index: Any) -> Any:
        """A slice of the last dimension; None where it is another index."""
        if not (isinstance(index, tuple) and len(index) == 2 and index[0] is ...):
            return None
        if not isinstance(index[1], slice):
            return None
        last, whole = index[1], len(parts_of(input))
        if type(last.step) is int and last.step > 1:
            raise refuse("these elements lie between others", instead=SIDE_BY_SIDE)
        bounds = (last.start, last.stop)
        if last.step is not None or not any(isinstance(b, (Real, Integer)) for b in bounds):
            return None

        def place(bound: Any, otherwise: int) -> Fraction:
            found = Fraction(otherwise) if bound is None else number_of_columns(bound)
            found = found + whole if found < 0 else found
            return min(max(found, Fraction(0)), Fraction(whole))

        begin, end = place(last.start, 0), place(last.stop, whole)
        if end - begin == whole:
            raise refuse(
                "this slice is of as many columns as another tensor has", instead=EQUAL_PARTS
            )
        return self.cut(input, [begin, end])[0]

    def glu(self, input: Any, dim: Any = -1) -> Any:
        value, gate = self.chunk(input, 2, dim)
        return self.called_on(torch.mul, value, self.called_on(torch.sigmoid, gate))

    def called_on(self, function: Any, *args: Any) -> Any:
        return self.__torch_function__(function, (), args)

    # ----- put together

    def joined(self, tensors: Any, dim: Any = 0) -> Any:
        check_last("cat", dim)
        if not all(isinstance(each, (Traced, Packed)) for each in tensors):
            raise no_argument()
        parts = [part for each in tensors for part in parts_of(each)]
        dtypes = {part.node.dtype or part.counts for part in parts}
        if len(dtypes) > 1:
            raise refuse(
                "cat of tensors of several dtypes", instead="convert them before, by .to()"
            )
        if not all(part.extent & COLUMN for part in parts):
            raise refuse(
                "cat of what has no value for each column",
                instead="return it beside the others, or expand it before the call",
            )
        copies = [self.same("clone", part) for part in parts]
        for copy, part in zip(copies, parts, strict=True):
            copy.counts = part.counts
        return Packed.of(copies)

    def stacked(self, *_: Any, **__: Any) -> Any:
        raise refuse(
            "stack puts elements between others",
            instead="return the parts as results of their own, or torch.cat((a, b), dim=-1)",
        )


# The methods by which functions are of parts.
OF_PARTS = {
    **dict.fromkeys(("chunk", "tensor_split"), "chunk"),
    **dict.fromkeys(("split", "split_with_sizes"), "split"),
    **dict.fromkeys(("cat", "concat", "concatenate"), "joined"),
    **{"glu": "glu", "__getitem__": "sliced", "stack": "stacked"},
}


def holds_value(given: Any) -> bool:
    return any(
        isinstance(each, (Traced, Packed))
        or (isinstance(each, (list, tuple)) and any(isinstance(a, (Traced, Packed)) for a in each))
        for each in given
    )


def check_last(name: str, dim: Any) -> None:
    if type(dim) is not int or dim != -1:
        raise refuse(
            f"{name} along a dimension that is not the last is not derived",
            instead="say dim=-1 where it is, or pass the parts as tensors of their own",
        )


def number_of_columns(value: Any) -> Fraction:
    """A number of columns, in those of a part."""
    if type(value) is int and value == 0:
        return Fraction(0)
    found = in_columns(value.node) if isinstance(value, (Real, Integer)) else None
    if found is None:
        raise refuse("a part of so many columns is not derived", instead=EQUAL_PARTS)
    return found


def check_counts(results: Sequence[Any], counts: Sequence[int] = ()) -> None:
    """Has the trace start over where results are of several parts that were taken for whole.

    Raises:
        Packs: with how many each has.
    """
    found = [len(r.parts) if isinstance(r, Packed) else 1 for r in results]
    if found != [*(counts or [1] * len(found))]:
        raise Packs([], 1, found)
