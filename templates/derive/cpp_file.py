"""The C++ source of a derived operator."""

from __future__ import annotations

from . import cpp_text, rows_file
from .plan import Backward, Plan, returned
from .saved import OUTPUT
from .variant import Variant

MEMBERS = {"float": "A", "int": "A", "bool": "bool"}


def cpp_file(plan: Plan) -> str:
    declarations = [
        f'const Operator {op.constant}{{"{op.schema}", "{op.line}"}};' for op in plan.declared
    ]
    if plan.is_of_rows:
        headers, functors, hosts = ["rows.h"], rows_file.functors(plan), rows_file.hosts(plan)
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
        "\n".join([f"// {headline(plan)}", *includes]),
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
    numbers = {a.name: MEMBERS[a.type] for a in plan.numbers_of(variant)}
    formula = (variant.tensors, numbers, variant.forward, variant.names)
    return cpp_text.functor(plan.struct(variant), *formula, plan.in_cpp)


def backward_functor(plan: Plan, backward: Backward) -> str:
    variant = backward.variant
    *others, last = backward.results
    comment = f"// The gradients of {', '.join(others)} and {last}.\n" if others else ""
    numbers = {a.name: MEMBERS[a.type] for a in backward.numbers}
    formula = (backward.tensors, numbers, backward.body, variant.names)
    return comment + cpp_text.functor(backward.struct, *formula, plan.in_cpp)


def forward_host(plan: Plan) -> str:
    parameters = ", ".join(f"{a.info.cpp} {plan.in_cpp[a.name]}" for a in plan.arguments)
    head = f"{returned('cpp', len(plan.results))} {plan.host}({parameters}) {{"
    if len(plan.variants) == 1:
        arguments = ", ".join(plan.in_cpp[a.name] for a in plan.arguments)
        call = f"elementwise<{plan.struct(plan.variants[0])}>({plan.own.constant}, {arguments})"
        return f"{head} return {call}; }}"
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


def into_output(plan: Plan, variant: Variant) -> str:
    tensors = [
        f"{'*' if name in plan.optional else ''}{plan.in_cpp[name]}" for name in variant.tensors
    ]
    numbers = [plan.in_cpp[a.name] for a in plan.numbers_of(variant)]
    arguments = ", ".join([OUTPUT, *tensors, *numbers])
    return f"elementwise_into<{plan.struct(variant)}>({arguments});"


def backward_host(plan: Plan, backward: Backward) -> str:
    spelled = plan.in_cpp | {name: f"unread({plan.in_cpp[name]})" for name in backward.unread}
    arguments = ", ".join(spelled[name] for name in backward.arguments)
    function = f"elementwise<{backward.struct}>"
    if backward.sums:
        function = f"elementwise_with_sums<{backward.struct}, {len(backward.variant.computed)}>"
    call = f"{function}({backward.constant}, {arguments})"
    return backward.host_in_cpp(f"return {call};")
