"""Expressions of one element: interned nodes, and arithmetic that simplifies them.

Equal expressions are one node, so that what is shared is computed once. `make` builds a node as it
is said: what the author of a definition wrote stays as written. The operators of Python (`g * x`)
simplify, and are for gradients. They keep what floating-point numbers do, up to rounding: nothing
is multiplied by zero and dropped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
BOOLEAN = COMPARISONS | {"and", "or", "not", "isnan", "isinf", "isfinite", "signbit", "flag"}
# A tensor of one of these dtypes is an argument that is called so. With what each holds.
INTEGERS = {
    "uint8": range(2**8),
    **{f"int{bits}": range(-(2 ** (bits - 1)), 2 ** (bits - 1)) for bits in (8, 16, 32, 64)},
}
# And of one of these, which hold codes: they are converted before anything is computed of them.
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
OTHER_DTYPES = ("bool", *INTEGERS, *FLOAT8)
# The same, but for codes, where it has a value for each row, or for each column.
OF_EACH_ROW = {f"row_{dtype}": dtype for dtype in ("bool", *INTEGERS)}
OF_EACH_COLUMN = {f"column_{dtype}": dtype for dtype in ("bool", *INTEGERS)}
# That of the arithmetic, as a line of shapes has it: float32 beside half types.
WIDE = "sum"
BOOLEAN |= {"bool", "row_bool", "column_bool"}
# What has the dtype of one of its operands.
SAME_DTYPE = {"where": 1, "expand": 0}
# Conversions, to what each converts.
TO_INTEGERS = {f"to_{dtype}": dtype for dtype in INTEGERS}
TO_FLOAT8 = {f"to_{dtype}": dtype for dtype in FLOAT8}
# What has a dtype of integers or of float8 by itself.
STORED = {dtype: dtype for dtype in (*INTEGERS, *FLOAT8)} | TO_INTEGERS | TO_FLOAT8
STORED |= {op: dtype for op, dtype in (OF_EACH_ROW | OF_EACH_COLUMN).items() if dtype != "bool"}
STORED |= dict.fromkeys(("count", "col", "whole_cols"), "int64")

# What there is one value of for each: nothing, a row, a column, or an element, which is in both.
NUMBER, ROW, COLUMN, ELEMENT = 0, 1, 2, 3
# Arguments of an operator; "tensor" is one that has a value for each element. A "flag" is a number
# that is true or false, which functors are given; a "count" one that integers are compared with.
ARGUMENTS = {"tensor": ELEMENT, "column": COLUMN, "row": ROW, "number": NUMBER, "flag": NUMBER}
ARGUMENTS |= {"count": NUMBER, **dict.fromkeys(OTHER_DTYPES, ELEMENT)}
ARGUMENTS |= dict.fromkeys(OF_EACH_ROW, ROW) | dict.fromkeys(OF_EACH_COLUMN, COLUMN)
# What makes a value for each row of its elements.
REDUCTIONS = frozenset(
    [
        "row_sum",
        "row_max",
        "row_shift",
        "largest",
        "mean",
        "amax",
        "amin",
        "logsumexp",
        "var",
        "std",
        "vector_norm",
        "gather",
        "at",
    ]
)
# What is computed of a whole row at once, or knows where in it an element is.
OF_ROWS = REDUCTIONS | {"softmax", "log_softmax", "cols", "col", "whole_cols"}

Value: TypeAlias = "float | int | bool | str | None"


@dataclass(eq=False, frozen=True)
class Node:
    """An expression.

    Attributes:
        op: "const", one of ARGUMENTS, "cols" (the number of columns; as an integer "whole_cols"),
            "col" (the index of its column), or one of operations.py.
        value: of a constant, an int where integers meet it; the name of an argument.
        is_bool: whether it is true or false.
        stored: the dtype of integers or of float8 that it has; "" where it has another.
        extent: NUMBER, ROW, COLUMN or ELEMENT.
        is_gradient: whether it depends on a gradient that the backward is given.
    """

    op: str
    args: tuple[Node, ...]
    value: Value
    is_bool: bool
    stored: str
    extent: int
    is_gradient: bool

    @property
    def dtype(self) -> str:
        """Its own, where it has one of OTHER_DTYPES."""
        return "bool" if self.is_bool else self.stored

    @property
    def integer(self) -> str:
        return self.stored if self.stored in INTEGERS else ""

    @property
    def float8(self) -> str:
        return self.stored if self.stored in FLOAT8 else ""

    @property
    def is_number(self) -> bool:
        """Whether there is one value for all elements."""
        return self.extent == NUMBER

    def __add__(self, other: Operand) -> Node:
        return add(self, lift(other))

    def __radd__(self, other: Operand) -> Node:
        return add(lift(other), self)

    def __sub__(self, other: Operand) -> Node:
        return add(self, -lift(other))

    def __rsub__(self, other: Operand) -> Node:
        return add(lift(other), -self)

    def __mul__(self, other: Operand) -> Node:
        return multiply(self, lift(other))

    def __rmul__(self, other: Operand) -> Node:
        return multiply(lift(other), self)

    def __truediv__(self, other: Operand) -> Node:
        return divide(self, lift(other))

    def __neg__(self) -> Node:
        return multiply(const(-1.0), self)

    def __repr__(self) -> str:
        if not self.args:
            return repr(self.value) if self.op == "const" else str(self.value)
        return f"{self.op}({', '.join(map(repr, self.args))})"


class Gradient(str):
    """The name of a gradient that the backward is given, which is no argument's."""


Operand: TypeAlias = "Node | float"

_nodes: dict[tuple[object, ...], Node] = {}


def make(op: str, *args: Node, value: Value = None) -> Node:
    """The node of an operation, as it stands."""
    key = (op, *map(id, args), type(value), repr(value))
    if key not in _nodes:
        is_bool = op in BOOLEAN or isinstance(value, bool)
        if op in SAME_DTYPE:
            is_bool = args[SAME_DTYPE[op]].is_bool
        _nodes[key] = Node(
            op,
            args,
            value,
            is_bool,
            stored(op, args),
            extent(op, args),
            isinstance(value, Gradient) or any(a.is_gradient for a in args),
        )
    return _nodes[key]


def stored(op: str, args: Sequence[Node]) -> str:
    if op in SAME_DTYPE:
        return args[SAME_DTYPE[op]].stored
    return STORED.get(op, "")


def extent(op: str, args: Iterable[Node]) -> int:
    found = ROW if op in REDUCTIONS else COLUMN if op == "col" else ARGUMENTS.get(op, NUMBER)
    if op not in REDUCTIONS:
        for arg in args:
            found |= arg.extent
    return found


GRADIENT = Gradient("grad_output")
# What the number of columns is called among the arguments: no argument's name.
COLS = "row.cols()"
# The same of the index of a column.
COL = "row.columns()"


def cols() -> Node:
    return make("cols", value=COLS)


def whole_cols() -> Node:
    """The number of columns as an integer."""
    return make("whole_cols", value=COLS)


def col() -> Node:
    """The index of the column that an element is in."""
    return make("col", value=COL)


def const(value: float | bool) -> Node:
    return make("const", value=value if isinstance(value, bool) else float(value))


def whole(value: int) -> Node:
    """A constant as an integer."""
    return make("const", value=value)


def rounds(node: Node) -> bool:
    """Whether it makes integers of floating values; not of a mask."""
    return node.op in TO_INTEGERS and not (node.args[0].dtype or node.args[0].is_number)


def tensor_argument(name: str, dtype: str = "") -> Node:
    """A tensor with a value for each element, of the operator's dtype or another."""
    return make(dtype or "tensor", value=name)


def lift(value: Operand) -> Node:
    return value if isinstance(value, Node) else const(value)


def is_const(node: Node, value: float | None = None) -> bool:
    if node.op != "const" or node.is_bool:
        return False
    return value is None or node.value == value


def where(condition: Node, yes: Operand, no: Operand) -> Node:
    yes, no = lift(yes), lift(no)
    return yes if yes is no else make("where", condition, yes, no)


def inputs_of(outputs: Iterable[Node]) -> set[str]:
    """The names of the arguments that expressions depend on."""
    return {str(node.value) for node in in_order(outputs) if node.op in ARGUMENTS}


def in_order(outputs: Iterable[Node], known: Container[Node] = ()) -> Iterator[Node]:
    """Every node once, each after those it is made of; what is known is made of nothing."""
    seen: set[Node] = set()
    stack = [(node, False) for node in reversed(list(outputs))]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if node not in known:
                stack += [(arg, False) for arg in reversed(node.args)]


def replaced(nodes: Sequence[Node], by: dict[Node, Node]) -> tuple[Node, ...]:
    """Expressions with others in place of some; `by` is filled with what has been met."""
    for node in in_order(nodes, by):
        if node not in by:
            args = tuple(by[arg] for arg in node.args)
            by[node] = make(node.op, *args, value=node.value) if args else node
    return tuple(by[node] for node in nodes)


def rewritten(
    nodes: Sequence[Node], rule: Callable[[str, tuple[Node, ...]], Node | None]
) -> tuple[Node, ...]:
    """Expressions in which a rule, of an operation and its arguments, puts others, or None."""
    by: dict[Node, Node] = {}
    for node in in_order(nodes):
        args = tuple(by[arg] for arg in node.args)
        other = rule(node.op, args)
        if other is None:
            other = make(node.op, *args, value=node.value) if args else node
        by[node] = other
    return tuple(by[node] for node in nodes)


def simplified(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Without products by 1 and sums with 0, which change nothing."""

    def rule(op: str, args: tuple[Node, ...]) -> Node | None:
        if op == "detach" and args[0].is_number:
            return args[0]
        if op not in ("mul", "add"):
            return None
        a, b = args
        neutral = 1 if op == "mul" else 0
        return a if is_const(b, neutral) else b if is_const(a, neutral) else None

    return rewritten(nodes, rule)


# Products and sums of gradients


@dataclass
class Product:
    """coefficient * above[0] * ... / below[0] / ..."""

    coefficient: float
    above: list[Node]
    below: list[Node]

    def node(self) -> Node:
        sign, size = math.copysign(1.0, self.coefficient), abs(self.coefficient)
        result = self.unsigned([const(size)] if size != 1 else [])
        if sign > 0:
            return result
        return const(-size) if is_const(result) else make("neg", result)

    def unsigned(self, coefficient: list[Node]) -> Node:
        of_row = Product(
            1.0,
            [n for n in self.above if not (n.extent & COLUMN or of_argument(n))],
            [n for n in self.below if not (n.extent & COLUMN or of_argument(n))],
        )
        above, below = without(self.above, of_row.above), without(self.below, of_row.below)
        if above and any(n.extent == ROW for n in of_row.above):
            # What a row has in common is one factor, which is computed once.
            return make("mul", quotient(above, below), of_row.unsigned(coefficient))
        return quotient([*coefficient, *self.above], self.below)


_of_argument: dict[Node, bool] = {}


def of_argument(node: Node) -> bool:
    """Whether it depends on an argument that has a value for each row.

    Its derivatives of rows without elements are sums of none, which are 0, whatever else is a
    factor of these and has one value for the row, as the mean does, which is NaN: that has to stand
    inside of the sums.
    """
    for part in in_order([node], _of_argument):
        if part.op == "row":
            _of_argument[part] = not part.is_gradient
        elif part not in _of_argument:
            has_rows = bool(part.extent & ROW)
            _of_argument[part] = has_rows and any(_of_argument[arg] for arg in part.args)
    return _of_argument[node]


def quotient(above: Sequence[Node], below: Sequence[Node]) -> Node:
    result = above[0] if above else const(1.0)
    for factor in above[1:]:
        result = make("mul", result, factor)
    for divisor in below:
        result = make("div", result, divisor)
    return result


def product(node: Node) -> Product:
    """A gradient taken apart; what the author wrote stays whole, to be shared with it."""
    found = Product(1.0, [], [])
    waiting = [(node, False)]
    while waiting:
        part, is_divisor = waiting.pop()
        if is_divisor:
            found.below.append(part)
        elif is_const(part) and math.isfinite(value := float(part.value)):  # type: ignore[arg-type]
            found.coefficient *= value
        elif part.op == "neg":
            found.coefficient = -found.coefficient
            waiting.append((part.args[0], False))
        elif part.is_gradient and part.op in ("mul", "div"):
            a, b = part.args
            waiting += [(b, part.op == "div"), (a, False)]
        else:
            found.above.append(part)
    return found


def multiply(a: Node, b: Node) -> Node:
    x, y = product(a), product(b)
    above, below = x.above + y.above, x.below + y.below
    # The gradient first, and a number that was divided by is no longer multiplied by.
    above.sort(key=lambda node: not node.is_gradient)
    for node in [n for n in above if n.is_number and n in below]:
        above.remove(node)
        below.remove(node)
    return Product(x.coefficient * y.coefficient, above, below).node()


def divide(a: Node, b: Node) -> Node:
    if is_const(a) and is_const(b) and b.value:
        return const(float(a.value) / float(b.value))  # type: ignore[arg-type]
    if is_const(b, 1):
        return a
    x = product(a)
    if b.is_number and b in x.above:
        x.above.remove(b)
        return x.node()
    return Product(x.coefficient, x.above, [*x.below, b]).node()


def add(a: Node, b: Node) -> Node:
    """A sum; of gradients the factors that both have stand outside of it."""
    if is_const(a) and is_const(b):
        return const(float(a.value) + float(b.value))  # type: ignore[arg-type]
    if is_const(a, 0):
        return b
    if is_const(b, 0):
        return a
    if a.op == b.op == "where" and a.args[0] is b.args[0]:
        for one, other in ((a, b), (b, a)):
            if is_const(one.args[2], 0) and is_const(other.args[1], 0):
                return where(one.args[0], one.args[1], other.args[2])
    if not (a.is_gradient and b.is_gradient):
        return plus(a, b)
    x, y = product(a), product(b)
    above, below = common(x.above, y.above), common(x.below, y.below)
    if not above or not x.coefficient or not y.coefficient:
        return plus(a, b)
    coefficient = 1.0
    if abs(x.coefficient) == abs(y.coefficient) or x.coefficient < 0 > y.coefficient:
        coefficient = math.copysign(min(abs(x.coefficient), abs(y.coefficient)), x.coefficient)
        if x.coefficient < 0 < y.coefficient:
            coefficient = -coefficient
    rest = [
        Product(z.coefficient / coefficient, without(z.above, above), without(z.below, below))
        for z in (x, y)
    ]
    inner = plus(*(z.node() for z in rest))
    if is_const(inner):
        return Product(coefficient * float(inner.value), above, below).node()  # type: ignore[arg-type]
    return Product(coefficient, [*above, inner], below).node()


def plus(a: Node, b: Node) -> Node:
    """The sum, as a difference where one of them is negative."""
    if is_const(a) and is_const(b):
        return const(float(a.value) + float(b.value))  # type: ignore[arg-type]
    x, y = product(a), product(b)
    if y.coefficient < 0:
        return make("sub", a, Product(-y.coefficient, y.above, y.below).node())
    if x.coefficient < 0:
        return make("sub", b, Product(-x.coefficient, x.above, x.below).node())
    return make("add", a, b)


def common(a: list[Node], b: list[Node]) -> list[Node]:
    """What both have, in the order of the first."""
    left = Counter(a) & Counter(b)
    found = []
    for node in a:
        if left[node]:
            left[node] -= 1
            found.append(node)
    return found


def without(nodes: list[Node], left_out: list[Node]) -> list[Node]:
    rest = list(nodes)
    for node in left_out:
        rest.remove(node)
    return rest


def row_sum(node: Node) -> Node:
    """The sum over a row, of a gradient; factors that the row has in common stand outside."""
    if not node.extent & COLUMN:
        return cols() * node
    if (known := sum_without_a_pass(node)) is not None:
        return known
    x = product(node)
    above = [n for n in x.above if not n.extent & COLUMN]
    below = [n for n in x.below if not n.extent & COLUMN]
    if not any(n.extent & COLUMN for n in x.above) or any(map(of_argument, [*above, *below])):
        return make("row_sum", node)
    inner = Product(1.0, without(x.above, above), without(x.below, below)).node()
    return multiply(Product(x.coefficient, above, below).node(), make("row_sum", inner))


def sum_without_a_pass(node: Node) -> Node | None:
    """The sum over a row where it is of what is at one place of the row, or the same everywhere."""
    if not node.extent & COLUMN:
        return cols() * node
    if node.op == "placed":
        return node.args[0]
    if node.op == "neg":
        found = sum_without_a_pass(node.args[0])
        return None if found is None else -found
    for placed, factor in (node.args, node.args[::-1]) if node.op == "mul" else ():
        # Of no infinity, nor NaN elsewhere alone, which times 0 is NaN.
        if placed.op == "placed" and factor.op == "softmax":
            return placed.args[0] * make("gather", factor, placed.args[1])
    if node.op in ("mul", "div") and not node.args[1].extent & COLUMN:
        found = sum_without_a_pass(node.args[0])
        if found is None:
            return None
        return found * node.args[1] if node.op == "mul" else found / node.args[1]
    if node.op == "mul" and not node.args[0].extent & COLUMN:
        found = sum_without_a_pass(node.args[1])
        return None if found is None else node.args[0] * found
    if node.op in ("add", "sub"):
        found, other = map(sum_without_a_pass, node.args)
        if found is None or other is None:
            return None
        return found + other if node.op == "add" else found - other
    return None
