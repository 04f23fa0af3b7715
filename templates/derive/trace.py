"""Runs a definition on stand-ins for its arguments, and records what it computes for an element."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .at_ties import passes_bounds
from .definition import COLUMNS
from .graph import (
    COLUMN,
    COMPARISONS,
    ELEMENT,
    FLOAT8,
    INTEGERS,
    NUMBER,
    ROW,
    TO_FLOAT8,
    Node,
    col,
    cols,
    const,
    make,
    tensor_argument,
    where,
    whole,
)
from .operations import UNDERIVED, is_constant
from .refusal import (
    BY_HAND,
    NotDerived,
    OverEverything,
    line_of_definition,
    refuse,
    traced_file,
)
from .rows_operations import is_index, not_shared
from .rows_vocabulary import ROWS, last, over_all_dimensions, over_everything, picked
from .vocabulary import (
    CONVERT,
    OF_BITS,
    OF_INTEGERS,
    VOCABULARY,
    mask,
    of_float8,
    real,
    unknown,
)


def known_as(name: str) -> Callable[[type], type]:
    """Has errors call a class what the author of a definition knows it as."""

    def named(stand_in: Any) -> Any:
        stand_in.__name__ = stand_in.__qualname__ = name
        return stand_in

    return named


@known_as("Tensor")
class Traced(Tensor):
    """A tensor of the definition.

    Attributes:
        node: what one element of it is.
        is_own: whether the definition made it, so that it may be written to.
        is_squeezed: whether it has a value for each row, and no dimension for the columns.
        extent: of its shape, which may be more than the node's, as that of zeros_like is, or
            nothing, as that of a tensor of one number without dimensions.
        counts: the dtype of integers to which a mask was converted, of which the node is 0 or 1.
    """

    node: Node
    is_own: bool
    is_squeezed: bool
    extent: int
    counts: str = ""
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    # Else torch would put the tensor first, in the order of no author's.
    def __radd__(self, other: Any) -> Any:
        return torch.add(other, self)

    def __rmul__(self, other: Any) -> Any:
        return torch.mul(other, self)

    def __iter__(self) -> Any:
        raise unknown("__iter__")

    @staticmethod
    def of(
        node: Node, is_own: bool = True, is_squeezed: bool = False, extent: int | None = None
    ) -> Traced:
        tensor = torch.empty(0).as_subclass(Traced)
        tensor.node, tensor.is_own, tensor.is_squeezed = node, is_own, is_squeezed
        tensor.extent = node.extent if extent is None else extent
        return tensor


@known_as("Tensor")
class Index(Tensor):
    """That of the largest or smallest of a row, which may be left unused.

    Attributes:
        refusal: what is said to a use.
    """

    refusal: NotDerived
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(name: str) -> Index:
        index = torch.empty(0).as_subclass(Index)
        index.refusal = refuse(
            f"the index that {name} gives besides is not derived", instead=f"use a{name} alone"
        )
        return index


class Undecided(BaseException):
    """A branch on numbers whose way is not said.

    Attributes:
        node: the condition.
        place: the line, as refusals name it.
    """

    def __init__(self, node: Node) -> None:
        self.node, self.place = node, line_of_definition()

    def refusal(self, reason: str) -> NotDerived:
        return NotDerived(
            f"{self.place}a branch on a number is taken both ways, {reason}; say "
            "torch.where(torch.tensor(a) > 0, x, y), make the switch an argument of type bool, or "
            "leave out what checks arguments"
        )


# Of loops that numbers end.
MOST_QUESTIONS = 10_000


class Ways:
    """The ways that a trace takes of branches on numbers.

    Attributes:
        decided: the conditions whose way is said, and which.
        undecided: the others that were met, which the definition may have caught.
    """

    def __init__(self) -> None:
        self.decided: dict[Node, bool] = {}
        self.start()

    def start(self) -> None:
        """Of another trace."""
        self.undecided: list[Undecided] = []
        self.questions = 0

    def of(self, node: Node) -> bool:
        self.questions += 1
        if self.questions > MOST_QUESTIONS:
            raise Undecided(node).refusal("and one of these has no end")
        if node not in self.decided:
            self.undecided.append(Undecided(node))
            raise self.undecided[-1]
        return self.decided[node]


ways = Ways()


@known_as("bool")
class Condition:
    """A comparison of numbers, and what is made of several."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __bool__(self) -> bool:
        return ways.of(self.node)

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        """Has torch's functions take it as far as the Recorder."""
        return NotImplemented


def is_number(value: Any) -> bool:
    """Whether numbers are computed with it."""
    return isinstance(value, (int, float, Condition))


def result_of(op: str, *operands: Any) -> Any:
    nodes = [real(as_node(operand)) for operand in operands]
    if op in COMPARISONS:
        return Condition(make(op, *nodes))
    return Real.of(make(op, *nodes), evaluate(EVALUATED[op], *operands))


def of_one(op: str) -> Callable[..., Any]:
    return lambda self: result_of(op, self)


def of_two(op: str, reflected: bool = False) -> Callable[..., Any]:
    def operation(self: Any, other: Any) -> Any:
        if not is_number(other):
            return NotImplemented
        return result_of(op, other, self) if reflected else result_of(op, self, other)

    return operation


def of_conditions(op: str) -> Callable[..., Any]:
    def operation(self: Any, other: Any) -> Any:
        if isinstance(other, (Condition, bool)):
            return Condition(VOCABULARY[op](self.node, as_node(other)))
        return no_conversion(self) if is_number(other) else NotImplemented

    return operation


def power(self: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is not None:
        raise refuse("pow with a modulus is not derived", instead="say a**b % c")
    return of_two("pow")(self, exponent)


EVALUATED: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
    "remainder": operator.mod,
    "floor_divide": operator.floordiv,
}


def plain(value: Any) -> float:
    """A number argument without what it stands for."""
    if isinstance(value, Integer):
        return value.value
    if isinstance(value, Condition):
        return True
    return float.__float__(value) if isinstance(value, Real) else value


def evaluate(function: Callable[..., float], *operands: Any) -> float:
    """A value to go on with; nothing is made of it."""
    try:
        return float(function(*map(plain, operands)))
    except (ArithmeticError, TypeError, ValueError):
        return 1.0


ARITHMETIC = {
    "__pos__": lambda self: self,
    "__neg__": of_one("neg"),
    "__abs__": of_one("abs"),
    **{
        f"__{'r' if reflected else ''}{name}__": of_two(op, reflected)
        for name, op in {
            "add": "add",
            "sub": "sub",
            "mul": "mul",
            "truediv": "div",
            "pow": "pow",
            "mod": "remainder",
            "floordiv": "floor_divide",
        }.items()
        for reflected in (False, True)
    },
    "__pow__": power,
}
NUMBER_OPERATIONS = ARITHMETIC | {f"__{op}__": of_two(op) for op in COMPARISONS}
CONDITION_OPERATIONS = {
    f"__{r}{op}__": of_conditions(f"__{op}__") for op in ("and", "or", "xor") for r in ("", "r")
}


def is_not_zero(self: Any) -> bool:
    return bool(Condition(make("ne", real(self.node), const(0))))


def no_conversion(self: Any, *_: Any) -> Any:
    raise refuse(
        "a number argument would become a constant here",
        instead="leave it out, or compute with +, -, *, /, //, %, **, abs, min, max and "
        "functions of math",
    )


# All that a number has, and how objects become text or a key: where a constant would come of it.
REFUSED_OF_NUMBERS = {
    name: property(no_conversion) if inspect.isgetsetdescriptor(value) else no_conversion
    for name, value in (vars(float) | vars(int)).items()
    if name not in vars(object) or name in ("__hash__", "__repr__", "__format__")
} | {"__bool__": is_not_zero}


@known_as("float")
class Real(float):
    """A number argument of type float, and what is computed of numbers."""

    node: Node

    def __new__(cls, *args: Any) -> Any:
        """For definitions, which ask for the type of a number: a number that is given to it."""
        return float(*args)

    @staticmethod
    def of(node: Node, value: float) -> Real:
        number = float.__new__(Real, value)
        number.node = node
        return number


@known_as("int")
class Integer:
    """A number argument of type int.

    It is none to Python, to which `0.1 * k` would be a float: a float takes the value of an int, of
    whatever class, and does not ask this. It is one to isinstance, range and indices.
    """

    node: Node
    value: int

    def __new__(cls, *args: Any) -> Any:
        return int(*args)

    @staticmethod
    def of(node: Node, value: int) -> Integer:
        number = object.__new__(Integer)
        number.node, number.value = node, value
        return number

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __index__(self) -> int:
        return self.value

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        """Has torch's functions take it as far as the Recorder."""
        return NotImplemented


NUMBERS = (Real, Integer, Condition)
STAND_INS = (Traced, *NUMBERS)

for _type, _operations in (
    (Real, NUMBER_OPERATIONS),
    (Integer, NUMBER_OPERATIONS),
    (Condition, NUMBER_OPERATIONS | CONDITION_OPERATIONS),
):
    for _name, _method in (REFUSED_OF_NUMBERS | _operations).items():
        if _name not in vars(_type):
            setattr(_type, _name, _method)


def no_argument() -> NotDerived:
    return refuse(
        "a tensor that is no argument is part of the formula", instead="make it an argument"
    )


def with_dimensions(count: int) -> NotDerived:
    """Of a tensor of so many numbers that is no argument."""
    if count != 1:
        return no_argument()
    return refuse(
        "a tensor of one number that has dimensions is part of the formula, and what is made of "
        "tensors without them would have them",
        instead="write it as a number, or without dimensions, as torch.tensor(0.5)",
    )


def holds_stand_in(data: Any) -> bool:
    """Whether it is made of arguments, or is a list of what is."""
    if isinstance(data, (list, tuple)):
        return any(map(holds_stand_in, data))
    return isinstance(data, STAND_INS)


def of_data(data: Any) -> Traced:
    """A tensor of what is given to torch.tensor and its like."""
    if isinstance(data, (list, tuple)):
        raise with_dimensions(len(data))
    return Traced.of(as_node(data))


def as_node(value: Any) -> Any:
    """What a function is called with, as an expression where it is one."""
    if isinstance(value, STAND_INS):
        return value.node
    if isinstance(value, Tensor):
        if value.dim():
            raise with_dimensions(value.numel())
        if value.dtype == torch.bool or value.dtype.is_complex:
            raise no_argument()
        return const(value.item())
    return const(value) if type(value) in (int, float) else value


def as_exact_node(value: Any) -> Any:
    """The same beside integers, with which integers are compared as they are."""
    if isinstance(value, Tensor) and not isinstance(value, Traced) and not value.dim():
        value = value.item()
    if type(value) is int:
        return whole(value)
    if isinstance(value, Integer) and not value.node.args:
        return make("count", value=value.node.value)
    return as_node(value)


MAKING_CONSTANTS = ("tensor", "as_tensor", "scalar_tensor")
# The dtypes to which they convert.
OF_CONVERSIONS = {
    "float": torch.float32,
    "double": torch.float64,
    "int": torch.int32,
    "long": torch.int64,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
}
OF_INTEGER_DTYPES = {getattr(torch, name): name for name in INTEGERS}
OF_FLOAT8_DTYPES = {getattr(torch, name): name for name in FLOAT8}
CONVERSIONS = ("to", "type", "type_as", *OF_CONVERSIONS)
SAME = ("clone", "positive", "contiguous")
# Names of arguments that torch has from NumPy.
OF_NUMPY = {"axis": "dim", "keepdims": "keepdim"}
# Of these no operand may be a bool of Python.
OF_MASKS = ("where", "masked_fill", "masked_fill_", "logical_and", "logical_or", "logical_xor")
# Each has the mean for its second result.
BOTH_MOMENTS = {"var_mean": "var", "std_mean": "std"}
# Of two tensors they are elementwise.
OF_TWO = {"max": "maximum", "min": "minimum"}


def in_place(name: str) -> tuple[str, bool]:
    """The function that a name stands for, and whether its result is written to its operand."""
    if name.startswith("__i") and name[3:-2] in VOCABULARY:
        return name[3:-2], True
    if name.endswith("_") and name[:-1] in VOCABULARY:
        return name[:-1], True
    return name, False


@known_as("torch.Size")
class Sizes:
    """The shape of a tensor, of which rows know the last size alone."""

    def __init__(self, dtype: torch.dtype) -> None:
        # A value to go on with, another one in each of two traces.
        self.last = Integer.of(cols(), 7919 if dtype == torch.float64 else 6008)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and index == -1:
            return self.last
        if index == slice(-1, None):
            return (self.last,)
        raise self.refused()

    def __iter__(self) -> Iterator[Any]:
        raise self.refused()

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise refuse(
            "this compares a tensor's sizes, which no element knows",
            instead="leave it out: the operator checks shapes by itself",
        )

    def __len__(self) -> int:
        raise self.refused()

    @staticmethod
    def refused() -> NotDerived:
        return refuse(
            "of a tensor's sizes rows know the last one alone",
            instead="say x.shape[-1], or make it an argument, a number",
        )


def puts_in(index: Any) -> bool:
    """Whether an index puts dimensions in, and picks nothing out."""
    parts = index if isinstance(index, tuple) else (index,)
    others = [part for part in parts if part is not None]
    return len(others) < len(parts) and all(o is ... or o == slice(None) for o in others)


def extent_of(operands: Sequence[Any]) -> int:
    """Of the shape of what an elementwise function makes of these."""
    return functools.reduce(operator.or_, (a.extent for a in operands if isinstance(a, Traced)), 0)


def common_squeeze(operands: Sequence[Any]) -> bool:
    """Whether the result of an elementwise function of these has no dimension for the columns."""
    tensors = [a for a in operands if isinstance(a, Traced) and a.extent]
    squeezed = [a for a in tensors if a.is_squeezed]
    if squeezed and len(squeezed) < len(tensors):
        arguments = [a.node.value for a in tensors if a.node.op == "tensor" and not a.is_squeezed]
        or_say = "".join(
            f', or say that it has a value for each row, {name}: Annotated[Tensor, "*rows"]'
            for name in arguments[:1]
        )
        raise refuse(
            "a value for each row without a dimension for the columns meets one that has it",
            instead=f"reduce with keepdim=True{or_say}",
        )
    return bool(squeezed)


def detached(value: Any) -> Any:
    """A constant for the derivatives."""
    if isinstance(value, tuple):
        return type(value)([detached(each) for each in value])
    if not isinstance(value, Traced) or is_constant(value.node):
        return value
    op, args = value.node.op, value.node.args
    # Codes are of a constant, and stay codes.
    node = make(op, make("detach", *args)) if op in TO_FLOAT8 else make("detach", value.node)
    return Traced.of(node, value.is_own, value.is_squeezed, value.extent)


CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max"}


def check_bounds(input: Any, *bounds: Any) -> None:
    """Refuses bounds of one number that are tensors, where torch shares the gradient with these.

    It has none at a bound that is a number then, and expressions do not tell the two apart. (With
    a number as the other bound, torch takes the tensor for a number, too.)
    """
    if passes_bounds() or not torch.is_grad_enabled() or is_constant(as_node(input)):
        return
    given = [b for b in bounds if b is not None]
    if given and all(isinstance(b, Tensor) and as_node(b).is_number for b in given):
        raise refuse(
            "clamp by a tensor that is one number is not derived", instead="give it the number"
        )


# What tensors are called in torch's signatures, in their places.
PLACES = ({"input", "self"}, {"other", "target"})
PLACES_OF = {
    "where": ({"condition"}, {"input", "self"}, {"other"}),
    "masked_fill": ({"input"}, {"mask"}, {"value"}),
    "full_like": ({"input"}, {"fill_value"}),
    "new_tensor": ({"self"}, {"data"}),
    "new_full": ({"self"}, {"size"}, {"fill_value"}),
    **dict.fromkeys(("addcmul", "addcdiv"), ({"input"}, {"tensor1"}, {"tensor2"})),
    **dict.fromkeys(("cosine_similarity", "pairwise_distance"), ({"x1"}, {"x2"})),
}


def in_order_of_torch(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What is given to a function by torch's names for its tensors, in their places."""
    for k, names in enumerate(PLACES_OF.get(name, PLACES)):
        found = names & kwargs.keys()
        if found and len(args) == k:
            args = (*args, kwargs.pop(found.pop()))
    return args, kwargs


def is_no_dropout(name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether it is a dropout that is given back as it is, as there is no training."""
    return name == "dropout" and kwargs.get("training", args[2] if args[2:] else True) is False


def no_such_call(name: str, kwargs: dict[str, Any]) -> NotDerived:
    by_position = "pass its tensors by position, or " if kwargs else ""
    return refuse(
        f"{name} is called in a way that is not derived", instead=f"{by_position}{BY_HAND}"
    )


# What makes a vector of all elements.
FLATTENING = {"flatten": ((),), "ravel": ((),), "reshape": ((-1,), ((-1,),)), "view": ((-1,),)}
# Those of the vocabulary that reduce unless they are told not to.
LOSSES = {
    name: inspect.signature(function)
    for name, function in VOCABULARY.items()
    if "reduction" in inspect.signature(function).parameters
}
REDUCED = ("mean", "sum")


class Recorder(TorchFunctionMode):
    """Records calls of torch's functions, on tensors of a nominal dtype.

    Args:
        dtype: the nominal one.
        of_all: whether reductions are over everything, as if that were one row.
    """

    def __init__(self, dtype: torch.dtype, of_all: bool = False) -> None:
        super().__init__()
        self.dtype, self.of_all = dtype, of_all

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        for value in (*args, *kwargs.values()):
            if isinstance(value, Index):
                raise value.refusal
        name = function.__name__
        if name == "__get__":
            return self.attribute(function.__self__.__name__, *args)
        if name == "_set_grad_enabled":
            # Here no kernel runs, and what has no gradient is said by the expressions.
            return function(*args)
        if name == "detach":
            return detached(args[0])
        args, kwargs = in_order_of_torch(in_place(name)[0], args, kwargs)
        result = self.called(function, name, args, kwargs)
        # What it writes to is what the next call writes to, too.
        is_written = in_place(name)[1] and result is args[0]
        return result if torch.is_grad_enabled() or is_written else detached(result)

    def called(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        given = (*args, *kwargs.values())
        if name in MAKING_CONSTANTS:
            if holds_stand_in(given[0]):
                return of_data(given[0])
            return function(given[0], dtype=kwargs.get("dtype"))
        if not any(isinstance(a, STAND_INS) for a in given):
            if any(isinstance(a, Tensor) for a in given):
                return function(*args, **kwargs)
            raise unknown(name)
        if name in OF_MASKS and any(isinstance(a, Condition) for a in given):
            raise refuse(
                "a comparison of numbers is no tensor",
                instead="compare a tensor, torch.tensor(a) > 0",
            )
        if name in ("new_tensor", "new_full") and all(a in ((), []) for a in args[1:-1]):
            return Traced.of(real(of_data(args[-1]).node))
        if name in CONVERSIONS:
            return self.converted(name, *args, **kwargs)
        if name in SAME or is_no_dropout(name, args, kwargs):
            return self.same(name, args[0])
        if name in BOTH_MOMENTS:
            first = self.of_rows(BOTH_MOMENTS[name], args, kwargs)
            kwargs = {k: v for k, v in kwargs.items() if k not in ("unbiased", "correction")}
            return first, self.of_rows("mean", args[:2], kwargs)
        if name == "aminmax":
            low, high = (self.of_rows(each, args, kwargs) for each in ("amin", "amax"))
            return torch.return_types.aminmax((low, high))
        if name in OF_TWO:
            if not (len(given) == 2 and isinstance(given[1], Tensor)):
                return self.extreme(name, args, kwargs)
            name = OF_TWO[name]
        if name in FLATTENING or name in ("numel", "nelement"):
            return self.flattened(name, *args, **kwargs)
        if name in ("unsqueeze", "squeeze", "__getitem__", "size"):
            return self.reshaped(name, *args, **kwargs)
        if name in ROWS:
            return self.of_rows(name, args, kwargs)
        if name == "arange":
            return self.columns(*args, **kwargs)
        if name == "gather":
            return self.picked(*args, **kwargs)
        if name == "one_hot":
            return self.one_hot(*args, **kwargs)
        if kwargs.pop("out", None) is not None:
            raise refuse("out= writes to a tensor", instead="assign the result to a name")
        name, writes = in_place(name)
        if name not in VOCABULARY:
            raise unknown(name)
        if name in LOSSES:
            return self.loss(name, args, kwargs)
        if name in CLAMPS:
            check_bounds(*given)
        written = self.writable(args[0]) if kwargs.pop("inplace", False) or writes else None
        is_squeezed = common_squeeze(given)
        node = self.computed(name, args, kwargs)
        result = Traced.of(node, True, is_squeezed, extent_of(given))
        if written is not None:
            if written.extent != result.extent:
                raise refuse(
                    "this writes elements to a value for each row",
                    instead="give the result a name of its own",
                )
            # It keeps its dtype.
            if written.node.integer != node.integer:
                raise refuse(
                    "this writes values of another dtype to integers",
                    instead="give the result a name of its own",
                )
            written.node = (
                mask(node) if written.node.is_bool else node if node.integer else real(node)
            )
            written.is_squeezed = is_squeezed
            return written
        return result

    def of_rows(self, name: str, args: Any, kwargs: dict[str, Any]) -> Traced:
        if any(isinstance(a, Traced) and a.is_squeezed for a in (*args, *kwargs.values())):
            raise refuse(
                f"{name} is of what has a value for each row alone",
                instead="reduce tensors that have the rows' shape, or return what each row has and "
                "reduce it outside",
            )

        def operand(a: Any) -> Any:
            return a.node if isinstance(a, Traced) else a

        # As the operator computes by itself.
        args = [a for a in args if a is not torch.float32]
        kwargs = {OF_NUMPY.get(k, k): v for k, v in kwargs.items() if v is not torch.float32}
        if kwargs.get("out", "") is None:
            del kwargs["out"]

        try:
            if self.of_all:
                args, kwargs = [], over_everything(name, args, kwargs)
            node, is_squeezed = ROWS[name](
                *map(operand, args), **{k: operand(v) for k, v in kwargs.items()}
            )
        except TypeError:
            raise no_such_call(name, kwargs) from None
        # What there is one of for all meets tensors as it is.
        return Traced.of(node, is_squeezed=is_squeezed and not self.of_all)

    def loss(self, name: str, args: Any, kwargs: dict[str, Any]) -> Traced:
        """That of each element, or its mean or sum."""
        try:
            given = LOSSES[name].bind(*args, **kwargs)
        except TypeError:
            raise no_such_call(name, kwargs) from None
        given.apply_defaults()
        reduction = given.arguments["reduction"]
        if reduction in REDUCED:
            given.arguments["reduction"] = "none"
        tensors = [a for a in given.arguments.values() if isinstance(a, Traced)]
        node = self.computed(name, given.args, given.kwargs)
        loss = Traced.of(node, True, common_squeeze(tensors), extent_of(tensors))
        if reduction == "none":
            return loss
        if not self.of_all:
            raise over_all_dimensions(f'{name} with reduction="{reduction}"')
        return self.of_rows(reduction, [loss], {})

    def flattened(self, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """A vector of all elements, or their number: of what is reduced over everything."""
        is_whole = isinstance(tensor, Traced) and tensor.extent == ELEMENT
        if not is_whole or kwargs or args not in FLATTENING.get(name, ((),)):
            raise unknown(name)
        if not self.of_all:
            raise OverEverything(unknown(name))
        return tensor if name in FLATTENING else Sizes(self.dtype).last

    def extreme(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        values = self.of_rows(name, args, kwargs)
        if not is_constant(values.node):
            values.node = make("picked", values.node)
            UNDERIVED.setdefault(values.node, not_shared(name))
        return getattr(torch.return_types, name)((values, Index.of(name)))

    def columns(self, *bounds: Any, dtype: Any = None, device: Any = None, **rest: Any) -> Traced:
        """The index of its column for each, torch.arange(x.shape[-1])."""
        bounds += tuple(rest.pop(name) for name in ("start", "end", "step") if name in rest)
        *first, last = bounds[:2] if bounds[2:] in ((), (1,)) and bounds else [None]
        if rest or first not in ([], [0]) or as_node(last) is not cols():
            raise refuse(
                "arange makes a tensor, and of numbers for the columns of a row alone one that is "
                "known",
                instead="say torch.arange(x.shape[-1], device=x.device), and compute with it",
            )
        columns = Traced.of(col())
        if dtype is None or dtype == torch.int64:
            return columns
        return self.converted("to", columns, dtype)

    def picked(self, tensor: Any, dim: Any = None, index: Any = None, **rest: Any) -> Traced:
        """Of each row the element that has an index."""
        last(dim, "gather")
        if rest or not (isinstance(tensor, Traced) and isinstance(index, Traced)):
            raise no_such_call("gather", rest)
        return Traced.of(picked(tensor.node, index))

    def one_hot(self, tensor: Any, num_classes: Any = -1) -> Traced:
        """1 in the column that has an index, else 0."""
        if as_node(num_classes) is not cols():
            raise refuse(
                "one_hot of other classes than the columns is not row-wise",
                instead="say F.one_hot(k, x.shape[-1])",
            )
        is_of_row = isinstance(tensor, Traced) and tensor.is_squeezed
        if not (is_of_row and tensor.node.integer == "int64"):
            raise refuse(
                "one_hot is of an index for each row",
                instead='annotate it, k: Annotated[Tensor, torch.int64, "*rows"]',
            )
        found = Traced.of(real(is_index(tensor.node)))
        found.counts = "int64"
        return found

    def reshaped(self, name: str, tensor: Traced, *args: Any, **kwargs: Any) -> Any:
        """The dimension for the columns of a value for each row, put in or left out."""
        given = (*args, *kwargs.values())
        if self.of_all:
            raise unknown(name)
        if name == "size":
            return Sizes(self.dtype)[given[0]] if given else Sizes(self.dtype)
        if tensor.extent == ROW:
            put_in = {"unsqueeze": (-1,), "__getitem__": ((..., None),)}
            if put_in.get(name) == given and tensor.is_squeezed:
                return Traced.of(tensor.node, extent=ROW)
            if name == "squeeze" and given == (-1,) and not tensor.is_squeezed:
                return Traced.of(tensor.node, is_squeezed=True, extent=ROW)
            if tensor.is_squeezed and (name == "unsqueeze" or puts_in(args[0])):
                raise refuse(
                    "a dimension is put elsewhere than behind a value for each row",
                    instead="say k.unsqueeze(-1) or k[..., None], for any number of dimensions",
                )
        if name == "__getitem__" and puts_in(args[0]):
            raise unknown("unsqueeze", "indexing with None")
        if name == "unsqueeze" and tensor.node.dtype:
            what = "integers" if tensor.node.integer else tensor.node.dtype
            raise refuse(
                f"unsqueeze changes a shape, and these {what} have that of the rows",
                instead="say that there is one for each row, "
                f'k: Annotated[Tensor, torch.{tensor.node.dtype}, "*rows"]',
            )
        raise unknown(name)

    def computed(self, name: str, args: Any, kwargs: dict[str, Any]) -> Node:
        convert = as_node
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, Traced)]
        if any(a.node.float8 for a in given):
            raise of_float8(name.strip("_"))
        if any(a.node.integer for a in given):
            if name in OF_INTEGERS:
                convert = as_exact_node
            elif name in OF_BITS:
                raise unknown(name)
            elif not any(a.extent and not (a.node.dtype or a.counts) for a in given):
                raise refuse(f"{name.strip('_')} of integers is not derived", instead=CONVERT)
        operands = [convert(a) for a in args]
        try:
            return VOCABULARY[name](*operands, **{k: convert(v) for k, v in kwargs.items()})
        except TypeError:
            raise no_such_call(name, kwargs) from None

    def writable(self, tensor: Tensor) -> Traced:
        if not isinstance(tensor, Traced):
            raise refuse("this writes to a constant", instead="give the result a name of its own")
        if not tensor.is_own:
            raise refuse(
                "this writes to an argument",
                instead="give the result a name of its own and return it; what writes to its "
                "arguments returns nothing, and says so, -> None",
            )
        return tensor

    def attribute(self, name: str, tensor: Tensor) -> Any:
        if name == "dtype":
            return self.dtype_of(tensor)
        if name == "device":
            # Another one in each of two traces, and one of each kind that operators have.
            return torch.device("cpu" if self.dtype == torch.float64 else "cuda")
        if name == "shape" and self.of_all:
            raise refuse(
                "what is reduced over everything has a number of elements, and no sizes",
                instead="say x.numel(), or make it an argument, a number",
            )
        if name == "shape" and isinstance(tensor, Traced) and tensor.extent & COLUMN:
            sizes = Sizes(self.dtype)
            return (sizes.last,) if tensor.extent == COLUMN else sizes
        raise unknown(name)

    def dtype_of(self, tensor: Any) -> torch.dtype:
        if not isinstance(tensor, Traced):
            return self.dtype
        dtype = tensor.node.dtype or tensor.counts
        return getattr(torch, dtype) if dtype else self.dtype

    def same(self, name: str, tensor: Any) -> Traced:
        if name != "clone":
            return tensor
        return Traced.of(tensor.node, True, tensor.is_squeezed, tensor.extent)

    def converted(self, name: str, tensor: Traced, *args: Any, **kwargs: Any) -> Traced:
        wanted = OF_CONVERSIONS.get(name)
        for value in (*args, *kwargs.values()):
            if isinstance(value, Traced):
                wanted = self.dtype_of(value)
            elif isinstance(value, torch.dtype):
                wanted = value
        if wanted in OF_INTEGER_DTYPES:
            return self.as_integers(tensor, OF_INTEGER_DTYPES[wanted])
        if wanted in OF_FLOAT8_DTYPES:
            return self.as_float8(tensor, OF_FLOAT8_DTYPES[wanted])
        if tensor.node.stored and wanted not in (self.dtype, torch.float32, torch.bool):
            what = "integers" if tensor.node.integer else "float8"
            raise refuse(f"{name} converts {what} to another dtype", instead=CONVERT)
        if wanted is not None and not wanted.is_complex:
            node = mask(tensor.node) if wanted == torch.bool else real(tensor.node)
            if node is not tensor.node:
                return Traced.of(node, is_squeezed=tensor.is_squeezed, extent=tensor.extent)
        # As the operator does by itself; a mask stays what it is.
        by_itself = (torch.float32, torch.bool)
        if wanted in by_itself or (wanted == self.dtype and name in ("to", "type", "type_as")):
            # Of another dtype it is a copy, which no write is seen in.
            is_same = wanted in (self.dtype, torch.bool) and not tensor.counts
            return tensor if is_same else self.same("clone", tensor)
        raise unknown(name)

    def as_integers(self, tensor: Traced, dtype: str) -> Traced:
        """A tensor of a dtype of integers; of masks they are 0 and 1, to compute with."""
        node = tensor.node
        if node.integer == dtype:
            return tensor
        is_mask = node.is_bool or node.op == "to_real"
        if node.float8:
            node = real(node)
        node = real(node) if is_mask else make(f"to_{dtype}", node)
        found = Traced.of(node, is_squeezed=tensor.is_squeezed, extent=tensor.extent)
        found.counts = dtype if is_mask else ""
        return found

    def as_float8(self, tensor: Traced, dtype: str) -> Traced:
        if tensor.node.float8 == dtype:
            return tensor
        node = make(f"to_{dtype}", real(tensor.node))
        return Traced.of(node, is_squeezed=tensor.is_squeezed, extent=tensor.extent)


# Functions of math that a number may go through.
MATH = {
    **{name: name for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin")},
    **{name: name for name in ("cos", "tan", "sinh", "cosh", "tanh", "erf", "erfc", "atan")},
    **{name: name for name in ("asin", "acos", "asinh", "acosh", "atanh", "copysign", "fmod")},
    **{name: name for name in ("exp2", "floor", "ceil", "trunc")},
    **{"fabs": "abs", "pow": "pow", "atan2": "atan2", "hypot": "hypot"},
}


# Functions of Python that take a number in the place of one before it, by this comparison.
CHOICES = {"min": "lt", "max": "gt"}


def choice(name: str) -> Callable[..., Any]:
    """The function, of number arguments too."""
    original = getattr(builtins, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        values = [*args[0]] if len(args) == 1 else [*args]
        if any(isinstance(value, Traced) for value in values):
            raise refuse(
                f"{name} is not of tensors",
                instead=f"say torch.{name}imum, or torch.clamp where the other is a number",
            )
        is_of_arguments = any(isinstance(value, NUMBERS) for value in values)
        if kwargs or not is_of_arguments or not all(map(is_number, values)):
            return original(values, **kwargs)
        node, *others = (real(as_node(value)) for value in values)
        for other in others:
            node = where(make(CHOICES[name], other, node), other, node)
        return Real.of(node, evaluate(original, *values))

    return call


FUNCTIONS_OF_MATH = {id(f) for n, f in vars(math).items() if callable(f) and not n.startswith("_")}


@contextlib.contextmanager
def math_of_numbers(module: ModuleType) -> Iterator[None]:
    """Has the functions of math, min and max take number arguments for what they are.

    Args:
        module: that of the definition, which may have imported some by name.
    """

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        name = original.__name__

        def call(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(a, Traced) for a in args):
                raise refuse(
                    f"math.{name} is not of tensors", instead=f"say torch.{MATH.get(name, name)}"
                )
            if not any(isinstance(a, NUMBERS) for a in args):
                return original(*args, **kwargs)
            if name not in MATH:
                raise refuse(
                    f"math.{name} of a number argument is not derived",
                    instead="make its value an argument, a number",
                )
            nodes = [real(as_node(a)) for a in args]
            if name == "log" and len(nodes) == 2:
                node = make("div", *(make("log", n) for n in nodes))
            else:
                node = make(MATH[name], *nodes)
            return Real.of(node, evaluate(original, *args))

        return call

    with contextlib.ExitStack() as stack:
        for place in (math, module):
            for name, value in list(vars(place).items()):
                if id(value) in FUNCTIONS_OF_MATH:
                    stack.enter_context(mock.patch.object(place, name, wrapped(value)))
        for name in CHOICES.keys() - vars(module).keys():
            stack.enter_context(mock.patch.object(module, name, choice(name), create=True))
        yield


class Names:
    """What the definition calls its values, as its lines bind them."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: dict[Node, str] = {}

    def __enter__(self) -> Names:
        self.previous = sys.gettrace()
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.previous)

    def enter(self, frame: FrameType, event: str, _: object) -> Any:
        return self.look if frame.f_code.co_filename == self.file else None

    def look(self, frame: FrameType, event: str, _: object) -> Any:
        for name, value in frame.f_locals.items():
            if isinstance(value, (Traced, Real)) and value.node.args:
                self.found.setdefault(value.node, name)
        return self.look


def argument_of(name: str, shape: str, dtype: str) -> Node:
    """A tensor of the definition, of the rows' shape or another."""
    if not shape:
        return tensor_argument(name, dtype)
    place = "column" if shape == COLUMNS else "row"
    return make(f"{place}_{dtype}" if dtype else place, value=name)


def trace(
    function: Callable[..., Any],
    tensors: list[str],
    numbers: Mapping[str, float],
    constants: Mapping[str, Any],
    dtype: torch.dtype,
    file: str,
    shapes: Mapping[str, str] = {},
    dtypes: Mapping[str, str] = {},
    recorder: Callable[[torch.dtype, bool], Recorder] = Recorder,
    of_all: bool = False,
) -> tuple[Any, dict[Node, str]]:
    """What a definition returns, and the names that it gives to parts of it.

    Args:
        function: the definition.
        tensors: names of the arguments that are tensors here.
        numbers: those that are numbers, with values that stand for any other.
        constants: the rest: switches, and tensors that are None.
        dtype: that the tensors say they have.
        file: of the definition.
        shapes: of the tensors that have not the rows' shape.
        dtypes: of the tensors that have one of their own.
        recorder: what follows the calls of torch's functions.
        of_all: whether what it reduces is reduced over everything.
    """
    arguments: dict[str, Any] = dict(constants)
    for name in tensors:
        shape = shapes.get(name, "")
        node = argument_of(name, shape, dtypes.get(name, ""))
        extent = NUMBER if shape == "()" else None
        arguments[name] = Traced.of(node, False, shape == "*rows", extent)
    for name, value in numbers.items():
        node = make("number", value=name)
        if isinstance(value, int):
            arguments[name] = Integer.of(node, value)
        else:
            arguments[name] = Real.of(node, value)
    traced_file.append(file)
    try:
        module = sys.modules[function.__module__]
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(recorder(dtype, of_all))
            stack.enter_context(math_of_numbers(module))
            names = stack.enter_context(Names(file))
            result = function(**arguments)
    finally:
        traced_file.pop()
    return result, names.found
