"""Functions of torch, by name, as expressions.

Each takes what it is called with: expressions for tensors and numbers, all else as it is. It says
what the function computes for one element, as PyTorch's eager kernels do; the rest is refused in
words for the kind of function that it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .graph import (
    COMPARISONS,
    INTEGERS,
    Node,
    const,
    is_const,
    lift,
    make,
    where,
    whole,
)
from .operations import FUNCTIONS, from_float8
from .refusal import BY_HAND, NotDerived, refuse

VOCABULARY: dict[str, Callable[..., Node]] = {}


def words(text: str) -> list[str]:
    return text.split()


def real(value: Any) -> Node:
    """A mask as 0 and 1, integers as numbers of the arithmetic."""
    node = lift(value)
    if node.op == "const":
        return const(float(node.value)) if type(node.value) is not float else node  # type: ignore[arg-type]
    if node.op == "count":
        return make("number", value=node.value)
    if node.integer:
        return make("from_integer", node)
    if node.float8:
        return from_float8(node)
    return make("to_real", node) if node.is_bool else node


def mask(value: Any) -> Node:
    node = lift(value)
    if node.is_bool:
        return node
    if node.integer:
        return make("ne", node, whole(0))
    node = real(node) if node.float8 else node
    return const(bool(node.value)) if node.op == "const" else make("ne", node, const(0))


def bools(value: Any) -> Node:
    """A mask that has to be one."""
    node = lift(value)
    if node.integer:
        raise refuse("a mask is of bools, and this is of integers", instead="compare it, k != 0")
    if not (node.is_bool or node.is_number):
        raise refuse(
            "a mask is of bools, and a Tensor has a floating dtype",
            instead="annotate the argument, mask: Annotated[Tensor, torch.bool] or "
            "torch.BoolTensor, or pass it as zeros and ones, and say mask > 0",
        )
    return mask(node)


CONVERT = "convert them first, as k.to(x.dtype) does"


def of_float8(what: str) -> NotDerived:
    return refuse(
        f"{what} of float8 is no function of PyTorch's",
        instead="convert it first, as codes.to(x.dtype) does",
    )


# What is of integers as they are; by all else they are converted where they meet floating tensors.
OF_INTEGERS = {*COMPARISONS, *words("where masked_fill logical_and logical_or logical_xor")}
OF_INTEGERS |= {*words("clamp clip clamp_min clamp_max")}
OF_INTEGERS |= {*words("logical_not __eq__ __ne__ greater greater_equal less less_equal not_equal")}


def is_of_tensors(node: Node) -> bool:
    """Whether it is of tensors that have the operator's dtype."""
    return not (node.is_number or node.dtype)


def as_integer(value: Any, dtype: str) -> Node:
    """What meets integers of a dtype, which it does not change."""
    node = lift(value)
    if node.op == "count" and dtype != "int64":
        # PyTorch compares with what the dtype holds of it.
        return make(f"to_{dtype}", node)
    if node.integer:
        return node
    if node.op == "const" and type(node.value) is int:
        if node.value in INTEGERS[dtype]:
            return node
        raise refuse(f"{node.value} is beyond what {dtype} holds", instead="give it another")
    what = "bools" if node.is_bool else "a number that is no integer"
    raise refuse(f"integers meet {what}", instead=CONVERT)


def exactly(*nodes: Node) -> tuple[Node, ...]:
    """Integers, and numbers that meet them."""
    dtype = next(node.integer for node in nodes if node.integer and not node.is_number)
    return tuple(as_integer(node, dtype) for node in nodes)


def says(*names: str) -> Callable[[Callable[..., Node]], Callable[..., Node]]:
    def keep(function: Callable[..., Node]) -> Callable[..., Node]:
        VOCABULARY.update(dict.fromkeys(names, function))
        return function

    return keep


def call(op: str) -> Callable[..., Node]:
    """The operation as it stands, of real operands."""
    return lambda *operands: make(op, *map(real, operands))


for _name in [
    *FUNCTIONS,
    *words("neg sign relu reciprocal isnan isinf isfinite signbit"),
    *words("atan2 hypot copysign fmod maximum minimum fmax fmin remainder"),
    *words("logaddexp logaddexp2 xlogy"),
]:
    VOCABULARY[_name] = call(_name)


def compare(op: str) -> Callable[..., Node]:
    """Of integers as they are."""

    def compared(x: Any, y: Any) -> Node:
        x, y = lift(x), lift(y)
        dtype = x.integer or y.integer
        if dtype and not (is_of_tensors(x) or is_of_tensors(y)):
            return make(op, *exactly(x, y))
        for one, other in ((x, y), (y, x)):
            if one.is_bool and op in ("eq", "ne") and type(other.value) is bool:
                return one if (op == "eq") == other.value else make("not", one)
        return make(op, real(x), real(y))

    return compared


for _name in COMPARISONS:
    VOCABULARY[_name] = compare(_name)
for _other, _name in {
    "__eq__": "eq",
    "__ne__": "ne",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
}.items():
    VOCABULARY[_other] = compare(_name)
for _other, _name in {
    "sgn": "sign",
    "absolute": "abs",
    "negative": "neg",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsin": "asin",
    "arccos": "acos",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "fix": "trunc",
    "log_sigmoid": "logsigmoid",
    "special_expit": "sigmoid",
    "special_exp2": "exp2",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_xlogy": "xlogy",
    "special_xlog1py": "xlog1py",
    "special_entr": "entr",
    "hardswish": "hardswish",
}.items():
    VOCABULARY[_other] = call(_name)


def scaled(value: Node, by: Any) -> Node:
    return value if is_const(by := lift(by), 1) else make("mul", by, value)


def are_masks(*operands: Any) -> bool:
    """Whether what is added or multiplied of these is a mask as well."""
    return all(lift(operand).is_bool for operand in operands)


# ----- arithmetic


@says("add", "__radd__")
def _add(x: Any, y: Any, *, alpha: Any = 1) -> Node:
    if are_masks(x, y) and is_const(lift(alpha), 1):
        return _or(x, y)
    return make("add", real(x), scaled(real(y), alpha))


@says("mul", "multiply")
def _mul(x: Any, y: Any) -> Node:
    return _and(x, y) if are_masks(x, y) else make("mul", real(x), real(y))


@says("sub", "subtract")
def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Node:
    return make("sub", real(x), scaled(real(y), alpha))


@says("rsub", "__rsub__")
def _rsub(x: Any, y: Any, *, alpha: Any = 1) -> Node:
    return _sub(y, x, alpha=alpha)


@says("div", "divide", "true_divide")
def _div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode == "floor":
        return make("floor_divide", real(x), real(y))
    quotient = make("div", real(x), real(y))
    return make("trunc", quotient) if rounding_mode == "trunc" else quotient


@says("__rdiv__", "__rtruediv__")
def _rdiv(x: Any, y: Any) -> Node:
    return make("reciprocal", real(x)) if is_const(lift(y), 1) else _div(y, x)


@says("floor_divide", "__floordiv__")
def _floor_divide(x: Any, y: Any) -> Node:
    return make("floor_divide", real(x), real(y))


@says("__rfloordiv__")
def _rfloor_divide(x: Any, y: Any) -> Node:
    return _floor_divide(y, x)


@says("__rmod__")
def _rmod(x: Any, y: Any) -> Node:
    return make("remainder", real(y), real(x))


@says("pow", "__pow__")
def _pow(x: Any, exponent: Any) -> Node:
    x, exponent = real(x), real(exponent)
    if is_const(x, 0) and not exponent.is_number:
        raise refuse(
            "of 0 to the power of a tensor PyTorch's second derivative is NaN",
            instead="say it with torch.where",
        )
    return make("pow", x, exponent)


@says("__rpow__")
def _rpow(x: Any, base: Any) -> Node:
    return _pow(base, x)


@says("square")
def _square(x: Any) -> Node:
    return make("pow", real(x), const(2))


@says("addcmul")
def _addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Node:
    return make("add", real(x), make("mul", scaled(real(y), value), real(z)))


@says("addcdiv")
def _addcdiv(x: Any, y: Any, z: Any, *, value: Any = 1) -> Node:
    return make("add", real(x), make("div", scaled(real(y), value), real(z)))


@says("lerp")
def _lerp(start: Any, end: Any, weight: Any) -> Node:
    return make("lerp", real(start), real(end), real(weight))


@says("ldexp")
def _ldexp(x: Any, exponent: Any) -> Node:
    return make("mul", real(x), make("pow", const(2), real(exponent)))


@says("deg2rad")
def _deg2rad(x: Any) -> Node:
    return make("mul", real(x), const(math.pi / 180))


@says("rad2deg")
def _rad2deg(x: Any) -> Node:
    return make("mul", real(x), const(180 / math.pi))


@says("round", "special_round")
def _round(x: Any, *, decimals: Any = 0) -> Node:
    if is_const(decimals := lift(decimals), 0):
        return make("round", real(x))
    if not is_const(decimals):
        raise refuse(
            "round to a number of decimals that is an argument is not derived",
            instead="say torch.round(x * a) / a",
        )
    places = int(decimals.value)
    power = const(10 ** abs(places))
    if places > 0:
        return make("div", make("round", make("mul", real(x), power)), power)
    return make("mul", make("round", make("div", real(x), power)), power)


@says("frac")
def _frac(x: Any) -> Node:
    return make("sub", real(x), make("trunc", real(x)))


@says("logit", "special_logit")
def _logit(x: Any, eps: Any = None) -> Node:
    if eps is None:
        return make("logit", real(x), const(0), const(1))
    return make("logit", real(x), lift(eps), 1 - lift(eps))


@says("special_ndtr")
def _ndtr(x: Any) -> Node:
    return 0.5 * make("erfc", real(x) * -math.sqrt(0.5))


# ----- masks and choices


@says("logical_and")
def _and(x: Any, y: Any) -> Node:
    return make("and", mask(x), mask(y))


@says("logical_or")
def _or(x: Any, y: Any) -> Node:
    return make("or", mask(x), mask(y))


@says("logical_xor")
def _xor(x: Any, y: Any) -> Node:
    return make("ne", mask(x), mask(y))


@says("logical_not")
def _not(x: Any) -> Node:
    return make("not", mask(x))


def of_bools(function: Callable[..., Node]) -> Callable[..., Node]:
    return lambda *masks: function(*map(bools, masks))


for _name, _method in {"and": "and", "or": "or", "xor": "xor", "not": "invert"}.items():
    # By its name alone, as __iand__ has it.
    says(_name, f"bitwise_{_name}", f"__{_method}__")(of_bools(VOCABULARY[f"logical_{_name}"]))


def branches_of(yes: Node, no: Node) -> tuple[Node, Node]:
    """What a choice takes: integers of one dtype, or numbers of the arithmetic."""
    dtypes = {node.integer for node in (yes, no) if node.integer and not node.is_number}
    if not dtypes or is_of_tensors(yes) or is_of_tensors(no):
        return real(yes), real(no)
    if len(dtypes) > 1:
        raise refuse(f"where of {' and '.join(sorted(dtypes))}", instead="convert one, by .to()")
    (dtype,) = dtypes
    if dtype != "int64" and any(node.op == "count" for node in (yes, no)):
        raise refuse(
            f"a number may be none that {dtype} holds",
            instead="convert the tensor, k.to(torch.int64)",
        )
    chosen = [as_integer(node, dtype) for node in (yes, no)]
    return tuple(n if n.integer else make(f"to_{dtype}", n) for n in chosen)  # type: ignore[return-value]


@says("where")
def _where(condition: Any, *branches: Any) -> Node:
    if len(branches) != 2:
        raise refuse("where of one argument gives indices, which are not elementwise")
    yes, no = branches
    if not lift(condition).is_bool and lift(yes).is_bool:
        condition, yes = yes, condition  # x.where(condition, no)
    if lift(yes).is_bool and lift(no).is_bool:
        return make("where", bools(condition), lift(yes), lift(no))
    return make("where", bools(condition), *branches_of(lift(yes), lift(no)))


@says("masked_fill")
def _masked_fill(x: Any, condition: Any, value: Any) -> Node:
    x = lift(x)
    if x.integer and not is_of_tensors(lift(value)):
        return where(bools(condition), *branches_of(lift(value), x))
    of_its_dtype = mask if x.is_bool else real
    return where(bools(condition), of_its_dtype(value), of_its_dtype(x))


@says("copy")
def _copy(x: Any, source: Any, non_blocking: bool = False) -> Node:
    return lift(source)


@says("fill")
def _fill(x: Any, value: Any) -> Node:
    return lift(value)


@says("zero")
def _zero(x: Any) -> Node:
    return lift(0)


def clamped_integers(x: Node, low: Any, high: Any) -> Node:
    for op, bound in (("lt", low), ("gt", high)):
        if bound is not None:
            limit, of = lift(bound), x
            x = make("where", make(op, *exactly(of, limit)), *branches_of(limit, of))
    return x


@says("clamp", "clip")
def _clamp(x: Any, min: Any = None, max: Any = None) -> Node:
    if min is None and max is None:
        raise refuse("clamp takes bounds", instead="give at least one")
    if lift(x).integer:
        return clamped_integers(lift(x), min, max)
    if max is None:
        return make("clamp_min", real(x), real(min))
    if min is None:
        return make("clamp_max", real(x), real(max))
    return make("clamp", real(x), real(min), real(max))


@says("clamp_min")
def _clamp_min(x: Any, min: Any) -> Node:
    return _clamp(x, min=min)


@says("clamp_max")
def _clamp_max(x: Any, max: Any) -> Node:
    return _clamp(x, max=max)


@says("isclose")
def _isclose(x: Any, y: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Node:
    x, y = real(x), real(y)
    apart = make("abs", make("sub", x, y))
    allowed = make("add", lift(atol), make("abs", make("mul", lift(rtol), y)))
    near = make("and", make("isfinite", apart), make("le", apart, allowed))
    close = make("or", make("eq", x, y), near)
    if equal_nan:
        close = make("or", close, make("and", make("isnan", x), make("isnan", y)))
    return close


@says("heaviside")
def _heaviside(x: Any, values: Any) -> Node:
    x = real(x)
    return make("where", make("eq", x, const(0)), real(values), real(make("gt", x, const(0))))


@says("nan_to_num")
def _nan_to_num(x: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Node:
    if posinf is None or neginf is None:
        raise refuse(
            "nan_to_num without posinf and neginf depends on the dtype",
            instead="give nan_to_num both",
        )
    x = real(x)
    finite = where(make("eq", x, const(-math.inf)), real(neginf), x)
    finite = where(make("eq", x, const(math.inf)), real(posinf), finite)
    return where(make("isnan", x), real(nan if nan is not None else 0.0), finite)


# ----- constants that take their shape from a tensor


@says("zeros_like")
def _zeros_like(x: Any, **_: Any) -> Node:
    return const(0)


@says("ones_like")
def _ones_like(x: Any, **_: Any) -> Node:
    return const(1)


@says("full_like")
def _full_like(x: Any, value: Any, **_: Any) -> Node:
    return real(value)


# ----- activations, of torch.nn.functional


@says("silu")
def _silu(x: Any) -> Node:
    return make("mul", real(x), make("sigmoid", real(x)))


@says("gelu")
def _gelu(x: Any, approximate: str = "none") -> Node:
    x = real(x)
    half = make("mul", const(0.5), x)
    if approximate == "none":
        return make("mul", half, make("add", const(1), make("erf", x * math.sqrt(0.5))))
    cubic = make("add", x, make("mul", const(0.044715), make("pow", x, const(3))))
    inner = make("mul", const(math.sqrt(2 / math.pi)), cubic)
    return make("mul", half, make("add", const(1), make("tanh", inner)))


@says("softplus")
def _softplus(x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Node:
    return make("softplus", real(x), lift(beta), lift(threshold))


@says("mish")
def _mish(x: Any) -> Node:
    return make("mul", real(x), make("tanh", _softplus(x)))


@says("softsign")
def _softsign(x: Any) -> Node:
    return make("div", real(x), make("add", const(1), make("abs", real(x))))


@says("tanhshrink")
def _tanhshrink(x: Any) -> Node:
    return make("sub", real(x), make("tanh", real(x)))


@says("hardtanh")
def _hardtanh(x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Node:
    return make("hardtanh", real(x), lift(min_val), lift(max_val))


@says("relu6")
def _relu6(x: Any) -> Node:
    return _hardtanh(x, 0.0, 6.0)


@says("leaky_relu")
def _leaky_relu(x: Any, negative_slope: Any = 0.01) -> Node:
    return make("leaky_relu", real(x), lift(negative_slope))


@says("prelu")
def _prelu(x: Any, weight: Any) -> Node:
    return make("prelu", real(x), real(weight))


@says("hardsigmoid")
def _hardsigmoid(x: Any) -> Node:
    return make("div", _relu6(make("add", real(x), const(3))), const(6))


@says("elu")
def _elu(x: Any, alpha: Any = 1.0) -> Node:
    return make("elu", real(x), lift(alpha), const(1), const(1))


@says("selu")
def _selu(x: Any) -> Node:
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return make("elu", real(x), const(alpha), const(scale), const(1))


@says("celu")
def _celu(x: Any, alpha: Any = 1.0) -> Node:
    return make("elu", real(x), lift(alpha), const(1), const(1) / lift(alpha))


@says("softshrink")
def _softshrink(x: Any, lambd: Any = 0.5) -> Node:
    return make("softshrink", real(x), lift(lambd))


@says("hardshrink")
def _hardshrink(x: Any, lambd: Any = 0.5) -> Node:
    return make("hardshrink", real(x), lift(lambd))


@says("threshold", "_threshold")
def _threshold(x: Any, threshold: Any, value: Any) -> Node:
    return make("threshold", real(x), lift(threshold), lift(value))


# ----- losses for each element


def unreduced(reduction: str, **unsupported: Any) -> None:
    if reduction != "none":
        raise refuse(
            f'reduction="{reduction}" is a reduction',
            instead='say "mean" or "sum", or "none" and reduce what it gives',
        )
    for name, value in unsupported.items():
        if value is not None:
            raise refuse(
                f"the argument {name} is not derived",
                instead="multiply the loss by it" if name == "weight" else "leave it out",
            )


@says("mse_loss")
def _mse_loss(x: Any, y: Any, reduction: str = "mean", **rest: Any) -> Node:
    unreduced(reduction, **rest)
    return make("pow", make("sub", real(x), real(y)), const(2))


@says("l1_loss")
def _l1_loss(x: Any, y: Any, reduction: str = "mean", **rest: Any) -> Node:
    unreduced(reduction, **rest)
    return make("abs", make("sub", real(x), real(y)))


@says("huber_loss")
def _huber_loss(x: Any, y: Any, reduction: str = "mean", delta: Any = 1.0, **rest: Any) -> Node:
    unreduced(reduction, **rest)
    return make("huber", real(x), real(y), lift(delta))


@says("smooth_l1_loss")
def _smooth_l1_loss(
    x: Any,
    y: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: Any = 1.0,
) -> Node:
    unreduced(reduction, size_average=size_average, reduce=reduce)
    return make("smooth_l1", real(x), real(y), lift(beta))


@says("binary_cross_entropy_with_logits")
def _bce_with_logits(
    x: Any, y: Any, *, reduction: str = "mean", pos_weight: Any = None, **rest: Any
) -> Node:
    unreduced(reduction, **rest)
    x, y = real(x), real(y)
    if pos_weight is None:
        return make("binary_cross_entropy_with_logits", x, y)
    weight = lift(pos_weight)
    if not weight.is_number:
        raise refuse(
            "by pos_weight PyTorch has no derivative",
            instead="make it a number, torch.tensor(w), or say "
            "(1 - y) * x - ((pos_weight - 1) * y + 1) * F.logsigmoid(x)",
        )
    return make("weighted_binary_cross_entropy_with_logits", x, y, weight)


@says("binary_cross_entropy")
def _bce(x: Any, y: Any, weight: Any = None, *, reduction: str = "mean", **rest: Any) -> Node:
    unreduced(reduction, weight=weight, **rest)
    return make("binary_cross_entropy", real(x), real(y))


@says("soft_margin_loss")
def _soft_margin_loss(x: Any, y: Any, reduction: str = "mean", **rest: Any) -> Node:
    unreduced(reduction, **rest)
    return _softplus(make("mul", make("neg", real(y)), real(x)))


@says("margin_ranking_loss")
def _margin_ranking_loss(
    input1: Any, input2: Any, y: Any, margin: Any = 0.0, reduction: str = "mean", **rest: Any
) -> Node:
    unreduced(reduction, **rest)
    apart = make("mul", make("neg", real(y)), make("sub", real(input1), real(input2)))
    return make("clamp_min", make("add", apart, lift(margin)), const(0))


@says("hinge_embedding_loss")
def _hinge_embedding_loss(
    x: Any, y: Any, margin: Any = 1.0, reduction: str = "mean", **rest: Any
) -> Node:
    unreduced(reduction, **rest)
    x, y = real(x), real(y)
    apart = make("clamp_min", make("sub", lift(margin), x), const(0))
    of_others = make("where", make("ne", y, const(1)), apart, const(0))
    return make("add", of_others, make("where", make("ne", y, const(-1)), x, const(0)))


@says("gaussian_nll_loss")
def _gaussian_nll_loss(
    x: Any,
    y: Any,
    var: Any,
    full: bool = False,
    eps: Any = 1e-6,
    reduction: str = "mean",
) -> Node:
    unreduced(reduction)
    var = real(var)
    # The least variance takes the place of a lesser one as a value, and leaves it the gradient.
    raised = make("add", lift(eps), make("sub", var, make("detach", var)))
    var = make("where", make("lt", var, lift(eps)), raised, var)
    apart = make("pow", make("sub", real(x), real(y)), const(2))
    loss = make("mul", const(0.5), make("add", make("log", var), make("div", apart, var)))
    return make("add", loss, const(0.5 * math.log(2 * math.pi))) if full else loss


@says("kl_div")
def _kl_div(x: Any, y: Any, reduction: str = "mean", log_target: bool = False, **rest: Any) -> Node:
    unreduced(reduction, **rest)
    x, y = real(x), real(y)
    if log_target:
        return make("mul", make("exp", y), make("sub", y, x))
    return make("sub", make("xlogy", y, y), make("mul", y, x))


@says("poisson_nll_loss")
def _poisson_nll_loss(
    x: Any,
    y: Any,
    log_input: bool = True,
    full: bool = False,
    eps: Any = 1e-8,
    reduction: str = "mean",
    **rest: Any,
) -> Node:
    unreduced(reduction, **rest)
    x, y = real(x), real(y)
    log = x if log_input else make("log", make("add", x, lift(eps)))
    loss = make("sub", make("exp", x) if log_input else x, make("mul", y, log))
    if not full:
        return loss
    # Stirling's approximation of log(y!).
    factorial = make("sub", make("mul", y, make("log", y)), y)
    factorial = make(
        "add", factorial, make("mul", const(0.5), make("log", make("mul", const(2 * math.pi), y)))
    )
    return make("add", loss, where(make("le", y, const(1)), const(0), factorial))


# ----- what is refused, in words for its kind

ROWS = "start from --template rowwise, or --template kernel"
KINDS: list[tuple[str, str, str]] = [
    (
        "prod argmax argmin group_norm batch_norm instance_norm median "
        "mode quantile count_nonzero "
        "dist cdist sort topk nansum nanmean trapezoid diff",
        "{} looks at more than one element, in a way that is not derived",
        ROWS,
    ),
    (
        "cumsum cumprod cummax cummin logcumsumexp",
        "{} looks at more than one element, in a way that is not derived",
        "start from --template scan, a state that goes along each row",
    ),
    (
        "bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __rand__ __or__ __ror__ __xor__ "
        "__rxor__ __invert__ and or xor lshift rshift bitwise_left_shift bitwise_right_shift "
        "__lshift__ __rlshift__ __rshift__ __rrshift__",
        "{} of integers is of their bits, and not derived",
        "pass what they are, as tensors of their own, or start from --template kernel",
    ),
    (
        "all any",
        "{} looks at more than one element, in a way that is not derived",
        f"leave it out where it checks what is given, or {ROWS}",
    ),
    (
        "cross_entropy nll_loss",
        "{} has its classes in dimension 1, and not in the last one",
        "say -F.log_softmax(x, -1).gather(-1, k.unsqueeze(-1)).squeeze(-1), of labels "
        'k: Annotated[Tensor, torch.int64, "*rows"], or -(y * F.log_softmax(x, -1)).sum(-1) of '
        "a y of the rows' shape",
    ),
    (
        "rand randn randint rand_like randn_like randint_like dropout alpha_dropout dropout1d "
        "dropout2d bernoulli normal poisson multinomial rrelu gumbel_softmax randperm "
        "feature_alpha_dropout exponential uniform",
        "{} draws random numbers, which an operator has to be given",
        "make them an argument, a tensor",
    ),
    (
        "matmul mm bmm mv dot inner outer einsum linear bilinear conv1d conv2d conv3d "
        "addmm baddbmm tensordot kron scaled_dot_product_attention embedding vdot",
        "{} is a product of matrices, or the like, and not elementwise",
        "say (x * y).sum(-1), or (x * y).sum(), where it is that, or start from --template kernel",
    ),
    (
        "__getitem__ index_select gather take scatter select narrow chunk split unbind "
        "masked_select nonzero roll flip index_add tril triu glu pixel_shuffle take_along_dim "
        "diagonal scatter_add index_fill masked_scatter __iter__",
        "{} picks elements out, and each result is made of the elements in its own place",
        "give the parts as tensors of their own, or start from --template kernel",
    ),
    (
        "reshape view permute transpose unsqueeze squeeze expand flatten T mT t unflatten movedim "
        "swapaxes expand_as repeat cat stack broadcast_to view_as tile repeat_interleave concat "
        "contiguous broadcast_tensors meshgrid",
        "{} changes a shape, and tensors broadcast as they are given",
        "leave it out, or do it to the tensors that are passed: y.expand_as(x), for a function of "
        "rows, copies nothing",
    ),
    (
        "shape size dim ndim numel nelement stride is_contiguous storage_offset __len__",
        "{} asks for a tensor's sizes, which no element knows",
        "make it an argument, a number, or leave the assertion out",
    ),
    (
        "__bool__ item tolist __float__ __int__ __index__ equal allclose is_nonzero __contains__",
        "{} looks at the values of a tensor, on which no branch can depend",
        "say it with torch.where",
    ),
    (
        "float half double bfloat16 to type type_as int long bool short char byte device dtype cpu "
        "cuda cdouble cfloat complex real imag view_as_real view_as_complex is_cuda "
        "is_floating_point",
        "{} depends on or changes a dtype or device, and the operator computes half types in "
        "float32 by itself",
        "leave it out",
    ),
    (
        "lgamma digamma polygamma mvlgamma erfinv i0 special_i0 special_i0e special_i1 special_i1e "
        "special_ndtri special_log_ndtr special_erfcx special_gammaln special_psi special_digamma "
        "special_bessel_j0 special_bessel_j1 special_zeta igamma igammac special_erfinv "
        "special_polygamma special_multigammaln nextafter sinc special_sinc",
        "{} has no counterpart in C++ that is as accurate, and has its derivative",
        BY_HAND,
    ),
    (
        "zeros ones full tensor arange linspace empty as_tensor new_zeros new_ones new_full "
        "new_tensor scalar_tensor from_numpy eye",
        "{} makes a tensor",
        "write the number itself, torch.zeros_like(x), ones_like or full_like where it has the "
        "shape of a tensor, or make it an argument",
    ),
    (
        "empty_like new_empty",
        "{} makes a tensor to be written to",
        "assign the result to a name",
    ),
    (
        "__array__ numpy",
        "{} leaves PyTorch, and what it computes elsewhere is not followed",
        "say it in functions of torch",
    ),
    (
        "requires_grad is_leaf grad_fn",
        "{} is not of what is computed, and differs from call to call",
        "leave it out",
    ),
    (
        "set_ requires_grad_ grad backward",
        "{} changes a tensor",
        "assign the new value to a name",
    ),
    (
        "__setitem__",
        "{} writes to some elements",
        "say it with torch.where, and x.copy_(y) for all of them",
    ),
    (
        "data detach_",
        "{} is not followed",
        "say x.detach()",
    ),
    (
        "float_power",
        "{} computes in float64, whatever the dtype",
        "say pow",
    ),
    (
        "multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss "
        "cosine_embedding_loss triplet_margin_loss triplet_margin_with_distance_loss",
        "{} looks at whole rows, in a way that is not derived",
        "say it in the operations that it is made of",
    ),
]
# What takes the bits of integers, and masks as they are.
OF_BITS = {name for names, reason, _ in KINDS if "their bits" in reason for name in words(names)}
MAKING = {
    name for names, reason, _ in KINDS if reason == "{} makes a tensor" for name in words(names)
}
REFUSED = {name: (reason, instead) for names, reason, instead in KINDS for name in words(names)}


def unknown(name: str, spoken: str = "") -> NotDerived:
    """The refusal of a function that is not in the vocabulary, by another name perhaps."""
    spoken = spoken or name.strip("_") or name
    reason, instead = REFUSED.get(name, ("{} is not among the functions that are derived", BY_HAND))
    return refuse(reason.format(spoken), instead)
