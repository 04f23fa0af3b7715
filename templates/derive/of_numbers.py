"""What a formula computes of numbers alone, which the host does: once, and in double.

So does PyTorch. In float32, in which functors compute, `1 - 0.999 ** step` has four digits.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schema import Argument

from .body import Body, each, nodes_of, switches_of
from .cpp_text import Cpp, divisors
from .graph import TO_INTEGERS, Node, in_order, inputs_of, make, replaced
from .operations import OPERATIONS, Form
from .printing import Printer

# Of those that functors are given.
MEMBERS = {"float": "A", "int": "A", "bool": "bool"}
# Of a number that integers are compared with.
COUNT = "int64_t"


@dataclass(frozen=True)
class Formula:
    """A formula that takes as numbers what the host computes.

    Attributes:
        body: the formula, in operations that C++ has.
        names: of the author, for parts of it.
        words: what other parts are called.
        spelling: the names of what it takes, in C++.
        members: the numbers that it takes, and their types in a functor.
        arguments: what the host function gives for them.
        statements: the host function's, for what it computes.
    """

    body: Body
    names: Mapping[Node, str]
    words: Mapping[Node, str]
    spelling: Mapping[str, str]
    members: Mapping[str, str]
    arguments: list[str]
    statements: list[str]

    def number_members(self, results: Iterable[Node]) -> list[str]:
        """The members of a functor that are numbers, of what it computes."""
        divided_by = {node.value for node in divisors(results)}
        lines = []
        for (name, kind), given in zip(self.members.items(), self.arguments, strict=True):
            line = f"{'Divisor<A>' if name in divided_by else kind} {self.spelling[name]};"
            lines.append(line if given == self.spelling[name] else f"{line}  // {given}")
        return lines


class Host(Cpp):
    """C++ outside of functors, where numbers are double."""

    def __init__(self, spelled: Mapping[str, str], integers: Iterable[str]) -> None:
        # Two of them that are divided are no integers.
        super().__init__({**spelled, **{name: f"double({spelled[name]})" for name in integers}})

    def constant(self, value: float | bool) -> str:
        return re.sub(r"^A\((.*)\)$", in_double, super().constant(value)).replace("<A>", "<double>")

    def divisor(self, value: float) -> str:
        return self.constant(value)

    def form(self, node: Node) -> Form:
        form = super().form(node)
        return dataclasses.replace(form, text=re.sub(r"\bA\((\d+)\)", in_double, form.text))


def in_double(written: re.Match[str]) -> str:
    """A constant of type A as one of type double."""
    number = written[1]
    return f"{number}.0" if number.lstrip("-").isdigit() else number


def prepared(
    body: Body,
    names: Mapping[Node, str],
    words: Mapping[Node, str],
    settings: Iterable[Argument],
    spelling: Mapping[str, str],
    taken: Iterable[str] = (),
) -> Formula:
    """A formula without what is computed of numbers alone.

    Args:
        body: the formula, in operations that C++ has.
        names: of the author, for parts of it.
        words: what other parts are called.
        settings: the arguments that are no tensors.
        spelling: of all arguments.
        taken: what else functors and host functions call something.
    """
    settings = list(settings)
    found = of_numbers(body)
    taken = {*taken, *spelling, *spelling.values()}
    namer = Printer(Cpp(spelling), names, taken, words)
    by: dict[Node, Node] = {}
    for node in found:
        name = namer.fresh(namer.word(node))
        by[node] = make("flag" if node.is_bool else "number", value=name)
    computed = {str(new.value): "bool" if new.is_bool else "A" for new in by.values()}
    integers = [a.name for a in settings if a.type == "int"]
    host = Printer(Host(spelling, integers), names, taken, words).text(found)
    rest = each(lambda leaf: replaced(leaf, by), body)
    leaves = [node for node in in_order(nodes_of(rest)) if not node.args]
    numbers = {node.value for node in leaves if node.op == "number"}
    counts = {str(node.value): node for node in leaves if node.op == "count"}
    # What is a number of the arithmetic, too, has another name as an integer.
    exact = {namer.fresh(f"{name}_exactly"): name for name in counts if name in numbers}
    renamed = {counts[name]: make("count", value=fresh) for fresh, name in exact.items()}
    rest = each(lambda leaf: replaced(leaf, dict(renamed)), rest) if renamed else rest
    used = inputs_of(nodes_of(rest)) | switches_of(rest)
    given = {
        a.name: COUNT if a.name in counts and a.name not in numbers else MEMBERS[a.type]
        for a in settings
        if a.name in used
    }
    computed |= dict.fromkeys(exact, COUNT)
    return Formula(
        rest,
        {by[node]: name for node, name in names.items() if node in by and by[node].args},
        {by[node]: word for node, word in words.items() if node in by},
        {**spelling, **{name: name for name in computed}},
        given | computed,
        [
            *(spelling[name] for name in given),
            *host.results,
            *(spelling[name] for name in exact.values()),
        ],
        [
            f"const {'bool' if node.is_bool else 'double'} {name} = {expression};"
            for node, name, expression in host.statements
        ],
    )


def of_numbers(body: Body) -> list[Node]:
    """What is computed of numbers alone and then with others, each once."""
    results = nodes_of(body)
    nodes = list(in_order(results))
    # Of a row its number of columns is known where the row is.
    in_rows: set[Node] = set()
    for node in nodes:
        if node.op == "cols" or any(arg in in_rows for arg in node.args):
            in_rows.add(node)

    def is_the_hosts(node: Node) -> bool:
        if not node.args or not node.is_number or node in in_rows:
            return False
        # What integers meet is written where they do.
        is_plain = node.op in ("neg", "not", *TO_INTEGERS) and not node.args[0].args
        return not is_plain and OPERATIONS[node.op].cpp is not None

    used = {arg for node in nodes if not is_the_hosts(node) for arg in node.args}
    return [node for node in nodes if is_the_hosts(node) and node in {*results, *used}]
