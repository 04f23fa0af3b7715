"""register_autograd: the formula's contract, the graph's life, and what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from small_operators import (
    LIBRARY,
    NAMESPACE,
    define,
    dual,
    gate_reference,
    inputs,
    lossy_hooks,
    ops,
    standardize_reference,
)
from torch import Tensor
from torch.autograd import forward_ad as fwAD
from torch.autograd import gradcheck, gradgradcheck
from torch.func import (
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
)
from torch.fx.experimental.proxy_tensor import make_fx

from extension_cpp.registration import (
    register_autograd,
    register_no_autograd,
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


@pytest.mark.parametrize(
    ("first", "differentiated"),
    [
        (lambda x, w: ops.gate(x, w), "gate"),
        (lambda x, w: ops.standardize_referenced(x, w)[0], "referenced"),
    ],
    ids=["formula", "reference"],
)
def test_graph_is_freed_without_the_garbage_collector(
    first: Callable[[Tensor, Tensor], Tensor], differentiated: str
) -> None:
    gc.collect()
    gc.disable()
    try:
        x, w, t = inputs((2, 3), (3,), (2, 3), requires_grad=True)
        output = first(x, w)
        dual_output = dual(getattr(ops, differentiated), x, w, t)
        alive = [weakref.ref(output), *map(weakref.ref, dual_output)]
        node = weakref.ref(output.grad_fn)
        del output, dual_output
        assert [reference() for reference in alive] == [None, None, None]
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_graph_without_grad_mode(mode: Any) -> None:
    x, w = inputs((2, 3), (3,), requires_grad=True)
    with mode():
        output = ops.gate(x, w)
    assert not output.requires_grad
    torch.testing.assert_close(output, gate_reference(x, w).detach())


def test_nothing_but_the_operator_is_traced() -> None:
    x, w = inputs((2, 3), (3,))
    with fwAD.dual_level():
        graph = make_fx(lambda x: ops.gate(x, w))(x).graph
    calls = [node.target for node in graph.nodes if node.op == "call_function"]
    assert calls == [ops.gate.default]


def test_grad_fn_is_named_after_the_operator() -> None:
    x, w = inputs((2, 3), (3,), requires_grad=True)
    assert type(ops.gate_backward(x, x, w)[0].grad_fn).__name__ == "GateBackwardBackward"


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


def test_hooks_in_reverse_mode_see_what_is_saved() -> None:
    x, w = inputs((2, 3), (3,), requires_grad=True)
    with lossy_hooks():
        y = ops.gate(x, w)
    assert all(g.count_nonzero() == 0 for g in torch.autograd.grad(y.sum(), (x, w)))


@pytest.mark.parametrize("overload", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_running_out_of_memory_has_its_type(requires_grad: bool, overload: bool) -> None:
    # As the stable ABI reports it: a text, and no type.
    texts = iter(["CUDA out of memory. Tried to allocate 2.00 EiB.", "CUDA out of memory, or not"])

    def kernel(x: Tensor) -> Tensor:
        raise RuntimeError(next(texts))

    opname = f"exhausted_{requires_grad}_{overload}"
    name = define(f"{opname}(Tensor x) -> Tensor", kernel, torch.clone)
    register_autograd(name, lambda ctx, grad: grad)
    (x,) = inputs((3,), requires_grad=requires_grad)
    op = getattr(ops, opname)
    op = op.default if overload else op
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 2"):
        op(x)
    with pytest.raises(RuntimeError, match="or not") as caught:
        op(x)
    assert not isinstance(caught.value, torch.OutOfMemoryError)
