"""The formulas of a definition where some of its optional tensors are given."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .body import Body, chosen, each, leaves, nodes_of, switches_of
from .graph import (
    COMPARISONS,
    OF_ROWS,
    WIDE,
    Gradient,
    Node,
    Value,
    const,
    in_order,
    inputs_of,
    is_const,
    make,
    replaced,
    simplified,
)
from .refusal import NotDerived
from .saved import OUTPUT, saved_tensors


@dataclass(frozen=True)
class Result:
    """A result of a definition.

    Attributes:
        name: its own, where there are several and the definition has one for it.
        of_row: whether there is one for each row, not for each element.
        is_squeezed: whether it has no dimension for the columns then.
        dtype: its own, "bool" or of integers, where it has one. It has no gradient then.
        is_wide: whether it is float32 where the tensors are of a half type.
        is_written: whether it goes to the tensor of its name. It has no gradient then.
        of_all: whether what rows are is everything, one row.
    """

    name: str = OUTPUT
    of_row: bool = False
    is_squeezed: bool = False
    dtype: str = ""
    is_wide: bool = False
    is_written: bool = False
    of_all: bool = False

    @property
    def is_differentiable(self) -> bool:
        return not (self.dtype or self.is_written)

    @property
    def gradient(self) -> Gradient:
        """What its gradient is called."""
        return Gradient(f"grad_{self.name}")

    @property
    def leaf(self) -> Node:
        """Its gradient."""
        return make("row" if self.of_row else "tensor", value=self.gradient)

    @property
    def stored(self) -> str:
        """The dtype, as a line of shapes has it; "" for the operator's."""
        return WIDE if self.is_wide else self.dtype

    @property
    def shape(self) -> str:
        """Of a definition that reduces, as csrc/notation.h has it."""
        if self.of_all:
            return "()" if self.of_row else "*all"
        if not self.of_row:
            return "*rows n"
        return "*rows" if self.is_squeezed else "*rows 1"


@dataclass
class Variant:
    """The formulas where some of the optional tensors are given.

    Attributes:
        tensors: those that are given.
        absent: the others.
        results: what there is to say of them besides their formulas.
        forward: of all results.
        gradients: one for each tensor.
        names: that the definition has for parts of them.
        columns: the tensors with a value for each column, of a row-wise definition.
        rows: the shapes of those with a value for each row, and of those that are one number for
            all of them.
        otherwise: the numbers that optional ones of these count as where they are None. This
            variant is all that is printed then.
        statistics: of rows, by their names: what the forward returns besides, for the backward.
        with_statistics: the gradients as the kernel computes them, from these.
        dtypes: of the tensors that have one of their own.
        wide: the tensors that are float32 beside half types.
        kept: which of the results the gradients are made of, by what they are called there.
        is_of_parts: whether the gradients are no more than whether there are such, of tensors whose
            parts have them.
        of_all: whether what it reduces is reduced over everything: what rows are is one then.
    """

    tensors: list[str]
    absent: list[str]
    results: list[Result]
    forward: Body
    gradients: Body
    names: dict[Node, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)
    otherwise: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, Node] = field(default_factory=dict)
    with_statistics: Body = ()
    dtypes: dict[str, str] = field(default_factory=dict)
    wide: list[str] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    is_of_parts: bool = False
    of_all: bool = False

    @property
    def own(self) -> list[str]:
        """The tensors that may have a gradient."""
        return [name for name in self.tensors if name not in self.dtypes]

    @property
    def main(self) -> str:
        """The first that has the operator's dtype."""
        return next(name for name in self.own if name not in self.wide)

    def stored(self, name: str) -> str:
        """The dtype of what a kernel is given, as a line of shapes has it; "" for the own."""
        wide = {*self.wide, *(str(r.gradient) for r in self.results if r.is_wide)}
        wide |= {name for name, k in self.kept.items() if self.results[k].is_wide}
        return WIDE if name in wide else self.dtypes.get(name, "")

    @property
    def returned(self) -> Body:
        """The results and the statistics."""
        return each(lambda leaf: (*leaf, *self.statistics.values()), self.forward)

    @property
    def masks(self) -> list[str]:
        """The tensors of which nothing but a comparison is used that tells 0 from 1.

        None of them where there are no others.
        """
        outputs = nodes_of(self.forward)
        compared: set[Value] = set()
        others = {node.value for node in outputs}
        for node in in_order(outputs):
            (compared if tells_0_from_1(node) else others).update(arg.value for arg in node.args)
        found = [name for name in self.own if name in compared - others]
        return found if len(found) < len(self.own) else []

    @property
    def tensors_and_statistics(self) -> list[str]:
        """Statistics before what there is for columns, as functors have them."""
        columns = (k for k, name in enumerate(self.tensors) if name in self.columns)
        first = next(columns, len(self.tensors))
        return [*self.tensors[:first], *self.statistics, *self.tensors[first:]]

    @property
    def saved(self) -> list[str]:
        """What the backward operator is given of the tensors, the statistics and the results."""
        return [self.main, *self.read] if self.lacks_main else self.read

    @property
    def lacks_main(self) -> bool:
        """Whether nothing that the gradients are made of has the operator's dtype for each element.

        Of results for each row the backward needs to know, too, how long rows are.
        """
        of_rows = all(result.of_row or result.is_wide for result in self.differentiated)
        found = self.read
        others = {*self.columns, *self.rows, *self.statistics}
        others |= {name for name in found if self.stored(name)}
        return of_rows and bool(self.computed) and not {*found} - others

    @property
    def read(self) -> list[str]:
        """What the gradients are made of, besides those of the results."""
        used = [*nodes_of(self.backward), *nodes_of(self.of_kernel)]
        return saved_tensors(used, [*self.tensors_and_statistics, *self.kept])

    @property
    def says_dtype(self) -> str:
        """What the backward operator of rows is given for its dtype alone, which no other has; ""
        where there is none such.
        """
        has_wide = any(r.is_wide and not r.of_row for r in self.differentiated)
        columns = {*self.columns, *self.single} & {*self.read, *self.computed}
        is_it = self.is_of_rows and self.lacks_main and has_wide and not columns
        return self.main if is_it else ""

    @property
    def passed_on(self) -> dict[str, Gradient]:
        """The tensors whose gradient is that of a result, as it is."""
        return {
            name: result.gradient
            for result in self.results
            for name in (self.whose_gradient_is(result.leaf) if result.is_differentiable else [])
            if not result.of_row or self.rows.get(name) == result.shape
            if result.is_wide == (name in self.wide)
        }

    @property
    def computed(self) -> list[str]:
        """The tensors whose gradients the backward operator computes.

        Of the rest they are 0, or those of others. Sums of columns last.
        """
        others = {*self.passed_on, *self.shared, *self.whose_gradient_is(const(0))}
        found = [name for name in self.tensors if name not in others]
        return sorted(found, key=lambda name: name in self.columns)

    @property
    def shared(self) -> dict[str, str]:
        """The tensors whose gradient is that of another, by which: as of summands.

        Of elements they may broadcast, and have it where they are of one shape, which what is not
        read may be left out to say.
        """
        found: dict[str, str] = {}
        if self.is_of_parts:
            return found
        others = {*self.passed_on, *self.single, *self.whose_gradient_is(const(0))}
        others |= set() if self.is_of_rows else self.uses(self.gradients)
        first: dict[tuple[object, ...], str] = {}
        for k, name in enumerate(self.tensors):
            if name not in others:
                like = (self.rows.get(name), name in self.columns, self.stored(name))
                gradient = tuple(leaf[k] for leaf in leaves(self.gradients))
                if (other := first.setdefault((like, gradient), name)) != name:
                    found[name] = other
        return found

    def whose_gradient_is(self, node: Node) -> list[str]:
        return [
            name
            for k, name in enumerate(self.tensors)
            if all(leaf[k] is node for leaf in leaves(self.gradients))
        ]

    @property
    def computed_of_rows(self) -> list[int]:
        """Which of these the kernel has one value of for each row."""
        return [k for k, name in enumerate(self.computed) if name in self.rows]

    @property
    def squeezed(self) -> list[str]:
        """The tensors with a value for each row, and no dimension for the columns."""
        return [name for name, shape in self.rows.items() if shape == "*rows"]

    @property
    def single(self) -> dict[str, str]:
        """The shapes of the tensors of one number, whose gradient is a sum of one for each row."""
        return {name: shape for name, shape in self.rows.items() if "*" not in shape}

    def shapes_of_rows(self, names: Sequence[str]) -> list[str | None]:
        """What becomes of gradients for each row, as python_text.py takes it."""
        kept = [name for name, shape in self.rows.items() if shape == "*rows 1"]
        ends = {name: "" if name in kept else ".squeeze(-1)" for name in self.rows}
        return [ends.get(name) for name in names] if ends else []

    @property
    def backward(self) -> Body:
        return self.gradients_of(self.computed)

    @property
    def of_kernel(self) -> Body:
        """The same in C++, where there are statistics."""
        return self.gradients_of(self.computed, self.with_statistics or self.gradients)

    def gradients_of(self, names: Sequence[str], gradients: Body | None = None) -> Body:
        kept = [self.tensors.index(name) for name in names]
        return each(lambda leaf: tuple(leaf[k] for k in kept), gradients or self.gradients)

    @property
    def is_of_rows(self) -> bool:
        """Whether it looks at whole rows."""
        return looks_at_rows(nodes_of(self.forward))

    @property
    def differentiated(self) -> list[Result]:
        """The results whose gradients the backward operator takes."""
        return self.results_for(self.backward)

    def results_for(self, gradients: Body) -> list[Result]:
        used = self.uses(gradients)
        return [result for result in self.results if result.gradient in used]

    def is_as(self, other: Variant, switches: Sequence[str]) -> bool:
        """Whether another computes the same, but for products by 1 and sums with 0."""
        for values in itertools.product((True, False), repeat=len(switches)):
            given = dict(zip(switches, values, strict=True))
            own, others = chosen(self.forward, given), chosen(other.forward, given)
            if simplified(own) != simplified(others):
                return False
        return True

    def uses(self, body: Body) -> set[str]:
        return inputs_of(nodes_of(body)) | switches_of(body)


def another_shape(place: str) -> NotDerived:
    return NotDerived(
        f"{place}: the shape or dtype of a result depends on a switch, or on whether a tensor is "
        "None; write a function for each case"
    )


def of_dtype(shape: str, dtype: str) -> str:
    """In a line of shapes, of a tensor that has that dtype or, where it is "", the operator's."""
    return f"{shape}:{dtype}" if dtype else shape


def tells_0_from_1(node: Node) -> bool:
    """Whether it compares something with a constant, which is true of one of them alone."""
    if node.op not in COMPARISONS:
        return False
    compare = getattr(operator, node.op)
    left, right = node.args
    if is_const(right):
        return compare(0.0, right.value) != compare(1.0, right.value)
    return is_const(left) and compare(left.value, 0.0) != compare(left.value, 1.0)


def looks_at_rows(nodes: Sequence[Node]) -> bool:
    return any(node.op in OF_ROWS for node in in_order(nodes))


def with_numbers(variant: Variant, numbers: Mapping[str, int]) -> Variant:
    """The variant where these numbers stand for parameters that are None."""
    by = {make("column", value=name): const(number) for name, number in numbers.items()}
    kept = [k for k, name in enumerate(variant.tensors) if name not in numbers]
    statistics = replaced([*variant.statistics.values()], by)

    def without(gradients: Body) -> Body:
        return each(lambda leaf: replaced([leaf[k] for k in kept], by), gradients)

    return dataclasses.replace(
        variant,
        tensors=[variant.tensors[k] for k in kept],
        absent=list(numbers),
        forward=each(lambda leaf: replaced(leaf, by), variant.forward),
        gradients=without(variant.gradients),
        names={},
        columns=[name for name in variant.columns if name not in numbers],
        statistics=dict(zip(variant.statistics, statistics, strict=True)),
        with_statistics=variant.with_statistics and without(variant.with_statistics),
    )
