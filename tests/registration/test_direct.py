"""Calls that spare the Autograd kernel: when they do, when they must not, and that none can tell.

Counted, never timed: whether the kernel of the Autograd key was entered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_operators import LIBRARY, NAMESPACE, define, inputs, lossy_hooks, ops
from torch import Tensor
from torch._C import DispatchKey
from torch._C import _dispatch_tls_set_dispatch_key_excluded as set_excluded
from torch.autograd import forward_ad as fwAD
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from extension_cpp.registration import (
    direct,
    forward_mode,
    register_autocast,
    register_autograd,
    register_mutation,
    register_no_autograd,
)

SEEN: list[tuple[Any, ...]] = []


def scaled(x: Tensor, w: Tensor | None = None, s: float = 2.0, n: Any = (1,)) -> Tensor:
    return x * s if w is None else x * w * s


def setup_scaled(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, ctx.s, ctx.n = inputs
    SEEN.append((ctx.needs_input_grad, *(type(value) for value in inputs)))
    ctx.save_for_backward(x, w)


def scaled_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    if w is None:
        return grad * ctx.s, None, None, None
    return grad * w * ctx.s, grad * x * ctx.s, None, None


LISTED = define("listed(Tensor x, Tensor? w=None, float s=2.0, int[1] n=[1]) -> Tensor", scaled)
register_autograd(LISTED, scaled_backward, setup_context=setup_scaled)
register_autocast(LISTED, "lower_precision")

DOUBLED = define("doubled(Tensor x, Tensor? w=None, float s=2.0) -> Tensor", scaled)
register_autograd(
    DOUBLED,
    lambda ctx, grad: scaled_backward(ctx, grad)[:3],
    setup_context=lambda ctx, inputs, output: setup_scaled(ctx, (*inputs, None), output),
)
register_autocast(DOUBLED, "lower_precision")


def fill_two(x: Tensor, first: Tensor, second: Tensor | None = None) -> None:
    for out in (first, second):
        if out is not None:
            out.copy_(2 * x)


# The second written argument may be missing, or None.
FILL = define("fill_two(Tensor x, Tensor(a!) first, Tensor(b!)? second=None) -> ()", fill_two)
register_mutation(FILL)


def fill_all(x: Tensor, outs: list[Tensor | None]) -> None:
    for out in outs:
        fill_two(x, out)


register_mutation(define("fill_all(Tensor x, Tensor(a!)?[] outs) -> ()", fill_all))


class Subclass(torch.Tensor):
    pass


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Its own work is differentiated, too.
        return func(*args, **(kwargs or {})) * torch.ones((), requires_grad=True)


def within(mode: Any, function: Callable[[], Any]) -> Any:
    with mode:
        return function()


# ----- where the kernel is spared


PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one tensor": lambda x, w: ops.doubled(x.detach()),
    "all arguments": lambda x, w: ops.doubled(x.detach(), w.detach(), 2),
    "parameter": lambda x, w: ops.doubled(torch.nn.Parameter(x.detach(), requires_grad=False)),
    "no_grad": lambda x, w: within(torch.no_grad(), lambda: ops.doubled(x, w)),
    "inference_mode": lambda x, w: within(torch.inference_mode(), lambda: ops.doubled(x, w)),
    "autocast": lambda x, w: within(torch.autocast("cpu"), lambda: ops.doubled(x.detach())),
}


@pytest.mark.parametrize("case", PLAIN)
def test_where_no_derivative_is_wanted(case: str, entered: list[None]) -> None:
    x, w = (t.float().requires_grad_() for t in inputs((2, 3), (2, 3)))
    output = PLAIN[case](x, w)
    assert not entered
    assert not output.requires_grad
    of_two = case in ("all arguments", "no_grad", "inference_mode")
    dtype = torch.bfloat16 if case == "autocast" else x.dtype
    assert output.dtype == dtype
    factor = w if of_two else 1
    torch.testing.assert_close(output, (2 * x * factor).detach().to(dtype), rtol=0.02, atol=0)


def test_where_backward_alone_is_wanted(entered: list[None]) -> None:
    x, w = inputs((2, 3), (2, 3), requires_grad=True)
    SEEN.clear()
    output = ops.doubled(x, torch.nn.Parameter(w.detach()))
    assert type(output.grad_fn).__name__ == "DoubledBackward"
    (grad,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(grad, 2 * w.detach())
    assert not entered
    # What setup_context is told is what it is told by the kernel.
    ops.doubled.default(x, torch.nn.Parameter(w.detach()))
    assert len(entered) == 1
    assert SEEN[0] == SEEN[1]


def test_lists_are_as_the_dispatcher_hands_them_over(entered: list[None]) -> None:
    (x,) = inputs((2, 3))
    given = [3, 4]
    torch.testing.assert_close(ops.listed(x, None, 2.0, given), 2 * x)
    for values in ((3, 4), given):
        output = ops.listed(x.requires_grad_(), None, 2.0, values)
        assert output.grad_fn.n == [3, 4]
        assert output.grad_fn.n is not given  # which may change before backward
    output.sum().backward()
    assert not entered


def test_double_backward_of_a_direct_call(entered: list[None]) -> None:
    x, w = inputs((2, 3), (2, 3), requires_grad=True)
    assert torch.autograd.gradgradcheck(ops.doubled, (x, w))
    assert not entered


def test_a_reference_is_differentiated_by_the_kernel(entered: list[None]) -> None:
    grad, x, w = inputs((2, 3), (2, 3), (3,))
    ops.referenced_backward(grad, x, w)
    assert not entered
    assert ops.referenced_backward(grad, x.requires_grad_(), w)[0].requires_grad
    assert len(entered) == 1


@pytest.mark.parametrize("others", [(), (None,), (1,)], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_what_is_written_to_is_counted(
    others: tuple[Any, ...], grad: bool, entered: list[None]
) -> None:
    x, first, second = inputs((2, 3), (2, 3), (2, 3))
    first.requires_grad_(grad)
    given = [second if other == 1 else other for other in others]
    with torch.no_grad():
        ops.fill_two(x, first, *given)
    assert not entered
    assert [t._version for t in (x, first, second)] == [0, 1, int(others == (1,))]
    torch.testing.assert_close(first.detach(), 2 * x)
    with torch.no_grad():
        ops.fill_two.default(x, first, *given)
    assert len(entered) == 1
    assert [t._version for t in (x, first, second)] == [0, 2, 2 * int(others == (1,))]


def test_what_has_no_version_may_be_written_to(entered: list[None]) -> None:
    (x,) = inputs((2, 3))
    with torch.inference_mode():
        frozen = torch.empty_like(x)
        ops.fill_two(x, frozen)
    ops.fill_two(frozen, x, frozen)
    assert not entered
    assert x._version == 1


def test_where_writes_are_not_to_be_counted_none_is(entered: list[None]) -> None:
    x, out = inputs((2, 3), (2, 3))
    versions = torch._C.DispatchKeySet(DispatchKey.ADInplaceOrView)
    with torch._C._ExcludeDispatchKeyGuard(versions):
        before = excluded()
        ops.fill_two(x, out)
        assert excluded() == before
    assert not entered
    assert out._version == 0
    torch.testing.assert_close(out, 2 * x)


@pytest.mark.parametrize("outs", [[], (), [None]])
def test_a_list_of_what_is_written_may_have_no_tensors(outs: Any, entered: list[None]) -> None:
    (x,) = inputs((2, 3))
    ops.fill_all(x, outs)
    assert not entered


# ----- where it must not be


MUTATIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "overload": lambda x, out: ops.fill_two.default(x, out),
    "keywords": lambda x, out: ops.fill_two(x, first=out),
    "gradient": lambda x, out: ops.fill_two(x.requires_grad_(), out),
    "dispatch mode": lambda x, out: within(Counting(), lambda: ops.fill_two(x, out)),
    "subclass": lambda x, out: ops.fill_two(x.as_subclass(Subclass), out),
    "within a transform": lambda x, out: torch.func.grad(
        lambda t: (ops.fill_two(x, out), t.sum())[1]
    )(torch.ones(3)),
    "make_fx": lambda x, out: make_fx(ops.fill_two)(x, out),
}


@pytest.mark.parametrize("situation", MUTATIONS)
def test_where_more_may_be_wanted_of_a_write(situation: str, entered: list[None]) -> None:
    x, out = inputs((2, 3), (2, 3))
    MUTATIONS[situation](x, out)
    assert entered
    assert out._version >= 1
    torch.testing.assert_close(out.detach(), 2 * x.detach())
    assert out.requires_grad == (situation == "gradient")


def forward_dual(x: Tensor) -> Any:
    with fwAD.dual_level():
        return fwAD.unpack_dual(ops.doubled(fwAD.make_dual(x.detach(), x.detach()))).tangent


def leaked(x: Tensor) -> Tensor:
    """A tensor that outlived its transform; inside is one that requires a gradient."""
    kept = []
    torch.func.jvp(lambda t: kept.append(x * 1 + 0 * t) or t, (x.detach(),), (x.detach(),))
    assert not kept[0].requires_grad
    return kept[0]


SITUATIONS: dict[str, Callable[[Tensor], Any]] = {
    "overload": lambda x: ops.doubled.default(x),
    "overload, no gradient": lambda x: ops.doubled.default(x.detach()),
    "keywords": lambda x: ops.doubled(x=x),
    "keywords, no gradient": lambda x: ops.doubled(x.detach(), s=2.0),
    "grad": lambda x: torch.func.grad(lambda t: ops.doubled(t).sum())(x.detach()) * x,
    "jvp": lambda x: torch.func.jvp(ops.doubled, (x.detach(),), (x.detach(),))[1],
    "captured by a transform": lambda x: torch.func.grad(lambda t: (ops.doubled(x) * t).sum())(
        torch.ones_like(x)
    ),
    "dual": forward_dual,
    "dispatch mode": lambda x: within(Counting(), lambda: ops.doubled(x)),
    "dispatch mode, no gradient": lambda x: within(Counting(), lambda: ops.doubled(x.detach())),
    "subclass": lambda x: ops.doubled(x.as_subclass(Subclass)),
    "subclass, no gradient": lambda x: ops.doubled(x.detach().as_subclass(Subclass)),
    "leaked": lambda x: ops.doubled(leaked(x)),
    "autocast": lambda x: within(torch.autocast("cpu"), lambda: ops.doubled(x)).to(x.dtype),
    "trace": lambda x: torch.jit.trace(ops.doubled, (x,))(x),
    "make_fx": lambda x: make_fx(ops.doubled)(x)(x),
    "an integer for a float": lambda x: ops.doubled(x, None, 2),
    "booleans for integers": lambda x: ops.listed(x, None, 2.0, [True]),
    "an integer for a list": lambda x: ops.listed(x, None, 2.0, 1),
    "C++": lambda x: torch.jit.script(scripted)(x),
}


def scripted(x: Tensor) -> Tensor:
    return torch.ops.library_test.doubled(x)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_where_more_may_be_wanted(situation: str, entered: list[None]) -> None:
    (x,) = inputs((2, 3))
    x = x.float().requires_grad_()
    output = SITUATIONS[situation](x)
    assert entered
    rtol = 0.02 if situation == "autocast" else 1e-6
    torch.testing.assert_close(
        output.detach().as_subclass(Tensor), 2 * x.detach(), rtol=rtol, atol=0
    )
    differentiable = situation not in ("jvp", "dual") and "no gradient" not in situation
    assert output.requires_grad == differentiable
    if differentiable:
        output.sum().backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, 2), rtol=rtol, atol=0)


def test_tracing_before_autograd(entered: list[None]) -> None:
    (x,) = inputs((2, 3), requires_grad=True)
    graph = make_fx(ops.doubled, pre_dispatch=True)(x)
    assert entered
    assert [node.target for node in graph.graph.nodes][1:-1] == [ops.doubled.default]


@pytest.mark.parametrize("schema", ["Tensor x, *, float s=2.0) -> Tensor", "Tensor x) -> Tensor[]"])
def test_schemas_that_need_the_kernel(schema: str, entered: list[None]) -> None:
    as_list = schema.endswith("[]")
    name = define(
        f"schema_{as_list}({schema}", lambda x, s=2.0: [x * 2, x * 3] if as_list else x * s
    )
    register_autograd(name, lambda ctx, grad: 2 * grad[0] if as_list else 2 * grad)
    (x,) = inputs((2, 3))
    op = getattr(ops, f"schema_{as_list}")
    op(x)
    assert not entered
    output = op(x.requires_grad_())
    assert entered
    (output[0] if as_list else output).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2))


def test_lists_of_tensors_need_the_kernel(entered: list[None]) -> None:
    name = define("doubled_first(Tensor[] xs) -> Tensor", lambda xs: xs[0] * 2)
    register_autograd(name, lambda ctx, grad: [2 * grad])
    (x,) = inputs((2, 3), requires_grad=True)
    ops.doubled_first([x]).sum().backward()
    assert entered
    torch.testing.assert_close(x.grad, torch.full_like(x, 2))


def test_once_a_graph_had_tangents(entered: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_mode, "graphs_have_tangents", True)
    (x,) = inputs((2, 3))
    ops.doubled(x)
    assert entered


def test_function_modes_differentiate_what_they_do() -> None:
    (x,) = inputs((2, 3))
    assert within(Function(), lambda: ops.doubled(x)).requires_grad


def test_hooks_see_what_a_direct_call_saves(entered: list[None]) -> None:
    x, w = inputs((2, 3), (2, 3), requires_grad=True)
    with lossy_hooks():
        output = ops.doubled(x, w)
    assert not entered
    assert all(g.count_nonzero() == 0 for g in torch.autograd.grad(output.sum(), (x, w)))


# ----- and nobody can tell


def excluded() -> int:
    return torch._C._dispatch_tls_local_exclude_set().raw_repr()


def test_what_is_left_out_is_as_before() -> None:
    (x,) = inputs((2, 3))
    before = excluded()
    ops.doubled(x)
    ops.doubled(x.requires_grad_())
    with pytest.raises(RuntimeError):
        ops.doubled("text")
    ops.fill_two(x.detach(), torch.empty_like(x))
    with pytest.raises(RuntimeError):
        ops.fill_two(x.detach(), x.new_empty(4))
    assert excluded() == before
    with torch._C._AutoDispatchBelowAutograd():
        inside = excluded()
        ops.doubled(x)
        assert excluded() == inside != before


@pytest.mark.parametrize(
    "arguments",
    [(), ("text",), (None,), (1.0,), (..., 1.0), (..., None, "text"), (..., None, 1.0, 2)],
    ids=str,
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_wrong_arguments_raise_what_the_dispatcher_says(
    arguments: tuple[Any, ...], requires_grad: bool
) -> None:
    (x,) = inputs((2, 3), requires_grad=requires_grad)
    given = [x if argument is ... else argument for argument in arguments]
    with pytest.raises((RuntimeError, TypeError, AttributeError)) as expected:
        ops.doubled.op(*given)
    with pytest.raises(expected.type) as actual:
        ops.doubled(*given)
    assert str(actual.value) == str(expected.value)


def test_the_packet_stays_what_it_was() -> None:
    LIBRARY.define("unregistered(Tensor x) -> Tensor")
    LIBRARY.impl("unregistered", torch.clone, "CPU")
    packet = ops.unregistered
    before = {packet: str(packet)}
    register_autograd(f"{NAMESPACE}::unregistered", lambda ctx, grad: grad)
    assert ops.unregistered is packet
    assert copy.deepcopy(packet) is packet
    assert before[ops.unregistered] == str(packet) == "library_test.unregistered"
    assert isinstance(packet, torch._ops.OpOverloadPacket)
    assert torch.jit._builtins._find_builtin(packet.op) == "library_test::unregistered"


def test_names_with_several_overloads_are_left_alone() -> None:
    define("overloaded(Tensor x) -> Tensor", torch.clone)
    LIBRARY.define("overloaded.scalar(Tensor x, float s) -> Tensor")
    LIBRARY.impl("overloaded.scalar", lambda x, s: x * s, "CPU")
    register_autograd(f"{NAMESPACE}::overloaded", lambda ctx, grad: grad)
    assert type(ops.overloaded) is torch._ops.OpOverloadPacket
    (x,) = inputs((2, 3))
    assert torch.equal(ops.overloaded(x, 2.0), 2 * x)


def test_an_operator_without_a_formula_says_so_in_backward(entered: list[None]) -> None:
    name = define("formulaless(Tensor x) -> Tensor", torch.clone)
    register_no_autograd(name)
    (x,) = inputs((2, 3), requires_grad=True)
    output = ops.formulaless(x)
    assert not entered
    with pytest.raises(RuntimeError, match="no derivative formula"):
        output.sum().backward()


def test_a_namespace_is_what_it_was_but_finds_operators_directly() -> None:
    namespace = getattr(torch.ops, NAMESPACE)
    assert namespace is ops
    assert isinstance(namespace, torch._ops._OpNamespace)
    assert type(namespace).__getattribute__ is object.__getattribute__
    assert "doubled" in dir(namespace)
    define("defined_later(Tensor x) -> Tensor", torch.clone)
    assert namespace.defined_later.default.__module__ == f"torch._ops.{NAMESPACE}"
    with pytest.raises(AttributeError, match=f"'{NAMESPACE}' object has no attribute 'nonsense'"):
        _ = namespace.nonsense
    # Others' namespaces are left alone.
    assert type(torch.ops.aten) is torch._ops._OpNamespace


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("key", [DispatchKey.AutogradFunctionality, DispatchKey.ADInplaceOrView])
@pytest.mark.parametrize("leaving", [True, False])
def test_an_interrupt_leaves_nothing_out(
    leaving: bool, key: DispatchKey, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler may raise when any call returns: also one that leaves a key out or in."""
    x, out = inputs((3,), (3,))
    before = excluded()

    def interrupted(left_out: Any, excluded: bool) -> None:
        set_excluded(left_out, excluded)
        if excluded == leaving and left_out == key:
            raise KeyboardInterrupt

    def call() -> None:
        ops.fill_two(x, out) if written else ops.doubled(x)

    monkeypatch.setattr(forward_mode, "graphs_have_tangents", False)
    monkeypatch.setattr(direct, "set_excluded", interrupted)
    if written or key == DispatchKey.AutogradFunctionality:
        with pytest.raises(KeyboardInterrupt):
            call()
    else:
        call()
    assert excluded() == before
