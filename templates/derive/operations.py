"""What expressions are made of: each operation in C++, in Python, for tensors, and its derivative.

Derivatives are PyTorch's, ties and NaN included (tools/autograd/derivatives.yaml in its sources),
of the version at hand where versions differ; verify.py compares them. An operation whose usual form
loses accuracy or overflows on the way, or whose gradient does, is one here: `lowered` says what it
is in C++.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .at_ties import is_halved, passes_bounds, reaches_nan
from .graph import (
    FLOAT8,
    INTEGERS,
    TO_FLOAT8,
    TO_INTEGERS,
    Node,
    const,
    is_const,
    lift,
    make,
    rewritten,
    where,
)
from .refusal import NotDerived, refuse

# How strongly an expression holds together, in either language.
CHOICE, OR, AND, EQUAL, COMPARE, SUM, PRODUCT, SIGN, POWER, WHOLE = range(10)
# The operators of Python on masks bind more strongly than comparisons.
ARGUMENT = CHOICE


@dataclass(frozen=True)
class Form:
    """An expression's text, `{0} + {1}`; how strongly it holds, and how strongly operands must."""

    text: str
    strength: int = WHOLE
    operands: tuple[int, ...] = ()

    def operand(self, k: int) -> int:
        return self.operands[k] if k < len(self.operands) else ARGUMENT


# The gradient that comes, the node, its operands: a gradient for each, None for zero.
Derivative = Callable[..., tuple["Node | None", ...]]


@dataclass(frozen=True)
class Operation:
    """An operation.

    Attributes:
        python: on tensors; None where PyTorch's own function does not do, and it is lowered, too.
        cpp: None where it is lowered.
        derivative: None where it is zero everywhere.
        lowered: what it is made of in C++.
        word: what a result of it is called that has no name.
    """

    python: Form | None
    cpp: Form | None = None
    derivative: Derivative | None = None
    lowered: Callable[..., Node | None] | None = None
    word: str = ""


OPERATIONS: dict[str, Operation] = {}


def define(
    name: str,
    python: Form | None,
    cpp: Form | None = None,
    derivative: Derivative | None = None,
    lowered: Callable[..., Node | None] | None = None,
    word: str = "",
) -> None:
    OPERATIONS[name] = Operation(python, cpp, derivative, lowered, word or name)


def infix(
    name: str, sign: str, strength: int, right: int, word: str
) -> Callable[[Derivative], None]:
    """Defines `a sign b`, the same in both languages; takes the derivative."""
    form = Form(f"{{0}} {sign} {{1}}", strength, (strength, right))
    return lambda derivative: define(name, form, form, derivative, word=word)


# ----- arithmetic

infix("add", "+", SUM, PRODUCT, "sum")(lambda g, out, x, y: (g, g))
infix("sub", "-", SUM, PRODUCT, "difference")(lambda g, out, x, y: (g, -g))
infix("mul", "*", PRODUCT, SIGN, "product")(lambda g, out, x, y: (g * y, g * x))
infix("div", "/", PRODUCT, SIGN, "quotient")(
    lambda g, out, x, y: (g / y, -(g * out / y) if not y.is_number else None)
)
NEGATIVE = Form("-{0}", SIGN, (WHOLE,))
define("neg", NEGATIVE, NEGATIVE, lambda g, out, x: (-g,), word="negative")

# ----- comparisons, and what is made of them

COMPARED = {
    "lt": ("<", COMPARE, "below"),
    "le": ("<=", COMPARE, "at_most"),
    "gt": (">", COMPARE, "above"),
    "ge": (">=", COMPARE, "at_least"),
    "eq": ("==", EQUAL, "equal"),
    "ne": ("!=", EQUAL, "unequal"),
}
for _name, (_sign, _strength, _word) in COMPARED.items():
    define(
        _name,
        Form(f"{{0}} {_sign} {{1}}", COMPARE, (SUM, SUM)),
        Form(f"{{0}} {_sign} {{1}}", _strength, (SUM, SUM)),
        word=_word,
    )
define(
    "and",
    Form("{0} & {1}", AND, (SUM, SUM)),
    Form("{0} && {1}", AND, (EQUAL, EQUAL)),
    word="both",
)
define(
    "or",
    Form("{0} | {1}", OR, (SUM, SUM)),
    Form("{0} || {1}", OR, (EQUAL, EQUAL)),
    word="either",
)
define(
    "not",
    Form("~{0}", SIGN, (WHOLE,)),
    Form("!{0}", SIGN, (WHOLE,)),
    word="otherwise",
)
for _name in ("isnan", "isinf", "isfinite", "signbit"):
    define(_name, Form(f"torch.{_name}({{0}})"), Form(f"std::{_name}({{0}})"))
define(
    "where",
    Form("torch.where({0}, {1}, {2})"),
    Form("{0} ? {1} : {2}", CHOICE, (OR, OR, OR)),
    lambda g, out, c, x, y: (None, where(c, g, 0), where(c, 0, g)),
    word="choice",
)
define(
    "to_real",
    Form("{0}.to(dtype)", WHOLE, (WHOLE,)),
    Form("{0} ? A(1) : A(0)", CHOICE, (OR,)),
    word="flag",
)

# What other dtypes are called in C++, and how values become such: integers toward zero.
IN_CPP_TYPES = {dtype: f"{dtype}_t" for dtype in INTEGERS}
IN_CPP_TYPES |= {dtype: dtype.capitalize() for dtype in FLOAT8}
for _name, _dtype in (TO_INTEGERS | TO_FLOAT8).items():
    define(
        _name,
        Form(f"{{0}}.to(torch.{_dtype})", WHOLE, (WHOLE,)),
        Form(f"static_cast<{IN_CPP_TYPES[_dtype]}>({{0}})"),
        word=f"as_{_dtype}",
    )
CONVERTED = Form("{0}.to(dtype)", WHOLE, (WHOLE,)), Form("static_cast<A>({0})")
define("from_integer", *CONVERTED, word="converted")


# Why some nodes have no derivative: each with the line that says it, as the definition is traced.
UNDERIVED: dict[Node, NotDerived] = {}
# The conditions on numbers of branches that the definition has, which are taken both ways.
BRANCHES: set[Node] = set()


def from_float8(codes: Node) -> Node:
    node = make("from_float8", codes)
    if not is_constant(codes):
        refusal = refuse(
            "what was converted to float8 is computed with: PyTorch rounds its gradient to float8",
            instead="detach what is converted, x.detach()",
        )
        UNDERIVED.setdefault(node, refusal)
    return node


def _of_codes(g: Node, out: Node, x: Node) -> tuple[Node | None, ...]:
    if out in UNDERIVED:
        raise UNDERIVED[out]
    return (None,)


def is_constant(node: Node) -> bool:
    """Whether it has no gradient anyway."""
    seen: set[Node] = set()
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if part in seen or part.is_number:
            continue
        seen.add(part)
        if part.op in TO_FLOAT8:
            # As PyTorch has it.
            waiting += part.args
        elif part.dtype:
            continue
        elif not part.args:
            return False
        elif OPERATIONS[part.op].derivative is not None:
            waiting += part.args
    return True


define("from_float8", *CONVERTED, _of_codes, word="converted")

# In the shape of a tensor: a result, which is written so anyway.
define(
    *("expand", Form("{0}.expand_as({1})", WHOLE, (WHOLE,)), None),
    *(lambda g, out, x, like: (g, None), lambda x, like: x),
    word="expanded",
)
# A constant for the derivatives, of any order.
define("detach", Form("{0}.detach()", WHOLE, (WHOLE,)), lowered=lambda x: x, word="detached")

# ----- functions that C++ has, too

TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)

# Those of csrc/elementary.h, which vectorise on the CPU.
ELEMENTARY = frozenset(["exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "rsqrt"])

IN_CPP = {"abs": "fabs"}

FUNCTIONS: dict[str, Derivative | None] = {
    "exp": lambda g, out, x: (g * out,),
    "exp2": lambda g, out, x: (g * out * math.log(2),),
    "expm1": lambda g, out, x: (g * make("add", out, const(1)),),
    "log": lambda g, out, x: (g / x,),
    "log2": lambda g, out, x: (g / (x * math.log(2)),),
    "log10": lambda g, out, x: (g / (x * math.log(10)),),
    "log1p": lambda g, out, x: (g / (x + 1),),
    "sqrt": lambda g, out, x: (g / (2 * out),),
    "rsqrt": lambda g, out, x: (-0.5 * g * (out * out * out),),
    "sin": lambda g, out, x: (g * make("cos", x),),
    "cos": lambda g, out, x: (-g * make("sin", x),),
    "tan": lambda g, out, x: (g * (1 + out * out),),
    "asin": lambda g, out, x: (g * make("rsqrt", 1 - x * x),),
    "acos": lambda g, out, x: (-g * make("rsqrt", 1 - x * x),),
    "atan": lambda g, out, x: (g / (x * x + 1),),
    "sinh": lambda g, out, x: (g * make("cosh", x),),
    "cosh": lambda g, out, x: (g * make("sinh", x),),
    "tanh": lambda g, out, x: (g * (1 - out * out),),
    "asinh": lambda g, out, x: (g * make("rsqrt", x * x + 1),),
    "acosh": lambda g, out, x: (g * make("rsqrt", x * x - 1),),
    "atanh": lambda g, out, x: (g / (1 - x * x),),
    "erf": lambda g, out, x: (TWO_OVER_SQRT_PI * g * make("exp", -(x * x)),),
    "erfc": lambda g, out, x: (-TWO_OVER_SQRT_PI * g * make("exp", -(x * x)),),
    "sigmoid": lambda g, out, x: (g * out * (1 - out),),
    "abs": lambda g, out, x: (g * make("sign", x),),
    "floor": None,
    "ceil": None,
    "trunc": None,
}
for _name, _derivative in FUNCTIONS.items():
    _namespace = "math" if _name in ELEMENTARY else "std"
    define(
        _name,
        Form(f"torch.{_name}({{0}})"),
        Form(f"{_namespace}::{IN_CPP.get(_name, _name)}({{0}})"),
        _derivative,
    )
# To even, as PyTorch.
define("round", Form("torch.round({0})"), Form("std::nearbyint({0})"))


def atan2_derivative(g: Node, out: Node, y: Node, x: Node) -> tuple[Node, Node]:
    square = x * x + y * y
    inverse = where(make("eq", square, const(0)), 0, make("reciprocal", square))
    return g * x * inverse, -(g * y * inverse)


RECIPROCAL = Form("1 / {0}", PRODUCT, (SIGN,))
define(
    *("reciprocal", RECIPROCAL, Form("A(1) / {0}", PRODUCT, (SIGN,))),
    lambda g, out, x: (-(g * (out * out)),),
    word="inverse",
)


def pow_derivative(g: Node, out: Node, x: Node, p: Node) -> tuple[Node | None, Node | None]:
    if is_const(p):
        exponent = float(p.value)  # type: ignore[arg-type]
        return None if exponent == 0 else exponent * g * power(x, const(exponent - 1)), None
    # Where p is 0, what is not chosen is finite, so that none of its derivatives is NaN, either.
    is_constant = make("eq", p, const(0))
    to_x = where(is_constant, 0, g * p * make("pow", x, where(is_constant, 0, p - 1)))
    if p.is_number:
        return to_x, None
    # Of a base of 0 it is 0, by a logarithm that is finite, as its derivatives then are.
    is_zero = make("and", make("eq", x, const(0)), make("ge", p, const(0)))
    if is_const(x):
        log = make("log", x)
    elif x.is_number:
        log = where(is_zero, 0, make("log", x))
    else:
        log = make("log", where(is_zero, 1, x))
    return to_x, g * (out * log)


def power(x: Node, p: Node) -> Node:
    return x if is_const(p, 1) else make("pow", x, p)


def lowered_pow(x: Node, p: Node) -> Node | None:
    if is_const(p, 2):
        return make("mul", x, x)
    if is_const(p, 3):
        return make("mul", make("mul", x, x), x)
    if is_const(p, 4):
        square = make("mul", x, x)
        return make("mul", square, square)
    if is_const(p, 0.5):
        return make("sqrt", x)
    if is_const(p, -0.5):
        return make("rsqrt", x)
    if is_const(p, -1):
        return make("reciprocal", x)
    if is_const(p, -2):
        return make("reciprocal", make("mul", x, x))
    return None


def pair(name: str, derivative: Derivative) -> None:
    """A function of two numbers that C++ has."""
    define(
        name,
        Form(f"torch.{name}({{0}}, {{1}})"),
        Form(f"std::{name}({{0}}, {{1}})"),
        derivative,
    )


define(
    *("pow", Form("{0} ** {1}", POWER, (WHOLE, SIGN)), Form("std::pow({0}, {1})")),
    *(pow_derivative, lowered_pow),
    word="power",
)
pair("atan2", atan2_derivative)
pair("hypot", lambda g, out, x, y: (g * (x / out), g * (y / out)))
pair("copysign", lambda g, out, x, y: (g * where(make("eq", x, const(0)), 0, out / x), None))
pair("fmod", lambda g, out, x, y: (g, -g * make("trunc", x / y)))


# ----- functions that are several operations in C++


def whole(
    name: str,
    python: str | None,
    lowered: Callable[..., Node],
    derivative: Derivative | None = None,
    word: str = "",
) -> None:
    define(name, None if python is None else Form(python), None, derivative, lowered, word)


def compare(op: str, x: Node, y: Node | float) -> Node:
    return make(op, x, lift(y))


def both(x: Node, y: Node) -> Node:
    return make("and", x, y)


def either(x: Node, y: Node) -> Node:
    return make("or", x, y)


# NaN stays NaN.
whole(
    *("relu", "torch.relu({0})"),
    lambda x: where(compare("le", x, 0), 0, x),
    lambda g, out, x: (where(compare("le", x, 0), 0, g),),
)
whole(
    *("sign", "torch.sign({0})"),
    lambda x: where(compare("gt", x, 0), 1, where(compare("lt", x, 0), -1, 0)),
)


def larger(g: Node, x: Node, y: Node) -> Node:
    """The gradient of x where the larger one is taken: half of it each where they are equal."""
    return where(compare("eq", x, y), 0.5 * g, where(compare("lt", x, y), 0, g))


def smaller(g: Node, x: Node, y: Node) -> Node:
    return where(compare("eq", x, y), 0.5 * g, where(compare("gt", x, y), 0, g))


def taken(op: str) -> Callable[[Node, Node], Node]:
    return lambda x, y: where(either(compare(op, x, y), make("isnan", x)), x, y)


whole(
    *("maximum", "torch.maximum({0}, {1})", taken("gt")),
    lambda g, out, x, y: (larger(g, x, y), larger(g, y, x)),
    word="largest",
)
whole(
    *("minimum", "torch.minimum({0}, {1})", taken("lt")),
    lambda g, out, x, y: (smaller(g, x, y), smaller(g, y, x)),
    word="smallest",
)


STRICTLY = {"ge": "gt", "le": "lt"}
OTHERWISE = {"ge": "lt", "le": "gt"}


def chosen(name: str, order: str, shared: Callable[[Node, Node, Node], Node]) -> Derivative:
    """The derivative of fmax or fmin, of which x is taken in this order, or where y is NaN."""

    def derivative(g: Node, out: Node, x: Node, y: Node) -> tuple[Node, Node]:
        if reaches_nan(name):
            return shared(g, x, y), shared(g, y, x)
        if not is_halved(name):
            first = either(compare(order, x, y), make("isnan", y))
            return where(first, g, 0), where(first, 0, g)
        first = either(compare(STRICTLY[order], x, y), make("isnan", y))
        equal = compare("eq", x, y)
        return where(equal, 0.5 * g, where(first, g, 0)), where(equal, 0.5 * g, where(first, 0, g))

    return derivative


pair("fmax", chosen("fmax", "ge", larger))
pair("fmin", chosen("fmin", "le", smaller))


def limited(x: Node, low: Node, high: Node) -> Node:
    at_least = lowered_clamp_min(x, low)
    return lowered_clamp_max(at_least, high)


def lowered_clamp_min(x: Node, low: Node) -> Node:
    return where(compare("lt", x, low), low, x) if low.is_number else taken("gt")(x, low)


def lowered_clamp_max(x: Node, high: Node) -> Node:
    return where(compare("gt", x, high), high, x) if high.is_number else taken("lt")(x, high)


def inside(g: Node, out: Node, x: Node, low: Node, high: Node) -> tuple[Node, None, None]:
    within = both(compare("gt", x, low), compare("lt", x, high))
    return where(within, g, 0), None, None


def clamp_derivative(
    g: Node, out: Node, x: Node, low: Node, high: Node
) -> tuple[Node | None, Node | None, Node | None]:
    below, above = compare("lt", x, low), compare("gt", x, high)
    ordered, crossed = compare("lt", low, high), compare("lt", high, low)
    if low.is_number and high.is_number and not passes_bounds():
        return inside(g, out, x, low, high)
    if not is_halved("clamp_min"):
        return (
            where(both(compare("ge", x, low), compare("le", x, high)), g, 0),
            where(both(ordered, below), g, 0),
            where(either(above, crossed), g, 0),
        )
    at_low, at_high = compare("eq", x, low), compare("eq", x, high)
    open_ = compare("le", low, high)
    half = 0.5 * g
    return (
        where(either(below, above), 0, where(both(ordered, either(at_low, at_high)), half, g)),
        where(both(open_, below), g, where(both(ordered, at_low), half, 0)),
        where(either(crossed, both(open_, above)), g, where(both(ordered, at_high), half, 0)),
    )


def one_bound(name: str, order: str, shared: Callable[[Node, Node, Node], Node]) -> Derivative:
    """The derivative of clamp_min or clamp_max, which keep an x in this order."""

    def derivative(g: Node, out: Node, x: Node, bound: Node) -> tuple[Node, Node | None]:
        if bound.is_number and not passes_bounds():
            return where(compare(STRICTLY[order], x, bound), g, 0), None
        if not bound.is_number and is_halved(name):
            return shared(g, x, bound), shared(g, bound, x)
        beyond = compare(OTHERWISE[order], x, bound)
        return where(compare(order, x, bound), g, 0), where(beyond, g, 0)

    return derivative


whole(
    *("clamp", "torch.clamp({0}, {1}, {2})", limited, clamp_derivative),
    word="clamped",
)
whole(
    *("clamp_min", "torch.clamp({0}, min={1})", lowered_clamp_min),
    one_bound("clamp_min", "ge", larger),
    word="clamped",
)
whole(
    *("clamp_max", "torch.clamp({0}, max={1})", lowered_clamp_max),
    one_bound("clamp_max", "le", smaller),
    word="clamped",
)
# As clamp, but for the gradient at the bounds, which is none whatever the version.
whole(
    *("hardtanh", "F.hardtanh({0}, {1}, {2})", limited, inside),
    word="clamped",
)
# x, where no x > 0 is taken: in Python, where both sides of a `where` are differentiated, an
# overflow on the side that is not taken would be NaN in the derivative.
whole("not_positive", "torch.clamp({0}, max=0)", lambda x: x)


# C++ has that of beta = 1 without a threshold.
define("plain_softplus", Form("F.softplus({0})"), Form("math::softplus({0})"), word="softplus")


def is_plain(threshold: Node) -> bool:
    return is_const(threshold) and float(threshold.value) >= 20  # type: ignore[arg-type]


def softplus(x: Node, beta: Node, threshold: Node) -> Node:
    scaled = beta * x
    if is_plain(threshold):
        inside = make("plain_softplus", scaled)
    else:
        inside = make("log1p", make("exp", scaled))
    return where(make("gt", scaled, threshold), x, inside / beta)


def softplus_derivative(
    g: Node, out: Node, x: Node, beta: Node, threshold: Node
) -> tuple[Node, None, None]:
    scaled = beta * x
    inside = g * make("sigmoid", scaled)
    return where(make("gt", scaled, threshold), g, inside), None, None


whole(
    *("softplus", "F.softplus({0}, {1}, {2})", softplus, softplus_derivative),
)
whole(
    *("logsigmoid", "F.logsigmoid({0})"),
    lambda x: -make("plain_softplus", -x),
    lambda g, out, x: (g * make("sigmoid", -x),),
)


def elu_lowered(x: Node, alpha: Node, scale: Node, input_scale: Node) -> Node:
    negative = alpha * scale * make("expm1", input_scale * x)
    return where(compare("le", x, 0), negative, scale * x)


def elu_derivative(
    g: Node, out: Node, x: Node, alpha: Node, scale: Node, input_scale: Node
) -> tuple[Node | None, ...]:
    slope = input_scale * alpha * scale * make("exp", input_scale * make("not_positive", x))
    return where(compare("le", x, 0), g * slope, g * scale), None, None, None


whole(
    *("elu", "torch.ops.aten.elu({0}, {1}, {2}, {3})"),
    *(elu_lowered, elu_derivative),
)
whole(
    *("prelu", None),
    lambda x, weight: where(compare("gt", x, 0), x, weight * x),
    lambda g, out, x, weight: (
        where(compare("gt", x, 0), g, g * weight),
        where(compare("gt", x, 0), 0, g * x),
    ),
)
whole(
    *("leaky_relu", "F.leaky_relu({0}, {1})"),
    lambda x, slope: where(compare("gt", x, 0), x, slope * x),
    lambda g, out, x, slope: (where(compare("gt", x, 0), g, g * slope), None),
)


def hardswish(x: Node) -> Node:
    lifted = x + 3
    clamped = where(compare("gt", lifted, 6), 6, lifted)
    return x * where(compare("lt", clamped, 0), 0, clamped) / 6


def hardswish_derivative(g: Node, out: Node, x: Node) -> tuple[Node]:
    inside = where(compare("lt", x, 3), g * (x / 3 + 0.5), g)
    return (where(compare("le", x, -3), 0, inside),)


whole("hardswish", None, hardswish, hardswish_derivative)


def beyond(x: Node, bound: Node) -> Node:
    return either(make("lt", x, -bound), make("gt", x, bound))


def softshrink(x: Node, bound: Node) -> Node:
    # NaN stays NaN.
    below = where(make("lt", x, -bound), x + bound, 0 * x)
    return where(make("gt", x, bound), x - bound, below)


whole(
    *("softshrink", "F.softshrink({0}, {1})", softshrink),
    lambda g, out, x, bound: (where(beyond(x, bound), g, 0), None),
)
whole(
    *("hardshrink", "F.hardshrink({0}, {1})"),
    lambda x, bound: where(both(compare("ge", x, -bound), make("le", x, bound)), 0, x),
    lambda g, out, x, bound: (where(beyond(x, bound), g, 0), None),
)
whole(
    *("threshold", "torch.threshold({0}, {1}, {2})"),
    lambda x, bound, value: where(make("le", x, bound), value, x),
    lambda g, out, x, bound, value: (where(make("le", x, bound), 0, g), None, None),
)


def logaddexp(base: str) -> Callable[[Node, Node], Node]:
    def lowered(x: Node, y: Node) -> Node:
        equal = both(make("isinf", x), make("eq", x, y))
        apart = make(base, -make("abs", x - y))
        rest = make("log1p", apart)
        rest = rest if base == "exp" else rest * (1 / math.log(2))
        return where(equal, x, make("maximum", x, y) + rest)

    return lowered


whole(
    *("logaddexp", "torch.logaddexp({0}, {1})", logaddexp("exp")),
    lambda g, out, x, y: (g * make("sigmoid", x - y), g * make("sigmoid", y - x)),
)
whole(
    *("logaddexp2", "torch.logaddexp2({0}, {1})", logaddexp("exp2")),
    lambda g, out, x, y: (
        g * make("sigmoid", (x - y) * math.log(2)),
        g * make("sigmoid", (y - x) * math.log(2)),
    ),
)


def times_log(log: str) -> Callable[[Node, Node], Node]:
    """0 where x is 0, whatever the logarithm, unless y is NaN."""
    return lambda x, y: where(make("isnan", y), y, where(compare("eq", x, 0), 0, x * make(log, y)))


def times_log_derivative(op: str, pole: float) -> Derivative:
    def derivative(g: Node, out: Node, x: Node, y: Node) -> tuple[Node, Node]:
        no_slope = both(compare("eq", x, 0), compare("le", y, pole))
        return where(no_slope, 0, make(op, g, y)), g * x / (y - pole)

    return derivative


whole(
    *("xlogy", "torch.xlogy({0}, {1})", times_log("log")),
    times_log_derivative("xlogy", 0),
)
whole(
    *("xlog1py", "torch.special.xlog1py({0}, {1})", times_log("log1p")),
    times_log_derivative("xlog1py", -1),
)


def logit(x: Node, low: Node, high: Node) -> Node:
    if is_bounded(low, high):
        x = where(make("lt", x, low), low, where(make("gt", x, high), high, x))
    return make("log", x / (1 - x))


def is_bounded(low: Node, high: Node) -> bool:
    return not (is_const(low, 0) and is_const(high, 1))


def logit_derivative(g: Node, out: Node, x: Node, low: Node, high: Node) -> tuple[Node | None, ...]:
    outside = either(make("lt", x, low), make("gt", x, high))
    slope = make("reciprocal", x * (1 - x))
    if is_bounded(low, high):
        return where(outside, 0, g * slope), None, None
    return where(outside, const(math.nan), g * make("abs", slope)), None, None


whole(
    *("logit", "torch.logit({0}, {1})"),
    logit,
    logit_derivative,
)
whole(
    *("lerp", "torch.lerp({0}, {1}, {2})"),
    # From the nearer end, as PyTorch.
    lambda start, end, weight: where(
        compare("lt", make("abs", weight), 0.5),
        start + weight * (end - start),
        end - (end - start) * (1 - weight),
    ),
    lambda g, out, start, end, weight: (g * (1 - weight), g * weight, g * (end - start)),
)


def entr(x: Node) -> Node:
    positive = where(compare("eq", x, 0), 0, const(-math.inf))
    inside = where(compare("gt", x, 0), -x * make("log", x), positive)
    return where(make("isnan", x), x, inside)


whole(
    *("entr", "torch.special.entr({0})", entr),
    lambda g, out, x: (g * (-make("log", x) - 1),),
)


def remainder(x: Node, y: Node) -> Node:
    """With the sign of y, as in Python."""
    rest = make("fmod", x, y)
    return where(other_sign(rest, y), rest + y, rest)


def is_positive(y: Node) -> bool:
    """Whether it is a constant above 0, of which nothing need be asked."""
    return is_const(y) and isinstance(y.value, float | int) and y.value > 0


def other_sign(rest: Node, y: Node) -> Node:
    if is_positive(y):
        return compare("lt", rest, 0)
    signs = make("ne", compare("lt", y, 0), compare("lt", rest, 0))
    return both(compare("ne", rest, 0), signs)


def floor_divide(x: Node, y: Node) -> Node:
    rest = make("fmod", x, y)
    quotient = (x - rest) / y
    whole_number = make("round", where(other_sign(rest, y), quotient - 1, quotient))
    if is_positive(y):
        return whole_number
    return where(compare("eq", y, 0), x / y, whole_number)


whole(
    *("floor_divide", 'torch.div({0}, {1}, rounding_mode="floor")'),
    floor_divide,
    word="quotient",
)
whole(
    *("remainder", "torch.remainder({0}, {1})", remainder),
    lambda g, out, x, y: (g, -g * make("floor_divide", x, y)),
)


# ----- losses: of the prediction x and the target y


def huber(x: Node, y: Node, delta: Node) -> Node:
    # Not the square of the error, whose second derivative is lost where it is 0.
    apart = x - y
    error = make("abs", apart)
    return where(make("lt", error, delta), 0.5 * apart * apart, delta * (error - 0.5 * delta))


def huber_derivative(g: Node, out: Node, x: Node, y: Node, delta: Node) -> tuple[Node | None, ...]:
    apart = x - y
    inside = where(make("ge", apart, delta), delta * g, apart * g)
    to_x = where(make("le", apart, -delta), -(delta * g), inside)
    return to_x, -to_x, None


whole("huber", None, huber, huber_derivative, "loss")


def smooth_l1(x: Node, y: Node, beta: Node) -> Node:
    error = make("abs", x - y)
    return where(make("lt", error, beta), 0.5 * error * error / beta, error - 0.5 * beta)


def smooth_l1_derivative(
    g: Node, out: Node, x: Node, y: Node, beta: Node
) -> tuple[Node | None, ...]:
    apart = x - y
    inside = where(make("ge", apart, beta), g, apart * g / beta)
    to_x = where(make("le", apart, -beta), -g, inside)
    return to_x, -to_x, None


whole(
    "smooth_l1",
    'F.smooth_l1_loss({0}, {1}, reduction="none", beta={2})',
    smooth_l1,
    smooth_l1_derivative,
    word="loss",
)
# PyTorch's own bounds, of the logarithms and of what its derivative is divided by.
LEAST_LOG, LEAST_VARIANCE = -100, 1e-12


def binary_cross_entropy(p: Node, y: Node) -> Node:
    log, log_of_rest = (
        make("clamp_min", logarithm, const(LEAST_LOG))
        for logarithm in (make("log", p), make("log1p", -p))
    )
    return make("sub", (y - 1) * log_of_rest, y * log)


def binary_cross_entropy_derivative(g: Node, out: Node, p: Node, y: Node) -> tuple[Node, Node]:
    variance = make("clamp_min", p * (1 - p), const(LEAST_VARIANCE))
    return g * (p - y) / variance, g * (make("log1p", -p) - make("log", p))


whole(
    *("binary_cross_entropy", None),
    *(binary_cross_entropy, binary_cross_entropy_derivative),
    word="loss",
)
whole(
    "binary_cross_entropy_with_logits",
    'F.binary_cross_entropy_with_logits({0}, {1}, reduction="none")',
    lambda x, y: (1 - y) * x - make("logsigmoid", x),
    lambda g, out, x, y: (g * (make("sigmoid", x) - y), -g * x),
    "loss",
)


def weighted_loss_derivative(
    g: Node, out: Node, x: Node, y: Node, weight: Node
) -> tuple[Node, Node, None]:
    of_one = weight * y
    to_x = g * ((of_one + 1 - y) * make("sigmoid", x) - of_one)
    return to_x, g * ((1 - weight) * make("logsigmoid", x) - x), None


whole(
    "weighted_binary_cross_entropy_with_logits",
    'F.binary_cross_entropy_with_logits({0}, {1}, reduction="none", '
    "pos_weight=torch.full_like({1}, {2}))",
    lambda x, y, weight: (1 - y) * x - ((weight - 1) * y + 1) * make("logsigmoid", x),
    weighted_loss_derivative,
    "loss",
)


def overflows(node: Node) -> bool:
    """Whether it is a number that float16 does not hold, which PyTorch refuses for a bound."""
    return is_const(node) and 65504 < abs(float(node.value)) < math.inf  # type: ignore[arg-type]


def composed(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Expressions in operations that PyTorch has, too, and for half types."""

    def rule(op: str, args: tuple[Node, ...]) -> Node | None:
        operation = OPERATIONS[op] if args else None
        if operation is None or operation.lowered is None:
            return None
        if operation.python is not None and not any(map(overflows, args)):
            return None
        return operation.lowered(*args)

    return rewritten(nodes, rule)


def lower(node: Node, done: dict[Node, Node]) -> Node:
    """An expression in operations that C++ has."""
    expanded: dict[Node, Node] = {}
    waiting = [node]
    while waiting:
        current = waiting[-1]
        parts = [expanded[current]] if current in expanded else current.args
        missing = [part for part in parts if part not in done]
        if current not in done and missing:
            waiting += reversed(missing)
            continue
        waiting.pop()
        if current in done:
            continue
        if current in expanded:
            done[current] = done[expanded[current]]
            continue
        args = tuple(done[arg] for arg in current.args)
        expand = OPERATIONS[current.op].lowered if current.args else None
        other = expand(*args) if expand else None
        if other is None:
            done[current] = make(current.op, *args, value=current.value)
        else:
            expanded[current] = other
            waiting.append(current)
    return done[node]
