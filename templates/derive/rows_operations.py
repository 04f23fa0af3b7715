"""Operations on whole rows: in Python, their derivatives, and what they are made of in C++.

What C++ has is the sum and the largest of a row, "row_sum" and "row_max": passes over it, which
rows_text.py prints. The rest is lowered to them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Sequence

from .graph import (
    COLUMN,
    Node,
    col,
    cols,
    const,
    in_order,
    is_const,
    make,
    replaced,
    rewritten,
    row_sum,
    where,
    whole,
    whole_cols,
)
from .operations import ARGUMENT, SUM, UNDERIVED, WHOLE, Form, define
from .refusal import NotDerived, refuse

# What goes through a row.
PASSES = ("row_sum", "row_max")


def method(call: str) -> Form:
    return Form(f"{{0}}.{call}", WHOLE, (WHOLE,))


KEPT = "-1, keepdim=True"


def ties(g: Node, out: Node, x: Node) -> tuple[Node]:
    """All elements that are the largest share its gradient."""
    is_it = make("to_real", make("eq", x, out))
    return (g * is_it / make("row_sum", is_it),)


def mean_under_softmax(x: Node) -> Node | None:
    """sum(a * e / sum(e)), where e = exp(...), as sum(a * e) / sum(e): two sums in one pass."""
    if x.op == "mul":
        for a, y in (x.args, x.args[::-1]):
            if y.op == "div" and is_softmax(*y.args):
                return make("div", make("row_sum", make("mul", a, y.args[0])), y.args[1])
    return None


def is_softmax(above: Node, below: Node) -> bool:
    """Whether the quotient is one, of exponentials that are 1 at most."""
    if above.op != "exp" or below is not make("row_sum", above):
        return False
    (exponent,) = above.args
    return exponent.op == "sub" and exponent.args[1] is make("row_max", exponent.args[0])


def apart_from_the_row(x: Node) -> Node | None:
    """sum(a * d / r), of a gradient and a norm r of d, as sum(a * d) / r: one pass for both sums.

    Of a norm, which is made of the squares of d: products of d are no larger. (Of a sum of d they
    might be too large, or too small, where those of d / r are not.)
    """
    above: list[Node] = []
    below: list[Node] = []

    def elements(node: Node) -> Node:
        if node.op not in ("mul", "div"):
            return node
        a, b = node.args
        if not b.extent & COLUMN:
            (above if node.op == "mul" else below).append(b)
            return elements(a)
        if node.op == "mul" and not a.extent & COLUMN:
            above.append(a)
            return elements(b)
        return make(node.op, elements(a), elements(b) if node.op == "mul" else b)

    rest = elements(x) if x.is_gradient else x
    if passes_before(rest) >= passes_before(x) or not factors(rest) & squared(x):
        return None
    found = make("row_sum", rest)
    for factor in above:
        found = make("mul", found, factor)
    for divisor in below:
        found = make("div", found, divisor)
    return found


def factors(x: Node) -> set[Node]:
    """What a gradient is a product of."""
    if x.op != "mul" or not x.is_gradient:
        return {x}
    return {x} | factors(x.args[0]) | factors(x.args[1])


def squared(x: Node) -> set[Node]:
    """Of what squares are summed over the row."""
    terms = [node.args[0] for node in in_order([x]) if node.op == "row_sum"]
    return {term.args[0] for term in terms if term.op == "mul" and term.args[0] is term.args[1]}


@functools.cache
def passes_before(x: Node) -> int:
    """How many passes over a row come before this is known."""
    return max((passes_before(arg) + (arg.op in PASSES) for arg in x.args), default=0)


def summed_together(nodes: Sequence[Node], rows: Container[int] = ()) -> tuple[Node, ...]:
    """Lowered expressions with their sums in fewer passes.

    Of a row without elements they are 0 / 0 where a sum is 0: of no matter to elements.

    Args:
        nodes: the expressions.
        rows: which of them there is one of for a row, and is what its sums are.
    """

    def rule(op: str, args: tuple[Node, ...]) -> Node | None:
        if op != "row_sum":
            return None
        if not args[0].extent & COLUMN:
            return make("mul", cols(), *args)
        return mean_under_softmax(*args) or apart_from_the_row(*args)

    def of_row(node: Node) -> Node:
        sums = {part for part in in_order([node]) if part.op == "row_sum"}
        outermost = [part for part in in_order([node], sums) if part in sums]
        by = {}
        for part, new in zip(outermost, rewritten(outermost, rule), strict=True):
            is_sum = new.op == "row_sum" or not part.args[0].extent & COLUMN
            by[part] = new if is_sum else where(make("eq", cols(), const(0)), 0, new)
        return replaced([node], by)[0]

    found = rewritten(nodes, rule)
    return tuple(of_row(nodes[k]) if k in rows else node for k, node in enumerate(found))


define("row_sum", method(f"sum({KEPT})"), None, lambda g, out, x: (g,), word="sum")
define("row_max", method(f"amax({KEPT})"), None, ties, word="max")
# The same where a row may have no elements.
define(
    "largest",
    Form(f"F.pad({{0}}, (0, 1), value=-math.inf).amax({KEPT})", WHOLE),
    None,
    ties,
    lambda x: make("row_max", x),
    "max",
)
# The first element of a row, where that is finite: rows_text.py prints it.
define(
    "row_shift",
    Form(f"{{0}}[..., :1].sum({KEPT}).nan_to_num(0, 0, 0)", WHOLE, (WHOLE,)),
    word="shift",
)


def mean(x: Node) -> Node:
    """About the first element, if it is plain: what is left of equal numbers is 0, not rounding."""
    parts = list(in_order([x]))
    if all(part.op in ("tensor", "const", "number", "add", "sub", "neg") for part in parts):
        shift = make("row_shift", x)
        return make("add", shift, make("row_sum", make("sub", x, shift)) / cols())
    return make("row_sum", x) / cols()


define(
    "mean",
    method(f"mean({KEPT})"),
    None,
    lambda g, out, x: (g / cols(),),
    mean,
)
define("amax", method(f"amax({KEPT})"), None, ties, lambda x: make("row_max", x), "max")
define("amin", method(f"amin({KEPT})"), None, ties, lambda x: -make("row_max", -x), "min")


def not_shared(name: str) -> NotDerived:
    return refuse(
        f"{name} with dim gives its gradient to one of several equal elements, by its index, which "
        "is not derived",
        instead=f"say a{name}, which shares it among them, or detach() the values where they have "
        "no gradient",
    )


def picked_derivative(g: Node, out: Node, x: Node) -> tuple[Node]:
    raise UNDERIVED.get(out) or not_shared(x.op.removeprefix("a"))


define("picked", None, None, picked_derivative)


def as_found(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """What max and min pick as what amax and amin find, which it is once it is differentiated."""
    return rewritten(nodes, lambda op, args: args[0] if op == "picked" else None)


# ----- softmax and its like: nothing overflows that need not


def softmax(x: Node) -> Node:
    exponential = make("exp", x - make("row_max", x))
    return exponential / make("row_sum", exponential)


def log_softmax(x: Node) -> Node:
    shifted = x - make("row_max", x)
    return shifted - make("log", make("row_sum", make("exp", shifted)))


def logsumexp(x: Node) -> Node:
    largest = make("row_max", x)
    # Of an infinity nothing is taken away.
    shift = where(make("isinf", largest), 0, largest)
    return make("log", make("row_sum", make("exp", x - shift))) + shift


define(
    "softmax",
    Form("torch.softmax({0}, -1)"),
    None,
    lambda g, out, x: (out * (g - row_sum(g * out)),),
    softmax,
)
define(
    "log_softmax",
    Form("torch.log_softmax({0}, -1)"),
    None,
    lambda g, out, x: (g - make("softmax", x) * row_sum(g),),
    log_softmax,
)
define(
    "logsumexp",
    Form(f"torch.logsumexp({{0}}, {KEPT})"),
    None,
    lambda g, out, x: (g * make("exp", x - out),),
    logsumexp,
)


# ----- the element of a row that has an index


def is_index(index: Node) -> Node:
    """Whether an element is the one: at most one of a row."""
    return make("eq", col(), index)


# Of NaN these are NaN.
KEEP_NAN = {"add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "sigmoid", "tanh"}


def gather(x: Node, index: Node) -> Node:
    """NaN where there is no such element; what is made of elements is made of the one."""
    by = {node: node for node in in_order([x]) if not node.extent & COLUMN}
    own = [node for node in in_order([x], by) if node.extent & COLUMN]
    if any(not node.args and node.op not in ("tensor", "column", "col") for node in own):
        # As a sum of the one and zeros, of what is read by passes alone.
        found = make("row_sum", where(is_index(index), x, 0))
    else:
        by |= {leaf: make("at", leaf, index) for leaf in own if leaf.op in ("tensor", "column")}
        found = replaced([x], by | {col(): index})[0]
        if all(node.op in KEEP_NAN for node in own if node.args):
            return found
    inside = make("and", make("ge", index, whole(0)), make("lt", index, whole_cols()))
    return where(inside, found, math.nan)


define(
    "gather",
    Form("{0}.gather(-1, {1})", WHOLE, (WHOLE,)),
    None,
    lambda g, out, x, index: (make("placed", g, index, col()), None),
    gather,
    "picked",
)
# The same of a tensor: rows_text.py prints it.
define("at", Form("{0}.gather(-1, {1})", WHOLE, (WHOLE,)), word="picked")
# Its gradient: a value for the row at one place, and zeros.
define(
    "placed",
    Form("torch.where({2} == {1}, {0}, 0)", WHOLE, (ARGUMENT, SUM, SUM)),
    None,
    None,
    lambda g, index, col: where(make("eq", col, index), g, 0),
)


# ----- deviations and norms


def degrees(correction: Node) -> Node:
    return cols() - correction


def var(x: Node, correction: Node) -> Node:
    deviation = x - make("mean", x)
    divisor = degrees(correction)
    if not is_const(correction, 0):
        divisor = where(make("lt", divisor, const(0)), 0, divisor)
    return make("row_sum", make("mul", deviation, deviation)) / divisor


def with_variances(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Means of squared deviations from the mean as variances.

    What the author wrote has a derivative by way of the mean, too: a sum of all deviations, which
    is 0, and would take a pass over the row.
    """

    def rule(op: str, args: tuple[Node, ...]) -> Node | None:
        if op != "mean" or args[0].op not in ("mul", "pow"):
            return None
        deviation, other = args[0].args
        is_square = other is deviation if args[0].op == "mul" else is_const(other, 2)
        if not is_square or deviation.op != "sub":
            return None
        x, mean = deviation.args
        return make("var", x, const(0)) if mean is make("mean", x) else None

    return rewritten(nodes, rule)


def var_derivative(g: Node, out: Node, x: Node, correction: Node) -> tuple[Node, None]:
    return 2 * g / degrees(correction) * (x - make("mean", x)), None


def unless_zero(divisor: Node) -> Node:
    """Infinity in the place of 0: what is divided by it is 0, and of any order."""
    return where(make("eq", divisor, const(0)), const(math.inf), divisor)


def std_derivative(g: Node, out: Node, x: Node, correction: Node) -> tuple[Node, None]:
    """0 of rows of one value, where PyTorch's own derivative is NaN from the second order on."""
    return var_derivative(0.5 * g / unless_zero(out), out, x, correction)


define(
    "var",
    method("var(-1, correction={1}, keepdim=True)"),
    None,
    var_derivative,
    var,
    "variance",
)
define(
    "std",
    method("std(-1, correction={1}, keepdim=True)"),
    None,
    std_derivative,
    lambda x, correction: make("sqrt", var(x, correction)),
)


def norm_derivative(g: Node, out: Node, x: Node) -> tuple[Node]:
    """0 of rows of zeros."""
    return (x * (g / unless_zero(out)),)


define(
    "vector_norm",
    Form("torch.linalg.vector_norm({0}, 2, -1, keepdim=True)"),
    None,
    norm_derivative,
    lambda x: make("sqrt", make("row_sum", make("mul", x, x))),
    "norm",
)
# For each column, the sum over all rows: the gradient of a parameter.
define("col_sum", Form("{0}"), word="sum")
