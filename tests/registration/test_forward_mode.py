"""register_autograd in forward mode: what it refuses, keeps and leaves alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_operators import TRANSFORMS, define, dual, gate_reference, inputs, lossy_hooks, ops
from torch import Tensor
from torch.autograd import forward_ad as fwAD
from torch.func import (
    grad,
    jvp,
    linearize,
    vmap,
)

from extension_cpp.registration import (
    register_autograd,
)


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


@pytest.mark.parametrize("name", ["gate", "referenced"])
@pytest.mark.parametrize("transform", ["forward AD", "forward AD over backward", "jvp", "hessian"])
def test_nothing_is_left_over_without_the_garbage_collector(transform: str, name: str) -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))

    def tensors() -> int:
        TRANSFORMS[transform](getattr(ops, name), x, w, t)
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    tensors()
    gc.collect()
    gc.disable()
    try:
        assert tensors() == tensors()
    finally:
        gc.enable()


def test_forward_ad_without_grad_mode() -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3), requires_grad=True)
    expected = dual(gate_reference, x, w, t)
    with torch.no_grad():
        actual = dual(ops.gate, x, w, t)
    assert not any(part.requires_grad for part in actual)
    torch.testing.assert_close(actual, tuple(part.detach() for part in expected))


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
