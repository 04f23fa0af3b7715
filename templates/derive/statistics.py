"""What the backward needs to know of each row and the forward has found out: results of their own.

A mean and a norm are passes over the row that the backward need not make again. They are kept where
that leaves it fewer passes, one after the other.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import networkx
from schema import Refusal, check_name

from .body import Branch
from .definition import RESULT, TAKEN, Definition
from .graph import COLUMN, COMPARISONS, ROW, Node, in_order, inputs_of, make, replaced, rewritten
from .operations import OPERATIONS, lower
from .python_text import MODULES, Python
from .rows_operations import PASSES, passes_before, summed_together
from .variant import Variant


def keep_statistics(definition: Definition, variant: Variant) -> None:
    """Has the forward of a row-wise variant return what leaves the backward fewer passes."""
    if isinstance(variant.forward, Branch) or isinstance(variant.gradients, Branch):
        return
    # Of what C++ is given: a softmax as what it is made of.
    whole = rewritten(variant.gradients, made_of_statistics)
    # In the order in which they may be computed.
    found = sorted(fewest(variant.forward, whole), key=lambda node: len([*in_order([node])]))
    others = [result.name for result in variant.results]
    others += [a.name for a in definition.schema.arguments]
    of = "total" if definition.of_all else "row"
    named = dict(zip(names(of, variant.names, found, others), found, strict=True))
    leaves = {node: make("row", value=name) for name, node in named.items()}
    less = replaced(whole, leaves)
    # The operator takes what its kernel reads, and its derivatives are made of tensors alone.
    reads_all = inputs_of(less) >= {name for name in inputs_of(whole) if name in variant.tensors}
    if reads_all and passes(less) < passes(variant.gradients):
        variant.statistics, variant.with_statistics = named, less


def is_extreme(node: Node) -> bool:
    return node.op in ("amax", "amin", "largest")


def is_rounded(extreme: Node) -> bool:
    return any(part.op not in ("tensor", "abs", "neg", "detach") for part in in_order(extreme.args))


def found_again(nodes: Collection[Node]) -> set[Node]:
    """What elements are compared with and is an extreme of what may be rounded another way."""
    sides = [arg for node in nodes if node.op in COMPARISONS for arg in node.args]
    sides += [arg for side in sides if side.op == "sub" for arg in side.args]
    # What is made of elements is one of the sides, or an end.
    ends = {node for node in nodes if any(arg.extent & COLUMN for arg in node.args)}

    def is_found(node: Node) -> bool:
        return any(is_extreme(part) and is_rounded(part) for part in in_order([node], ends))

    return {*filter(is_found, in_order(sides, ends))}


def made_of_statistics(op: str, args: tuple[Node, ...]) -> Node | None:
    """A softmax, and its logarithm, of the largest of a row and a sum over it."""
    if op not in ("softmax", "log_softmax"):
        return None
    (x,) = args
    shifted = make("sub", x, make("largest", x))
    exponential = make("exp", shifted)
    total = make("row_sum", exponential)
    if op == "softmax":
        return make("div", exponential, total)
    return make("sub", shifted, make("log", total))


def passes(results: Sequence[Node]) -> int:
    """How many passes over a row, one after the other, come before results are known."""
    done: dict[Node, Node] = {}
    return max(map(passes_before, summed_together([lower(node, done) for node in results])))


def fewest(forward: Sequence[Node], results: Sequence[Node]) -> list[Node]:
    """The fewest values for a row of which all that results need of the forward's passes is made.

    Of several such sets the one nearest to the results: a minimum cut between these and the
    elements.
    """
    done: dict[Node, Node] = {}

    def passes_of(nodes: Sequence[Node]) -> set[Node]:
        lowered = [lower(node, done) for node in nodes]
        return {node for node in in_order(lowered) if node.op in PASSES}

    made = passes_of(forward)
    nodes = list(in_order(results))
    again = found_again(nodes)
    known = {
        node
        for node in nodes
        if node.extent == ROW and node.args and not (node.is_gradient or node.dtype)
        if (needed := passes_of([node])) and needed <= made
        if node not in again
    }
    top, elements = object(), object()
    graph = networkx.DiGraph()
    graph.add_nodes_from([top, elements])
    for node in nodes:
        if node in known:
            graph.add_edge((node, "used"), (node, "made"), capacity=1)
        for arg in node.args:
            if arg in known:
                graph.add_edge((node, "made") if node in known else top, (arg, "used"))
            elif node in known and arg.extent & COLUMN:
                graph.add_edge((node, "made"), elements)
    # Of the graph in reverse: the cut is then the one at its far end.
    _, (_, above) = networkx.minimum_cut(graph.reverse(), elements, top)
    return [n for n in nodes if n in known and (n, "used") in above and (n, "made") not in above]


def names(
    of: str, own_names: Mapping[Node, str], found: Iterable[Node], others: Iterable[str]
) -> Iterator[str]:
    """Those that the definition has for them, or what they are, after a word for of what.

    Args:
        of: the word.
        own_names: that the definition has.
        found: what is called something.
        others: names that are taken.
    """
    taken = {*others}
    taken |= {f"grad_{name}" for name in taken}
    for node in found:
        own = own_names.get(node, "")
        while node.op == "detach":
            (node,) = node.args
        word = f"{of}_{OPERATIONS[node.op].word}"
        numbered = (f"{word}_{k}" for k in itertools.count(2))
        wanted = itertools.chain([own] if is_for_arguments(own) else [], [word], numbered)
        name = next(n for n in wanted if not {n, f"grad_{n}"} & taken)
        taken.add(name)
        yield name


def is_for_arguments(name: str) -> bool:
    """Whether an argument of the backward may be called so, and what it calls is not hidden."""
    try:
        check_name("the name", name)
    except Refusal:
        return False
    # The last is one of the functions in PyTorch.
    others = TAKEN | MODULES.keys() | Python.reserved | vars(builtins).keys() | {"columns"}
    return name not in others and not RESULT.fullmatch(name)
