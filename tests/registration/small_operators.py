"""Small operators written in Python, with every kind of registration, and transforms of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as fwAD
from torch.func import (
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)

from extension_cpp.registration import (
    register_autograd,
    register_mutation,
    register_no_autograd,
    register_vmap,
)

NAMESPACE = "library_test"


LIBRARY = torch.library.Library(NAMESPACE, "DEF")


ops = getattr(torch.ops, NAMESPACE)


kernel_calls = 0


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any] | None = None) -> str:
    """Defines an operator of the test namespace, and counts the calls of its kernel."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        global kernel_calls
        kernel_calls += 1
        return kernel(*args, **kwargs)

    name = f"{NAMESPACE}::{schema.partition('(')[0]}"
    LIBRARY.define(schema)
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, counted, device)
    torch.library.register_fake(name, fake or kernel, lib=LIBRARY)
    return name


# gate(x, w, scale) = tanh(x * scale) * w, with a backward operator, batching rules and broadcasting
# of w over rows
def gate_reference(x: Tensor, w: Tensor, scale: float = 1.0) -> Tensor:
    return (x * scale).tanh() * w


def gate_backward_kernel(
    grad_output: Tensor, x: Tensor, w: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    y = (x * scale).tanh()
    return grad_output * w * (1 - y * y) * scale, grad_output * y


GATE = define("gate(Tensor x, Tensor w, float scale=1.0) -> Tensor", gate_reference)


GATE_BACKWARD = define(
    "gate_backward(Tensor grad_output, Tensor x, Tensor w, float scale=1.0) -> (Tensor, Tensor)",
    gate_backward_kernel,
)


def gate_setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, scale = inputs
    assert len(ctx.needs_input_grad) == 3
    assert ctx.needs_input_grad[2] is False
    ctx.save_for_backward(x, w)
    ctx.scale = scale


def gate_formula(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, w = ctx.saved_tensors
    assert len(ctx.needs_input_grad) == 3
    grad_x, grad_w = ops.gate_backward(grad_output, x, w, ctx.scale)
    return (
        grad_x if ctx.needs_input_grad[0] else None,
        grad_w if ctx.needs_input_grad[1] else None,
        None,
    )


def gate_backward_setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.scale = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def gate_backward_formula(ctx: Any, ggx: Tensor | None, ggw: Tensor | None) -> tuple[Any, ...]:
    grad_output, x, w = ctx.saved_tensors
    y = (x * ctx.scale).tanh()
    slope = (1 - y * y) * ctx.scale
    ggx = torch.zeros_like(x) if ggx is None else ggx
    ggw = torch.zeros_like(w) if ggw is None else ggw
    return (
        ggx * w * slope + ggw * y,
        grad_output * slope * (ggw - 2 * ggx * w * y * ctx.scale),
        ggx * grad_output * slope,
        None,
    )


register_autograd(GATE, gate_formula, setup_context=gate_setup_context)


register_autograd(GATE_BACKWARD, gate_backward_formula, setup_context=gate_backward_setup_context)


def elementwise_rule(op: Any) -> Callable[..., Any]:
    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        assert len(args) == len(in_dims) == len(op._schema.arguments)
        rank = max(
            value.dim() - (dim is not None)
            for value, dim in zip(args, in_dims, strict=True)
            if isinstance(value, Tensor)
        )

        def align(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            value = value.unsqueeze(0) if dim is None else value.movedim(dim, 0)
            value = value.reshape(value.shape[0], *[1] * (rank + 1 - value.dim()), *value.shape[1:])
            return value.expand(info.batch_size, *value.shape[1:])

        output = op(*map(align, args, in_dims))
        return output, tuple(0 for _ in output) if isinstance(output, tuple) else 0

    return rule


register_vmap(GATE, elementwise_rule(ops.gate.default))


register_vmap(GATE_BACKWARD, elementwise_rule(ops.gate_backward.default))


# standardize(x, weight, eps) -> output, mean, rstd: statistics are differentiable outputs
def standardize_reference(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-2
) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    rstd = (((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1] + eps).rsqrt()
    output = (x - mean) * rstd
    if weight is not None:
        output = output * weight
    return output, mean, rstd


STANDARDIZE = define(
    "standardize(Tensor x, Tensor? weight=None, float eps=1e-2) -> (Tensor, Tensor, Tensor)",
    standardize_reference,
)


def standardize_setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, _ = inputs
    _, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, mean, rstd)


def standardize_formula(
    ctx: Any, grad_output: Tensor | None, grad_mean: Tensor | None, grad_rstd: Tensor | None
) -> tuple[Tensor | None, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    n = x.shape[-1]
    normal = (x - mean) * rstd
    grad_x = torch.zeros_like(x)
    grad_weight = None
    if grad_output is not None:
        scaled = grad_output if weight is None else grad_output * weight
        means = scaled.sum(-1, keepdim=True) / n, (scaled * normal).sum(-1, keepdim=True) / n
        grad_x = grad_x + rstd * (scaled - means[0] - normal * means[1])
        if weight is not None:
            grad_weight = (grad_output * normal).sum_to_size(weight.shape)
    if grad_mean is not None:
        grad_x = grad_x + grad_mean / n
    if grad_rstd is not None:
        grad_x = grad_x - grad_rstd * rstd * rstd * normal / n
    return grad_x, grad_weight, None


register_autograd(STANDARDIZE, standardize_formula, setup_context=standardize_setup_context)


# spread(xs, ys, *, alpha) -> Tensor[]: lists in and out, optional elements, keyword-only argument
def spread_reference(
    xs: list[Tensor], ys: list[Tensor | None], scale: float = 2.0, *, alpha: float = 1.0
) -> list[Tensor]:
    return [
        (x.sin() if y is None else x.sin() * y) * scale * alpha for x, y in zip(xs, ys, strict=True)
    ]


SPREAD = define(
    "spread(Tensor[] xs, Tensor?[] ys, float scale=2.0, *, float alpha=1.0) -> Tensor[]",
    spread_reference,
)


def spread_setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
) -> None:
    xs, ys, scale = inputs
    assert isinstance(output, list)
    assert [len(needs) for needs in ctx.needs_input_grad[:2]] == [len(xs), len(ys)]
    ctx.factor = scale * keyword_only_inputs["alpha"]
    ctx.count = len(xs)
    ctx.save_for_backward(*xs, *ys)


def spread_formula(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    xs, ys = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    triples = list(zip([grad * ctx.factor for grad in grads], xs, ys, strict=True))
    grad_xs = [g * x.cos() * (1 if y is None else y) for g, x, y in triples]
    grad_ys = [None if y is None else g * x.sin() for g, x, y in triples]
    return grad_xs, grad_ys, None


def spread_rule(op: Any) -> Callable[..., Any]:
    def rule(
        info: Any, in_dims: Any, xs: Any, ys: Any, scale: float, *, alpha: float
    ) -> tuple[list[Tensor], list[int]]:
        def align(value: Tensor | None, dim: int | None) -> Tensor | None:
            if value is None:
                return None
            batch = info.batch_size
            return value.expand(batch, *value.shape) if dim is None else value.movedim(dim, 0)

        batched_xs = list(map(align, xs, in_dims[0]))
        batched_ys = list(map(align, ys, in_dims[1]))
        return op(batched_xs, batched_ys, scale, alpha=alpha), [0] * len(xs)

    return rule


register_autograd(SPREAD, spread_formula, setup_context=spread_setup_context)


register_vmap(SPREAD, spread_rule(ops.spread.default))


def spread(x: Tensor, y: Tensor) -> Tensor:
    return sum(ops.spread([x, y], [y, None], alpha=0.5))  # type: ignore[return-value]


def spread_plain(x: Tensor, y: Tensor) -> Tensor:
    return sum(spread_reference([x, y], [y, None], alpha=0.5))  # type: ignore[return-value]


def standardize(x: Tensor, w: Tensor) -> Tensor:
    output, mean, rstd = ops.standardize(x, w)
    return output + mean * rstd


def standardize_plain(x: Tensor, w: Tensor) -> Tensor:
    output, mean, rstd = standardize_reference(x, w)
    return output + mean * rstd


# The same once more, differentiated by reference: referenced, as most operators use it, in its
# backward alone, the others themselves.
REFERENCED = define("referenced(Tensor x, Tensor w, float scale=1.0) -> Tensor", gate_reference)


REFERENCED_BACKWARD = define(
    "referenced_backward(Tensor grad_output, Tensor x, Tensor w, float scale=1.0) "
    "-> (Tensor, Tensor)",
    gate_backward_kernel,
)


def referenced_formula(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
    return *ops.referenced_backward(grad_output, *ctx.saved_tensors, ctx.scale), None


register_autograd(REFERENCED, referenced_formula, setup_context=gate_setup_context)


register_autograd(REFERENCED_BACKWARD, reference=gate_backward_kernel)


register_vmap(REFERENCED, elementwise_rule(ops.referenced.default))


register_vmap(REFERENCED_BACKWARD, elementwise_rule(ops.referenced_backward.default))


STANDARDIZE_REFERENCED = define(
    "standardize_referenced(Tensor x, Tensor? weight=None, float eps=1e-2) "
    "-> (Tensor, Tensor, Tensor)",
    standardize_reference,
)


register_autograd(STANDARDIZE_REFERENCED, reference=standardize_reference)


SPREAD_REFERENCED = define(
    "spread_referenced(Tensor[] xs, Tensor?[] ys, float scale=2.0, *, float alpha=1.0) -> Tensor[]",
    spread_reference,
)


register_autograd(SPREAD_REFERENCED, reference=spread_reference)


register_vmap(SPREAD_REFERENCED, spread_rule(ops.spread_referenced.default))


def spread_referenced(x: Tensor, y: Tensor) -> Tensor:
    return sum(ops.spread_referenced([x, y], [y, None], alpha=0.5))  # type: ignore[return-value]


def standardize_referenced(x: Tensor, w: Tensor) -> Tensor:
    output, mean, rstd = ops.standardize_referenced(x, w)
    return output + mean * rstd


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "gate": (ops.gate, gate_reference),
    "gate_scaled": (
        lambda x, w: ops.gate(x, w, 0.5),
        lambda x, w: gate_reference(x, w, 0.5),
    ),
    "gate_backward": (
        lambda x, w: sum(ops.gate_backward(x * w, x, w, 0.5)),
        lambda x, w: sum(gate_backward_kernel(x * w, x, w, 0.5)),
    ),
    "standardize": (standardize, standardize_plain),
    "spread": (spread, spread_plain),
    "referenced": (ops.referenced, gate_reference),
    "referenced_backward": (
        lambda x, w: sum(ops.referenced_backward(x * w, x, w, 0.5)),
        lambda x, w: sum(gate_backward_kernel(x * w, x, w, 0.5)),
    ),
    "standardize_referenced": (standardize_referenced, standardize_plain),
    "spread_referenced": (spread_referenced, spread_plain),
}


def scalar(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: (f(*args) * torch.arange(1.0, 4.0).to(args[0])).sum()


def dual(f: Callable[..., Tensor], x: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    with fwAD.dual_level():
        return fwAD.unpack_dual(f(fwAD.make_dual(x, t), w))  # type: ignore[return-value]


def forward_over_reverse(f: Callable[..., Tensor], x: Tensor, w: Tensor, t: Tensor) -> Any:
    x = x.clone().requires_grad_()
    with fwAD.dual_level():
        y = scalar(f)(fwAD.make_dual(x, t), w)
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return tuple(part.detach() for part in fwAD.unpack_dual(gradient))


def reverse_over_forward(f: Callable[..., Tensor], x: Tensor, w: Tensor, t: Tensor) -> Any:
    x, t = x.clone().requires_grad_(), t.clone().requires_grad_()
    with fwAD.dual_level():
        tangent = fwAD.unpack_dual(f(fwAD.make_dual(x, t), w)).tangent
    assert tangent is not None
    return torch.autograd.grad((tangent * t).sum(), (x, t))


def double_backward(f: Callable[..., Tensor], x: Tensor, w: Tensor, t: Tensor) -> Any:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    gradients = torch.autograd.grad(scalar(f)(x, w), (x, w), create_graph=True)
    return *gradients, *torch.autograd.grad((gradients[0] * t).sum() + gradients[1].sum(), (x, w))


def backward_through_vmap(f: Callable[..., Tensor], x: Tensor, w: Tensor, t: Tensor) -> Any:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    return torch.autograd.grad((vmap(f, (0, None))(x, w) * t).sum(), (x, w))


def linearized(f: Callable[..., Tensor], x: Tensor, w: Tensor, t: Tensor) -> Any:
    output, tangent = linearize(f, x, w)
    return output, tangent(t, w)


def no_grad_inside(f: Callable[..., Tensor], x: Tensor, w: Tensor, t: Tensor) -> Any:
    def inner(x: Tensor) -> Tensor:
        with torch.no_grad():
            constant = f(x, w)
        return scalar(f)(x, w) * constant.sum()

    return grad(inner)(x)


# x: (2, 3), w: (3,), t: (2, 3); the compiled tests run those that Dynamo traces
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "plain": lambda f, x, w, t: f(x, w),
    "grad": lambda f, x, w, t: grad(scalar(f), (0, 1))(x, w),
    "vjp": lambda f, x, w, t: vjp(f, x, w)[1](t),
    "jvp": lambda f, x, w, t: jvp(f, (x, w), (t, w)),
    "jvp of one input": lambda f, x, w, t: jvp(lambda x: f(x, w), (x,), (t,)),
    "jacrev": lambda f, x, w, t: jacrev(f, (0, 1))(x, w),
    "jacfwd": lambda f, x, w, t: jacfwd(f, (0, 1))(x, w),
    "hessian": lambda f, x, w, t: hessian(f, (0, 1))(x, w),
    "jacrev of jacrev": lambda f, x, w, t: jacrev(jacrev(f, 1), 0)(x, w),
    "jacfwd of jacfwd": lambda f, x, w, t: jacfwd(jacfwd(f, 1), 0)(x, w),
    "jacrev of jacfwd": lambda f, x, w, t: jacrev(jacfwd(f, 1), 0)(x, w),
    "grad of grad": lambda f, x, w, t: grad(lambda x: (grad(scalar(f))(x, w) * t).sum())(x),
    "grad of jvp": lambda f, x, w, t: grad(
        lambda x, t: (jvp(f, (x, w), (t, w))[1] * t).sum(), (0, 1)
    )(x, t),
    "jvp of jvp": lambda f, x, w, t: jvp(lambda x: jvp(lambda x: f(x, w), (x,), (t,)), (x,), (t,)),
    "jvp of grad": lambda f, x, w, t: jvp(lambda x, w: grad(scalar(f))(x, w), (x, w), (t, w)),
    "third order": lambda f, x, w, t: jvp(
        jacfwd(lambda w: grad(scalar(f), 1)(x, w)), (w,), (t[0].contiguous(),)
    ),
    "vmap": lambda f, x, w, t: vmap(f, (0, None))(x, w),
    "vmap in_dims": lambda f, x, w, t: vmap(f, (1, None), out_dims=1)(x.t().contiguous(), w),
    "vmap of vmap": lambda f, x, w, t: vmap(vmap(f, (None, 0)), (0, None))(x, t),
    "per-sample gradients": lambda f, x, w, t: vmap(grad(scalar(f), (0, 1)), (0, None))(x, w),
    "vmap of jvp": lambda f, x, w, t: vmap(lambda x, t: jvp(f, (x, w), (t, w)))(x, t),
    "jvp of vmap": lambda f, x, w, t: jvp(vmap(f, (0, None)), (x, w), (t, w)),
    "grad of vmap": lambda f, x, w, t: grad(lambda w: scalar(vmap(f, (0, None)))(x, w))(w),
    "vmap of hessian": lambda f, x, w, t: vmap(hessian(scalar(f)), (0, None))(x, w),
    "forward AD": dual,
    "forward AD over backward": forward_over_reverse,
    "backward over forward AD": reverse_over_forward,
    "double backward": double_backward,
    "backward through vmap": backward_through_vmap,
    "linearize": linearized,
    "no_grad inside": no_grad_inside,
}


NOT_TRACED_BY_DYNAMO = {
    "linearize",
    "forward AD over backward",
    "backward over forward AD",
    "double backward",
    "backward through vmap",
    # Fail on PyTorch's own operations too, and leave Dynamo's fake tensors in disorder.
    "jvp of jvp",
    "third order",
    "vmap of hessian",
}


if torch.__version__ < (2, 13):  # where they fail on PyTorch's own operations as well
    NOT_TRACED_BY_DYNAMO |= {"jacfwd", "hessian"}


def inputs(*shapes: tuple[int, ...], requires_grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_(requires_grad)
        for shape in shapes
    ]


def lossy_hooks() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(torch.zeros_like, lambda packed: packed)


NO_FORMULA = define(
    "no_formula(Tensor x, Tensor[] ys) -> (Tensor, Tensor)", lambda x, ys: (x * 2, x.long())
)


register_no_autograd(NO_FORMULA)


register_vmap(
    NO_FORMULA, lambda info, in_dims, x, ys: (ops.no_formula(x, ys), (in_dims[0], in_dims[0]))
)


NO_FORMULA_ERROR = "library_test::no_formula: a derivative was asked for"


def myadd_kernel(a: Tensor, b: Tensor, out: Tensor) -> None:
    with torch._C._AutoDispatchBelowADInplaceOrView():  # as in C++, nobody notices the write
        out.copy_(a + b)


MYADD = define("myadd_out(Tensor a, Tensor b, Tensor(a!) out) -> ()", myadd_kernel, lambda *_: None)


register_mutation(MYADD)


MYADD_ERROR = "library_test::myadd_out: a derivative was asked for"


MYADD_LEAF_ERROR = "library_test::myadd_out: torch.compile would write to a leaf that requires"


def myadd_rule(info: Any, in_dims: Any, a: Tensor, b: Tensor, out: Tensor) -> tuple[None, None]:
    a, b = (
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip((a, b), in_dims[:2], strict=True)
    )
    ops.myadd_out(a, b, out.movedim(in_dims[2], 0))
    return None, None


register_vmap(MYADD, myadd_rule)
