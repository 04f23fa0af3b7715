"""Functions of torch over the last dimension, by name, as expressions.

Each takes its first tensors as expressions and all else as it was given, and returns what there is
for each element, or for each row.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from . import rows_operations  # noqa: F401  (defines the operations that are named here)
from .graph import ELEMENT, ROW, Node, const, make
from .refusal import OverEverything, refuse
from .vocabulary import CONVERT, mask, of_float8, real, unknown

# Functions of a row: the expression, and whether a dimension is lost.
ROWS: dict[str, Callable[..., tuple[Node, bool]]] = {}

OTHER = "start from --template kernel"


def of_rows(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        ROWS.update(dict.fromkeys(names, function))
        return function

    return keep


def last(dim: Any, what: str) -> None:
    """Refuses any dimension but the last."""
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        (dim,) = dim
    if dim is None:
        raise over_all_dimensions(what)
    if hasattr(dim, "node"):
        raise refuse(
            f"{what} over a dimension that is an argument is not known to be over the last one",
            instead=f"say dim=-1 and leave the argument out, or {OTHER}",
        )
    if dim != -1:
        raise refuse(
            f"{what} over dim={dim} is not known to be over the last dimension",
            instead=f"say dim=-1, or {OTHER}",
        )


def over_all_dimensions(what: str) -> OverEverything:
    return OverEverything(
        refuse(
            f"{what} over all dimensions is not row-wise",
            instead="give it dim=-1, or return what each row has, and reduce that outside",
        )
    )


def element(x: Any, what: str) -> Node:
    if getattr(x, "integer", ""):
        raise refuse(f"{what} of integers is not derived", instead=CONVERT)
    if getattr(x, "float8", ""):
        raise of_float8(what)
    node = real(x)
    if node.extent != ELEMENT:
        raise refuse(
            f"{what} is of what has no value of its own for each element of a row",
            instead="reduce what is made of the elements",
        )
    return node


def number(value: Any) -> Node:
    node = getattr(value, "node", None)
    return node if isinstance(node, Node) else const(value)


def no(**unsupported: Any) -> None:
    for name, value in unsupported.items():
        if value is not None:
            why = ": the operator computes half types in float32 by itself" * (name == "dtype")
            raise refuse(f"the argument {name} is not derived", instead=f"leave it out{why}")


# ----- reductions


def over_everything(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What is given to a reduction over all dimensions, as given to that of a row.

    Raises:
        NotDerived: it is over some of them, or is none that may be over all.
        TypeError: there is no such call.
    """
    given = inspect.signature(ROWS[name]).bind(*args, **kwargs).arguments
    dim = given.get("dim")
    if name in OVER_EVERYTHING and isinstance(dim, bool):  # of var, whether it is unbiased
        given["unbiased"], dim = dim, None
    if dim not in (None, (), []):
        raise refuse(
            f"{name} over dim={dim} is beside a reduction over all dimensions",
            instead="return what each row has, and reduce that outside; of a vector of all leave "
            "dim out",
        )
    if name not in OVER_EVERYTHING:
        raise refuse(
            f"{name} over everything is not derived, as sums, means, variances and norms are",
            instead="compute it outside, and pass it as an argument",
        )
    if given.get("keepdim"):
        raise refuse(
            "with keepdim the number of dimensions would be the tensor's",
            instead="leave it out: a number meets tensors of any shape",
        )
    return given | {"dim": -1}


# Reductions that may be over all dimensions.
OVER_EVERYTHING = (
    *("sum", "mean", "var", "std"),
    *("norm", "vector_norm", "linalg_norm", "linalg_vector_norm"),
)


def reduction(name: str, op: str) -> None:
    def reduce(
        x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> tuple[Node, bool]:
        last(dim, name)
        no(dtype=dtype)
        return make(op, element(x, name)), not keepdim

    ROWS[name] = reduce


for _name, _op in {
    "sum": "row_sum",
    "mean": "mean",
    "amax": "amax",
    "amin": "amin",
    "logsumexp": "logsumexp",
}.items():
    reduction(_name, _op)


@of_rows("any")
def _any(x: Any, dim: Any = None, keepdim: bool = False) -> tuple[Node, bool]:
    if dim is None:
        raise unknown("any")
    last(dim, "any")
    return make("gt", make("largest", element(mask(x), "any")), const(0)), not keepdim


@of_rows("all")
def _all(x: Any, dim: Any = None, keepdim: bool = False) -> tuple[Node, bool]:
    if dim is None:
        raise unknown("all")
    last(dim, "all")
    others = element(make("not", mask(x)), "all")
    return make("le", make("largest", others), const(0)), not keepdim


def spread(name: str) -> None:
    def reduce(
        x: Any,
        dim: Any = None,
        unbiased: Any = None,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> tuple[Node, bool]:
        if isinstance(dim, bool):
            raise over_all_dimensions(name)
        last(dim, name)
        if correction is None:
            correction = 1 if unbiased is None else int(unbiased)
        return make(name, element(x, name), number(correction)), not keepdim

    ROWS[name] = reduce


spread("var")
spread("std")


def norm(x: Node, p: Any) -> Node:
    if p in (2, 2.0, "fro", None):
        return make("vector_norm", x)
    if p == 1:
        return make("row_sum", make("abs", x))
    if p == math.inf:
        return make("amax", make("abs", x))
    raise refuse(f"a norm with p={p} is not derived", instead="there are 1, 2 and math.inf")


@of_rows("norm")
def _norm(
    x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> tuple[Node, bool]:
    last(dim, "norm")
    no(dtype=dtype)
    return norm(element(x, "norm"), p), not keepdim


@of_rows("linalg_vector_norm", "linalg_norm", "vector_norm")
def _vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> tuple[Node, bool]:
    return _norm(x, ord, dim, keepdim, dtype)


# ----- a result for each element


def whole_row(name: str, of: Callable[[Node], Node]) -> None:
    def call(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> tuple[Node, bool]:
        last(dim, name)
        no(dtype=dtype)
        return of(element(x, name)), False

    ROWS[name] = call


@of_rows("linalg_vecdot", "vecdot")
def _vecdot(x: Any, y: Any, dim: Any = -1) -> tuple[Node, bool]:
    last(dim, "vecdot")
    return make("row_sum", make("mul", element(x, "vecdot"), element(y, "vecdot"))), True


@of_rows("pairwise_distance")
def _pairwise_distance(
    x: Any, y: Any, p: Any = 2.0, eps: Any = 1e-6, keepdim: bool = False
) -> tuple[Node, bool]:
    apart = make("sub", element(x, "pairwise_distance"), element(y, "pairwise_distance"))
    return norm(make("add", apart, number(eps)), p), not keepdim


whole_row("softmax", lambda x: make("softmax", x))
whole_row("softmin", lambda x: make("softmax", make("neg", x)))
whole_row("log_softmax", lambda x: make("log_softmax", x))
for _name in ("softmax", "log_softmax", "logsumexp"):
    ROWS[f"special_{_name}"] = ROWS[_name]


@of_rows("normalize")
def _normalize(
    x: Any, p: Any = 2.0, dim: Any = 1, eps: Any = 1e-12, out: Any = None
) -> tuple[Node, bool]:
    last(dim, "normalize")
    no(out=out)
    x = element(x, "normalize")
    return make("div", x, make("clamp_min", norm(x, p), number(eps))), False


@of_rows("cosine_similarity")
def _cosine_similarity(x: Any, y: Any, dim: Any = 1, eps: Any = 1e-8) -> tuple[Node, bool]:
    last(dim, "cosine_similarity")
    units = [
        make("div", x, make("clamp_min", norm(x, 2), number(eps)))
        for x in (element(x, "cosine_similarity"), element(y, "cosine_similarity"))
    ]
    return make("row_sum", make("mul", *units)), True


def features(shape: Any, name: str) -> None:
    if not (isinstance(shape, (tuple, list)) and len(shape) == 1 and is_cols(shape[0])):
        raise refuse(
            f"{name} of other dimensions than the last is not row-wise",
            instead="give it x.shape[-1:]",
        )


def is_cols(value: Any) -> bool:
    return getattr(getattr(value, "node", None), "op", None) == "cols"


def scaled(node: Node, weight: Any, bias: Any = None) -> Node:
    for op, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            node = make(op, node, real(parameter))
    return node


@of_rows("rms_norm")
def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    features(normalized_shape, "rms_norm")
    if eps is None:
        raise refuse("rms_norm without eps depends on the dtype", instead="give it eps")
    x = element(x, "rms_norm")
    mean_square = make("mean", make("pow", x, const(2)))
    return scaled(x * make("rsqrt", make("add", mean_square, number(eps))), weight), False


@of_rows("layer_norm")
def _layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> tuple[Node, bool]:
    features(normalized_shape, "layer_norm")
    x = element(x, "layer_norm")
    centered = make("sub", x, make("mean", x))
    variance = make("mean", make("mul", centered, centered))
    rstd = make("rsqrt", make("add", variance, number(eps)))
    return scaled(make("mul", centered, rstd), weight, bias), False


def extreme(name: str) -> None:
    """The values of max and min, without their indices."""

    def reduce(x: Any, dim: Any = None, keepdim: bool = False) -> tuple[Node, bool]:
        if dim is None:
            raise refuse(
                f"{name} without dim is that of all elements, which is not derived",
                instead="compute it outside and pass it as an argument, or start from --template "
                f"kernel; that of each row is a{name} with dim=-1",
            )
        last(dim, name)
        return make(f"a{name}", element(x, name)), not keepdim

    ROWS[name] = reduce


extreme("max")
extreme("min")


def picked(x: Node, index: Any) -> Node:
    """The element of each row that has an index, a tensor as it was traced."""
    if index.node.integer != "int64":
        raise refuse("gather takes indices of int64", instead="convert them, k.to(torch.int64)")
    if index.extent != ROW or index.is_squeezed:
        raise refuse(
            "gather of more than one element of a row, or of one for each element, is not derived",
            instead='give it an index for each row, k: Annotated[Tensor, torch.int64, "*rows"] and '
            f"k.unsqueeze(-1), or {OTHER}",
        )
    return make("gather", element(x, "gather"), index.node)
