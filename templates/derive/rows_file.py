"""The functors and host functions of a row-wise operator, in C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .body import nodes_of
from .cpp_text import lowered, lowered_names
from .graph import GRADIENT, Node
from .plan import Backward, Plan
from .rows_text import RowFunctor
from .saved import OUTPUT


def functors(plan: Plan) -> list[str]:
    (variant,) = plan.variants
    elements = [name for name in plan.tensors if name not in variant.columns]
    (node,) = nodes_of(lowered(variant.forward))
    numbers = [a.name for a in plan.numbers_of(variant)]
    forward = functor(
        *(plan, plan.struct(variant), {OUTPUT: node}, elements, [], variant.columns, numbers)
    )
    return [forward, *(backward_functor(plan, backward) for backward in plan.backwards)]


def backward_functor(plan: Plan, backward: Backward) -> str:
    variant = backward.variant
    nodes = nodes_of(lowered(variant.backward))
    results = {
        f"grad_{plan.in_cpp[name]}": node
        for name, node in zip(variant.computed, nodes, strict=True)
    }
    rows = [GRADIENT] if variant.gives_rows else []
    columns = [name for name in variant.saved if name in variant.columns]
    numbers = [a.name for a in backward.numbers]
    return functor(plan, backward.struct, results, backward.elements, rows, columns, numbers)


def functor(
    plan: Plan,
    struct: str,
    results: Mapping[str, Node],
    elements: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    numbers: Sequence[str],
) -> str:
    names = lowered_names(plan.variants[0].names)
    return RowFunctor(struct, results, elements, rows, columns, numbers, names, plan.in_cpp).text()


def hosts(plan: Plan) -> list[str]:
    (variant,) = plan.variants
    parameters = ", ".join(f"{a.info.cpp} {plan.in_cpp[a.name]}" for a in plan.arguments)
    numbers = [a.name for a in plan.numbers_of(variant)]
    arguments = [plan.own.constant, *given(plan, plan.tensors, [], numbers)]
    call = f"rowwise<{plan.struct(variant)}>({', '.join(arguments)})"
    forward = f"Tensor {plan.host}({parameters}) {{ return {call}; }}"
    return [forward, *(backward_host(plan, backward) for backward in plan.backwards)]


def backward_host(plan: Plan, backward: Backward) -> str:
    variant = backward.variant
    count = len(variant.computed)
    sums = len([name for name in variant.computed if name in variant.columns])
    rows = [GRADIENT] if variant.gives_rows else []
    numbers = [a.name for a in backward.numbers]
    arguments = [backward.constant, *given(plan, backward.tensors, rows, numbers)]
    if sums:
        how = f"rowwise_with_column_sums<{backward.struct}, {count - sums}, {sums}>"
    else:
        how = f"rowwise<{backward.struct}{f', {count}' if count > 1 else ''}>"
    return backward.host_in_cpp(f"{how}({', '.join(arguments)})")


def given(
    plan: Plan, tensors: Sequence[str], rows: Sequence[str], numbers: Sequence[str]
) -> list[str]:
    """The arguments of rowwise()."""
    (variant,) = plan.variants
    arguments = []
    for name in tensors:
        text = plan.in_cpp[name]
        if name in variant.columns:
            text = f"per_column({text})"
        elif name in rows:
            text = f"per_row({text})"
        arguments.append(text)
    return arguments + [plan.in_cpp[name] for name in numbers]
