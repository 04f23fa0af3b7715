"""What integers with a value for each row say of its columns: which of them, or how many."""

from __future__ import annotations

from collections.abc import Sequence

from .body import nodes_of
from .graph import COLUMN, COMPARISONS, OF_EACH_ROW, Node, col, in_order
from .variant import Variant


def of_rows(nodes: Sequence[Node]) -> set[str]:
    """The tensors with an integer for each row of which these are made."""
    found = [node for node in in_order(nodes) if node.op in OF_EACH_ROW and node.integer]
    return {str(node.value) for node in found}


def picking(variant: Variant) -> set[str]:
    """Those by which elements are picked, as they are: of others there is no result."""
    nodes = in_order(nodes_of(variant.forward))
    return of_rows(
        [node.args[1] for node in nodes if node.op == "gather" and not node.args[1].args]
    )


def places(variant: Variant) -> set[str]:
    """Those that are indices of columns, as labels are."""
    nodes = list(in_order(nodes_of(variant.forward)))
    indices = [node.args[1] for node in nodes if node.op == "gather"]
    equal = [node for node in nodes if node.op in ("eq", "ne") and col() in node.args]
    return of_rows([*indices, *(arg for node in equal for arg in node.args)])


def lengths(variant: Variant) -> set[str]:
    """Those that columns are compared with otherwise, as the lengths of rows are."""
    nodes = in_order(nodes_of(variant.forward))
    compared = [node for node in nodes if node.op in COMPARISONS and node.extent & COLUMN]
    found = of_rows([arg for node in compared if col() in in_order([node]) for arg in node.args])
    return found - places(variant)
