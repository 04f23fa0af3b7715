"""What a function computes where switches choose between formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .graph import Node

# The results.
Leaf: TypeAlias = "tuple[Node, ...]"


@dataclass(frozen=True)
class Branch:
    """One body or another, by an argument of type bool."""

    switch: str
    yes: Body
    no: Body


Body: TypeAlias = "Leaf | Branch"


def branched(switches: Sequence[str], leaf: Callable[[dict[str, bool]], Leaf]) -> Body:
    """The body for every value of the switches; one that makes no difference is left out."""

    def build(rest: Sequence[str], given: dict[str, bool]) -> Body:
        if not rest:
            return leaf(given)
        first, *others = rest
        yes = build(others, {**given, first: True})
        no = build(others, {**given, first: False})
        return yes if yes == no else Branch(first, yes, no)

    return build(switches, {})


def leaves(body: Body) -> Iterator[Leaf]:
    if isinstance(body, Branch):
        yield from leaves(body.yes)
        yield from leaves(body.no)
    else:
        yield body


def switches_of(body: Body) -> set[str]:
    if not isinstance(body, Branch):
        return set()
    return {body.switch} | switches_of(body.yes) | switches_of(body.no)


def each(function: Callable[[Leaf], Leaf], body: Body) -> Body:
    """The body with other results."""
    if isinstance(body, Branch):
        return Branch(body.switch, each(function, body.yes), each(function, body.no))
    return function(body)


def chosen(body: Body, values: Mapping[str, bool]) -> Leaf:
    """The results for these values of the switches."""
    while isinstance(body, Branch):
        body = body.yes if values[body.switch] else body.no
    return body


def nodes_of(body: Body) -> list[Node]:
    return [node for leaf in leaves(body) for node in leaf]
