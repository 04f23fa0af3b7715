"""What functors are made of, in C++."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from naming import is_macro
from schema import CPP_KEYWORDS

from .body import Body, each, nodes_of
from .graph import COLUMN, Node, in_order
from .operations import IN_CPP_TYPES, OPERATIONS, Form, lower
from .printing import Language


class Cpp(Language):
    reserved = CPP_KEYWORDS | {"A", "Values", "Results", "Divisor", "math", "std", "kWork"}
    reserved |= {"InMemory", "Outputs", "WithSums"}
    reserved |= {*IN_CPP_TYPES.values()}
    branches = True

    def constant(self, value: float | bool) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value) if value > -(2**63) else "std::numeric_limits<int64_t>::min()"
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


def comment(text: str) -> str:
    """A line of an author's as a comment: a backslash at an end would have it go on."""
    return "// " + re.sub(r"\\+(?=\s|$)", "", text).rstrip()


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
    """Without those that C++ keeps for itself."""
    done: dict[Node, Node] = {}
    named = {lower(old, done): name for old, name in names.items()}
    return {n: name for n, name in named.items() if n.args and not re.search("^_[A-Z]|__", name)}


def divisors(results: Iterable[Node]) -> set[Node]:
    """What there is one of, for all or for a row, and elements are divided by.

    Not where a choice takes it, too: C++ has no type for one between a divisor and a value.
    """
    nodes = list(in_order(results))
    chosen = {taken for node in nodes if node.op == "where" for taken in node.args[1:]}
    return {
        node.args[1]
        for node in nodes
        if node.op == "div" and node.extent & COLUMN and not node.args[1].extent & COLUMN
    } - chosen
