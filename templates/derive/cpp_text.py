"""Functors in C++."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from naming import is_macro
from schema import CPP_KEYWORDS

from .body import Body, Branch, each, leaves, nodes_of, switches_of
from .graph import COLUMN, Node, in_order, inputs_of
from .operations import OPERATIONS, Form, lower
from .printing import Language, Printer
from .work import is_worth_saying, work

WIDTH = 120


class Cpp(Language):
    reserved = CPP_KEYWORDS | {"A", "Values", "Divisor", "math", "std", "kWork"}
    branches = True

    def constant(self, value: float | bool) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if math.isnan(value):
            return "std::numeric_limits<A>::quiet_NaN()"
        if math.isinf(value):
            return f"{'-' if value < 0 else ''}std::numeric_limits<A>::infinity()"
        is_integer = value == int(value) and abs(value) < 1e15 and repr(value) != "-0.0"
        return f"A({int(value) if is_integer else repr(value)})"

    def divisor(self, value: float) -> str:
        # Of a power of two the reciprocal is as exact, and compilers multiply by it.
        text = self.constant(value)
        exact = not math.isfinite(value) or abs(math.frexp(value)[0]) == 0.5
        return text if exact else f"Divisor<A>{text.removeprefix('A')}"

    def is_taken(self, name: str) -> bool:
        return super().is_taken(name) or is_macro(name)

    def form(self, node: Node) -> Form:
        form = OPERATIONS[node.op].cpp
        assert form is not None, f"{node.op} was not lowered"
        return form


def spelled(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """The names of arguments in C++; one that means something else there has an underscore."""
    used = {*Cpp.reserved, *taken}
    found = {}
    for name in names:
        other = name
        while other in used or is_macro(other):
            other += "_"
        used.add(other)
        found[name] = other
    return found


def lowered(body: Body) -> Body:
    done: dict[Node, Node] = {}
    return each(lambda leaf: tuple(lower(node, done) for node in leaf), body)


def words_of(body: Body) -> dict[Node, str]:
    """What choices are called in C++ that are one function in PyTorch."""
    done: dict[Node, Node] = {}
    for node in nodes_of(body):
        lower(node, done)
    return {
        new: OPERATIONS[old.op].word
        for old, new in done.items()
        if new.op == "where" and new is not old and OPERATIONS[old.op].lowered
    }


def lowered_names(names: Mapping[Node, str]) -> dict[Node, str]:
    done: dict[Node, Node] = {}
    return {node: name for old, name in names.items() if (node := lower(old, done)).args}


def divisors(nodes: Iterable[Node]) -> set[Node]:
    """What there is one of, for all or for a row, and elements are divided by."""
    return {
        node.args[1]
        for node in in_order(nodes)
        if node.op == "div" and node.extent & COLUMN and not node.args[1].extent & COLUMN
    }


def number_members(
    numbers: Mapping[str, str], nodes: Iterable[Node], spelling: Mapping[str, str]
) -> list[str]:
    """The members of a functor that are numbers, given with their types, of what it computes."""
    divided_by = {node.value for node in divisors(nodes)}
    return [
        f"{'Divisor<A>' if name in divided_by else kind} {spelling[name]};"
        for name, kind in numbers.items()
    ]


def functor(
    struct: str,
    tensors: Sequence[str],
    numbers: Mapping[str, str],
    body: Body,
    names: Mapping[Node, str],
    spelling: Mapping[str, str],
) -> str:
    """A functor for elementwise().

    Args:
        struct: its name.
        tensors: the parameters of its call.
        numbers: its members, with their types.
        body: what it returns.
        names: of the author, for parts of it.
        spelling: of all arguments.
    """
    words = words_of(body)
    body = lowered(body)
    used = inputs_of(nodes_of(body)) | switches_of(body)
    # Of one that is not used, the name is a comment.
    parameters = ", ".join(
        f"A {spelling[t]}" if t in used else f"A /*{spelling[t]}*/" for t in tensors
    )
    count = len(next(leaves(body)))
    result = "A" if count == 1 else f"Values<A, {count}>"
    members = "".join(f"  {x}\n" for x in number_members(numbers, nodes_of(body), spelling))
    head = f"  HOST_DEVICE {result} operator()({parameters}) const {{"
    lines = statements(body, lowered_names(names), words, spelling)
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
    body: Body, names: Mapping[Node, str], words: Mapping[Node, str], spelling: Mapping[str, str]
) -> list[str]:
    if isinstance(body, Branch):
        yes = statements(body.yes, names, words, spelling)
        return [
            f"if ({spelling[body.switch]}) {{",
            *(f"  {line}" for line in yes),
            "}",
            *statements(body.no, names, words, spelling),
        ]
    text = Printer(Cpp(spelling), names, words=words).text(body)
    lines = [
        f"const {'bool' if node.is_bool else 'A'} {name} = {expression};"
        for node, name, expression in text.statements
    ]
    if len(text.results) == 1:
        return [*lines, f"return {text.results[0]};"]
    return [*lines, f"return {{{', '.join(text.results)}}};"]
