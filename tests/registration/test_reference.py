"""register_autograd by reference: the kernel's values, the reference's derivatives."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_operators import (
    TRANSFORMS,
    define,
    double_backward,
    dual,
    gate_reference,
    inputs,
    lossy_hooks,
    ops,
)
from torch import Tensor
from torch.autograd import forward_ad as fwAD
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from extension_cpp.registration import references, register_autograd, register_vmap

calls = 0


# Its value is not the reference's: what comes out says whose it is.
def shifted_reference(x: Tensor, w: Tensor) -> Tensor:
    global calls
    calls += 1
    return x.sin() * w


SHIFTED = define("shifted(Tensor x, Tensor w) -> Tensor", lambda x, w: x.sin() * w + 1)


register_autograd(SHIFTED, reference=shifted_reference)


register_vmap(SHIFTED, lambda info, in_dims, x, w: (ops.shifted(x, w.expand_as(x)), 0))


@pytest.mark.parametrize(
    "value",
    [
        lambda f, x, w: f(x.clone().requires_grad_(), w),
        lambda f, x, w: dual(f, x, w, x)[0],
        lambda f, x, w: jvp(f, (x, w), (x, w))[0],
        lambda f, x, w: jvp(lambda x: jvp(f, (x, w), (x, w))[0], (x,), (x,))[0],
        lambda f, x, w: vjp(f, x, w)[0],
        lambda f, x, w: vmap(lambda x: vjp(f, x, w)[0])(x),
        lambda f, x, w: torch.compile(f, backend="aot_eager")(x.clone().requires_grad_(), w),
    ],
)
def test_the_value_is_the_kernels(value: Callable[..., Tensor]) -> None:
    x, w = inputs((2, 3), (3,))
    expected = ops.shifted(x, w)
    assert torch.equal(value(lambda x, w: ops.shifted(x, w), x, w), expected)


def test_derivatives_of_every_order_are_the_references() -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    derivatives: list[Callable[..., Any]] = [
        lambda f: grad(lambda x: f(x, w).sum())(x),
        lambda f: jvp(f, (x, w), (t, w))[1],
        lambda f: jacrev(f, (0, 1))(x, w),
        lambda f: jacfwd(f, (0, 1))(x, w),
        lambda f: hessian(f, (0, 1))(x, w),
        lambda f: jacrev(jacrev(jacrev(f)))(x, w),
        lambda f: jacfwd(jacfwd(jacfwd(f)))(x, w),
        lambda f: jacfwd(jacrev(jacfwd(f)))(x, w),
        lambda f: vmap(lambda x: jvp(f, (x, w), (x, w))[1])(x),
        lambda f: double_backward(f, x, w, t)[2:],
        lambda f: dual(f, x, w, t)[1],
    ]
    for derivative in derivatives:
        torch.testing.assert_close(derivative(ops.shifted), derivative(shifted_reference))


def test_the_reference_is_called_for_derivatives_alone() -> None:
    x, w = inputs((2, 3), (3,), requires_grad=True)
    before = calls
    ops.shifted(x.detach(), w.detach())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not ops.shifted(x, w).requires_grad
    assert calls == before
    ops.shifted(x, w)
    assert calls == before + 1


def test_the_reference_is_not_autocast() -> None:
    seen = []

    def reference(x: Tensor, w: Tensor) -> Tensor:
        seen.append((x @ w).dtype)
        return x @ w

    name = define("product(Tensor x, Tensor w) -> Tensor", torch.mul)
    register_autograd(name, reference=reference)
    x, w = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ w).dtype == torch.bfloat16
        ops.product(x, w)
        jvp(ops.product, (x.detach(), w), (w, w))
        jvp(lambda x: jvp(ops.product, (x, w), (w, w)), (w,), (w,))
        vmap(jacrev(ops.product), (0, None))(torch.ones(2, 3, 3), w)
        assert (x @ w).dtype == torch.bfloat16
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_differentiated_in_float32(dtype: torch.dtype) -> None:
    def cancelling(x: Tensor, ys: list[Tensor], n: int) -> Tensor:
        (y,) = ys
        return (x * 30) * (y * 30) - x * y * n + x

    name = define(
        f"cancelling_{dtype}(Tensor x, Tensor[] ys, int n) -> Tensor".replace(".", "_"),
        lambda x, ys, n: x.clone(),
    )
    register_autograd(name, reference=cancelling)
    op = getattr(ops, name.partition("::")[2])
    x, y = (t.to(dtype) for t in inputs((64,), (64,)))

    def derivatives(f: Any, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        g = grad(lambda x, y: (f(x, [y], 900) * y).sum(), (0, 1))(x, y)
        return *g, jvp(lambda x: f(x, [y], 900), (x,), (y,))[1]

    expected = derivatives(cancelling, x.double(), y.double())
    for found, exact in zip(derivatives(op, x, y), expected, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-3)


def test_outputs_without_a_derivative() -> None:
    name = define(
        "several(Tensor x, Tensor? w=None) -> (Tensor, Tensor, Tensor, Tensor)",
        lambda x, w=None: (
            x * 2,
            x.argmax(-1),
            x.new_empty(0) if w is None else x * w,
            x.detach().clone(),
        ),
    )
    register_autograd(
        name,
        reference=lambda x, w: (x * 2, None, None if w is None else x * w, x.detach()),
    )
    x, t = inputs((2, 3), (2, 3), requires_grad=True)
    outputs = ops.several(x)
    # As with a formula that returns zeros: what floats requires a gradient.
    assert [o.requires_grad for o in outputs] == [True, False, True, True]
    gradient, other = torch.autograd.grad(
        [outputs[0].sum(), outputs[3].sum()], [x, t], allow_unused=True
    )
    torch.testing.assert_close(gradient, torch.full_like(x, 2))
    assert other is None
    outputs = ops.several(x)
    (zeros,) = torch.autograd.grad(outputs[3].sum(), x, materialize_grads=True, retain_graph=True)
    assert zeros.count_nonzero() == 0
    torch.autograd.grad([outputs[2].sum(), outputs[0].sum()], x)  # the first is of no elements
    for tangents in (
        jvp(ops.several, (x,), (t,))[1],
        jvp(lambda x: jvp(ops.several, (x,), (t,))[0], (x,), (t,))[1],
    ):
        torch.testing.assert_close(tangents[0], 2 * t)
        assert tangents[2].shape == (0,)
        assert tangents[3].count_nonzero() == 0


def test_gradients_that_nobody_asks_for_are_not_computed() -> None:
    class Refuse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise AssertionError("not asked for")

    name = define("two(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 2, x * 3))
    register_autograd(name, reference=lambda x: (x * 2, Refuse.apply(x) * 3))
    (x,) = inputs((3,), requires_grad=True)
    first, second = ops.two(x)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], torch.full_like(x, 2))
    with pytest.raises(AssertionError, match="not asked for"):
        second.sum().backward()


def test_undefined_gradients_stay_undefined() -> None:
    seen = []

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.set_materialize_grads(False)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
            seen.append(grad)
            return grad

    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return grad, None

    name = define("pair(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 2, x.clone()))
    register_autograd(name, reference=lambda x: (x * 2, Identity.apply(x)))
    (x,) = inputs((3,), requires_grad=True)
    First.apply(*ops.pair(x)).sum().backward()
    assert seen == [None]


@pytest.mark.parametrize(
    "reference",
    [lambda x: x, lambda x: x.view(-1).view(x.shape), lambda x: x.sum_to_size(x.shape)],
    ids=["input", "view", "sum"],
)
def test_an_output_has_a_tangent_of_its_own(
    reference: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    name = define(f"copy_{request.node.callspec.id}(Tensor x) -> Tensor", torch.clone)
    register_autograd(name, reference=reference)
    op = getattr(ops, name.partition("::")[2])
    x, t = inputs((3,), (3,))
    before = t.clone()
    with fwAD.dual_level():
        y = op(fwAD.make_dual(x, t))
        y.mul_(2)
        torch.testing.assert_close(fwAD.unpack_dual(y).tangent, 2 * before)
    torch.testing.assert_close(t, before)
    torch.testing.assert_close(jvp(lambda x: op(x).mul_(2) + x, (x,), (t,))[1], 3 * before)


def test_outputs_that_the_reference_makes_one_have_a_tangent_each() -> None:
    name = define("double_twice(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 2, x * 2))
    register_autograd(name, reference=lambda x: (y := x * 2, y))

    def second(x: Tensor) -> Tensor:
        first, other = ops.double_twice(x)
        first.mul_(10)
        return other

    x, t = inputs((3,), (3,))
    torch.testing.assert_close(jvp(second, (x,), (t,))[1], 2 * t)


def test_hooks_see_what_is_saved_for_backward_alone() -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    expected = jvp(gate_reference, (x, w), (t, w))
    with lossy_hooks():
        torch.testing.assert_close(jvp(ops.referenced, (x, w), (t, w)), expected)
        y = ops.shifted(x.requires_grad_(), w.requires_grad_())
    assert all(g.count_nonzero() == 0 for g in torch.autograd.grad(y.sum(), (x, w)))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_running_out_of_memory_has_its_type(requires_grad: bool) -> None:
    def kernel(x: Tensor) -> Tensor:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 EiB.")

    name = define(f"exhausted_reference_{requires_grad}(Tensor x) -> Tensor", kernel, torch.clone)
    register_autograd(name, reference=torch.clone)
    (x,) = inputs((3,), requires_grad=requires_grad)
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 2"):
        getattr(ops, name.partition("::")[2])(x)


names = (f"misfit_{k}" for k in range(100))


@pytest.mark.parametrize(
    ("returns", "reference", "message"),
    [
        ("Tensor", lambda x: x.sum(0), "output 0 of the reference must have shape (2, 3), got"),
        ("Tensor", lambda x: x.float(), "output 0 of the reference must be torch.float64, got tor"),
        ("Tensor", lambda x: None, "output 0 of the reference must be a tensor, got None"),
        ("Tensor", lambda x: (x, x), "the reference must return as many tensors as the operator"),
        ("(Tensor, Tensor)", lambda x: x, "the reference must return as many tensors"),
        ("(Tensor, Tensor)", lambda x: (x, x, x), "the reference must return as many tensors"),
        ("(Tensor, Tensor)", lambda x: (x, x[0]), "output 1 of the reference must have shape"),
        ("Tensor[]", lambda x: [x], "the reference must return as many tensors as the operator"),
        ("Tensor[]", lambda x: x, "the reference must return as many tensors as the operator"),
    ],
)
def test_a_reference_that_does_not_fit(
    returns: str, reference: Callable[..., Any], message: str
) -> None:
    name = define(
        f"{next(names)}(Tensor x) -> {returns}",
        lambda x: x * 2 if returns == "Tensor" else [x * 2] * 2 + [x] * (returns == "Tensor[]"),
    )
    register_autograd(name, reference=reference)
    op = getattr(ops, name.partition("::")[2])
    (x,) = inputs((2, 3))
    op(x)  # nobody asks for a derivative
    with pytest.raises(RuntimeError, match=re.escape(f"{name}: {message}")):
        op(x.clone().requires_grad_())
    with pytest.raises(RuntimeError, match=re.escape(f"{name}: {message}")):
        jvp(op, (x,), (x,))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"backward": abs, "reference": abs},
        {"reference": abs, "setup_context": abs},
        {"setup_context": abs},
    ],
    ids=lambda arguments: " and ".join(arguments) or "nothing",
)
def test_either_a_formula_or_a_reference(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="library_test::shifted: register_autograd takes either"):
        register_autograd(SHIFTED, **arguments)
    x, w = inputs((2, 3), (3,))
    # What was there stays.
    torch.testing.assert_close(jvp(ops.shifted, (x, w), (x, w))[1], x.cos() * w * x + x.sin() * w)
    assert SHIFTED in references


def test_references_are_those_of_the_last_registration() -> None:
    name = define("twice(Tensor x) -> Tensor", torch.clone)
    register_autograd(name, reference=torch.clone)
    assert name in references
    (x,) = inputs((3,))
    ((value, expected),) = references[name].pairs(x, (x,), {})
    assert torch.equal(value, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that a kernel is replaced
        try:
            register_autograd(name, lambda ctx, grad: 2 * grad)
            replaced = True
        except RuntimeError:  # so torch 2.11
            replaced = False
    assert (name in references) != replaced
    slope = grad(lambda x: ops.twice(x).sum())(x)
    torch.testing.assert_close(slope, torch.full_like(x, 2 if replaced else 1))


# Dynamo of torch 2.11 has no jacfwd that is compiled to the end.
@pytest.mark.parametrize("transform", ["jvp", "jacrev", "vmap of jvp"])
def test_compiled_with_inductor(transform: str) -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    apply = TRANSFORMS[transform]
    compiled = torch.compile(
        lambda x, w, t: apply(lambda x, w: ops.referenced(x, w), x, w, t),
        fullgraph=True,
    )
    torch.testing.assert_close(compiled(x, w, t), apply(gate_reference, x, w, t))
