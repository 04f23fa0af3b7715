"""Formulas against the definition and PyTorch's derivatives, before anything is written."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from .body import Body, each, nodes_of
from .cpp_text import lowered, lowered_names
from .definition import Definition
from .graph import FLOAT8, INTEGERS, Node, const, in_order, inputs_of, replaced, rounds
from .operations import BRANCHES
from .python_text import function, scope
from .refusal import NotDerived, in_a_line, line_of_definition
from .results import keep_results
from .row_integers import lengths, places
from .rows_operations import summed_together
from .trace import MAKING_CONSTANTS, in_order_of_torch, in_place
from .variant import Variant, another_shape

SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -3.0, 6.0, 30.0)
FEW_SPECIAL = (0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 6.0)
# Where a definition may be defined: everywhere, or of positive numbers, ...
RANGES = ((-2.0, 2.0), (0.1, 2.0), (-0.9, 0.9), (0.1, 0.9), (1.1, 3.0), (-2.0, -0.1))
# Of a mask: these two alone.
MASK = (0.0, 1.0)
# Of integers: from the first, and less than the second. As the battery has them, and positive ones.
INTEGER_RANGES = ((0.0, 10.0), (1.0, 10.0))
# What a number is that integers are compared with: some of them.
COMPARED = 3
# Integers that floating numbers do not hold, of those that a dtype has.
SPECIAL_INTEGERS = (0, 1, -1, COMPARED, 2, 2**24 + 1, 2**53 + 1)
MOST_RANGES = 200
COUNT = 500
# Of more combinations of special values than this, so many are drawn.
MOST_SPECIAL = 2500
# PyTorch's softplus and its gradient are as far from the formula, where their threshold is met.
ERROR = 4e-9
LARGE = 200.0

Range = tuple[float, float]


# As the battery has: of so many rows some are unlucky. Columns from which samples begin, and those
# that are tried, unless many are no better.
MANY_ROWS, MANY_COLUMNS = 10007, 64
MANY_ELEMENTS = 100_000
FEW_COLUMNS = {32: 16, 16: 8, 8: 4, 4: 3}


class Undefined(NotDerived):
    """The definition does not take some values of its arguments."""


class Disagrees(NotDerived):
    """What was derived is not what the definition computes."""


@dataclass
class Verified:
    """What was found out about a definition.

    Attributes:
        broadcasts: whether it takes tensors of different shapes.
        ranges: of each tensor, in which it is defined.
        numbers: with which that was seen; None where it is so with those of the battery.
        columns: the fewest of a row of which it is defined, and more than rounding.
        columns_of_many: the same where there are many rows, some of which are unlucky.
        needs_ones: whether a row needs a one in its masks to have a result.
        needed: the same of tensors of other dtypes, and the values of each that a row needs.
        functions: the names of torch's functions that it calls.
    """

    broadcasts: bool
    ranges: dict[str, Range]
    numbers: dict[str, float] | None
    columns: int = 0
    columns_of_many: int = 0
    needs_ones: bool = False
    needed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()


HALF = (torch.bfloat16, torch.float16)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """That of the arithmetic."""
    return torch.promote_types(dtype, torch.float32)


def no_slope(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, **kwargs: function(x.detach(), **kwargs)


def reduced(loss: Tensor, reduction: str) -> Tensor:
    return loss if reduction == "none" else getattr(loss, reduction)()


def norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The greatest magnitude by amax: of NaN PyTorch's has the derivative 0."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = dict(zip(("p", "dim", "keepdim"), args, strict=False)) | kwargs
        if given.get("ord", given.get("p")) == math.inf and given.get("dtype") is None:
            dim = given.get("dim")
            return x.abs().amax(() if dim is None else dim, given.get("keepdim", False))
        return function(x, *args, **kwargs)

    return call


# What PyTorch has no derivative of, or of tensors that broadcast, with both. A derivative that is
# zero everywhere is none here: PyTorch multiplies the zeros on, by infinities too, which are NaN.
INSTEAD: dict[str, Callable[..., Tensor]] = {
    **{name: no_slope(getattr(torch, name)) for name in ("round", "floor", "ceil", "trunc")},
    **{f.__name__: norm(f) for f in (torch.norm, torch.linalg.vector_norm, torch.linalg.norm)},
    "prelu": torch._prelu_kernel,
    "heaviside": lambda x, values: torch.where(x == 0, values, (x > 0).to(x.dtype)),
    "celu": lambda x, alpha=1.0, inplace=False: torch.ops.aten.elu(x, alpha, 1, 1 / alpha),
    "hardsigmoid": lambda x, inplace=False: F.relu6(x + 3) / 6,
    "soft_margin_loss": lambda x, y, reduction="mean", **_: reduced(F.softplus(-y * x), reduction),
}


# What is called so where a definition converts to float32, and where it raises of half types.
FLOAT32, NO_HALF = "float32", "no_half"


class Called(TorchFunctionMode):
    """The names of torch's functions that are called; of INSTEAD others are.

    Where a definition converts to float32, as operators do of half types, float64 stays float64,
    and integers become it.
    """

    def __init__(self, names: set[str], own: torch.dtype) -> None:
        super().__init__()
        self.names, self.own = names, own

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.__name__
        self.names.add(name)
        args, kwargs = in_order_of_torch(name, args, kwargs or {})
        if args and isinstance(args[0], Tensor) and self.is_wide(args[0].dtype):
            if name == "float":
                self.names.add(FLOAT32)
                return args[0].double()
            if any(value is torch.float32 for value in (*args, *kwargs.values())):
                self.names.add(FLOAT32)
                args = [as_float64(a) for a in args]
                kwargs = {k: as_float64(v) for k, v in kwargs.items()}
        if in_place(name)[0].strip("_") == "pow" and all(isinstance(a, Tensor) for a in args):
            # Of integers PyTorch's derivative takes one away, of the least, too.
            args = [a if a.is_floating_point() else a.to(self.own) for a in args]
        return INSTEAD.get(name, function)(*args, **kwargs)

    def is_wide(self, dtype: torch.dtype) -> bool:
        is_integer = not (dtype.is_floating_point or dtype == torch.bool)
        return dtype == torch.float64 or (is_integer and self.own == torch.float64)


# What makes a tensor that another shares its memory with, or a write that derivatives do not see.
SHARING = {"detach", "squeeze", "unsqueeze", "__getitem__", "_set_grad_enabled"}


def as_float64(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class Checked:
    """A variant's formulas as functions of Python, beside its definition.

    Args:
        definition: from which it was derived.
        variant: the formulas.
        switches: the values of the switches.
        numbers: those of the other number arguments.
        nan_is_infinite: whether a gradient may be infinite where the definition's is NaN.
    """

    template = "elementwise"  # for what is not derived
    shape: tuple[int, ...] = (COUNT,)  # of random tensors

    def __init__(
        self,
        definition: Definition,
        variant: Variant,
        switches: Mapping[str, bool],
        numbers: Mapping[str, float],
        nan_is_infinite: bool = False,
    ) -> None:
        self.definition, self.variant = definition, variant
        self.nan_is_infinite = nan_is_infinite
        self.numbers = {**numbers, **switches}
        self.called: set[str] = set()
        self.floating = [k for k, r in enumerate(variant.results) if r.is_differentiable]
        self.gradients = [str(variant.results[k].gradient) for k in self.floating]
        self.names = [*variant.tensors, *self.numbers, *self.gradients]
        self.names += [*variant.statistics, *variant.kept]
        # Results are expanded, statistics are not.
        of_rows = [*[None] * len(variant.results), *[""] * len(variant.statistics)]
        self.lowered_forward = self.compiled(lowered(variant.returned), True, of_rows)
        kernels = variant.gradients_of(variant.own, variant.with_statistics or variant.gradients)
        rows = [k for k, name in enumerate(variant.own) if name in variant.rows]
        kernels = each(lambda leaf: summed_together(leaf, rows), lowered(kernels))
        of_rows = variant.shapes_of_rows(variant.own)
        self.lowered_backward = self.compiled(kernels, True, of_rows, is_backward=True)
        kernels = variant.gradients_of(variant.own)
        self.backward = self.compiled(kernels, of_rows=of_rows, is_backward=True)
        nodes = list(in_order(nodes_of(variant.forward)))
        # What becomes integers, of which each holds so much.
        self.rounded = [node for node in nodes if rounds(node)]
        constants = [n for n in nodes if n.op == "const" and isinstance(n.value, (int, float))]
        self.infinities = [node for node in constants if is_infinite(node.value)]
        large = [n.value for n in constants if LARGE <= abs(n.value) < math.inf]  # type: ignore[arg-type]
        self.large = torch.tensor(large, dtype=torch.float64)
        if self.infinities:
            stand_ins = dict.fromkeys(self.infinities, const(1))
            finite = each(lambda leaf: replaced(leaf, dict(stand_ins)), variant.forward)
            self.with_stand_ins = self.compiled(finite)
        if self.rounded:
            self.before_rounding = self.compiled(tuple(n.args[0] for n in self.rounded))

    def compiled(
        self,
        body: Body,
        is_lowered: bool = False,
        of_rows: Sequence[str | None] = (),
        is_backward: bool = False,
    ) -> Callable[..., tuple[Tensor, ...]]:
        names = lowered_names(self.variant.names) if is_lowered else self.variant.names
        spelling = {name: name for name in self.names}
        text = function(
            *("f", self.names, body, names, spelling, self.like, self.variant.squeezed),
            of_rows=of_rows,
            is_backward=is_backward,
        )
        names_called = scope()
        exec(text, names_called)

        def call(
            tensors: Mapping[str, Tensor],
            grads: Mapping[str, Tensor],
            values: Sequence[Tensor],
            statistics: Sequence[Tensor] = (),
        ) -> tuple[Tensor, ...]:
            named = dict.fromkeys(self.variant.statistics)
            named |= dict(zip(named, statistics, strict=False))
            if is_backward:
                named |= {name: values[k] for name, k in self.variant.kept.items()}
            given = dict.fromkeys(self.names) | {**tensors, **self.numbers, **grads, **named}
            found = one_tuple(names_called["f"](**given))
            return self.summed(found, tensors) if is_backward else found

        return call

    def summed(self, found: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Gradients, of which those of single numbers are sums of one for each row."""
        single = self.variant.single
        return tuple(
            gradient.sum().reshape(tensors[name].shape) if name in single else gradient
            for name, gradient in zip(self.variant.own, found, strict=True)
        )

    def define(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The values of the definition.

        Raises:
            Undefined: it raises something, as it may of some values or shapes.
        """
        absent = dict.fromkeys(self.variant.absent)
        try:
            with Called(self.called, tensors[self.variant.main].dtype):
                return one_tuple(self.definition.carried(**tensors, **self.numbers, **absent))
        except Exception as error:
            raise Undefined(
                f"{self.definition.place}: the definition does not run: {in_a_line(error)}"
            ) from None

    def define_as_one(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The same of tensors whose shape is that of one call."""
        return self.define(tensors)

    def accepted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of some elements, or rows, that the definition takes: of others it may raise."""

        def takes(given: Mapping[str, Tensor]) -> bool:
            try:
                self.define(given)
            except Undefined:
                return False
            return True

        if takes(tensors):
            return tensors
        for_all = {*self.variant.columns, *self.variant.single}
        own = [name for name in tensors if name not in for_all]
        kept = [
            k
            for k in range(tensors[own[0]].shape[0])
            if takes(tensors | {name: tensors[name][k : k + 1] for name in own})
        ]
        return tensors | {name: tensors[name][kept] for name in own}

    def labels(self) -> list[str]:
        """What is compared: the values, then the gradients."""
        values = ["the value"]
        if len(self.variant.results) > 1:
            values = [f"the value of {result.name}" for result in self.variant.results]
        return values + [f"the gradient of {name}" for name in self.variant.own]

    def fail(self, what: str) -> Disagrees:
        absent = "".join(f", {name}=None" for name in self.variant.absent)
        cause = ""
        if ("gradient of" in what or "derivative by" in what) and self.has_own_derivative():
            cause = "a torch.autograd.Function in it has a derivative of its own, which cannot be "
            cause += "derived: write what it computes without it, or "
        elif self.called & SHARING and any(in_place(name)[1] for name in self.called):
            cause = "what it writes to is also seen where its memory is shared, as by y.detach(), "
            cause += "and what is written under no_grad has the gradients of before: give the "
            cause += "result of the write a name of its own, or "
        elif any(dtype != "bool" for dtype in self.variant.dtypes.values()):
            cause = "PyTorch may compute in integers where they meet floating tensors: convert "
            cause += "them first, as k.to(x.dtype) does, or "
        elif self.numbers and self.called & {*MAKING_CONSTANTS}:
            cause = "torch.tensor(a) is float32, and so is what is made of it alone: compute with "
            cause += "the numbers themselves, by math, or "
        return Disagrees(
            f"{self.definition.place}: what was derived does not agree with the definition: "
            f"{what}{absent}; {cause}start from --template {self.template}"
        )

    def has_own_derivative(self) -> bool:
        """Whether the definition calls a torch.autograd.Function."""
        tensors = self.random([RANGES[0]] * len(self.variant.tensors))
        with contextlib.suppress(Undefined):
            values = self.define(self.leaves(tensors))
            seen, left = set(), [value.grad_fn for value in values]
            while left:
                if (node := left.pop()) is not None and node not in seen:
                    if isinstance(node, BackwardCFunction):
                        return True
                    seen.add(node)
                    left += [other for other, _ in node.next_functions]
        return False

    @property
    def like(self) -> str:
        """A tensor of the shape of the gradients."""
        return (self.gradients or self.variant.own)[0]

    # ----- values

    def random(
        self, ranges: Sequence[Range], seed: int = 0, shape: tuple[int, ...] | None = None
    ) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shapes = self.shapes(shape or self.shape)
        return {
            name: drawn(limits, size, generator, self.variant.dtypes.get(name, ""))
            for name, limits, size in zip(self.variant.tensors, ranges, shapes, strict=True)
        }

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Those of the tensors, of which the largest has the shape."""
        return [shape] * len(self.variant.tensors)

    def filled(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, Tensor]:
        """Tensors of these shapes, of numbers that most definitions take."""
        return {
            name: torch.full(shape, 0.5, dtype=torch.float64).to(self.dtype_of(name))
            for name, shape in zip(self.variant.tensors, shapes, strict=True)
        }

    def are_wide(self) -> list[bool]:
        """Which of the results are float32 where the tensors are of a half type."""
        tensors = self.filled(self.shapes((2, 3, 4)))
        for dtype in HALF:
            with contextlib.suppress(Undefined):
                values = self.define(self.converted(tensors, dtype))
                pairs = zip(values, self.variant.results, strict=True)
                return [v.dtype == torch.float32 and not r.dtype for v, r in pairs]
        return [False] * len(self.variant.results)

    def special(self) -> dict[str, Tensor]:
        count = len(self.variant.tensors)
        values = SPECIAL if count < 3 else FEW_SPECIAL if count < 5 else FEW_SPECIAL[:3]
        of_each = [
            self.special_of(dtype) if (dtype := self.variant.dtypes.get(name)) else values
            for name in self.variant.tensors
        ]
        if math.prod(map(len, of_each)) <= MOST_SPECIAL:
            rows = list(itertools.product(*of_each))
        else:
            draw = random.Random(0)
            rows = [tuple(draw.choices(of)[0] for of in of_each) for _ in range(MOST_SPECIAL)]
        return {
            name: torch.tensor([row[k] for row in rows], dtype=self.dtype_of(name))
            for k, name in enumerate(self.variant.tensors)
        }

    def special_of(self, dtype: str) -> Sequence[float]:
        if dtype == "bool":
            return (0, 1)
        if dtype in FLOAT8:
            return SPECIAL
        all_of_it = INTEGERS[dtype]
        numbers = [v for v in self.numbers.values() if type(v) is int]
        found = (*SPECIAL_INTEGERS, *numbers, all_of_it[0], all_of_it[-1], all_of_it[-2])
        return [value for value in dict.fromkeys(found) if value in all_of_it]

    def dtype_of(self, name: str) -> torch.dtype:
        return getattr(torch, self.variant.dtypes.get(name, "float64"))

    def leaves(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors, of which those that may have a gradient require it."""
        own = self.variant.own
        return {n: t.clone().requires_grad_() if n in own else t for n, t in tensors.items()}

    def own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the tensors that have the operator's dtype."""
        return {name: tensors[name] for name in self.variant.own}

    def converted(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors, of another dtype as the operator's."""
        dtypes = {
            name: sum_dtype(dtype) if name in self.variant.wide else dtype
            for name in self.variant.own
        }
        return {name: t.to(dtypes.get(name, t.dtype)) for name, t in tensors.items()}

    def fits(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Where all that becomes integers is in the range of these: else it may be any."""
        fit = torch.ones((), dtype=torch.bool)
        if not self.rounded:
            return fit
        values = [tensors[self.variant.own[0]]]
        grads = dict.fromkeys(self.gradients, values[0])
        found = self.before_rounding(tensors, grads, values)
        for node, value in zip(self.rounded, found, strict=True):
            all_of_it = INTEGERS[node.integer]
            # Of int64 the largest is none of float64.
            most = min(all_of_it[-1], 2**62)
            fit = fit & (value.trunc() >= all_of_it[0]) & (value.trunc() <= most)
        return fit

    def without_infinities(
        self, tensors: Mapping[str, Tensor], values: Sequence[Tensor]
    ) -> list[Tensor]:
        """Results with 0 for what is infinite because a constant of the formula is."""
        if not self.infinities:
            return list(values)
        like = tensors[self.variant.own[0]]
        others = self.with_stand_ins(tensors, dict.fromkeys(self.gradients, like), [like])
        return [
            value.where(~(value.isinf() & other.isfinite()), 0) if is_computed(value) else value
            for value, other in zip(values, others, strict=True)
        ]

    def without_large_constants(self, found: Sequence[Tensor]) -> list[Tensor]:
        """What is found, with 0 for large numbers that the definition writes, as -1e9 for what is
        masked: whether they are there is a matter of masks, and not of ranges.
        """
        return [t.where(~torch.isin(t, self.large), 0) if is_computed(t) else t for t in found]

    @functools.cached_property
    def ranges(self) -> list[Range]:
        """Of each tensor, in which the definition and its gradients are finite, and not large.

        Raises:
            NotDerived: there are none among those that are tried.
        """
        ones = dict.fromkeys(self.gradients, torch.ones(1, dtype=torch.float64))
        tried = list(itertools.islice(self.candidates_with_masks(), MOST_RANGES))
        raised, rough = None, None
        # Nor close to a pole, where finite differences and half types see little. What is large
        # everywhere is taken where nothing else is.
        for are_tame in (are_small, are_of_one_magnitude):
            for ranges in tried:
                tensors = self.random(ranges)
                try:
                    found = self.expected(tensors, ones)
                except Undefined as error:
                    raised = raised or error
                    continue
                count = len(self.variant.results)
                found[:count] = self.without_infinities(tensors, found[:count])
                found[:count] = self.without_large_constants(found[:count])
                if are_tame(found) and self.fits(tensors).all():
                    rough = rough or ranges
                    if self.is_accurate_within(ranges):
                        return ranges
            if rough is not None:
                return rough
        given = ", ".join(f"{name}={value}" for name, value in self.numbers.items())
        instead = "make its infinity an argument of type float, or " * bool(self.infinities)
        raise raised or Undefined(
            f"{self.definition.place}: the definition or its gradient is finite, and of one "
            f"magnitude, in none of the ranges that were tried{', with ' * bool(given)}{given}; "
            f"{instead}start from --template {self.template}"
        )

    def candidates_with_masks(self) -> Iterator[list[Range]]:
        """Those for the tensors: first such that masks are some."""
        given, dtypes = self.variant.masks, self.variant.dtypes
        has_integers = any(dtype in INTEGERS for dtype in dtypes.values())
        for masks, of_integers in itertools.product(
            [given, []] if given else [[]], INTEGER_RANGES if has_integers else INTEGER_RANGES[:1]
        ):
            for limits in candidates(len(self.variant.own) - len(masks)):
                others = iter(limits)
                yield [
                    (of_integers if dtypes[name] in INTEGERS else RANGES[0])
                    if name in dtypes
                    else MASK
                    if name in masks
                    else next(others)
                    for name in self.variant.tensors
                ]

    def is_accurate_within(self, ranges: Sequence[Range]) -> bool:
        """Whether float32 suffices for the definition and its gradients, all over the ranges."""
        tensors = self.random(ranges, seed=4, shape=(MANY_ELEMENTS,))
        ones = dict.fromkeys(self.gradients, torch.ones(1, dtype=torch.float64))
        rounded = self.converted(tensors, torch.float32)
        rough = self.expected(rounded, {name: g.float() for name, g in ones.items()})
        exact = self.expected(self.converted(rounded, torch.float64), ones)
        return are_close(zip(rough, exact, strict=True))

    def expected(self, tensors: Mapping[str, Tensor], grads: Mapping[str, Tensor]) -> list[Tensor]:
        """The values and gradients of PyTorch."""
        leaves = self.leaves(tensors)
        values = self.define(leaves)
        try:
            found = differentiated(self.of_floating(values), self.own(leaves), grads)
        except RuntimeError as error:
            reason, _, _ = in_a_line(error).partition(" Hint:")
            instead = "say it in other operations"
            if "inplace" in reason:
                instead = "do not write in place, clamp instead of clamp_, and so on"
            raise NotDerived(
                f"{self.definition.place}: PyTorch has no derivative of it ({reason}); {instead}"
            ) from None
        return [*(value.detach() for value in values), *found]

    def of_floating(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Those of the results that have gradients."""
        return [values[k] for k in self.floating]

    # ----- checks

    def check(self) -> list[Range]:
        """Checks everything; returns the ranges of the tensors in which it is defined."""
        ranges = self.ranges
        random = self.random(ranges)
        self.agree(random)
        self.agree(self.accepted(self.special()))
        self.agree_in_float32(random)
        self.agree_twice(self.random(ranges, seed=2))
        return ranges

    def broadcasts(self) -> bool:
        """Whether the definition takes tensors that broadcast."""
        given = self.definition.shapes_that_broadcast(self.variant.tensors)
        try:
            self.check_shape(given)
        except (Undefined, Disagrees):
            self.check_shape([(2, 4, 3)] * len(given))
            return False
        return True

    def check_shape(self, shapes: Sequence[tuple[int, ...]]) -> None:
        tensors = self.filled(shapes)
        whole = torch.broadcast_shapes(*shapes)
        self.check_results(tensors, [whole] * len(self.variant.results))

    def check_results(self, tensors: Mapping[str, Tensor], wanted: Sequence[Sequence[int]]) -> None:
        """Refuses results of other shapes, or of another dtype than the tensors'.

        Of halves they may be of another, as `.float()` makes them, or none: a number may be too
        large.
        """
        for value, shape in zip(self.define_as_one(tensors), wanted, strict=True):
            if value.shape != shape:
                raise self.fail(f"of shape {tuple(value.shape)}, not {tuple(shape)}")
        for dtype in (torch.float64, *HALF):
            try:
                values = self.define_as_one(self.converted(tensors, dtype))
            except Undefined:
                self.called.add(NO_HALF)
                continue
            for value, result in zip(values, self.variant.results, strict=True):
                wanted_dtype = sum_dtype(dtype) if result.is_wide else dtype
                wanted_dtype = getattr(torch, result.dtype) if result.dtype else wanted_dtype
                if value.dtype != wanted_dtype:
                    place = self.line_of_dtype(tensors, dtype) or f"{self.definition.place}: "
                    raise another_dtype(place, dtype, value.dtype)

    def line_of_dtype(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> str:
        """The line by which a result has another floating dtype than the tensors; "" if none."""
        function, absent = self.definition.function, dict.fromkeys(self.variant.absent)
        file = inspect.unwrap(function).__code__.co_filename
        with Origins(file, dtype) as origins:
            given = self.converted(tensors, dtype)
            values = one_tuple(function(**given, **self.numbers, **absent))
        return next((line for value in values if (line := origins.of(value))), "")

    def gradients_of_outputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        like = tensors[self.variant.own[0]]
        generator = torch.Generator().manual_seed(1)
        return {
            name: torch.rand(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)
            + 0.5
            for name in self.gradients
        }

    def fewest_columns(self) -> int:
        """1 where the definition takes no tensor without columns apart."""
        if self.definition.has_parts:
            try:
                self.define(self.random([RANGES[0]] * len(self.variant.tensors), shape=(2, 0)))
            except Undefined:
                return 1
        return 0

    def agree(self, tensors: Mapping[str, Tensor], error: float = 1e-12) -> None:
        grads = self.gradients_of_outputs(tensors)
        values = self.expected(tensors, grads)
        wanted, fit = dict(zip(self.labels(), values, strict=True)), self.fits(tensors)
        for label, found in self.results(tensors, grads, values):
            expected = wanted[label]
            found = found.expand_as(expected)
            close = self.are_equal(label, found, expected, error) | ~fit
            if not close.all():
                other = self.expected_one_by_one(tensors, grads)[label]
                close |= self.are_equal(label, found, other, error)
            if not close.all():
                where = int((~close).nonzero()[0])
                at = ", ".join(f"{name}={t[where].item():.6g}" for name, t in tensors.items())
                raise self.fail(
                    f"{label} at {at} is {found[where].item():.12g} "
                    f"instead of {expected[where].item():.12g}"
                )

    def are_equal(self, label: str, found: Tensor, expected: Tensor, error: float) -> Tensor:
        """Where they are, up to rounding."""
        if not is_computed(expected):
            equal = found == expected
            if expected.is_floating_point():
                # The next code, where rounding decides.
                info = torch.finfo(expected.dtype)
                limits = {"rtol": info.eps, "atol": info.eps * info.smallest_normal}
                equal = torch.isclose(found.double(), expected.double(), **limits, equal_nan=True)
            return equal & (found.dtype == expected.dtype)
        limit = error * largest(expected)
        close = torch.isclose(found, expected, rtol=ERROR, atol=limit, equal_nan=True)
        if self.nan_is_infinite and label not in self.labels()[: len(self.variant.results)]:
            close |= found.isinf() & expected.isnan()
        return close

    def expected_one_by_one(
        self, tensors: Mapping[str, Tensor], grads: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The same, not by vectors: of NaN some functions then make what they make on CUDA."""
        parts = [
            self.expected(
                {name: t[k : k + 1] for name, t in tensors.items()},
                {name: g[k : k + 1] for name, g in grads.items()},
            )
            for k in range(len(next(iter(tensors.values()))))
        ]
        return dict(zip(self.labels(), map(torch.cat, zip(*parts, strict=True)), strict=True))

    def results(
        self,
        tensors: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        values: Sequence[Tensor],
    ) -> list[tuple[str, Tensor]]:
        """What was derived, by its labels: the gradients once as in C++, once as in Python."""
        given, count = (tensors, grads, values), len(self.variant.results)
        with torch.no_grad():
            forward = self.lowered_forward(*given)
            found = list(zip(self.labels()[:count], forward, strict=False))
            in_cpp = self.lowered_backward(*given, forward[count:])
            for gradients in (in_cpp, self.backward(*given)):
                found += zip(self.labels()[count:], gradients, strict=True)
        return found

    def agree_in_float32(self, tensors: Mapping[str, Tensor]) -> None:
        """As close to the result in float64 as the definition, but for a few roundings."""
        rounded = self.converted(tensors, torch.float32)
        exact = self.converted(rounded, torch.float64)
        grads = self.gradients_of_outputs(rounded)
        truths = self.expected(exact, {name: grad.double() for name, grad in grads.items()})
        theirs = self.expected(rounded, grads)
        both = dict(zip(self.labels(), zip(truths, theirs, strict=True), strict=True))
        eps = torch.finfo(torch.float32).eps
        for label, found in self.results(rounded, grads, theirs):
            if not is_computed(both[label][0]):
                continue  # what rounding decides is as in float64, but for few elements
            if found.dtype != torch.float32:
                raise self.fail(f"{label} of torch.float32 is {found.dtype}")
            found, true, their = alike(found, *both[label])
            allowed = 4 * (their.double() - true).abs().max()
            allowed = allowed + eps * (16 * true.abs() + 4 * true.abs().max())
            wrong = (found.double() - true).abs() > allowed
            if wrong.any():
                where = int(wrong.nonzero()[0])
                at = ", ".join(f"{n}={t[where].item():.6g}" for n, t in tensors.items())
                raise self.fail(
                    f"{label} in float32 at {at} is {found.expand_as(true)[where].item():.9g} "
                    f"instead of {true[where].item():.9g}"
                )

    def agree_twice(self, tensors: Mapping[str, Tensor]) -> None:
        """The derivative of the backward, of which the operator has the Python alone."""
        tensors = self.leaves(tensors)
        own = self.own(tensors)
        grads = {n: g.requires_grad_() for n, g in self.gradients_of_outputs(tensors).items()}
        leaves = [*grads.values(), *own.values()]
        try:
            values = self.define(tensors)
            first = differentiated(self.of_floating(values), own, grads, create_graph=True)
            wanted = second(first, leaves)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise NotDerived(
                f"{self.definition.place}: PyTorch has no second derivative of it ({reason}); "
                "say it in other operations"
            ) from None
        found = second(self.backward(tensors, grads, values), leaves)
        for label, a, b in zip((*grads, *own), found, wanted, strict=True):
            if not torch.allclose(a, b, rtol=1e-7, atol=1e-8, equal_nan=True):
                raise self.fail(f"the second derivative by {label}")


def drawn(
    limits: Range, shape: tuple[int, ...], generator: torch.Generator, dtype: str = ""
) -> Tensor:
    low, high = limits
    if dtype and dtype not in FLOAT8:
        low, high = (0, 2) if dtype == "bool" else limits
        values = torch.randint(int(low), int(high), shape, generator=generator)
        return values.to(getattr(torch, dtype))
    values = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    if limits == MASK:
        values = values.round()
        if shape and shape[-1] > 1:  # a row of one kind alone may have no result
            values[..., 0], values[..., 1] = 0, 1
    return values.to(getattr(torch, dtype)) if dtype else values


def is_computed(tensor: Tensor) -> bool:
    """Whether it is floating, and has no codes."""
    return tensor.is_floating_point() and tensor.element_size() > 1


def is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors with 0 where all of them have the same infinity."""
    found, *others = torch.broadcast_tensors(*tensors)
    same = found.isinf() & functools.reduce(torch.logical_and, (found == t for t in others))
    return tuple(t.where(~same, 0) for t in (found, *others))


def are_small(found: Sequence[Tensor]) -> bool:
    """Whether no value or gradient is large, and there is something besides zeros."""
    floating = [t for t in found if is_computed(t)]
    return all((t.abs() < LARGE).all() for t in floating) and any(t.any() for t in found)


def are_of_one_magnitude(found: Sequence[Tensor]) -> bool:
    """Whether none is much larger than the median of those that are not zero."""
    sizes = [t.abs()[t != 0] for t in found if is_computed(t)]
    return all((t.isfinite() & (t < LARGE * t.median())).all() for t in sizes if len(t))


def candidates(count: int) -> Iterator[list[Range]]:
    """Ranges for so many tensors: of few different ones first, and of those that stand first."""
    last = len(RANGES) - 1

    def of_sum(total: int, length: int) -> Iterator[tuple[int, ...]]:
        if not length:
            yield ()
            return
        for first in range(max(0, total - last * (length - 1)), min(total, last) + 1):
            for rest in of_sum(total - first, length - 1):
                yield (first, *rest)

    for same in RANGES:
        yield [same] * count
    for different in range(2, count + 1):
        for total in range(last * count + 1):
            for chosen in of_sum(total, count):
                if len(set(chosen)) == different:
                    yield [RANGES[k] for k in chosen]


class Origins(TorchFunctionMode):
    """Where what is of another floating dtype than the tensors comes from."""

    def __init__(self, file: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.file, self.dtype = file, dtype
        # With the tensors, whose ids are others' otherwise.
        self.found: dict[int, tuple[Tensor, str]] = {}

    def of(self, value: Any) -> str:
        _, line = self.found.get(id(value), (None, ""))
        return line

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point() and result.dtype != self.dtype:
            before = next((line for arg in args if (line := self.of(arg))), "")
            self.found[id(result)] = (result, before or line_of_definition(self.file))
        return result


def another_dtype(place: str, given: torch.dtype, found: torch.dtype) -> NotDerived:
    return NotDerived(
        f"{place}of {given} the result is {found}; an operator's has the dtype of its "
        "tensors: convert it, as with .to(x.dtype)"
    )


def greatest(values: Tensor) -> float:
    """The largest finite magnitude."""
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if len(finite) else 0.0


def largest(values: Tensor) -> float:
    """The same, at least 1."""
    return max(1.0, greatest(values))


def are_close(pairs: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Whether what was computed in float32 has room below what the battery allows.

    Args:
        pairs: in float32, and exactly.
    """
    error = 8 * torch.finfo(torch.float32).eps
    return all(
        torch.allclose(a.double(), b, rtol=error, atol=error * greatest(b), equal_nan=True)
        for a, b in pairs
        if is_computed(b)
    )


def differentiated(
    values: Sequence[Tensor],
    tensors: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    create_graph: bool = False,
) -> list[Tensor]:
    """The gradients of tensors, of those values that have any."""
    leaves = list(tensors.values())
    pairs = [(v, g) for v, g in zip(values, grads.values(), strict=True) if v.requires_grad]
    if not pairs:
        return [torch.zeros_like(t) for t in leaves]
    found = torch.autograd.grad(
        [value for value, _ in pairs],
        leaves,
        [grad.expand_as(value) for value, grad in pairs],
        create_graph=create_graph,
        materialize_grads=True,
    )
    return list(found)


def second(first: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    total = torch.zeros((), dtype=torch.float64)
    for gradient in first:
        weights = torch.rand(gradient.shape, generator=generator, dtype=torch.float64)
        total = total + (gradient * weights).sum()
    if not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(total, leaves, materialize_grads=True, retain_graph=True))


def one_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


class CheckedRows(Checked):
    """The same of a row-wise definition. Results for each row have a dimension for the columns."""

    template = "rowwise"
    shape = (30, 13)

    @property
    def like(self) -> str:
        return self.variant.own[0]

    def random(
        self, ranges: Sequence[Range], seed: int = 0, shape: tuple[int, ...] | None = None
    ) -> dict[str, Tensor]:
        """Of several masks with all that they may be together, in the first columns.

        Integers of rows that are places in it are these, and lengths from 1 on.
        """
        tensors = super().random(ranges, seed, shape)
        generator, cols = torch.Generator().manual_seed(seed + 5), (shape or self.shape)[-1]
        for names, low, high in (
            (self.places, 0, max(1, cols)),
            (self.lengths, min(1, cols), cols + 1),
        ):
            for name in names:
                tensors[name].random_(low, high, generator=generator)
        dtypes, rows = self.variant.dtypes, self.variant.rows
        masks = [t for n, t in tensors.items() if dtypes.get(n) == "bool" and n not in rows]
        for k, mask in enumerate(masks):
            for column in range(min(2 ** len(masks), mask.shape[-1])):
                mask[..., column] = bool(column >> k & 1)
        if shape is not None and shape[-1] < MANY_COLUMNS:
            for name, values in self.needed.items():
                tensors[name][..., : len(values)] = torch.tensor(values[: shape[-1]])
        return tensors

    @functools.cached_property
    def places(self) -> list[str]:
        return sorted(places(self.variant))

    @functools.cached_property
    def lengths(self) -> list[str]:
        return sorted(lengths(self.variant))

    @functools.cached_property
    def needed(self) -> dict[str, list[int]]:
        """Values without which a row has no result, of tensors of other dtypes."""
        tensors, found = self.random(self.ranges), {}
        for name, dtype in self.variant.dtypes.items():
            if name in self.variant.rows:
                continue
            pair = (1, 0) if dtype == "bool" else (COMPARED, COMPARED + 1)
            found[name] = [
                value
                for value, other in (pair, pair[::-1])
                if not self.is_finite(tensors | {name: torch.full_like(tensors[name], other)})
            ]
        return {name: values for name, values in found.items() if values}

    def is_finite(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether results are, but for elements that are infinite because a constant is."""
        values = self.define(tensors)
        others = self.without_infinities(tensors, values)
        return all(
            (value if result.of_row else other).double().isfinite().all()
            for value, other, result in zip(values, others, self.variant.results, strict=True)
        )

    def define(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        pairs = zip(super().define(tensors), self.variant.results, strict=True)
        return tuple(v.unsqueeze(-1) if r.is_squeezed else v for v, r in pairs)

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        others = {"*rows": shape[:-1], "*rows 1": (*shape[:-1], 1), "()": (), "1": (1,)}
        others = {name: others[said] for name, said in self.variant.rows.items()}
        others |= dict.fromkeys(self.variant.columns, shape[-1:])
        return [others.get(name, shape) for name in self.variant.tensors]

    def special(self) -> dict[str, Tensor]:
        """Rows that hold special values, each at another column."""
        tensors = self.random([RANGES[0]] * len(self.variant.tensors), shape=(len(SPECIAL), 5))
        for name in tensors:
            if name not in {*self.variant.columns, *self.variant.single}:
                dtype = self.variant.dtypes.get(name)
                values = self.special_of(dtype) if dtype else SPECIAL
                for k, value in enumerate(values[: len(SPECIAL)]):
                    at = k if name in self.variant.rows else (k, k % 5)
                    tensors[name][at] = value
        return tensors

    def whole(self) -> dict[str, Tensor]:
        """Rows of few numbers, of which some are equal, and rows of zeros, or of one integer."""
        tensors = self.random([RANGES[0]] * len(self.variant.tensors), shape=(40, 4))
        rounded = {n: t.round() if is_computed(t) else t for n, t in tensors.items()}
        for name in tensors:
            if name in self.variant.dtypes:
                rounded[name][1::7], rounded[name][2::7] = 0, 1
            elif name not in {*self.variant.columns, *self.variant.single}:
                rounded[name][::7] = 0.0
        return rounded

    def broadcasts(self) -> bool:
        for shape in ((2, 3, 4), (5,)):
            tensors = self.filled(self.shapes(shape))
            wanted = [(*shape[:-1], 1) if r.of_row else shape for r in self.variant.results]
            self.check_results(tensors, wanted)
        return False

    def gradients_of_outputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        results = [self.variant.results[k] for k in self.floating]
        pairs = zip(super().gradients_of_outputs(tensors).items(), results, strict=True)
        # Of rows without columns there is a gradient, too.
        return {
            name: grad.sum(-1, keepdim=True) + 0.5 if result.of_row else grad
            for (name, grad), result in pairs
        }

    def check(self) -> list[Range]:
        ranges, fewest = self.ranges, self.fewest_columns()
        for shape in ROWS:
            tensors = self.random(ranges, shape=shape)
            # Of fewer columns nothing but rounding is left, of terms that may be large.
            self.agree(tensors, 1e-12 if shape[-1] >= fewest else 1e-6)
            if shape[-1] >= fewest:
                self.agree_in_float32(tensors)
        self.agree(self.random(ranges, shape=(0, 3)))
        self.agree(self.accepted(self.special()))
        self.agree(self.accepted(self.whole()))
        self.agree_twice(self.random(ranges, seed=2))
        if not fewest:
            self.agree_twice(self.random(ranges, seed=2, shape=(3, 0)))
        return ranges

    def fewest_columns(self) -> int:
        """2 where of one column nothing but rounding is left, 1 where there have to be some."""
        return next((n + 1 for n in (1, 0) if not self.is_defined(n)), 0)

    def fewest_columns_of_many_rows(self) -> int:
        """Those of which too much is lost to rounding, in some of many rows, and one more."""
        if self.is_accurate(MANY_COLUMNS):
            for fewest, columns in FEW_COLUMNS.items():
                if not self.is_accurate(columns):
                    return fewest
        return 0

    def needs_ones(self) -> bool:
        """Whether of a row whose masks are all zeros there is no result."""
        tensors = self.random(self.ranges, shape=(3, 5))
        ranges = zip(tensors, self.ranges, strict=True)
        masks = [n for n, of in ranges if of == MASK and n not in self.variant.rows]
        empty = tensors | {name: torch.zeros_like(tensors[name]) for name in masks}
        return bool(masks) and not self.is_finite(empty)

    def is_accurate(
        self, columns: int, rows: int = MANY_ROWS, ranges: Sequence[Range] | None = None
    ) -> bool:
        """Whether the definition in float32 has room below what the battery allows, on many rows.

        A row of few numbers may by chance be one of equal numbers, nearly.
        """
        tensors = self.random(ranges or self.ranges, shape=(rows, columns))
        rough, exact = (
            self.first_derivatives(self.converted(tensors, dtype))
            for dtype in (torch.float32, torch.float64)
        )
        pairs = zip(rough, exact, strict=True)
        # Not of sums over rows.
        return are_close((a, b) for a, b in pairs if b.shape[:1] == (rows,))

    def is_accurate_within(self, ranges: Sequence[Range]) -> bool:
        return self.is_accurate(MANY_COLUMNS, MANY_ROWS // 10, ranges)

    def is_defined(self, columns: int) -> bool:
        tensors = self.random(self.ranges, shape=(200, columns))
        try:
            rough, exact = (
                self.all_derivatives(self.converted(tensors, dtype))
                for dtype in (torch.float32, torch.float64)
            )
        except (RuntimeError, IndexError, ValueError, ArithmeticError, NotDerived):
            return False
        pairs = list(zip(rough, exact, strict=True))
        if columns > 0:
            given = self.converted(tensors, torch.float32)
            derived = self.results(given, self.gradients_of_outputs(given), rough)
            truths = dict(zip(self.labels(), exact, strict=False))
            pairs += [(found, truths[label]) for label, found in derived]
        # What rounding decides is as in float64, but for few elements.
        pairs = [(a, b) for a, b in pairs if is_computed(b)]
        return all(torch.allclose(a.double(), b, rtol=2e-6, atol=2e-6) for a, b in pairs)

    def first_derivatives(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        given = self.leaves(tensors)
        values, grads = self.define(given), self.gradients_of_outputs(given)
        return [*values, *differentiated(self.of_floating(values), self.own(given), grads)]

    def all_derivatives(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        given = self.leaves(tensors)
        own = self.own(given)
        grads = {n: g.requires_grad_() for n, g in self.gradients_of_outputs(given).items()}
        values = self.define(given)
        first = differentiated(self.of_floating(values), own, grads, create_graph=True)
        return [*values, *first, *second(first, [*grads.values(), *own.values()])]

    def results(
        self,
        tensors: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        values: Sequence[Tensor],
    ) -> list[tuple[str, Tensor]]:
        found = super().results(tensors, grads, values)
        for k, result in enumerate(self.variant.results):
            if result.of_row:
                found[k] = (found[k][0], found[k][1][..., :1])
        return found

    def agree(self, tensors: Mapping[str, Tensor], error: float = 1e-12) -> None:
        grads = self.gradients_of_outputs(tensors)
        values = self.expected(tensors, grads)
        wanted = dict(zip(self.labels(), values, strict=True))
        # Of a row of which all is in the range of the integers that it becomes.
        fit = self.fits(tensors)
        fit = fit.all(-1, keepdim=True) if fit.dim() else fit
        for label, found in self.results(tensors, grads, values):
            true = wanted[label]
            beyond = ~fit if fit.dim() == true.dim() else ~fit.all()
            close = self.are_equal(label, found, true, error) | beyond
            self.all_close(label, found, true, close)

    def agree_in_float32(self, tensors: Mapping[str, Tensor]) -> None:
        rounded = self.converted(tensors, torch.float32)
        grads = self.gradients_of_outputs(rounded)
        exact = self.converted(rounded, torch.float64)
        truths = self.expected(exact, {name: grad.double() for name, grad in grads.items()})
        theirs = self.expected(rounded, grads)
        both = dict(zip(self.labels(), zip(truths, theirs, strict=True), strict=True))
        eps = torch.finfo(torch.float32).eps
        # Of sums, whose terms may be larger than they are.
        floating = [t for t in (*grads.values(), *theirs) if is_computed(t)]
        terms = max(map(greatest, floating), default=0.0)
        for label, found in self.results(rounded, grads, theirs):
            if not is_computed(both[label][0]):
                continue  # what rounding decides is as in float64, but for few elements
            if found.dtype != torch.float32:
                raise self.fail(f"{label} of torch.float32 is {found.dtype}")
            found, true, their = alike(found, *both[label])
            allowed = 4 * (their.double() - true).abs().max() + 16 * eps * terms
            close = ((found.double() - true).abs() <= allowed) | (true.isnan() & found.isnan())
            self.all_close(f"{label} in float32", found, true, close)

    def all_close(self, label: str, found: Tensor, true: Tensor, close: Tensor) -> None:
        if not close.all():
            at = tuple((~close).nonzero()[0].tolist())
            found, true = torch.broadcast_tensors(found, true)
            raise self.fail(
                f"{label} is {found[at].item():.12g} instead of {true[at].item():.12g} "
                f"in a tensor of shape {tuple(true.shape)}"
            )


class CheckedTotals(CheckedRows):
    """The same of one that reduces over everything: each row is a call of the definition."""

    template = "kernel"

    def define_as_one(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return Checked.define(self, tensors)

    def define(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        *outer, columns = tensors[self.variant.main].shape
        rows = {name: tensor.reshape(-1, columns) for name, tensor in tensors.items()}
        if not (count := math.prod(outer)):  # one, of which nothing is taken
            rows = {name: tensor.new_zeros(1, columns) for name, tensor in tensors.items()}
        calls = [
            self.define_as_one({name: row[k] for name, row in rows.items()})
            for k in range(max(1, count))
        ]
        pairs = zip(zip(*calls, strict=True), self.variant.results, strict=True)
        return tuple(
            torch.stack(values)[:count].reshape(*outer, 1 if result.of_row else columns)
            for values, result in pairs
        )

    def broadcasts(self) -> bool:
        for shape in ((2, 3, 4), (5,), ()):
            tensors = self.filled([shape] * len(self.variant.tensors))
            wanted = [() if r.of_row else shape for r in self.variant.results]
            self.check_results(tensors, wanted)
        return False

    def fewest_columns_of_many_rows(self) -> int:
        return 0

    def is_accurate_within(self, ranges: Sequence[Range]) -> bool:
        return self.is_accurate(MANY_COLUMNS, MANY_ROWS // 100, ranges)


# Rows of one column and of several, of primes, in more than two dimensions.
ROWS = ((3, 1), (4, 2), (7, 13), (2, 3, 5), (3, 257))


def checked(
    definition: Definition,
    variant: Variant,
    switches: Mapping[str, bool],
    numbers: Mapping[str, float],
    nan_is_infinite: bool = False,
) -> Checked:
    kind = CheckedRows if variant.is_of_rows else Checked
    kind = CheckedTotals if variant.of_all else kind
    return kind(definition, variant, switches, numbers, nan_is_infinite)


def verify(
    definition: Definition, variants: Sequence[Variant], nan_is_infinite: bool = False
) -> Verified:
    """Checks every variant with every value of the switches.

    Args:
        definition: of what.
        variants: its formulas.
        nan_is_infinite: whether a gradient may be infinite where the definition's is NaN, as an
            infinity less another is, and an infinity times the difference of their factors not.

    The results know then which of them are float32 beside half types.

    Raises:
        NotDerived: something does not agree.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = numbers_of_its_own(definition)
        made: dict[tuple[Any, ...], list[Checked]] = {}

        def every(numbers: dict[str, float]) -> list[Checked]:
            """One for each variant and value of the switches, which know what they found out."""
            key = tuple(numbers.items())
            if key not in made:
                made[key] = [
                    checked(definition, variant, switches, numbers, nan_is_infinite)
                    for variant, switches in cases(definition, variants)
                ]
            return made[key]

        compared = compared_numbers(variants)
        own |= dict.fromkeys(compared, COMPARED)
        find_wide_results(definition, variants, every(own))
        # Of parts of tensors results are no arguments.
        if not definition.has_parts and keep_results(variants):
            made.clear()
        # All are asked: of each the functions that it calls are kept.
        shapes = [each.broadcasts() for each in every(own)]
        shapes += [False for variant in variants if shape_is_of_numbers(variant)]
        functions = frozenset().union(*(each.called for each in every(own)))
        about_rows = about(every(own))
        if len(definition.schema.settings) < 2 and not compared:
            try:
                found = [ranges(every(numbers)) for numbers in battery_numbers(definition)]
                if all(other == found[0] for other in found):
                    return Verified(all(shapes), found[0], None, *about_rows, functions)
            except Undefined:
                pass
        return Verified(all(shapes), ranges(every(own)), own, *about_rows, functions)


def shape_is_of_numbers(variant: Variant) -> bool:
    """Whether tensors of other shapes meet in one way of a branch on numbers than in the other."""

    def tensors(node: Node) -> set[str]:
        return inputs_of([node]) & {*variant.tensors}

    nodes = in_order(nodes_of(variant.forward))
    choices = [node for node in nodes if node.op == "where" and node.args[0] in BRANCHES]
    return any(tensors(choice.args[1]) != tensors(choice.args[2]) for choice in choices)


def find_wide_results(
    definition: Definition, variants: Sequence[Variant], every: Sequence[Checked]
) -> None:
    """Has the results know which of them are float32 where the tensors are of a half type.

    Raises:
        NotDerived: that depends on a switch, or on which tensors are given; or an annotation says
            otherwise.
    """
    found = [each.are_wide() for each in every]
    if any(wide != found[0] for wide in found):
        raise another_shape(definition.place)
    for variant in variants:
        pairs = zip(variant.results, found[0], strict=True)
        variant.results = [dataclasses.replace(r, is_wide=is_wide) for r, is_wide in pairs]
    for k, said in definition.said_wide.items():
        if not found[0][k]:
            raise NotDerived(
                f"{definition.place}: {said} says that result {k} is float32, and of half types it "
                "is one of these; write what it is"
            )


def compared_numbers(variants: Sequence[Variant]) -> list[str]:
    """The number arguments with which integers are compared, which those of samples may not be."""
    nodes = in_order([node for v in variants for node in nodes_of(v.forward)])
    return [str(node.value) for node in nodes if node.op == "count"]


def about(every: Sequence[Checked]) -> tuple[int, int, bool, dict[str, list[int]]]:
    """The fewest columns of a row, and of each of many, whether masks need ones, and the like."""
    rows = [each for each in every if isinstance(each, CheckedRows)]
    needed: dict[str, list[int]] = {}
    for checked_rows in rows:
        for name, values in checked_rows.needed.items():
            needed[name] = [*dict.fromkeys([*needed.get(name, []), *values])]
    return (
        max(each.fewest_columns() for each in every),
        max((each.fewest_columns_of_many_rows() for each in rows), default=0),
        any(each.needs_ones() for each in rows),
        needed,
    )


def cases(
    definition: Definition, variants: Sequence[Variant]
) -> Iterator[tuple[Variant, dict[str, bool]]]:
    switches = definition.named("bool")
    for variant in variants:
        for values in itertools.product((True, False), repeat=len(switches)):
            yield variant, dict(zip(switches, values, strict=True))


def ranges(every: Sequence[Checked]) -> dict[str, Range]:
    """The range of each tensor in which all of the definition is defined, once it agrees."""
    found: dict[str, Range] = {}
    for case in every:
        for name, (low, high) in zip(case.variant.tensors, case.check(), strict=True):
            before = found.get(name, (low, high))
            found[name] = (max(low, before[0]), min(high, before[1]))
    return found


def battery_numbers(definition: Definition) -> Iterator[dict[str, float]]:
    """The values with which the battery calls, as they follow from the schema (shapes.py)."""
    arguments = [a for a in definition.schema.settings if a.type != "bool"]
    for other in (False, True) if arguments else (False,):
        numbers: dict[str, float] = {}
        for a in arguments:
            default = None if a.default is None else float(a.default)
            if a.type == "int":
                numbers[a.name] = int(1 if default is None else default) + other
            elif default is None:
                numbers[a.name] = -0.375 if other else 1.75
            else:
                numbers[a.name] = (default * 1.75 or 1.75) if other else default
        yield numbers


def numbers_of_its_own(definition: Definition) -> dict[str, float]:
    """The defaults, and positive numbers of which each is larger than those before."""
    numbers: dict[str, float] = {}
    for k, a in enumerate(a for a in definition.schema.settings if a.type != "bool"):
        if a.default is not None:
            numbers[a.name] = int(a.default) if a.type == "int" else float(a.default)
        else:
            numbers[a.name] = 2 + k if a.type == "int" else (3 + 4 * k) / 4
    return numbers
