"""Checks extension_cpp/registration on small operators written in Python."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad as fwAD
from torch.autograd import gradcheck, gradgradcheck
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx

from extension_cpp.registration import (
    register_autocast,
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


def spread_rule(
    info: Any, in_dims: Any, xs: Any, ys: Any, scale: float, *, alpha: float
) -> tuple[list[Tensor], list[int]]:
    def align(value: Tensor | None, dim: int | None) -> Tensor | None:
        if value is None:
            return None
        return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

    batched_xs = list(map(align, xs, in_dims[0]))
    batched_ys = list(map(align, ys, in_dims[1]))
    return ops.spread(batched_xs, batched_ys, scale, alpha=alpha), [0] * len(xs)


register_autograd(SPREAD, spread_formula, setup_context=spread_setup_context)
register_vmap(SPREAD, spread_rule)


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


@pytest.fixture(autouse=True)
def quiet_and_fresh():
    """Errors on warnings of ours; starts every test with an empty compile cache."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_transform(function: str, transform: str) -> None:
    actual, reference = FUNCTIONS[function]
    x, w, t = inputs((2, 3), (3,), (2, 3))
    apply = TRANSFORMS[transform]
    torch.testing.assert_close(apply(actual, x, w, t), apply(reference, x, w, t))


@pytest.mark.parametrize(
    "transform", [name for name in TRANSFORMS if name not in NOT_TRACED_BY_DYNAMO]
)
@pytest.mark.parametrize("function", ["gate", "standardize", "spread"])
def test_compiled_transform(function: str, transform: str) -> None:
    actual, reference = FUNCTIONS[function]
    x, w, t = inputs((2, 3), (3,), (2, 3))
    apply = TRANSFORMS[transform]
    compiled = torch.compile(
        lambda x, w, t: apply(lambda x, w: actual(x, w), x, w, t),
        backend="aot_eager",
        fullgraph=True,
    )
    expected = apply(reference, x, w, t)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w, t), expected)


@pytest.mark.parametrize("transform", ["jvp", "forward AD", "grad", "jacrev"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_backend(backend: str, transform: str) -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    apply = TRANSFORMS[transform]
    compiled = torch.compile(
        lambda x, w, t: apply(lambda x, w: ops.gate(x, w), x, w, t), backend=backend, fullgraph=True
    )
    expected = apply(gate_reference, x, w, t)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w, t), expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_compiled_backward(function: str) -> None:
    actual, reference = FUNCTIONS[function]
    compiled = torch.compile(lambda x, w: actual(x, w), backend="aot_eager", fullgraph=True)
    arguments = inputs((2, 3), (3,), requires_grad=True)
    (t,) = inputs((2, 3))
    gradients = torch.autograd.grad((compiled(*arguments) * t).sum(), arguments)
    expected = torch.autograd.grad((reference(*arguments) * t).sum(), arguments)
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck(function: str) -> None:
    actual, _ = FUNCTIONS[function]
    arguments = inputs((2, 3), (3,), requires_grad=True)
    gradcheck(
        actual,
        arguments,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )
    gradgradcheck(
        actual,
        arguments,
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_batched_grad=True,
        check_undefined_grad=True,
    )


def test_every_output_has_its_tangents_and_gradients() -> None:
    x, w = inputs((2, 3), (3,))
    for f, reference in ((ops.standardize, standardize_reference),):
        torch.testing.assert_close(jvp(f, (x, w), (w * x, w)), jvp(reference, (x, w), (w * x, w)))
        torch.testing.assert_close(jacrev(f)(x), jacrev(reference)(x))
        torch.testing.assert_close(jacfwd(f)(x), jacfwd(reference)(x))
        torch.testing.assert_close(hessian(f)(x, w), hessian(reference)(x, w))


def test_complex_gradients_follow_the_conjugate_convention() -> None:
    name = define("square(Tensor x) -> Tensor", lambda x: x * x)
    register_autograd(
        name,
        lambda ctx, grad: 2 * grad * ctx.saved_tensors[0].conj(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    gradcheck(ops.square, x, check_forward_ad=True)
    gradgradcheck(ops.square, x, check_fwd_over_rev=True)


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, dtype=torch.float64)
        self.weight = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.op: Callable[..., Tensor] = ops.gate

    def forward(self, x: Tensor) -> Tensor:
        return self.op(self.linear(x), self.weight, 0.5)


def test_per_sample_gradients_of_a_module() -> None:
    module = Gated()
    parameters = dict(module.named_parameters())
    (x,) = inputs((5, 3))

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, parameters, (x,)).sin().sum()

    actual = vmap(grad(loss), (None, 0))(parameters, x)
    module.op = gate_reference
    torch.testing.assert_close(actual, vmap(grad(loss), (None, 0))(parameters, x))


@pytest.mark.parametrize("transform", ["vmap", "per-sample gradients", "vmap of jvp", "jacfwd"])
def test_kernel_calls_do_not_grow_with_the_batch(transform: str) -> None:
    def calls(batch: int) -> int:
        global kernel_calls
        kernel_calls = 0
        x, w, t = inputs((batch, 3), (3,), (batch, 3))
        TRANSFORMS[transform](ops.gate, x, w, t)
        return kernel_calls

    assert calls(7) == calls(2) > 0


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 0), (-1, None), (2, -1)])
def test_vmap_in_dims(in_dims: tuple[int | None, int | None]) -> None:
    x, w = inputs((3, 3, 3), (3, 3))
    if in_dims[0] is None:
        x = x[0]
    actual = vmap(ops.gate, in_dims)(x, w)
    torch.testing.assert_close(actual, vmap(gate_reference, in_dims)(x, w))


def test_vmap_with_nothing_batched_for_the_operator() -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    actual = vmap(lambda t: ops.gate(x, w) * t)(t)
    torch.testing.assert_close(actual, gate_reference(x, w) * t[:, None])


def test_integer_outputs_and_marked_ones_have_no_derivative() -> None:
    name = define(
        "top(Tensor x) -> (Tensor, Tensor, Tensor)",
        lambda x: (*(v.clone() for v in x.max(-1)), x.abs()),
    )

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, index, size = output
        ctx.save_for_backward(index)
        ctx.shape = inputs[0].shape
        ctx.mark_non_differentiable(index, size)

    def backward(ctx: Any, grad: Tensor, grad_index: Tensor, grad_size: Tensor) -> Tensor:
        (index,) = ctx.saved_tensors
        assert grad_size.count_nonzero() == 0  # zeros, as ctx materializes gradients
        return grad.new_zeros(ctx.shape).scatter(-1, index.unsqueeze(-1), grad.unsqueeze(-1))

    register_autograd(name, backward, setup_context=setup_context)
    x, t = inputs((2, 3), (2, 3))
    actual = jvp(ops.top, (x,), (t,))
    torch.testing.assert_close(actual[1][0], jvp(lambda x: x.max(-1)[0], (x,), (t,))[1])
    assert actual[1][2].count_nonzero() == 0
    values, index, size = ops.top(x.clone().requires_grad_())
    assert (values.requires_grad, index.requires_grad, size.requires_grad) == (True, False, False)
    gradient = grad(lambda x: ops.top(x)[0].sum())(x)
    torch.testing.assert_close(gradient, grad(lambda x: x.max(-1)[0].sum())(x))


def test_tangent_of_another_dtype_than_its_gradient() -> None:
    name = define("mixed(Tensor x, Tensor w) -> Tensor", lambda x, w: x * w.to(x.dtype))

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad * w.to(grad.dtype), grad * x  # autograd casts the second

    register_autograd(
        name, backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    x, w = torch.ones(3, dtype=torch.bfloat16), torch.full((3,), 2.0)
    output, tangent = jvp(ops.mixed, (x, w), (x, w))
    assert tangent.dtype == output.dtype
    torch.testing.assert_close(tangent, 2 * output)


def test_needs_input_grad_is_of_the_schema_in_every_mode() -> None:
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append(ctx.needs_input_grad)

    def backward(ctx: Any, grad: Tensor) -> Any:
        seen.append(ctx.needs_input_grad)
        return (grad * 1, None, None, None)

    name = define(
        "first(Tensor x, Tensor? y=None, int[] n=[1], float s=1.0) -> Tensor",
        lambda x, y=None, n=(), s=1.0: x.clone(),
    )
    register_autograd(name, backward, setup_context=setup_context)
    x, y = inputs((3,), (3,))
    ops.first(x.clone().requires_grad_(), y).sum().backward()
    assert seen == [(True, False, False, False)] * 2
    seen.clear()
    grad(lambda y: ops.first(x, y, [2]).sum())(y)
    assert seen == [(False, True, False, False)] * 2
    seen.clear()
    jvp(ops.first, (x,), (y,))
    assert seen[-2:] == [(True, False, False, False)] * 2


def test_threads_may_run_the_backward_of_one_graph() -> None:
    seen: list[Any] = []

    def backward(ctx: Any, grad: Tensor) -> Any:
        seen.append(ctx.needs_input_grad)
        if len(seen) == 1:  # while this call is under way, another one comes and goes
            with ThreadPoolExecutor() as pool:
                pool.submit(torch.autograd.grad, loss, (x, y), retain_graph=True).result()
        seen.append(ctx.needs_input_grad)
        return grad * 1, grad * 2, None

    name = define("shared(Tensor x, Tensor y, float s=1.0) -> Tensor", lambda x, y, s=1.0: x + y)
    register_autograd(name, backward)
    x, y = inputs((3,), (3,), requires_grad=True)
    loss = ops.shared(x, y).sum()
    torch.autograd.grad(loss, (x, y), retain_graph=True)
    assert seen == [(True, True, False)] * 4


def test_backward_may_run_twice() -> None:
    x, w = inputs((2, 3), (3,), requires_grad=True)
    loss = ops.gate(x, w).sum()
    first = torch.autograd.grad(loss, (x, w), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, (x, w)), first)


def test_graph_is_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        x, w, t = inputs((2, 3), (3,), (2, 3), requires_grad=True)
        output = ops.gate(x, w)
        dual_output = dual(ops.gate, x, w, t)
        alive = [weakref.ref(output), *map(weakref.ref, dual_output)]
        node = weakref.ref(output.grad_fn)
        del output, dual_output
        assert [reference() for reference in alive] == [None, None, None]
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("transform", ["forward AD", "forward AD over backward", "jvp", "hessian"])
def test_nothing_is_left_over_without_the_garbage_collector(transform: str) -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))

    def tensors() -> int:
        TRANSFORMS[transform](ops.gate, x, w, t)
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    tensors()
    gc.collect()
    gc.disable()
    try:
        assert tensors() == tensors()
    finally:
        gc.enable()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_graph_without_grad_mode(mode: Any) -> None:
    x, w = inputs((2, 3), (3,), requires_grad=True)
    with mode():
        output = ops.gate(x, w)
    assert not output.requires_grad
    torch.testing.assert_close(output, gate_reference(x, w).detach())


def test_forward_ad_without_grad_mode() -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3), requires_grad=True)
    expected = dual(gate_reference, x, w, t)
    with torch.no_grad():
        actual = dual(ops.gate, x, w, t)
    assert not any(part.requires_grad for part in actual)
    torch.testing.assert_close(actual, tuple(part.detach() for part in expected))


def test_nothing_but_the_operator_is_traced() -> None:
    x, w = inputs((2, 3), (3,))
    with fwAD.dual_level():
        graph = make_fx(lambda x: ops.gate(x, w))(x).graph
    calls = [node.target for node in graph.nodes if node.op == "call_function"]
    assert calls == [ops.gate.default]


def test_grad_fn_is_named_after_the_operator() -> None:
    x, w = inputs((2, 3), (3,), requires_grad=True)
    assert type(ops.gate_backward(x, x, w)[0].grad_fn).__name__ == "GateBackwardBackward"


# Errors


def test_forward_mode_refuses_a_backward_that_is_not_differentiable() -> None:
    name = define("opaque(Tensor x) -> Tensor", lambda x: x.sin())

    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        with torch.no_grad():
            return grad_output * ctx.saved_tensors[0].cos()

    register_autograd(
        name,
        backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    (x,) = inputs((3,))
    torch.testing.assert_close(grad(lambda x: ops.opaque(x).sum())(x), x.cos())
    with pytest.raises(RuntimeError, match="library_test::opaque: forward-mode AD needs"):
        jvp(ops.opaque, (x,), (x,))


def test_forward_mode_refuses_a_once_differentiable_backward() -> None:
    name = define("once(Tensor x) -> Tensor", lambda x: x.sin())

    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output * ctx.saved_tensors[0].cos()

    register_autograd(
        name,
        backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    (x,) = inputs((3,))
    with pytest.raises(RuntimeError, match="library_test::once: forward-mode AD needs"):
        jvp(ops.once, (x,), (x,))


@pytest.mark.parametrize("returned", [(None,), (None, None, None, None, 1)])
def test_backward_with_the_wrong_number_of_gradients(returned: Any) -> None:
    name = define(
        f"wrong{len(returned)}(Tensor x, Tensor y, int n=0) -> Tensor", lambda x, y, n=0: x.clone()
    )
    register_autograd(name, lambda ctx, grad: returned)
    (x,) = inputs((3,), requires_grad=True)
    message = f"{name}: backward must return one gradient, or None, for each of the 3 positional"
    with pytest.raises(RuntimeError, match=message):
        getattr(ops, name.partition("::")[2])(x, x).sum().backward()


def test_extra_none_gradients_are_accepted() -> None:
    name = define("extra(Tensor x) -> Tensor", lambda x: x.clone())
    register_autograd(name, lambda ctx, grad: (grad, None))
    (x,) = inputs((3,))
    torch.testing.assert_close(grad(lambda x: ops.extra(x).sum())(x), torch.ones_like(x))


@pytest.mark.parametrize(
    "register", [lambda name: register_autograd(name, abs), register_no_autograd]
)
@pytest.mark.parametrize(
    ("schema", "error", "message"),
    [
        ("mutating(Tensor(a!) x) -> ()", RuntimeError, "there is register_mutation"),
        ("aliasing(Tensor(a) x) -> Tensor(a)", RuntimeError, "new tensors"),
        ("keyword(Tensor x, *, Tensor y) -> Tensor", NotImplementedError, "make them positional"),
    ],
)
def test_autograd_refuses_schemas(register: Any, schema: str, error: type, message: str) -> None:
    name = schema.partition("(")[0]
    if not hasattr(ops, name):
        LIBRARY.define(schema)
    with pytest.raises(error, match=f"{NAMESPACE}::{name}: .*{message}"):
        register(f"{NAMESPACE}::{name}")


def test_registering_for_an_operator_that_is_not_there() -> None:
    with pytest.raises(RuntimeError, match="there is no operator 'library_test::missing'"):
        register_no_autograd("library_test::missing")


# register_no_autograd


def lossy_hooks() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(torch.zeros_like, lambda packed: packed)


@pytest.mark.parametrize("create_graph", [False, True])
def test_forward_mode_leaves_saved_tensors_hooks_alone(create_graph: bool) -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3), requires_grad=create_graph)
    expected = jvp(gate_reference, (x, w), (t, w))
    with lossy_hooks():
        actual = jvp(ops.gate, (x, w), (t, w))
        with fwAD.dual_level():
            dual = ops.gate(fwAD.make_dual(x, t), fwAD.make_dual(w, w))
            actual_dual = fwAD.unpack_dual(dual)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(tuple(actual_dual), expected)


def test_hooks_in_reverse_mode_see_what_is_saved() -> None:
    x, w = inputs((2, 3), (3,), requires_grad=True)
    with lossy_hooks():
        y = ops.gate(x, w)
    assert all(g.count_nonzero() == 0 for g in torch.autograd.grad(y.sum(), (x, w)))


CHECKPOINTED_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "jvp of vmap": lambda f, x: jvp(vmap(f), (x,), (x,)),
    "jvp of jvp": lambda f, x: jvp(lambda x: jvp(f, (x,), (x,))[1], (x,), (x,)),
    "linearize of vmap": lambda f, x: linearize(vmap(f), x)[1](x),
    "vmap of jvp": lambda f, x: vmap(lambda x: jvp(f, (x,), (x,)))(x),
    "dual level around vmap": lambda f, x: _dual(vmap(f), x),
}


def _dual(f: Callable[..., Any], x: Tensor) -> Any:
    with fwAD.dual_level():
        return tuple(fwAD.unpack_dual(f(fwAD.make_dual(x, x))))


@pytest.mark.parametrize("transform", CHECKPOINTED_TRANSFORMS)
def test_checkpoint_in_forward_mode(transform: str) -> None:
    x, w = inputs((2, 3), (3,))

    def checkpointed(function: Callable[..., Tensor]) -> Any:
        def run(x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(function, x, w, use_reentrant=False)

        return CHECKPOINTED_TRANSFORMS[transform](run, x)

    try:
        checkpointed(torch.mul)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"PyTorch does not transform a checkpoint of its own operator so: {error}")
    actual = checkpointed(ops.gate)
    expected = CHECKPOINTED_TRANSFORMS[transform](lambda x: gate_reference(x, w), x)
    torch.testing.assert_close(actual, expected)


NO_FORMULA = define(
    "no_formula(Tensor x, Tensor[] ys) -> (Tensor, Tensor)", lambda x, ys: (x * 2, x.long())
)
register_no_autograd(NO_FORMULA)
register_vmap(
    NO_FORMULA, lambda info, in_dims, x, ys: (ops.no_formula(x, ys), (in_dims[0], in_dims[0]))
)
NO_FORMULA_ERROR = "library_test::no_formula: a derivative was asked for"


def test_no_autograd_allows_calls() -> None:
    (x,) = inputs((3,), requires_grad=True)
    output, index = ops.no_formula(x, [x])
    assert output.requires_grad
    assert not index.requires_grad
    torch.testing.assert_close(output.detach(), x.detach() * 2)
    with torch.no_grad():
        assert not ops.no_formula(x, [x])[0].requires_grad
    gradient = grad(lambda x: ops.no_formula(x, [])[1].sum() + x.sum())(x)
    torch.testing.assert_close(gradient, torch.ones_like(x))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_no_autograd_refuses_derivatives(transform: str) -> None:
    if transform in ("plain", "vmap", "vmap in_dims", "vmap of vmap"):
        return
    x, w, t = inputs((2, 3), (3,), (2, 3))
    with pytest.raises(RuntimeError, match=NO_FORMULA_ERROR):
        TRANSFORMS[transform](lambda x, w: ops.no_formula(x * w, [w])[0], x, w, t)


def test_no_autograd_refuses_a_gradient_through_a_list() -> None:
    (x,) = inputs((3,), requires_grad=True)
    with pytest.raises(RuntimeError, match=NO_FORMULA_ERROR):
        ops.no_formula(x.detach(), [x.detach(), x])[0].sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_no_autograd_compiled_raises_in_backward_only(backend: str) -> None:
    (x,) = inputs((3,), requires_grad=True)
    compiled = torch.compile(
        lambda x: ops.no_formula(x.sin(), [x])[0] + x, backend=backend, fullgraph=True
    )
    output = compiled(x)
    torch.testing.assert_close(output, x.sin() * 2 + x)
    with pytest.raises(RuntimeError, match=NO_FORMULA_ERROR):
        output.sum().backward()


def test_no_autograd_compiled_transforms_raise() -> None:
    (x,) = inputs((3,))
    for transform in (
        lambda x: grad(lambda x: ops.no_formula(x, [])[0].sum())(x),
        lambda x: jvp(lambda x: ops.no_formula(x, [])[0], (x,), (x,)),
    ):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=NO_FORMULA_ERROR):
            torch.compile(transform, backend="aot_eager", fullgraph=True)(x)


# register_mutation


def myadd_kernel(a: Tensor, b: Tensor, out: Tensor) -> None:
    with torch._C._AutoDispatchBelowADInplaceOrView():  # as in C++, nobody notices the write
        out.copy_(a + b)


MYADD = define("myadd_out(Tensor a, Tensor b, Tensor(a!) out) -> ()", myadd_kernel, lambda *_: None)
register_mutation(MYADD)
MYADD_ERROR = "library_test::myadd_out: a derivative was asked for"
MYADD_LEAF_ERROR = "library_test::myadd_out: torch.compile would write to a leaf that requires"


def buffered(f: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def add(a: Tensor, b: Tensor) -> Tensor:
        out = torch.zeros_like(a)
        f(a, b, out)
        return out

    return add


myadd = buffered(ops.myadd_out)


def test_mutation_of_plain_tensors() -> None:
    a, b = inputs((3,), (3,))
    out = torch.empty_like(a)
    versions = [t._version for t in (a, b, out)]
    assert ops.myadd_out(a, b, out) is None
    assert [t._version for t in (a, b, out)] == [versions[0], versions[1], versions[2] + 1]
    torch.testing.assert_close(out, a + b)
    with torch.no_grad():
        ops.myadd_out(a, b, out)
    assert out._version == versions[2] + 2
    with torch.inference_mode():
        frozen = torch.empty_like(a)
        ops.myadd_out(a, b, frozen)
    ops.myadd_out(a, b, frozen)
    torch.testing.assert_close(frozen, a + b)


def test_mutation_of_a_saved_tensor_is_noticed() -> None:
    a, x = inputs((3,), (3,))
    out = torch.ones_like(a)
    y = x.requires_grad_() * out
    ops.myadd_out(a, a, out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_mutation_refuses_a_gradient_in_backward() -> None:
    a, b = inputs((3,), (3,), requires_grad=True)
    out = torch.zeros(3, dtype=a.dtype)
    ops.myadd_out(a, b, out)
    torch.testing.assert_close(out.detach(), (a + b).detach())
    with pytest.raises(RuntimeError, match=MYADD_ERROR):
        out.sum().backward()


def test_mutation_of_a_view_refuses_a_gradient_through_its_base() -> None:
    a, b = inputs((3,), (3,), requires_grad=True)
    base = torch.zeros(2, 3, dtype=a.dtype)
    ops.myadd_out(a, b, base[0])
    with pytest.raises(RuntimeError, match=MYADD_ERROR):
        base.sum().backward()


def test_mutation_of_what_has_a_history_refuses_its_gradient() -> None:
    a, x = inputs((3,), (3,))
    out = x.requires_grad_() * 2
    ops.myadd_out(a, a, out)
    with pytest.raises(RuntimeError, match=MYADD_ERROR):
        out.sum().backward()


@pytest.mark.parametrize("row", [None, 0])
def test_mutation_of_a_leaf_refuses_its_gradient(row: int | None) -> None:
    leaf = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    out = leaf if row is None else leaf[row]
    a, b = inputs(out.shape, out.shape)
    for _ in range(3):
        ops.myadd_out(a, b, out)
    assert len(leaf._backward_hooks) == 1
    with pytest.raises(RuntimeError, match=MYADD_ERROR):
        leaf.sum().backward()


def test_mutation_of_a_leaf_without_grad_mode_is_an_update() -> None:
    a, b = inputs((3,), (3,))
    leaf = torch.zeros(3, dtype=a.dtype, requires_grad=True)
    with torch.no_grad():
        ops.myadd_out(a, b, leaf)
    leaf.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.ones_like(a))


@pytest.mark.parametrize("position", [0, 2])
def test_mutation_refuses_tangents_before_it_writes(position: int) -> None:
    tensors = inputs((3,), (3,), (3,))
    before = tensors[2].clone()
    with fwAD.dual_level():
        arguments = list(tensors)
        arguments[position] = fwAD.make_dual(tensors[position], tensors[1])
        with pytest.raises(RuntimeError, match=MYADD_ERROR):
            ops.myadd_out(*arguments)
    torch.testing.assert_close(tensors[2], before)


@pytest.mark.parametrize(
    "transform",
    [name for name in TRANSFORMS if name not in ("plain", "vmap", "vmap in_dims", "vmap of vmap")],
)
def test_mutation_refuses_derivatives(transform: str) -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    with pytest.raises(RuntimeError, match=MYADD_ERROR):
        TRANSFORMS[transform](lambda x, w: myadd(x * w, x), x, w, t)


def myadd_rule(info: Any, in_dims: Any, a: Tensor, b: Tensor, out: Tensor) -> tuple[None, None]:
    a, b = (
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip((a, b), in_dims[:2], strict=True)
    )
    ops.myadd_out(a, b, out.movedim(in_dims[2], 0))
    return None, None


register_vmap(MYADD, myadd_rule)


def test_mutation_within_transforms_works_where_no_derivative_is_asked_for() -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    gradient = grad(lambda x: (myadd(t, t) * x).sum() + x.sum())(x)
    torch.testing.assert_close(gradient, 2 * t + 1)
    gradient = grad(lambda x: (myadd(x.detach(), t) * x).sum())(x)
    torch.testing.assert_close(gradient, x + t)
    torch.testing.assert_close(vmap(myadd)(x, t), x + t)
    torch.testing.assert_close(vmap(myadd, (0, None))(x, w), x + w)


def test_mutation_of_what_a_transform_captured() -> None:
    a, b, out = inputs((3,), (3,), (3,))

    def f(a: Tensor) -> Tensor:
        ops.myadd_out(a, b, out)
        return out.sum()

    with pytest.raises(RuntimeError, match=MYADD_ERROR):
        grad(f)(a)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_mutation_compiled(backend: str) -> None:
    def f(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        ops.myadd_out(a.sin(), b, out)
        return myadd(out, b) * 2

    a, b = inputs((3,), (3,))
    out = torch.zeros_like(a)
    compiled = torch.compile(f, backend=backend, fullgraph=True)
    version = out._version
    torch.testing.assert_close(compiled(a, b, out), (a.sin() + 2 * b) * 2)
    torch.testing.assert_close(out, a.sin() + b)
    assert out._version > version


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_mutation_compiled_raises_in_backward_only(backend: str) -> None:
    (a,) = inputs((3,), requires_grad=True)
    out = torch.zeros_like(a)
    compiled = torch.compile(
        lambda a, out: (ops.myadd_out(a, a, out), out * 2)[1] + a, backend=backend, fullgraph=True
    )
    result = compiled(a, out)
    torch.testing.assert_close(out.detach(), 2 * a.detach())
    for tensor in (result, out):
        with pytest.raises(RuntimeError, match=MYADD_ERROR):
            tensor.sum().backward(retain_graph=True)


def read_before(out: Tensor, x: Tensor) -> Any:
    d = x - out
    ops.myadd_out(out, d * 0.1, out)
    return d * d


def read_before_and_after_every_write(out: Tensor, x: Tensor) -> Any:
    before = out.cos()
    ops.myadd_out(x, out * 2, out)
    between = out.sin() - before
    ops.myadd_out(between, x, out)
    return before * 3, between * 3, out * 3


def views_and_copies(out: Tensor, x: Tensor) -> Any:
    row, copy = out[0], out.clone()
    below = out[1:] - row
    ops.myadd_out(x[0], row, out[1])
    after = out[1:] * 2
    ops.myadd_out(copy[1], row, row)
    return below * 2, after * 2, copy * 2, row * 2


def copies_of_what_is_written(out: Tensor, x: Tensor) -> Any:
    own = x * 1
    ops.myadd_out(own[:-1].clone(), own[:-1].clone(), own[1:])
    ops.myadd_out(out[1:].clone(), own[1:], out[:-1])
    return own * 2, out * 2


@pytest.mark.parametrize(
    ("program", "grad_mode", "dynamic"),
    [
        (read_before, torch.enable_grad, False),
        (read_before, torch.inference_mode, True),
        (read_before_and_after_every_write, torch.no_grad, False),
        (views_and_copies, torch.enable_grad, False),
        (copies_of_what_is_written, torch.no_grad, False),
    ],
)
def test_mutation_under_inductor(program: Any, grad_mode: Any, dynamic: bool) -> None:
    with grad_mode():
        out, x = inputs((4, 3), (4, 3))
        expected_out = out.clone()
        expected = program(expected_out, x)
        actual = torch.compile(program, fullgraph=True, dynamic=dynamic)(out, x)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(out, expected_out)


def test_gradients_around_a_mutation_under_inductor() -> None:
    def program(mean: Tensor, x: Tensor, w: Tensor) -> Tensor:
        d = x @ w - mean
        with torch.no_grad():
            ops.myadd_out(mean, d * 0.1, mean)
        return (d * d * mean).sum()

    results = []
    for run in (program, torch.compile(program, fullgraph=True)):
        mean, x, w = inputs((4, 3), (4, 2), (2, 3))
        gradients = torch.autograd.grad(run(mean, x, w.requires_grad_()), w)
        results.append((*gradients, mean))  # the backward writes nothing to it
    torch.testing.assert_close(*results)


def test_mutation_in_an_exported_program_under_inductor(tmp_path: Any) -> None:
    class Program(torch.nn.Module):
        def forward(self, out: Tensor, x: Tensor) -> Tensor:
            return read_before(out, x)

    out, x = inputs((4, 3), (4, 3))
    expected_out = out.clone()
    expected = read_before(expected_out, x)
    exported = torch.export.export(Program(), (out.clone(), x))
    package = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(tmp_path / "program.pt2")
    )
    torch.testing.assert_close(torch._inductor.aoti_load_package(package)(out, x), expected)
    torch.testing.assert_close(out, expected_out)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_mutation_compiled_leaves_other_gradients_alone(backend: str) -> None:
    (a,) = inputs((3,), requires_grad=True)
    out = torch.zeros_like(a)
    compiled = torch.compile(
        lambda a, out: (ops.myadd_out(a, a, out), a * 3)[1], backend=backend, fullgraph=True
    )
    compiled(a, out).sum().backward()
    torch.testing.assert_close(a.grad, torch.full_like(a, 3))
    (a,) = inputs((3,), requires_grad=True)
    result = compiled(a, out)
    with pytest.raises(RuntimeError, match=MYADD_ERROR):
        (result + out).sum().backward()


def test_mutation_of_a_slice_leaves_the_gradient_of_others_alone() -> None:
    a, x = inputs((2,), (4,))
    out = x.requires_grad_() * 2
    ops.myadd_out(a, a, out[1:3])
    out[0].backward(retain_graph=True)
    torch.testing.assert_close(x.grad, torch.tensor([2, 0, 0, 0], dtype=x.dtype))
    with pytest.raises(RuntimeError, match=MYADD_ERROR):
        out[:2].sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("row", [None, 0])
def test_mutation_of_a_leaf_compiled_is_refused_in_grad_mode(row: int | None, backend: str) -> None:
    def f(a: Tensor, leaf: Tensor) -> Tensor:
        ops.myadd_out(a, a, leaf if row is None else leaf[row])
        return a + 1

    leaf = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    (a,) = inputs((2, 3) if row is None else (3,))
    compiled = torch.compile(f, backend=backend)
    with pytest.raises(RuntimeError, match=MYADD_LEAF_ERROR):
        compiled(a, leaf)
    with torch.no_grad():
        compiled(a, leaf)
    torch.testing.assert_close((leaf if row is None else leaf[row]).detach(), 2 * a)
    leaf.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.ones_like(leaf))


def test_mutation_in_forward_mode_names_what_helps() -> None:
    a, out = inputs((3,), (3,))
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"has none. Detach its inputs$"):
        jvp(lambda a: (ops.myadd_out(a, a, out), a)[1], (a,), (a,))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_mutation_of_negative_views(mode: Any) -> None:
    with mode():
        z = torch.randn(4, dtype=torch.complex128)
        out = z.conj().imag
        a = torch._neg_view(torch.randn(4, dtype=torch.float64))
        expected = a + out
        assert a.is_neg()
        assert out.is_neg()
        ops.myadd_out(a, out, out)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(z.imag, -expected)


def test_mutation_through_lists_keywords_and_integers() -> None:
    def kernel(a: Tensor, outs: list[Tensor], *, count: Tensor) -> None:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            for out in outs:
                out.copy_(a)
            count.add_(1)

    name = define(
        "fill(Tensor a, Tensor(a!)[] outs, *, Tensor(b!) count) -> ()",
        kernel,
        lambda *_, **__: None,
    )
    register_mutation(name)
    (a,) = inputs((3,), requires_grad=True)
    outs, count = [torch.zeros_like(a) for _ in range(2)], torch.tensor(0)
    versions = [t._version for t in (*outs, count)]
    ops.fill(a, outs, count=count)
    assert count == 1
    assert all(t._version > v for t, v in zip((*outs, count), versions, strict=True))
    for out in outs:
        torch.testing.assert_close(out.detach(), a.detach())
        with pytest.raises(RuntimeError, match="library_test::fill: a derivative"):
            out.sum().backward()


@pytest.mark.parametrize("schema", ["no_write(Tensor a) -> ()", "both(Tensor(a!) a) -> Tensor"])
def test_mutation_refuses_schemas(schema: str) -> None:
    LIBRARY.define(schema)
    name = f"{NAMESPACE}::{schema.partition('(')[0]}"
    with pytest.raises(
        RuntimeError, match=f"{name}: register_mutation is for operators that write"
    ):
        register_mutation(name)


def test_a_second_derivative_without_a_formula_is_refused() -> None:
    (x,) = inputs((3,), requires_grad=True)
    (gradient,) = torch.autograd.grad(
        ops.no_formula(x, [])[0],
        x,
        torch.zeros(3, dtype=x.dtype, requires_grad=True),
        create_graph=True,
    )
    torch.testing.assert_close(gradient, torch.zeros_like(x))
    with pytest.raises(RuntimeError, match="library_test::no_formula: a derivative was asked for"):
        gradient.sum().backward()


# opcheck


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("op", "shapes", "extra"),
    [
        ("gate", [(2, 3), (3,)], ()),
        ("gate", [(2, 3), (3,)], (0.5,)),
        ("gate_backward", [(2, 3), (2, 3), (3,)], (0.5,)),
        ("standardize", [(2, 3)], ()),
        ("standardize", [(2, 3), (3,)], ()),
        ("no_formula", [(2, 3)], ([torch.ones(1)],)),
        ("myadd_out", [(2, 3)] * 3, ()),
    ],
)
def test_opcheck(op: str, shapes: Any, extra: tuple[Any, ...], requires_grad: bool) -> None:
    arguments = inputs(*shapes, requires_grad=requires_grad and op != "no_formula")
    torch.library.opcheck(getattr(ops, op).default, (*arguments, *extra))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_lists(requires_grad: bool) -> None:
    x, y = inputs((2, 3), (2, 3), requires_grad=requires_grad)
    torch.library.opcheck(ops.spread.default, ([x, y], [y, None]), {"alpha": 0.5})


# register_autocast

for policy in ("lower_precision", "float32", "promote"):
    define(
        f"dtypes_{policy}(Tensor a, Tensor[] bs, Tensor? c=None) -> Tensor[]",
        lambda a, bs, c=None: [t.clone() for t in (a, *bs, c) if t is not None],
    )
    register_autocast(f"{NAMESPACE}::dtypes_{policy}", policy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "given", "expected"),
    [
        ("lower_precision", "f4 f2 f4", "b2 b2 b2"),
        ("lower_precision", "f8 i8 f4", "f8 i8 b2"),
        ("float32", "b2 f2 f4", "f4 f4 f4"),
        ("float32", "f8 i8 b2", "f8 i8 f4"),
        ("promote", "b2 b2 f4", "f4 f4 f4"),
        ("promote", "b2 b2 b2", "b2 b2 b2"),
        ("promote", "b2 f2 b2", "f4 f4 f4"),
        ("promote", "f8 i8 b2", "f8 i8 b2"),
        ("promote", "f8 i8 i8", "f8 i8 i8"),
    ],
)
def test_autocast(policy: str, given: str, expected: str) -> None:
    dtypes = {
        "f8": torch.float64,
        "f4": torch.float32,
        "f2": torch.float16,
        "b2": torch.bfloat16,
        "i8": torch.int64,
    }
    a, b, c = (torch.ones(2).to(dtypes[name]) for name in given.split())
    op = getattr(ops, f"dtypes_{policy}")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [t.dtype for t in op(a, [b], c)] == [dtypes[name] for name in expected.split()]
    assert [t.dtype for t in op(a, [b], c)] == [dtypes[name] for name in given.split()]


def test_autocast_casts_before_autograd() -> None:
    name = define("scaled(Tensor x) -> Tensor", lambda x: x * 2)
    register_autograd(name, lambda ctx, grad: grad * 2)
    register_autocast(name, "lower_precision")
    x = torch.ones(3, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.scaled(x)
        tangent = jvp(ops.scaled, (x.detach(),), (x.detach(),))[1]
        compiled = torch.compile(lambda x: ops.scaled(x), backend="aot_eager", fullgraph=True)(x)
    assert y.dtype == tangent.dtype == compiled.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_autocast_refuses_an_unknown_policy() -> None:
    with pytest.raises(ValueError, match="library_test::gate: the autocast policy must be"):
        register_autocast(GATE, "fastest")  # type: ignore[arg-type]
