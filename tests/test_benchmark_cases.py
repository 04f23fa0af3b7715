"""The calls of the worked operators that the benchmark times, and its ways to other libraries."""

import contextlib
import gc
import sys
import types

import pytest
import torch
from scratch import ROOT
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from extension_cpp.operators.add_rms_norm import benchmark as add_rms_norm_benchmark
from extension_cpp.operators.add_rms_norm.spec import spec as add_rms_norm
from extension_cpp.operators.affine.spec import spec as affine
from extension_cpp.operators.fused_layer_norm import benchmark as layer_norm_benchmark
from extension_cpp.operators.fused_layer_norm.spec import spec as fused_layer_norm
from extension_cpp.operators.fused_op.spec import spec as fused_op
from extension_cpp.operators.linear_scan import benchmark as linear_scan_benchmark
from extension_cpp.operators.linear_scan.spec import spec as linear_scan
from extension_cpp.operators.myadd_out.spec import spec as myadd_out
from extension_cpp.operators.mymul.spec import spec as mymul
from extension_cpp.operators.reduce_sum.spec import spec as reduce_sum
from extension_cpp.operators.vector_add.spec import spec as vector_add
from extension_cpp.testing import Sample

sys.path.insert(0, str(ROOT / "benchmarks"))

import cases
import contenders
import correctness
import run as benchmark

SHAPE = (6, 8)
ROW, COLUMN, SCALAR = (8,), (6, 1), ()
SMALLER = {
    "other operands rows": ROW,
    "other operands columns": COLUMN,
    "other operands scalars": SCALAR,
}


def realised(spec, shape=SHAPE):
    planned = cases.plan([spec], "cpu", cases.Shapes((shape,), (shape,)), ["float32"])
    return {cell.form: cases.realise(cell, "cpu") for cell in planned}


def shapes(call):
    return [tuple(t.shape) for t in call.sample.args if isinstance(t, torch.Tensor)]


def test_operands_are_rows_columns_and_scalars():
    found = realised(mymul)
    assert shapes(found[""]) == [SHAPE, SHAPE]
    for form, shape in SMALLER.items():
        assert shapes(found[form]) == [SHAPE, shape]
    # a, b and the output; the gradients of the output, a and b, and what is saved: a and b.
    traffic = found["other operands rows"].traffic(mymul)
    assert (traffic.forward, traffic.backward) == (4 * (48 + 8 + 48), 4 * (48 + 48 + 8 + 48 + 8))


def test_an_operator_that_broadcasts_does_so_itself():
    call = realised(vector_add)["other operands rows"]
    assert not call.expands
    assert call.of(vector_add.function) is vector_add.function
    assert shapes(call) == [SHAPE, ROW]


def test_where_an_operator_takes_one_shape_the_call_expands():
    call = realised(myadd_out)["other operands rows"]
    assert call.expands
    assert shapes(call) == [SHAPE, ROW, SHAPE]
    seen = call.of(lambda *args: [arg.shape for arg in args])(*call.sample.args)
    assert seen == [SHAPE] * 3


def test_what_is_written_to_stays_whole():
    found = realised(myadd_out)
    for form, shape in SMALLER.items():
        assert shapes(found[form]) == [SHAPE, shape, SHAPE]
        a, b, out = found[form].sample.args
        found[form].of(myadd_out.function)(a, b, out)
        assert torch.equal(out, a + b)
    # The last operand is b, not the one that is written to.
    strides = [t.stride() for t in found["last operand transposed"].sample.args]
    assert strides == [(8, 1), (1, 6), (8, 1)]


@pytest.mark.parametrize("spec", [affine, mymul, fused_layer_norm], ids=lambda spec: spec.name)
def test_misaligned_tensors_are_not_at_16_bytes(spec):
    call = realised(spec)["misaligned"]
    tensors = [t for t in call.sample.args if isinstance(t, torch.Tensor)]
    assert all(t.data_ptr() % 16 == 4 and t.is_contiguous() for t in tensors)
    assert all(t.requires_grad and t.is_leaf for t in tensors)


def test_one_operand_is_transposed():
    tensors = realised(affine)["last operand transposed"].sample.args
    assert [t.stride() for t in tensors] == [(8, 1), (8, 1), (1, 6)]
    assert "last operand transposed" not in realised(fused_layer_norm)


def test_an_operators_own_forms():
    found = {form: shapes(call) for form, call in realised(affine).items()}
    assert found["a[N], b[N]"] == [ROW, SHAPE, ROW]
    assert found["a[M, 1], b[N]"] == [COLUMN, SHAPE, ROW]
    assert found["a[], b[]"] == [SCALAR, SHAPE, SCALAR]
    assert not SMALLER.keys() & found.keys()


def test_sums_are_over_each_dimension_and_everywhere():
    assert list(realised(reduce_sum)) == ["all", "dim 0", "dim 1", "misaligned"]
    three = realised(reduce_sum, (3, 4, 5))
    assert list(three) == ["dim 0", "dim 1", "dim 2", "dim 0, 2", "dim 1, 2"]
    # No form is the plain one: all are timed where others have the plain one alone.
    planned = cases.plan([reduce_sum], "cpu", cases.Shapes((SHAPE,), ()), ["float32"])
    assert [cell.form for cell in planned] == ["all", "dim 0", "dim 1"]


def test_a_scan_has_a_reference_of_few_operations_and_contenders_of_its_own():
    assert [*realised(linear_scan)][:2] == ["", "dim 0"]
    assert [*realised(linear_scan, (3, 4, 5))] == ["dim 1"]
    assert cases.reference(affine) is affine.reference
    for shape in ((3, 4, 30), (2, 31, 3), (30, 1, 4), (3, 30)):
        for form, call in realised(linear_scan, shape).items():
            decay, input, *rest = (
                a.detach().double() if isinstance(a, torch.Tensor) else a for a in call.sample.args
            )
            quick = cases.reference(linear_scan)(decay, input, *rest)
            expected = linear_scan.reference(decay, input, *rest)
            torch.testing.assert_close(quick, expected, msg=form)
    found, _ = contenders.contenders(linear_scan, "cpu", ["eager"])
    long = torch.rand(2, 5000)
    with pytest.raises(RuntimeError, match="a loop over 5000 steps"):
        found["eager"](long, long)
    short = long.bfloat16()[:, :20]
    # The state is float32.
    exact = linear_scan.reference(short.double(), short.double()).bfloat16()
    torch.testing.assert_close(found["eager"](short, short), exact)


class Graph:
    """In place of a CUDA graph: notes operations, and does them again where their results are."""

    def __init__(self):
        self.work = []
        self.replays = 0

    def replay(self):
        self.replays += 1
        for func, args, kwargs, results in self.work:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.data.copy_(new)  # which autograd does not see either


class Capture(TorchDispatchMode):
    def __init__(self, graph, **_options):  # which differ from version to version
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        self.graph.work.append((func, args, kwargs or {}, results))
        return results


class OnCuda(torch.Tensor):
    """A tensor of the CPU that says it is elsewhere."""

    is_cuda = True
    device = torch.device("cuda")


@pytest.fixture
def graphs(monkeypatch):
    """PyTorch's own `make_graphed_callables` over `Graph`; returns those that were recorded."""
    made = []

    def graph():
        made.append(Graph())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda.graphs, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    yield made
    linear_scan_benchmark._graphs.clear()


def scan(dtype, shape, form=""):
    """A call of the scan, gradients for it, and what is right."""
    (cell,) = cases.plan([linear_scan], "cpu", cases.Shapes((shape,), (shape,)), [dtype], [form])
    sample = cases.realise(cell, "cpu").sample
    grads = correctness.cotangents(linear_scan, linear_scan.reference, sample)
    right = correctness.expected(linear_scan, linear_scan.reference, sample, grads)
    return sample, grads, right


def elsewhere(sample):
    decay, input, *rest = sample.args
    moved = (t.detach().as_subclass(OnCuda).requires_grad_() for t in (decay, input))
    return Sample(*moved, *rest)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["", "dim 0"])
def test_a_loop_on_a_gpu_is_recorded_once_and_replayed(dtype, form, graphs, monkeypatch):
    sample, grads, right = scan(dtype, (6, 9), form)
    sample = elsewhere(sample)
    loops = []
    loop = linear_scan_benchmark._loop

    def counted(*args, **kwargs):
        loops.append(1)
        return loop(*args, **kwargs)

    monkeypatch.setattr(linear_scan_benchmark, "_loop", counted)
    eager = contenders.contenders(linear_scan, "cuda", ["eager"])[0]["eager"]
    found = correctness.results(linear_scan, eager, sample, grads)
    assert correctness.mistake(found, right, 54) is None
    # Without and with gradients, each once to warm up and once to record.
    assert len(loops) == 4

    with torch.no_grad():
        forward = contenders.forward(eager, sample)
        forward()
        del loops[:]
        sample.args[1].mul_(0.5)
        assert_close(forward(), linear_scan.reference(*sample.args))
    backward = contenders.backward(eager, sample, grads)
    both = contenders.both(eager, sample, grads)
    plain = contenders.backward(loop, Sample(*sample.args[:2], None, sample.args[3]), grads)
    for call in (backward, backward, both, both, backward):
        for actual, expected in zip(call(), plain(), strict=True):
            assert_close(actual, expected)
    assert len(loops) == 2
    replayed = [graph.replays for graph in graphs[-2:]]
    assert replayed == [3, 5]


def assert_close(actual, expected):
    actual, expected = (t.detach().as_subclass(torch.Tensor) for t in (actual, expected))
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=2e-2, atol=1e-2)


def test_graphs_of_the_latest_loop_alone_are_kept(graphs):
    kept = linear_scan_benchmark._graphs
    eager = contenders.contenders(linear_scan, "cuda", ["eager"])[0]["eager"]
    first, second = (elsewhere(scan("float32", (6, 9))[0]) for _ in range(2))
    second.args[1].detach().neg_()
    # The gradients that are recorded are not of leaves that others may have used.
    first.args[0].register_hook(lambda grad: pytest.fail("a leaf of others"))
    result = eager(*first.args).clone()
    eager(*second.args)
    assert len(kept) == 1
    assert_close(eager(*first.args), result)
    long = torch.zeros(1, 8193).as_subclass(OnCuda)
    with pytest.raises(RuntimeError, match="a loop over 8193 steps"):
        eager(long, long)
    assert not kept
    eager(*second.args)
    assert len(kept) == 1
    del second
    gc.collect()
    assert not kept


@pytest.mark.parametrize(
    ("shape", "form", "dtype"),
    [
        # Each takes many seconds of tracing; the others are a part of the last.
        pytest.param((3, 7), "", "float64", marks=pytest.mark.slow),
        pytest.param((4, 3), "dim 0", "bfloat16", marks=pytest.mark.slow),
        ((2, 5, 3), "dim 1", "float32"),
    ],
)
def test_a_scan_that_is_compiled_has_a_backward(shape, form, dtype):
    sample, grads, right = scan(dtype, shape, form)
    torch.compiler.reset()
    compiled = torch.compile(
        linear_scan_benchmark.compiled, dynamic=False, fullgraph=True, backend="aot_eager"
    )
    found = correctness.results(linear_scan, compiled, sample, grads)
    assert correctness.mistake(found, right, 54) is None


# ----- other libraries


def two_kernels():
    """A module with QuACK's functions: the same arguments, results and refusals."""

    def layernorm_fwd(x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False):
        assert x.dim() == 2
        assert weight.dtype == torch.float32
        assert bias is None or bias.dtype == torch.float32
        wide = x.float()
        mean = wide.mean(-1)
        rstd = (wide.var(-1, correction=0) + eps).rsqrt()
        out = (wide - mean[:, None]) * rstd[:, None] * weight
        out = (out if bias is None else out + bias).to(x.dtype)
        if return_rstd and return_mean:
            return out, rstd, mean
        return out

    def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
        h, x_hat = dout.float() * weight, (x.float() - mean[:, None]) * rstd[:, None]
        mean_h, mean_hx = h.mean(-1, keepdim=True), (h * x_hat).mean(-1, keepdim=True)
        dx = ((h - mean_h - x_hat * mean_hx) * rstd[:, None]).to(x.dtype)
        return dx, (dout.float() * x_hat).sum(0), dout.float().sum(0) if has_bias else None

    module = types.ModuleType("quack.rmsnorm")
    module.layernorm_fwd, module.layernorm_bwd = layernorm_fwd, layernorm_bwd
    return module


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_kernels_become_a_layer(dtype, monkeypatch):
    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.rmsnorm", two_kernels())
    contender = layer_norm_benchmark.others["quack"]()
    (cell,) = cases.plan([fused_layer_norm], "cpu", cases.Shapes((SHAPE,), ()), [dtype])
    sample = cases.realise(cell, "cpu").sample
    grads = correctness.cotangents(fused_layer_norm, fused_layer_norm.reference, sample)
    right = correctness.expected(fused_layer_norm, fused_layer_norm.reference, sample, grads)
    assert len(right) == 5
    found = correctness.results(fused_layer_norm, contender, sample, grads)
    assert correctness.mistake(found, right, 48) is None


def test_the_residual_step_of_other_libraries(monkeypatch):
    def rmsnorm(x, weight=None, bias=None, residual=None, *, eps=1e-6, prenorm=False):
        assert bias is None
        assert prenorm  # the sum, too
        return add_rms_norm.counterpart(x, residual, weight, eps)

    def fused_add_rms_norm(X, R, W, eps=1e-6, offset=0.0, casting_mode="llama", in_place=False):
        assert not in_place  # a backward that is timed again finds its gradients as they were
        return add_rms_norm.counterpart(X, R, W, eps)

    (cell,) = cases.plan([add_rms_norm], "cpu", cases.Shapes((SHAPE,), ()), ["float32"])
    sample = cases.realise(cell, "cpu").sample
    grads = correctness.cotangents(add_rms_norm, add_rms_norm.reference, sample)
    right = correctness.expected(add_rms_norm, add_rms_norm.reference, sample, grads)
    for library, module, function in (
        ("quack", "quack.rmsnorm", rmsnorm),
        ("liger", "liger_kernel.functional", fused_add_rms_norm),
    ):
        for name in (module.partition(".")[0], module):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        setattr(sys.modules[module], function.__name__, function)
        contender = add_rms_norm_benchmark.others[library]()
        found = correctness.results(add_rms_norm, contender, sample, grads)
        assert correctness.mistake(found, right, 48) is None


def test_the_layer_of_another_library_is_its_own_choice_of_kernel(monkeypatch):
    module = types.ModuleType("liger_kernel.functional")
    module.layer_norm = lambda x, weight, bias, eps: ("theirs", eps)
    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.functional", module)
    (cell,) = cases.plan([fused_layer_norm], "cpu", cases.Shapes((SHAPE,), ()), ["float32"])
    sample = cases.realise(cell, "cpu").sample
    contender = layer_norm_benchmark.others["liger"]()
    assert contender(*sample.args, **sample.kwargs) == ("theirs", 0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("form", ["", "misaligned"])
def test_eager_is_right_about_fused_op(dtype, form):
    """Its rounding takes no element to the other side of relu's kink; nor is relu left out."""
    cell = cases.Cell(fused_op, form, (512, 2048), dtype)
    call = cases.realise(cell, "cpu")
    eager = contenders.contenders(fused_op, "cpu", ["eager"])[0]["eager"]
    grads = correctness.cotangents(fused_op, fused_op.reference, call.sample)
    found = {"eager": call.of(eager), "no relu": lambda x, bias, scale: x * scale + bias}
    failed = benchmark.compare(cell, call, found, grads)
    assert list(failed) == ["no relu"]
    with torch.no_grad():
        output = eager(*call.sample.args, **call.sample.kwargs)
    assert 0.3 < (output > 0).float().mean() < 0.7
