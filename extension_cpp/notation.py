"""The line that says the shapes of an operator's tensors: `csrc/notation.h`, which explains it.

The same lines are taken here, and the same refused with the same words. :func:`parse_notation` asks
for no compiled library: tools and tests use it on lines that are not compiled yet.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch

# What the checks in C++ keep on the stack.
MAX_TENSORS = 16
MAX_SYMBOLS = 16
# Of numbers in a line: the sum of two is still one of C++.
TOO_LARGE = 10**18

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
    )
}
# Dimensions that no batch joins: of which nothing is said, or that the operator takes as a whole.
NO_BATCH = {"*_", "*all"}
# What may stand after a colon besides those and arguments' names.
RULES = ("sum", "wide", "any")


class NotationError(ValueError):
    """A line of shapes that says nothing, or does not fit its schema; the text shows the place."""


class DtypeRule(enum.Enum):
    """Which dtype a tensor has: what stands after the colon."""

    LEADER = ""  # that of the first tensor without a dtype of its own
    SUM = "sum"
    WIDE = "wide"
    EXACT = "exact"
    ANY = "any"
    ARGUMENT = "argument"


@dataclasses.dataclass(frozen=True)
class Dim:
    """One size (`n`, `3`, `_`, `2n+1`), or any number of dimensions (`*rows`, `...`, `*_`)."""

    symbol: str
    size: int | None = None
    terms: tuple[tuple[int, str], ...] = ()  # of a sum: how many times which name
    plus: int = 0  # what is added to them

    @property
    def is_star(self) -> bool:
        return self.symbol[0] in "*."

    @property
    def is_anything(self) -> bool:
        return self.symbol in ("_", "*_")

    @property
    def is_name(self) -> bool:
        return self.size is None and not self.is_anything and not self.terms

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it."""
        return (self.symbol,) if self.is_name else tuple(name for _, name in self.terms)

    def value(self, sizes: Mapping[str, tuple[Any, ...]]) -> Any:
        """What a sum comes to, of the names whose sizes these are."""
        return self.plus + sum(
            times * sizes[name][0] for times, name in self.terms if name in sizes
        )

    def open(self, sizes: Mapping[str, Any]) -> tuple[int, str] | None:
        """The term of a sum whose name is none of these."""
        return next((term for term in self.terms if term[1] not in sizes), None)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the line says of one tensor."""

    dims: tuple[Dim, ...]
    rule: DtypeRule = DtypeRule.LEADER
    dtype: torch.dtype | None = None  # EXACT
    source: int = -1  # ARGUMENT: which of the tensor arguments
    like: int | None = None  # which of them has all dimensions of a result
    most: int | None = None  # tensors of a list, if that is limited
    position: int = 0  # in the line

    @property
    def star(self) -> int | None:
        """Which of the dimensions stands for any number of them."""
        return next((d for d, dim in enumerate(self.dims) if dim.is_star), None)

    @property
    def star_symbol(self) -> str | None:
        return None if self.star is None else self.dims[self.star].symbol

    @property
    def single(self) -> int:
        """How many dimensions are one."""
        return sum(not dim.is_star for dim in self.dims)


@dataclasses.dataclass(frozen=True)
class TensorArgument:
    """A tensor among the arguments of a schema, or a list of them."""

    name: str
    optional: bool = False
    is_list: bool = False

    @property
    def always_given(self) -> bool:
        return not (self.optional or self.is_list)


@dataclasses.dataclass(frozen=True)
class Notation:
    """A line that fits its schema."""

    name: str
    arguments: tuple[TensorArgument, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    leader: int | None
    numbers: tuple[str, ...]  # the names that are numbers among the arguments

    @property
    def to_first(self) -> bool:
        """Whether tensors of `...` broadcast to the first of them."""
        return any(shape.like is not None for shape in self.outputs)

    @property
    def elementwise(self) -> bool:
        """Whether no shape has single dimensions: outputs then keep the layout of the inputs."""
        return not any(shape.single for shape in (*self.inputs, *self.outputs))

    @property
    def results(self) -> tuple[Shape, ...]:
        """The outputs' shapes; where one has all dimensions of an argument, that argument's."""
        return tuple(s if s.like is None else self.inputs[s.like] for s in self.outputs)

    @property
    def joins_batches(self) -> bool:
        """Whether a batch of any tensor can be joined to dimensions that all of them have."""
        stars = {shape.star_symbol for shape in (*self.inputs, *self.results)}
        return len(stars) == 1 and not stars & {None, *NO_BATCH}

    def dtype_source(self, shape: Shape) -> Shape:
        """The shape that says a tensor's dtype, which may be that of another argument."""
        while shape.rule is DtypeRule.ARGUMENT:
            shape = self.inputs[shape.source]
        return shape


def parse_notation(schema: torch.FunctionSchema | str, line: str) -> Notation:
    """Reads a line of shapes.

    Raises:
        NotationError: it says nothing, or does not fit the schema.
    """
    if isinstance(schema, str):
        schema = torch._C.parse_schema(schema)
    tensors = _SchemaTensors(schema)
    try:
        return _Parser(line, tensors).parse()
    except _Problem as problem:
        position, text = problem.args
        raise NotationError(f"{tensors.name}: {text}\n    {line}\n    {' ' * position}^") from None


class _Problem(Exception):
    """`(position, text)`."""


class _SchemaTensors:
    def __init__(self, schema: torch.FunctionSchema) -> None:
        self.name = schema.name.rpartition("::")[2]
        if schema.overload_name:
            self.name += f".{schema.overload_name}"
        self.problem = ""
        self.arguments = []
        self.numbers = []  # that can be sizes
        for argument in schema.arguments:
            kind = str(argument.real_type)
            if kind in ("int", "SymInt"):
                self.numbers.append(argument.name)
            if "Tensor" in kind:
                optional, is_list = kind.startswith("Optional"), "List" in kind
                if is_list and "Optional" in kind:
                    self.problem = f"'{argument.name}' is a list that may be or hold None"
                self.arguments.append(TensorArgument(argument.name, optional, is_list))
        if not self.arguments:
            self.problem = "the schema has no tensor among its arguments"
        elif all(argument.optional for argument in self.arguments):
            self.problem = "every tensor of the schema is optional"
        self.results = len(schema.returns)
        if any(str(r.type) != "Tensor" or r.alias_info is not None for r in schema.returns):
            self.problem = "the schema returns something else than new tensors"


class _Parser:
    def __init__(self, line: str, schema: _SchemaTensors) -> None:
        self.line = line
        self.schema = schema
        self.at = 0
        self.symbols: list[str] = []
        self.of_results = False

    def parse(self) -> Notation:
        inputs = self.shapes()
        arrow = self.at
        if not self.accept("->"):
            raise _Problem(self.at, "'->' is missing")
        self.of_results = True
        outputs = self.shapes()
        if self.at < len(self.line):
            raise _Problem(self.at, "a second '->'")
        if self.schema.problem:
            raise _Problem(0, f"{self.schema.problem}: the operator goes without a line of shapes")
        self.fit(inputs, len(self.schema.arguments), "arguments", arrow)
        self.fit(outputs, self.schema.results, "results", len(self.line))
        leader = self.fit_dtypes(inputs, outputs)
        numbers = [name for name in self.schema.numbers if name in self.symbols]
        self.fit_sums(inputs, leader, numbers)
        self.fit_names(inputs, outputs, leader, numbers)
        return Notation(
            self.schema.name,
            tuple(self.schema.arguments),
            tuple(inputs),
            tuple(outputs),
            leader,
            tuple(numbers),
        )

    def skip_spaces(self) -> None:
        while self.line[self.at : self.at + 1] == " ":
            self.at += 1

    def accept(self, token: str) -> bool:
        found = self.line.startswith(token, self.at)
        self.at += len(token) if found else 0
        return found

    def at_letter(self) -> bool:
        return _is_letter(self.line[self.at : self.at + 1])

    def at_digit(self) -> bool:
        return _is_digit(self.line[self.at : self.at + 1])

    def word(self) -> str:
        begin = self.at
        while self.at_letter() or self.at_digit():
            self.at += 1
        return self.line[begin : self.at]

    def at_end(self) -> bool:
        return self.at == len(self.line) or self.line.startswith("->", self.at)

    def shapes(self) -> list[Shape]:
        found: list[Shape] = []
        self.skip_spaces()
        if self.at_end():
            return found
        while True:
            found.append(self.shape())
            if self.at_end():
                return found
            self.at += 1  # the comma

    def shape(self) -> Shape:
        self.skip_spaces()
        position = self.at
        dims: list[Dim] = []
        alone = False  # no dimension may follow
        like: int | None = None
        most: int | None = None
        dtype: Shape | None = None
        while not self.at_end() and self.line[self.at] != ",":
            begin = self.at
            if dtype is not None:
                raise _Problem(begin, "a dtype ends its shape")
            if self.accept(":"):
                if not dims and not alone:
                    break
                self.skip_spaces()
                dtype = self.dtype()
            elif most is not None:
                raise _Problem(begin, "nothing but a dtype follows '[n]'")
            elif (alone or dims) and self.accept("["):
                most = self.most()
            elif alone or (self.line[begin] in "(=" and dims):
                raise _Problem(begin, "'()' and '=name' stand alone")
            elif self.accept("()"):
                alone = True
            elif self.accept("="):
                like = self.like()
                alone = True
            else:
                dims.append(self.dim(dims))
            self.skip_spaces()
        if not dims and not alone:
            raise _Problem(
                position, "a shape is missing; that of a tensor without dimensions is '()'"
            )
        return dataclasses.replace(
            dtype or Shape(()), dims=tuple(dims), like=like, most=most, position=position
        )

    def most(self) -> int:
        """How many tensors a list holds at most."""
        if not self.at_digit():
            raise _Problem(self.at, "a number is missing after '['")
        result = self.digits()
        if not self.accept("]"):
            raise _Problem(self.at, "']' is missing")
        return result

    def digits(self) -> int:
        begin = self.at
        while self.at_digit():
            self.at += 1
        if self.at - begin > 18:
            raise _Problem(begin, "the size is too large")
        return int(self.line[begin : self.at])

    def like(self) -> int:
        """The argument of which a result has all dimensions."""
        begin = self.at
        name = self.word()
        argument = self.argument_of(name)
        if not self.of_results:
            raise _Problem(begin, "'=name' is of results")
        if argument is None:
            raise _Problem(begin, f"there is no tensor argument '{name}'")
        if self.schema.arguments[argument].is_list:
            raise _Problem(begin, f"'{name}' is a list, which has no one shape")
        return argument

    def argument_of(self, name: str) -> int | None:
        return next((k for k, a in enumerate(self.schema.arguments) if a.name == name), None)

    def dim(self, before: Sequence[Dim]) -> Dim:
        begin = self.at
        dots = self.accept("...")
        if not dots and not self.accept("*"):
            return self.sum()
        if not dots and not self.at_letter():
            raise _Problem(self.at, "a name is missing after '*'")
        dim = Dim("..." if dots else f"*{self.word()}")
        if any(other.is_star for other in before):
            raise _Problem(begin, "a second '*' or '...' in one shape")
        if not dim.is_anything:
            self.know(begin, dim.symbol)
        return dim

    def sum(self) -> Dim:
        """One size: a number, a name, or a sum."""
        begin = self.at
        plus, found = 0, dict[str, int]()  # how many times each name
        sign = 1
        while sign:
            plus = self.add_term(found, plus, sign, begin)
            minus = not self.line.startswith("->", self.at)
            sign = 1 if self.accept("+") else -1 if minus and self.accept("-") else 0
        if self.line.startswith("*", self.at):
            raise _Problem(self.at, "a space is missing before '*'; twice n is 2n")
        terms = tuple((times, name) for name, times in found.items() if times)
        if not terms:
            if plus < 0:
                raise _Problem(begin, "the size is negative")
            return Dim(str(plus), plus)
        if len(terms) == 1 and terms[0][0] == 1 and not plus:
            return Dim(terms[0][1])
        if any(name == "_" for _, name in terms):
            raise _Problem(begin, "'_' stands alone: it is in no sum")
        return Dim(self.line[begin : self.at], terms=terms, plus=plus)

    def add_term(self, found: dict[str, int], plus: int, sign: int, begin_of_sum: int) -> int:
        """Adds one to what was found of names, or to what is added to them, which it returns."""
        begin = self.at
        has_number = self.at_digit()
        if not has_number and not self.at_letter():
            first = begin == begin_of_sum
            raise _Problem(
                begin,
                "this has no meaning here" if first else "a size is missing after '+' or '-'",
            )
        number = sign * (self.digits() if has_number else 1)
        if not self.at_letter():
            return self.added(begin, plus, number)
        if not number:
            raise _Problem(begin, "a multiple is at least 1")
        at_name = self.at
        name = self.word()
        if name != "_":
            self.know(at_name, name)
        found[name] = self.added(begin, found.get(name, 0), number)
        return plus

    @staticmethod
    def added(position: int, a: int, b: int) -> int:
        if abs(a + b) >= TOO_LARGE:
            raise _Problem(position, "the size is too large")
        return a + b

    def know(self, begin: int, symbol: str) -> None:
        """Of a name in the line."""
        other = symbol[1:] if symbol[0] == "*" else f"*{symbol}"
        if other in self.symbols:
            raise _Problem(begin, f"'{symbol}' is '{other}' elsewhere")
        if symbol not in self.symbols:
            if len(self.symbols) == MAX_SYMBOLS:
                raise _Problem(begin, f"more than {MAX_SYMBOLS} names")
            self.symbols.append(symbol)

    def dtype(self) -> Shape:
        """What stands after the colon, as a shape that is still without dimensions."""
        begin = self.at
        name = self.word()
        if not name:
            raise _Problem(begin, "a dtype is missing after ':'")
        if name in RULES:
            return Shape((), DtypeRule(name))
        if name in DTYPES:
            return Shape((), DtypeRule.EXACT, dtype=DTYPES[name])
        if (source := self.argument_of(name)) is not None:
            return Shape((), DtypeRule.ARGUMENT, source=source)
        raise _Problem(
            begin,
            f"there is no dtype '{name}': sum, wide, any, a name of torch's such as int64, or a "
            "tensor argument",
        )

    @staticmethod
    def fit(shapes: Sequence[Shape], tensors: int, what: str, end: int) -> None:
        if len(shapes) != tensors:
            raise _Problem(
                shapes[tensors].position if len(shapes) > tensors else end,
                f"the line has {len(shapes)} shapes of {what}, the schema {tensors} tensors among "
                f"its {what}",
            )
        if tensors > MAX_TENSORS:
            raise _Problem(shapes[MAX_TENSORS].position, f"more than {MAX_TENSORS} tensors")

    def fit_dtypes(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int | None:
        """Returns which of the arguments is the first without a dtype of its own."""
        arguments = self.schema.arguments
        follow = [DtypeRule.WIDE]
        leads = next((k for k, s in enumerate(inputs) if s.rule is DtypeRule.LEADER), None)
        if leads is None or arguments[leads].is_list:  # others may come before it
            follow.append(DtypeRule.SUM)
        leader = None
        for k, (shape, argument) in enumerate(zip(inputs, arguments, strict=True)):
            if shape.rule is DtypeRule.LEADER and leader is None:
                if argument.optional:
                    raise _Problem(
                        shape.position,
                        f"other dtypes follow from that of '{argument.name}', which is optional: "
                        "say its own",
                    )
                leader = k
            elif shape.rule in follow and leader is None:
                raise _Problem(
                    shape.position,
                    f"the dtype of '{argument.name}' follows from a tensor without one, and none "
                    "comes before it",
                )
            elif shape.rule is DtypeRule.ARGUMENT:
                source = arguments[shape.source]
                known = shape.source < k or inputs[shape.source].rule is not DtypeRule.ARGUMENT
                if not known or not source.always_given:
                    raise _Problem(
                        shape.position,
                        f"the dtype of '{argument.name}' follows from that of '{source.name}', "
                        "which has to be always there, and to come before it if it follows, too",
                    )
            if shape.most is not None and not argument.is_list:
                raise _Problem(shape.position, f"'{argument.name}' is no list")
        for shape in outputs:
            if shape.most is not None:
                raise _Problem(shape.position, "a result is no list")
            if shape.rule is DtypeRule.ARGUMENT and arguments[shape.source].is_list:
                raise _Problem(
                    shape.position,
                    f"'{arguments[shape.source].name}' is a list, which has no one dtype",
                )
            if shape.rule in (DtypeRule.ANY, DtypeRule.WIDE):
                raise _Problem(shape.position, "a result has one dtype, not any of several")
            if shape.rule in (DtypeRule.LEADER, DtypeRule.SUM) and leader is None:
                raise _Problem(
                    shape.position,
                    "the dtype of a result follows from a tensor without one, and there is none",
                )
        return leader

    def is_there(self, k: int, leader: int | None) -> bool:
        return self.schema.arguments[k].always_given or k == leader

    def fit_sums(self, inputs: Sequence[Shape], leader: int | None, numbers: Sequence[str]) -> None:
        """Of a sum of an argument all names but one are known when that is checked, and the one
        follows.
        """
        known = {*numbers}
        for k, shape in enumerate(inputs):
            names = {*known}
            for dim in shape.dims:
                if sum(name not in names for _, name in dim.terms) > 1:
                    raise _Problem(
                        shape.position,
                        f"'{dim.symbol}' leaves several names open, and one alone can follow from "
                        "it: others have to be known from what comes before and is always there",
                    )
                names |= {*dim.names}
            if self.is_there(k, leader):
                known = names

    def fit_names(
        self,
        inputs: Sequence[Shape],
        outputs: Sequence[Shape],
        leader: int | None,
        numbers: Sequence[str],
    ) -> None:
        """Every name of a result is known wherever there is that result."""
        for shape in outputs:
            for dim in shape.dims:
                if dim.is_anything:
                    raise _Problem(shape.position, "'_' says no size of a result")
                for name in dim.names:
                    named = [
                        k
                        for k, other in enumerate(inputs)
                        if any(name in each.names for each in other.dims)
                    ]
                    if not named and name not in numbers:
                        raise _Problem(shape.position, f"'{name}' is in no shape of an argument")
                    if name not in numbers and not any(
                        self.is_there(k, leader)
                        or (shape.rule is DtypeRule.ARGUMENT and shape.source == k)
                        for k in named
                    ):
                        raise _Problem(
                            shape.position,
                            f"'{name}' is known only where an optional tensor or a list is given",
                        )


def _is_letter(text: str) -> bool:
    return text == "_" or (text.isascii() and text.isalpha())


def _is_digit(text: str) -> bool:
    return text.isascii() and text.isdigit()
