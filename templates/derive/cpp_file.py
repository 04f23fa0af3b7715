"""The C++ source of a derived operator."""

from __future__ import annotations

from collections.abc import Sequence

from . import packed_file, rows_file, totals_file
from .cpp_text import comment
from .elements_text import formula, functor
from .packed_plan import PackedPlan
from .plan import Backward, Plan, returned
from .saved import OUTPUT
from .variant import Variant


def cpp_file(plan: Plan) -> str:
    declarations = [
        f'const Operator {op.constant}{{"{op.schema}", "{op.line}"}};' for op in plan.declared
    ]
    if plan.of_all:
        headers = ["elementwise.h", "totals.h"]
        functors, hosts = totals_file.functors_and_hosts(plan)
    elif plan.is_of_rows:
        headers, functors, hosts = ["rows.h"], rows_file.functors(plan), rows_file.hosts(plan)
    elif isinstance(plan, PackedPlan):
        headers = ["packed.h", *(["sums.h"] if any(b.sums for b in plan.backwards) else [])]
        functors, hosts = packed_file.functors(plan), packed_file.hosts(plan)
    else:
        headers = ["elementwise.h", *(["sums.h"] if any(b.sums for b in plan.backwards) else [])]
        functors = [forward_functor(plan, variant) for variant in plan.variants]
        functors += [backward_functor(plan, backward) for backward in plan.backwards]
        hosts = [forward_host(plan), *(backward_host(plan, b) for b in plan.backwards)]
    definitions = [f"  m.def({op.constant}.schema());" for op in plan.declared]
    functions = {plan.name: plan.host} | {b.name: b.name for b in plan.backwards}
    kernels = [
        f'  m.impl("{name}", TORCH_BOX(&{function}));' for name, function in functions.items()
    ]
    includes = [f'#include "{header}"' for header in headers]
    parts = [
        "\n".join([comment(headline(plan)), *includes]),
        f"namespace extension_cpp::{plan.host} {{",
        "\n".join(declarations),
        *functors,
        *hosts,
        block("TORCH_LIBRARY_FRAGMENT(extension_cpp, m)", definitions),
        block("TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m)", kernels),
        f"}}  // namespace extension_cpp::{plan.host}",
    ]
    return "\n\n".join(parts) + "\n"


def block(head: str, lines: list[str]) -> str:
    return "\n".join([f"{head} {{", *lines, "}"])


def headline(plan: Plan) -> str:
    (first, *_) = plan.summary.splitlines()
    return first.removeprefix("Computes ").rstrip(".").replace("`", "")


def forward_functor(plan: Plan, variant: Variant) -> str:
    of = formula(plan, variant, variant.forward)
    wide = [result.is_wide for result in variant.results]
    return functor(plan.struct(variant), given(variant, variant.tensors), of, wide)


def backward_functor(plan: Plan, backward: Backward) -> str:
    *others, last = backward.results
    said = f"// The gradients of {', '.join(others)} and {last}.\n" if others else ""
    of = formula(plan, backward.variant, backward.body)
    variant = backward.variant
    wide = [name in variant.wide for name in backward.results]
    return said + functor(backward.struct, given(variant, backward.tensors), of, wide)


def given(variant: Variant, tensors: Sequence[str]) -> dict[str, str]:
    """The tensors that a functor is given, with their dtypes."""
    return {name: variant.stored(name) for name in tensors}


def host_in_place(plan: Plan) -> str:
    """The host function of an operator that writes to its arguments."""
    parameters = ", ".join(
        f"{'Tensor&' if a.name in plan.written else a.info.cpp} {plan.in_cpp[a.name]}"
        for a in plan.arguments
    )
    names = [plan.in_cpp[name] for name in plan.written]
    made, target = [], names[0]
    if len(names) > 1:
        made, target = [f"std::array<Tensor, {len(names)}> {OUTPUT}{{{', '.join(names)}}};"], OUTPUT
    *conditional, last = plan.variants
    lines = [
        f"void {plan.host}({parameters}) {{",
        f"{plan.own.constant}.check({', '.join(plan.in_cpp[name] for name in plan.tensors)});",
        *made,
        *(
            f"if ({are_given(plan, variant)}) {{ {into_output(plan, variant, target)} return; }}"
            for variant in conditional
        ),
        into_output(plan, last, target),
        "}",
    ]
    return "\n".join(lines)


def forward_host(plan: Plan) -> str:
    if plan.written:
        return host_in_place(plan)
    parameters = ", ".join(f"{a.info.cpp} {plan.in_cpp[a.name]}" for a in plan.arguments)
    head = f"{returned('cpp', len(plan.results))} {plan.host}({parameters}) {{"
    if len(plan.variants) == 1:
        (variant,) = plan.variants
        of = formula(plan, variant, variant.forward)
        given = [*(plan.in_cpp[name] for name in variant.tensors), *of.arguments]
        arguments = ", ".join([plan.own.constant, *given])
        call = f"return elementwise<{plan.struct(variant)}>({arguments});"
        return " ".join([head, *of.statements, call, "}"])
    tensors = ", ".join(plan.in_cpp[name] for name in plan.tensors)
    made, result = f"Tensor {OUTPUT} = inputs.new_output();", OUTPUT
    if (count := len(plan.results)) > 1:
        new = ", ".join(f"inputs.new_output({k})" for k in range(count))
        made = f"std::array<Tensor, {count}> {OUTPUT}{{{new}}};"
        result = f"std::tuple_cat({OUTPUT})"
    *conditional, last = plan.variants
    choice = " else ".join(
        f"if ({are_given(plan, variant)}) {{ {into_output(plan, variant)} }}"
        for variant in conditional
    )
    lines = [
        head,
        f"const CheckedInputs inputs = {plan.own.constant}.check({tensors});",
        made,
        f"{choice} else {{ {into_output(plan, last)} }}",
        f"return {result};",
        "}",
    ]
    return "\n".join(lines)


def are_given(plan: Plan, variant: Variant) -> str:
    given = [name for name in plan.optional if name in variant.tensors]
    return " && ".join(f"{plan.in_cpp[name]}.has_value()" for name in given)


def into_output(plan: Plan, variant: Variant, target: str = OUTPUT) -> str:
    tensors = [
        f"{'*' if name in plan.optional else ''}{plan.in_cpp[name]}" for name in variant.tensors
    ]
    of = formula(plan, variant, variant.forward)
    arguments = ", ".join([target, *tensors, *of.arguments])
    return " ".join([*of.statements, f"elementwise_into<{plan.struct(variant)}>({arguments});"])


def backward_host(plan: Plan, backward: Backward) -> str:
    spelled = plan.in_cpp | {name: f"unread({plan.in_cpp[name]})" for name in backward.unread}
    of = formula(plan, backward.variant, backward.body)
    tensors = [spelled[name] for name in backward.given]
    arguments = ", ".join([backward.constant, *tensors, *of.arguments])
    function = f"elementwise<{backward.struct}>"
    if backward.sums:
        function = f"elementwise_with_sums<{backward.struct}, {len(backward.variant.computed)}>"
    return backward.host_in_cpp(" ".join([*of.statements, f"return {function}({arguments});"]))
