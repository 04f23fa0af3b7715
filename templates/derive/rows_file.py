"""The functors and host functions of a row-wise operator, in C++.

Where switches choose, each of the formulas has a functor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from naming import camel

from .body import Body, Branch, Leaf, each, leaves
from .cpp_text import lowered, lowered_names
from .graph import WIDE
from .of_numbers import Formula, prepared
from .plan import Backward, Plan, cases, returned
from .rows_operations import summed_together
from .rows_text import RowFunctor, Tensors
from .variant import Variant


def functors(plan: Plan) -> list[str]:
    first = plan.variants[0]
    elements = [n for n in first.own if n not in {*first.columns, *first.rows, *first.wide}]
    of_row = [m for m, r in zip(plan.members, plan.results, strict=True) if r.of_row]
    statistics = plan.statistic_members
    members, of_row = [*plan.members, *statistics], [*of_row, *statistics]
    wide = [m for m, r in zip(plan.members, plan.results, strict=True) if r.is_wide]
    wide += [*statistics, *first.wide]
    found = []
    for suffix, leaf in cases(forward_body(plan)):
        struct, of = plan.struct(first) + suffix, formula(plan, leaf)
        given = (plan.tensors, elements, [*first.rows], first.columns)
        tensors = Tensors(*given, dtypes_of(first, plan.tensors), first.single)
        found.append(functor(struct, of, members, of_row, tensors, wide))
    for backward in plan.backwards:
        found += backward_functors(plan, backward)
    return found


def backward_functors(plan: Plan, backward: Backward) -> list[str]:
    variant = backward.variant
    columns = [name for name in variant.saved if name in variant.columns]
    members = [f"grad_{name}" for name in variant.computed]
    of_row = [f"grad_{name}" for name in variant.computed if name in variant.rows]
    read = [name for name in backward.tensors if name != variant.says_dtype]
    given = (read, backward.elements, backward.rows, columns)
    dtypes = {n: d for n, d in dtypes_of(variant, read).items() if n not in backward.elements}
    tensors = Tensors(*given, dtypes, variant.single)
    wide = [*plan.statistics, *(f"grad_{name}" for name in (*variant.single, *variant.wide))]
    wide += [name for name in backward.tensors if variant.stored(name) == WIDE]
    return [
        functor(*(backward.struct + suffix, formula(plan, leaf), members, of_row, tensors), wide)
        for suffix, leaf in cases(backward_body(backward))
    ]


def dtypes_of(variant: Variant, tensors: Sequence[str]) -> dict[str, str]:
    """Those that a functor knows tensors by: WIDE of what has a value for each element alone."""
    of_row = {str(result.gradient) for result in variant.results if result.of_row}
    of_row |= {name for name, k in variant.kept.items() if variant.results[k].of_row}
    others = {*variant.columns, *variant.rows, *of_row}
    dtypes = {name: variant.stored(name) for name in tensors}
    return {n: dtype for n, dtype in dtypes.items() if dtype and (dtype != WIDE or n not in others)}


def forward_body(plan: Plan) -> Body:
    return lowered(plan.variants[0].returned)


def backward_body(backward: Backward) -> Body:
    variant = backward.variant
    return each(
        lambda leaf: summed_together(leaf, variant.computed_of_rows), lowered(variant.of_kernel)
    )


def formula(plan: Plan, leaf: Leaf) -> Formula:
    names = lowered_names(plan.variants[0].names)
    return prepared(leaf, names, {}, plan.settings, plan.names_in(leaf), taken=plan.words)


def functor(
    struct: str,
    of: Formula,
    members: Sequence[str],
    of_row: Sequence[str],
    tensors: Tensors,
    wide: Sequence[str],
) -> str:
    results = dict(zip(members, next(leaves(of.body)), strict=True))
    return RowFunctor(struct, results, of_row, tensors, wide, of).text()


def hosts(plan: Plan) -> list[str]:
    first, count = plan.variants[0], plan.returns
    tensors = [as_given(plan, name, first.rows) for name in plan.tensors]

    def call(suffix: str, leaf: Leaf) -> str:
        template = f"rowwise<{plan.struct(first)}{suffix}{f', {count}' if count > 1 else ''}>"
        return called(plan, template, plan.own.constant, tensors, leaf)

    parameters = ", ".join(f"{a.info.cpp} {plan.in_cpp[a.name]}" for a in plan.arguments)
    body = chosen_call(plan, forward_body(plan), call)
    forward = f"{returned('cpp', count)} {plan.host}({parameters}) {{ {body} }}"
    return [forward, *(backward_host(plan, backward) for backward in plan.backwards)]


def backward_host(plan: Plan, backward: Backward) -> str:
    variant = backward.variant
    count = len(variant.computed)
    sums = len([name for name in variant.computed if name in variant.columns])
    tensors = [
        f"says_dtype({plan.in_cpp[name]})"
        if name == variant.says_dtype
        else as_given(plan, name, backward.rows, backward.elements)
        for name in backward.tensors
    ]

    def call(suffix: str, leaf: Leaf) -> str:
        struct = backward.struct + suffix
        template = f"rowwise<{struct}{f', {count}' if count > 1 else ''}>"
        if sums:
            template = f"rowwise_with_column_sums<{struct}, {count - sums}, {sums}>"
        return called(plan, template, backward.constant, tensors, leaf)

    return backward.host_in_cpp(chosen_call(plan, backward_body(backward), call))


def as_given(plan: Plan, name: str, rows: Collection[str], elements: Collection[str] = ()) -> str:
    """A tensor as an argument of rowwise(), of which it is known what the elements of a row are."""
    first = plan.variants[0]
    if name in elements:
        return plan.in_cpp[name]
    if name in first.columns:
        # What it counts as where it is None, which is 0 unless that is said.
        otherwise = ", 1" if first.otherwise.get(name) == 1 else ""
        return f"per_column({plan.in_cpp[name]}{otherwise})"
    if name in dtypes_of(first, [name]) and name not in rows:
        return f"per_element({plan.in_cpp[name]})"
    if name in first.single:
        return f"one_number({plan.in_cpp[name]})"
    return f"per_row({plan.in_cpp[name]})" if name in rows else plan.in_cpp[name]


def called(plan: Plan, template: str, constant: str, tensors: Sequence[str], leaf: Leaf) -> str:
    of = formula(plan, leaf)
    arguments = ", ".join([constant, *tensors, *of.arguments])
    return " ".join([*of.statements, f"return {template}({arguments});"])


def chosen_call(plan: Plan, body: Body, call: Callable[[str, Leaf], str], suffix: str = "") -> str:
    """The call of the functor that the switches choose."""
    if not isinstance(body, Branch):
        return call(suffix, body)
    yes = chosen_call(plan, body.yes, call, f"{suffix}With{camel(body.switch)}")
    no = chosen_call(plan, body.no, call, suffix)
    return f"if ({plan.in_cpp[body.switch]}) {{ {yes} }} {no}"
