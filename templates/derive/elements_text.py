"""Functors for elementwise(), in C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from .body import Body, Branch, leaves, nodes_of
from .cpp_text import Cpp, lowered, lowered_names, words_of
from .graph import WIDE, Node, in_order, inputs_of
from .of_numbers import Formula, prepared
from .operations import IN_CPP_TYPES
from .plan import Plan
from .printing import Printer
from .variant import Variant
from .work import is_worth_saying, work

WIDTH = 120


def type_of(dtype: str) -> str:
    """In C++, of a dtype that is a tensor's or value's own; A where it has none."""
    if dtype == WIDE:
        return "SumType<A>"
    return IN_CPP_TYPES.get(dtype, dtype or "A")


def formula(plan: Plan, variant: Variant, body: Body) -> Formula:
    names, words = lowered_names(variant.names), words_of(body)
    return prepared(
        lowered(body), names, words, plan.settings, plan.names_in(body), taken=plan.words
    )


def functor(
    struct: str,
    tensors: Mapping[str, str],
    formula: Formula,
    wide: Sequence[bool] = (),
    bound: Mapping[Node, str] = MappingProxyType({}),
) -> str:
    """A functor for elementwise().

    Args:
        struct: its name.
        tensors: the parameters of its call, with the dtypes that they have of their own.
        formula: what it returns.
        wide: whether a result has the type of the arithmetic in memory, for each; without, none.
        bound: how some of what it is made of is written.
    """
    body, spelling = formula.body, formula.spelling
    used = inputs_of(nodes_of(body))
    # Of one that is not used, the name is a comment.
    parameters = ", ".join(
        f"{type_of(dtype)} {spelling[t]}" if t in used else f"{type_of(dtype)} /*{spelling[t]}*/"
        for t, dtype in tensors.items()
    )
    returned = next(leaves(body))
    pairs = zip(returned, wide or [False] * len(returned), strict=True)
    results = [type_of(WIDE if is_wide else node.dtype) for node, is_wide in pairs]
    count = len(results)
    result = results[0] if count == 1 else f"Values<A, {count}>"
    if count > 1 and {*results} != {"A"}:
        result = f"Results<{', '.join(results)}>"
    members = "".join(f"  {x}\n" for x in formula.number_members(nodes_of(body)))
    head = f"  HOST_DEVICE {result} operator()({parameters}) const {{"
    # Functions that are overloaded take numbers.
    numbers = {
        node: f"A({spelling[str(node.value)]})"
        for node in in_order(nodes_of(body))
        if node.op == "tensor" and tensors[str(node.value)] == WIDE
    } | dict(bound)
    lines = statements(body, formula.names, formula.words, spelling, numbers)
    call = f"{head} {lines[0]} }}" if len(lines) == 1 else ""
    if not call or len(call) > WIDTH:
        call = "\n".join([head, *(f"    {line}" for line in lines), "  }"])
    members += "\n" if members else ""
    instructions = max(map(work, leaves(body)))
    if is_worth_saying(instructions, len(tensors) + count):
        said = f"  static constexpr int kWork = {instructions};  // instructions for an element\n"
        members = f"{said}\n{members}"
    return f"template <class A>\nstruct {struct} {{\n{members}{call}\n}};\n"


def statements(
    body: Body,
    names: Mapping[Node, str],
    words: Mapping[Node, str],
    spelling: Mapping[str, str],
    numbers: Mapping[Node, str],
) -> list[str]:
    if isinstance(body, Branch):
        yes = statements(body.yes, names, words, spelling, numbers)
        return [
            f"if ({spelling[body.switch]}) {{",
            *(f"  {line}" for line in yes),
            "}",
            *statements(body.no, names, words, spelling, numbers),
        ]
    printer = Printer(Cpp(spelling), names, words=words)
    printer.bound.update(numbers)
    text = printer.text(body)
    lines = [
        f"const {type_of(node.dtype)} {name} = {expression};"
        for node, name, expression in text.statements
    ]
    if len(text.results) == 1:
        return [*lines, f"return {text.results[0]};"]
    return [*lines, f"return {{{', '.join(text.results)}}};"]
