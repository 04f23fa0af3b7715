"""register_no_autograd: calls work, derivatives are refused."""

from __future__ import annotations

import pytest
import torch
from small_operators import NO_FORMULA_ERROR, TRANSFORMS, inputs, ops
from torch.func import (
    grad,
    jvp,
)


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
