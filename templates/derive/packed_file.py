"""The text of an operator some of whose tensors have several parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from naming import all_free

from . import python_text
from .body import Body, Branch
from .elements_text import formula, functor
from .graph import Node
from .packed_plan import PackedBackward, PackedPlan
from .plan import returned
from .saved import OUTPUT
from .variant import Variant

# ----- in C++


def functors(plan: PackedPlan) -> list[str]:
    found = []
    for variant, own in zip(plan.variants, plan.formulas, strict=True):
        of = formula(plan, own, own.forward)
        found.append(functor(plan.struct(variant), {n: own.stored(n) for n in own.tensors}, of))
    for backward in backwards(plan):
        *others, last = backward.results
        said = f"// The gradients of {', '.join(others)} and {last}.\n" if others else ""
        of = formula(plan, backward.formula, backward.body)
        tensors = {name: backward.formula.stored(name) for name in backward.tensors}
        found.append(said + functor(backward.struct, tensors, of))
    return found


def backwards(plan: PackedPlan) -> list[PackedBackward]:
    return [b for b in plan.backwards if isinstance(b, PackedBackward)]


def hosts(plan: PackedPlan) -> list[str]:
    return [forward_host(plan), *(backward_host(plan, b) for b in backwards(plan))]


def forward_host(plan: PackedPlan) -> str:
    parameters = ", ".join(f"{a.info.cpp} {plan.in_cpp[a.name]}" for a in plan.arguments)
    tensors = ", ".join(plan.in_cpp[name] for name in plan.tensors)
    count = len(plan.results)
    names = [f"{OUTPUT}{r}" for r in range(count)] if count > 1 else [OUTPUT]
    made, outputs, returned_outputs = new_outputs(names, plan.apart.counts)
    *conditional, last = plan.variants
    always = {n: plan.apart.parts_of(n) for n in plan.tensors if n not in plan.optional}
    lines = [
        f"{returned('cpp', len(plan.results))} {plan.host}({parameters}) {{",
        f"const CheckedInputs inputs = {plan.own.constant}.check({tensors});",
        *in_parts(plan, always),
        *made,
        *(f"if ({are_given(plan, v)}) {{ {into(plan, v, outputs)} }} else" for v in conditional),
        f"{{ {into(plan, last, outputs)} }}" if conditional else into(plan, last, outputs),
        f"return {returned_outputs};",
        "}",
    ]
    return "\n".join(lines)


def new_outputs(names: Sequence[str], counts: Sequence[int]) -> tuple[list[str], str, str]:
    """The lines that make outputs of so many parts, what is written to, what is returned."""
    if len(names) == 1:
        (name,), (count,) = names, counts
        lines = [f"Tensor {name} = inputs.new_output();"]
        if count > 1:
            return [*lines, f"auto results = parts<{count}>({name});"], "results", name
        return lines, name, name
    lines = [f"Tensor {name} = inputs.new_output({r});" for r, name in enumerate(names)]
    pairs = zip(counts, names, strict=True)
    parts = ", ".join(f"parts<{count}>({name})" for count, name in pairs)
    lines.append(f"auto results = joined({parts});")
    return lines, "results", f"{{{', '.join(names)}}}"


def are_given(plan: PackedPlan, variant: Variant) -> str:
    given = [name for name in plan.optional if name in variant.tensors]
    return " && ".join(f"{plan.in_cpp[name]}.has_value()" for name in given)


def in_parts(
    plan: PackedPlan, parts: Mapping[str, Sequence[str]], optional: Sequence[str] = ()
) -> list[str]:
    """The statements by which tensors are taken apart."""
    lines = []
    for name, own in parts.items():
        if len(own) > 1:
            value = f"{'*' if name in optional else ''}{plan.in_cpp[name]}"
            names = ", ".join(plan.in_cpp[part] for part in own)
            lines.append(f"const auto [{names}] = parts<{len(own)}>({value});")
    return lines


def into(plan: PackedPlan, variant: Variant, outputs: str) -> str:
    own = plan.formula_of(variant)
    of = formula(plan, own, own.forward)
    tensors = [f"{'*' if name in plan.optional else ''}{plan.in_cpp[name]}" for name in own.tensors]
    arguments = ", ".join([outputs, *tensors, *of.arguments])
    given = {n: plan.apart.parts_of(n) for n in variant.tensors if n in plan.optional}
    taken = in_parts(plan, given, plan.optional)
    call = f"elementwise_into<{plan.struct(variant)}>({arguments});"
    return "\n".join([*taken, *of.statements, call])


def backward_host(plan: PackedPlan, backward: PackedBackward) -> str:
    of = formula(plan, backward.formula, backward.body)
    given = ", ".join(plan.in_cpp[name] for name in backward.given)
    read = [name for name in backward.given if name not in backward.unread]
    counts = [plan.count(name) for name in backward.results]
    wanted = {name: f"grad_{plan.in_cpp[name]}" for name in backward.results}
    names = [*all_free(wanted, plan.in_cpp.values()).values()]
    made, outputs, returned_outputs = new_outputs(names, counts)
    tensors = [plan.in_cpp[name] for name in backward.tensors]
    function, first = "elementwise_into", []
    if backward.sums:
        function, first = "elementwise_with_sums_into", [backward.constant]
        if outputs != "results":
            made, outputs = [*made, f"auto results = parts<1>({outputs});"], "results"
    arguments = ", ".join([*first, outputs, *tensors, *of.arguments])
    lines = [
        f"const CheckedInputs inputs = {backward.constant}.check({given});",
        *in_parts(plan, {name: backward.parts_of(name) for name in read}),
        *made,
        *of.statements,
        f"{function}<{backward.struct}>({arguments});",
        f"return {returned_outputs};",
    ]
    return backward.host_in_cpp("\n  ".join(lines))


# ----- in Python


def taken_apart(parts: Mapping[str, Sequence[str]], optional: Sequence[str] = ()) -> list[str]:
    lines = []
    for name, own in parts.items():
        if len(own) > 1:
            apart = f"{name}.chunk({len(own)}, -1)"
            if name in optional:
                nones = ", ".join(["None"] * len(own))
                apart = f"({nones}) if {name} is None else {apart}"
            lines.append(f"{', '.join(own)} = {apart}")
    return lines


def in_torch(plan: PackedPlan, name: str, parameters: Sequence[str]) -> str:
    """The definition, as primitive operations."""
    spelling = {n: n for n in [*(a.name for a in plan.arguments), *plan.part_names]}
    *conditional, last = plan.formulas
    body: Body = last.forward
    for variant, own in reversed([*zip(plan.variants, conditional, strict=False)]):
        given = [f"{n} is not None" for n in plan.optional if n in variant.tensors]
        condition = " and ".join(given)
        body, spelling[condition] = Branch(condition, own.forward, body), condition
    names: dict[Node, str] = {}
    for own in reversed(plan.formulas):
        names |= own.names
    parts = {name: plan.apart.parts_of(name) for name in plan.tensors}
    return python_text.function(
        *(name, parameters, body, names, spelling, plan.apart.parts_of(plan.main)[0]),
        first=taken_apart(parts, plan.optional),
        counts=plan.apart.counts,
    )


def backward_in_torch(plan: PackedPlan, backward: PackedBackward) -> str:
    read = [name for name in backward.given if name not in backward.unread]
    parts = {name: backward.parts_of(name) for name in read}
    names = [*backward.arguments, *(part for own in parts.values() for part in own)]
    return python_text.function(
        *(backward.in_torch, backward.arguments, backward.body, backward.formula.names),
        spelling={name: name for name in names},
        like=backward.tensors[0],
        is_backward=True,
        first=taken_apart(parts),
        counts=[plan.count(name) for name in backward.results],
        summed_to=dict.fromkeys(backward.results, False) if backward.sums else None,
    )
