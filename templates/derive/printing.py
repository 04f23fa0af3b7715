"""Expressions as statements: what is shared, or has a name of the author's, is computed once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .graph import ARGUMENTS, COLUMN, Node, in_order
from .operations import CHOICE, OPERATIONS, SUM, Form
from .work import work

# The longest that an expression may be before a part of it has a name.
LONGEST = 80
# Of so many operations, each of the one before, such a part has a name in any case.
DEEPEST = 50
# The instructions of a function, with which compilers make a choice a branch.
LONG = 8


@dataclass
class Text:
    """Statements, one a line, and the expressions of the results."""

    statements: list[tuple[Node, str, str]]  # what is bound, to which name, its expression
    results: list[str]


class Language:
    """How a language writes expressions.

    Attributes:
        reserved: words that no variable is called by.
        branches: whether a choice computes what it takes alone, by a branch where that is long.
    """

    reserved: frozenset[str] = frozenset()
    branches = False

    def __init__(self, spelled: Mapping[str, str]) -> None:
        self.spelled = spelled  # the names of the arguments

    def is_taken(self, name: str) -> bool:
        return name in self.reserved

    def constant(self, value: float | bool) -> str:
        raise NotImplementedError

    def divisor(self, value: float) -> str:
        """A constant that is divided by."""
        return self.constant(value)

    def form(self, node: Node) -> Form:
        raise NotImplementedError


class Printer:
    """Prints several expressions as one piece of code.

    Args:
        language: in which.
        names: those that the definition has for its values, by node.
        taken: the names of all else.
        words: what nodes are called that have no name, where it is not the operation's word.
    """

    def __init__(
        self,
        language: Language,
        names: Mapping[Node, str],
        taken: Iterable[str] = (),
        words: Mapping[Node, str] | None = None,
    ) -> None:
        self.language = language
        self.names = names
        self.words = words or {}
        self.taken = {*taken, *language.spelled.values()}
        self.bound: dict[Node, str] = {}

    def text(self, results: Sequence[Node], bind_results: bool = False) -> Text:
        """The statements that the results need, and the results; these have names if asked for."""
        statements: list[tuple[Node, str, str]] = []
        nodes = list(in_order(results, self.bound))
        uses = Counter(arg for node in nodes if node not in self.bound for arg in node.args)
        uses.update(results)
        chosen = self.chosen(nodes)
        depth: dict[Node, int] = {}

        def bind(node: Node) -> None:
            shorten(node)
            expression = self.expression(node)
            self.bound[node] = self.fresh(self.word(node))
            statements.append((node, self.bound[node], expression))

        def shorten(node: Node) -> None:
            while len(self.expression(node)) > LONGEST:
                parts = [
                    part
                    for part in in_order([node], self.bound)
                    if part is not node
                    and part.args
                    and part not in self.bound
                    and 12 < len(self.expression(part)) <= LONGEST
                ]
                if not parts:
                    return
                bind(max(parts, key=lambda part: len(self.expression(part))))

        for node in nodes:
            if not node.args or node in self.bound:
                continue
            if bind_results and node in results:
                bind(node)
                continue
            is_result = node in results and uses[node] == 1
            has_name = node in self.names or node.op == "where" or self.is_shared(node, uses)
            # A statement before the choice, for the elements of a loop to be computed side by side.
            is_long = node in chosen and work([node], self.bound) >= LONG
            depth[node] = 1 + max(depth.get(arg, 0) for arg in node.args)
            if (has_name and not is_result) or is_long or depth[node] > DEEPEST:
                bind(node)
                depth[node] = 0
        for node in results:
            if node not in self.bound:
                shorten(node)
        return Text(statements, [self.expression(node) for node in results])

    def chosen(self, nodes: Iterable[Node]) -> set[Node]:
        """What choices that differ from element to element take."""
        if not self.language.branches:
            return set()
        choices = (n for n in nodes if n.op == "where" and n.args[0].extent & COLUMN)
        return {arg for choice in choices for arg in choice.args[1:]}

    def is_shared(self, node: Node, uses: Counter[Node]) -> bool:
        return uses[node] > 1 and not self.is_plain(node)

    def is_plain(self, node: Node) -> bool:
        """Whether it is as short as a name, and costs next to nothing."""
        if node.op in ("neg", "not"):
            return not node.args[0].args
        return (
            node.op in ("add", "sub", "mul", "lt", "le", "gt", "ge", "eq", "ne")
            and all(not arg.args for arg in node.args)
            and any(arg.op == "const" for arg in node.args)
        )

    def fresh(self, wanted: str) -> str:
        # What looks like a macro, or would with a number, does not with an underscore at its end.
        end = "_" if self.language.is_taken(f"{wanted}2") else ""
        between = "_" if wanted[-1].isdigit() else ""
        numbered = (f"{wanted}{between}{k}{end}" for k in itertools.count(2))
        names = itertools.chain([wanted, f"{wanted}{end}"], numbered)
        name = next(n for n in names if n not in self.taken and not self.language.is_taken(n))
        self.taken.add(name)
        return name

    def word(self, node: Node) -> str:
        if node in self.names:
            return self.names[node]
        word = self.words.get(node, OPERATIONS[node.op].word)
        if node.op == "mul" and node.args[0] is node.args[1]:
            (factor, _) = node.args
            name = self.bound.get(factor) or str(factor.value)
            return f"{name}_squared" if self.has_name(factor) and name.isidentifier() else word
        return f"grad_{word}" if node.is_gradient and node.op in ("where", "mul") else word

    def has_name(self, node: Node) -> bool:
        return node in self.bound or node.op in ARGUMENTS

    def expression(self, node: Node, strength: int = CHOICE) -> str:
        if node in self.bound:
            return self.bound[node]
        if node.op == "const":
            text = self.language.constant(node.value)  # type: ignore[arg-type]
            return f"({text})" if text.startswith("-") and strength > SUM else text
        if not node.args:
            return self.language.spelled[str(node.value)]
        form = self.language.form(node)
        parts = [self.expression(arg, form.operand(k)) for k, arg in enumerate(node.args)]
        if node.op == "div" and node.args[1].op == "const":
            parts[1] = self.language.divisor(node.args[1].value)  # type: ignore[arg-type]
        text = form.text.format(*parts)
        return f"({text})" if form.strength < strength else text
