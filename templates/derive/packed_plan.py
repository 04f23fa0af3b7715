"""The plan of an operator some of whose tensors have several parts.

From outside it is one of whole tensors. Its functors are of the parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from naming import free
from schema import words

from .body import Leaf, each
from .graph import Node, const, is_const
from .packed import PASS_PARTS
from .parts import InParts
from .plan import Backward, Declared, Of, Plan, functor_name, returned, suffix
from .refusal import NotDerived
from .saved import OUTPUT
from .variant import Result, Variant, of_dtype
from .verify import Range, Verified


class PackedPlan(Plan):
    """What the files of such an operator have in common.

    Attributes:
        apart: the definition, of parts.
        formulas: the variants, of parts, in the order of those of whole tensors.
        columns: what the line of shapes calls the number of columns of a part.
    """

    in_hosts = words("parts joined results elementwise_with_sums_into")

    def __init__(
        self, definition: InParts, variants: Sequence[Variant], verified: Verified
    ) -> None:
        self.apart, self.formulas = definition, [*variants]
        whole = definition.whole
        self.columns = free("n", {a.name for a in whole.schema.arguments})
        ranges = {}
        for name in definition.wholes(verified.ranges):
            low, high = common_range([verified.ranges[p] for p in definition.parts_of(name)])
            if low >= high:
                raise NotDerived(
                    f"{definition.place}: no numbers are in the domain of all parts of '{name}'; "
                    f"{PASS_PARTS}"
                )
            ranges[name] = low, high
        found = dataclasses.replace(verified, ranges=ranges)
        super().__init__(whole, [of_wholes(definition, v) for v in variants], found)
        gradients = [str(r.gradient) for v in variants for r in v.results]
        self.in_cpp |= {name: name for name in gradients}

    @property
    def part_names(self) -> list[str]:  # type: ignore[override]
        return [name for parts in self.apart.parts.values() for name in parts]

    def formula_of(self, variant: Variant) -> Variant:
        """That of the parts."""
        return next(f for f, v in zip(self.formulas, self.variants, strict=True) if v is variant)

    def new_backward(self, variant: Variant) -> Backward:
        return PackedBackward(self, variant)

    def count(self, name: str) -> int:
        """How many parts a tensor has, a result or the gradient of one, too."""
        names = [*(r.name for r in self.results), *(str(r.gradient) for r in self.results)]
        if name in names:
            return self.apart.counts[names.index(name) % len(self.results)]
        return len(self.apart.parts_of(name))

    def shape(self, name: str, sums: bool) -> str:
        """In the line of shapes."""
        count = self.count(name)
        dtypes = self.dtypes | {r.name: r.dtype for r in self.results}
        columns = f"{count if count > 1 else ''}{self.columns}"
        return of_dtype(f"{'...' if sums else '*rows'} {columns}", dtypes.get(name, ""))

    @property
    def line(self) -> str:
        given = [self.shape(name, self.broadcasts) for name in self.tensors]
        results = [self.shape(result.name, self.broadcasts) for result in self.results]
        return f"{', '.join(given)} -> {', '.join(results)}"

    @property
    def saved(self) -> list[str]:
        own = [b for b in self.backwards if isinstance(b, PackedBackward)]
        found = {name for b in own for name in b.saved}
        return [name for name in (*self.variants[0].tensors, OUTPUT) if name in found]

    def of_result(self, values: Sequence[Of], k: int) -> Sequence[Of]:
        before = sum(self.apart.counts[:k])
        return values[before : before + self.apart.counts[k]]


class PackedBackward(Backward):
    """Its backward operator.

    Attributes:
        formula: the variant of parts.
        saved: what it is given of the tensors and the output.
    """

    def __init__(self, plan: PackedPlan, variant: Variant) -> None:
        name = f"{plan.name}{suffix(variant)}_backward"
        self.plan, self.variant, self.formula = plan, variant, plan.formula_of(variant)
        self.struct = functor_name(name, plan.taken)
        self.sums = plan.broadcasts and len(variant.tensors) > 1
        self.results = variant.computed
        parts = [part for n in self.results for part in plan.apart.parts_of(n)]
        self.body = self.formula.gradients_of(parts)
        used = self.formula.uses(self.body)
        gradients = [str(result.gradient) for result in self.formula.results]
        tensors = [*gradients, *self.formula.tensors, OUTPUT]
        self.tensors = [name for name in tensors if name in used]
        self.gradients = [
            str(result.gradient)
            for r, result in enumerate(plan.results)
            if used & {*plan.of_result(gradients, r)}
        ]
        self.saved = [*plan.apart.wholes(used), *([OUTPUT] if OUTPUT in used else [])]
        self.unread = [n for n in self.results if self.sums and n not in self.saved]
        self.given = [*self.gradients, *self.saved, *self.unread]
        self.numbers = [a for a in plan.settings if a.name in used]
        arguments = [f"Tensor {name}" for name in self.given]
        arguments += [f"{a.type} {a.name}" for a in self.numbers]
        schema = f"{name}({', '.join(arguments)}) -> {returned('schema', len(self.results))}"
        shapes = [plan.shape(name, self.sums) for name in self.given]
        results = [f"={n}" if self.sums else plan.shape(n, False) for n in self.results]
        Declared.__init__(self, name, schema, f"{', '.join(shapes)} -> {', '.join(results)}")

    def parts_of(self, name: str) -> list[str]:
        """The names of the parts of what it is given, or the name."""
        plan = self.plan
        assert isinstance(plan, PackedPlan)
        gradients = [str(result.gradient) for result in plan.results]
        if name not in gradients:
            return [*plan.apart.parts_of(name)]
        parts = plan.of_result(self.formula.results, gradients.index(name))
        return [str(result.gradient) for result in parts]


def common_range(ranges: Sequence[Range]) -> Range:
    return max(low for low, _ in ranges), min(high for _, high in ranges)


def of_wholes(definition: InParts, variant: Variant) -> Variant:
    """A variant as that of whole tensors, for what is said of these besides their formulas."""
    tensors = definition.wholes(variant.tensors)
    results: list[Result] = []
    at = 0
    for r, count in enumerate(definition.counts):
        whole = f"{OUTPUT}{r}" if len(definition.counts) > 1 else OUTPUT
        own = variant.results[at]
        results.append(dataclasses.replace(own, name=whole) if count > 1 else own)
        at += count

    def gradient(leaf: Leaf, name: str) -> Node:
        """Of a tensor of several parts, whether there is one."""
        parts = [leaf[variant.tensors.index(part)] for part in definition.parts_of(name)]
        if len(parts) == 1:
            return parts[0]
        return const(0 if all(is_const(part, 0) for part in parts) else 1)

    return Variant(
        tensors,
        definition.wholes(variant.absent),
        results,
        variant.forward,
        each(lambda leaf: tuple(gradient(leaf, name) for name in tensors), variant.gradients),
        dtypes={n: d for n, d in definition.whole.dtypes.items() if n in tensors},
        is_of_parts=True,
    )
