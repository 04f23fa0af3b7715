"""register_mutation: writes are seen, and no derivative is lost through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scratch import ROOT, package, python
from small_operators import (
    LIBRARY,
    MYADD_ERROR,
    MYADD_LEAF_ERROR,
    NAMESPACE,
    TRANSFORMS,
    define,
    inputs,
    ops,
)
from torch import Tensor
from torch.autograd import forward_ad as fwAD
from torch.func import (
    grad,
    jvp,
    vmap,
)

from extension_cpp.registration import (
    register_mutation,
)


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


def test_mutation_of_lists_under_inductor() -> None:
    """Of which an element is read before the write, and in it."""

    def kernel(xs: list[Tensor], ys: list[Tensor], out: Tensor | None = None) -> None:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            for x, y in zip(xs, ys, strict=True):
                x.add_(y)
            if out is not None:
                out.copy_(xs[0])

    name = define(
        "add_each(Tensor(a!)[] xs, Tensor[] ys, Tensor(b!)? out=None) -> ()",
        kernel,
        lambda *_, **__: None,
    )
    register_mutation(name)

    def program(x: Tensor, y: Tensor, z: Tensor, given: bool) -> Any:
        d = x - y
        ops.add_each([x, y], [d * 0.5, y], z if given else None)
        return d * d, x * 2, y.sin()

    for given in (True, False):
        results = []
        for run in (program, torch.compile(program, fullgraph=True)):
            tensors = inputs((4, 3), (4, 3), (4, 3))
            results.append((*run(*tensors, given), *tensors))
        torch.testing.assert_close(*results)


def whole(x: Tensor) -> Tensor:
    return x


def first_rows(x: Tensor) -> Tensor:
    return x[:2]


@pytest.mark.parametrize("part", [whole, first_rows])
@pytest.mark.parametrize("says_bases", [True, False])
def test_gradients_around_a_mutation_under_inductor(part: Any, says_bases: bool) -> None:
    """However the operator is functionalised."""

    def program(mean: Tensor, x: Tensor, w: Tensor) -> Tensor:
        d = x @ w - mean
        written = part(mean)
        with torch.no_grad():
            ops.myadd_out(written, part(d) * 0.1, written)
        return (d * d * mean).sum()

    results = []
    with torch._inductor.config.patch(enable_auto_functionalized_v2=says_bases):
        for run in (program, torch.compile(program, fullgraph=True)):
            mean, x, w = inputs((4, 3), (4, 2), (2, 3))
            gradients = torch.autograd.grad(run(mean, x, w.requires_grad_()), w)
            results.append((*gradients, mean))  # the backward writes nothing to it
    torch.testing.assert_close(*results)


# In a process of its own: this one has no caches.
CACHED_FORWARD = """
import torch, extension_cpp
from torch._dynamo.utils import counters

def program(mean, x, w):
    d = x @ w - mean
    with torch.no_grad():
        torch.ops.extension_cpp.myadd_out(mean, d * 0.1, mean)
    return (d * d * mean).sum()

def arguments(seed):
    torch.manual_seed(seed)
    return torch.randn(4, 3), torch.randn(4, 2), torch.randn(2, 3, requires_grad=True)

compiled = torch.compile(program, fullgraph=True)
compiled(*arguments(0))
torch._dynamo.reset()
results = []
for run in program, compiled:
    mean, x, w = arguments(1)
    results.append((*torch.autograd.grad(run(mean, x, w), w), mean))
assert counters["inductor"]["fxgraph_cache_hit"] == 1
torch.testing.assert_close(*results)
"""


def test_gradients_around_a_mutation_of_a_forward_in_the_cache(tmp_path: Any) -> None:
    """Compiled before, without its backward: it is not lowered again."""
    env = {
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",
    }
    ended = python("-c", CACHED_FORWARD, cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stdout


def test_mutation_in_an_exported_program_under_inductor(tmp_path: Any) -> None:
    class Program(torch.nn.Module):
        def forward(self, out: Tensor, x: Tensor) -> Tensor:
            return read_before(out, x)

    out, x = inputs((4, 3), (4, 3))
    expected_out = out.clone()
    expected = read_before(expected_out, x)
    exported = torch.export.export(Program(), (out.clone(), x))
    packaged = package(exported, tmp_path / "program.pt2")
    torch.testing.assert_close(torch._inductor.aoti_load_package(packaged)(out, x), expected)
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


def test_torch_itself_saves_what_was_cloned_before_a_write_wrongly() -> None:
    # When this fails, PyTorch has mended it: compare ours with eager in its place, and take the
    # sentence out of register_mutation's docstring.
    def program(out: Tensor, x: Tensor) -> Tensor:
        before = out.clone()
        with torch.no_grad():
            out.copy_(out + before)
        return before * x

    ones = torch.ones(3)
    gradients = []
    for run in (program, torch.compile(program, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        gradients += torch.autograd.grad(run(ones.clone(), x).sum(), x)
    eager, compiled = gradients
    torch.testing.assert_close(eager, ones)
    torch.testing.assert_close(compiled, 2 * ones)
