"""What the battery cannot say of reduce_sum and fused_layer_norm in general."""

import itertools

import pytest
import torch
from torch import nn

from extension_cpp.nn import FusedLayerNorm
from extension_cpp.operators.fused_layer_norm.spec import op_reference
from extension_cpp.ops import fused_layer_norm, reduce_sum
from extension_cpp.testing import devices

on_each_device = pytest.mark.parametrize("device", devices())


@on_each_device
@pytest.mark.parametrize("cols", [1000, 4096, 5001, 70001])
def test_a_mean_far_from_zero_costs_the_layer_norm_no_accuracy(device, cols):
    torch.manual_seed(0)
    x = (torch.randn(8, cols) + 1e4).to(device)
    output, mean, rstd = torch.ops.extension_cpp.fused_layer_norm(x, None, None, 1e-5)
    for actual, expected in zip(
        (output, mean, rstd), op_reference(x.double(), eps=1e-5), strict=True
    ):
        # A mean that is rounded to float32, with steps of 0.001 here, would show as errors of 5e-4.
        torch.testing.assert_close(actual.double(), expected, rtol=2e-6, atol=2e-6)


@on_each_device
@pytest.mark.parametrize("cols", [5, 16, 17, 64, 256, 1000, 4095, 100001])
@pytest.mark.parametrize("first", [3.0, 4.0, 1e3, 1e6, 1.5e19, 1e38, -3e38])
def test_a_first_element_far_from_the_others_costs_the_layer_norm_no_accuracy(device, first, cols):
    torch.manual_seed(0)
    x = torch.randn(9, cols)  # as many in a warp as have nothing of the kind
    x[::2, 0] = first
    mean, rstd = torch.ops.extension_cpp.fused_layer_norm(x.to(device), None, None, 1e-5)[1:]
    exact = x.double()
    variance = exact.var(-1, correction=0)
    # To within rounding of the elements that are summed.
    error = (mean.cpu().double() - exact.mean(-1)).abs()
    assert (error <= 1e-7 * variance.sqrt() + 2e-6 * exact.mean(-1).abs() + 1e-7).all()
    # Squares that overflow count as infinite, as in PyTorch.
    expected = (variance + 1e-5).rsqrt() if abs(first) < 1e38 else torch.zeros_like(variance)
    rows = slice(None) if abs(first) < 1e38 else slice(None, None, 2)
    torch.testing.assert_close(rstd.cpu().double()[rows], expected[rows], rtol=3e-6, atol=0)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [4099, 8501, 34001])
@pytest.mark.parametrize("cols", [16, 64, 256, 512, 1024])
def test_a_layer_norm_of_many_short_rows(device, dtype, rows, cols):
    torch.manual_seed(0)
    if device == "cpu":
        rows //= 16  # to whose threads it is the same
    x = torch.randn(rows, cols, device=device).to(dtype)
    weight, bias = torch.randn(2, cols, device=device)
    for w, b in ((None, None), (weight.to(dtype), bias.to(dtype)), (weight, bias), (weight, None)):
        results = torch.ops.extension_cpp.fused_layer_norm(x, w, b, 1e-5)
        exact = [None if t is None else t.double() for t in (w, b)]
        expected = op_reference(x.double(), *exact, eps=1e-5)
        for actual, wanted in zip(results, expected, strict=True):
            error = max(torch.finfo(actual.dtype).eps, 2e-6)
            torch.testing.assert_close(actual.double(), wanted, rtol=error, atol=2 * error)


@on_each_device
@pytest.mark.parametrize("shape", [(3, 8), (9, 64), (1, 100000), (500, 100000)])
def test_the_mean_of_a_row_with_an_infinity_is_one_however_rows_are_cut(device, shape):
    x = torch.ones(shape)
    x[0, 5], x[-1, 6] = torch.inf, torch.inf
    mean = torch.ops.extension_cpp.fused_layer_norm(x.to(device), None, None, 1e-5)[1]
    torch.testing.assert_close(mean.cpu(), x.mean(-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1016, 1024, 1032, 1800, 32760, 32768, 32776])
@pytest.mark.parametrize("offset", [0, 1])
def test_on_the_cpu_a_row_is_the_same_alone_as_among_others(dtype, size, offset):
    # From 1 to 32 KiB they are written block by block, and the next one is sent for.
    torch.manual_seed(0)
    cols = size // dtype.itemsize
    x, grad = torch.randn(2, 5 * cols + offset).to(dtype)[:, offset:].view(2, 5, cols)
    weight, bias = torch.randn(2, cols).to(dtype)
    x[1, -1], x[3, cols // 2] = torch.nan, torch.inf

    def run(x, grad):
        output, *saved = torch.ops.extension_cpp.fused_layer_norm(x, weight, bias, 1e-5)
        grads = torch.ops.extension_cpp.fused_layer_norm_backward(grad, x, *saved, weight, bias)
        return [output, grads[0]], grads[1:]

    together, _ = run(x, grad)
    alone = [run(x[k : k + 1], grad[k : k + 1])[0] for k in range(5)]
    for whole, rows in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(whole, torch.cat(rows), rtol=0, atol=0, equal_nan=True)
        assert whole[[0, 2, 4]].isfinite().all()
    finite = x[::2].double().requires_grad_()
    parameters = [t.double().requires_grad_() for t in (weight, bias)]
    expected = nn.functional.layer_norm(finite, (cols,), *parameters)
    (output, grad_x), sums = run(x[::2], grad[::2])
    references = torch.autograd.grad(expected, (finite, *parameters), grad[::2].double())
    tolerance = 0.02 if dtype.itemsize == 2 else 1e-4
    for actual, reference in zip((output, grad_x, *sums), (expected, *references), strict=True):
        torch.testing.assert_close(actual, reference.to(dtype), rtol=tolerance, atol=tolerance)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5000])
def test_a_row_of_one_feature_has_no_gradient(device, dtype, rows):
    torch.manual_seed(0)
    x, weight, grad = (
        torch.randn(shape).to(device, dtype) for shape in ((rows, 1), (1,), (rows, 1))
    )
    x.requires_grad_()
    fused_layer_norm(x, weight).backward(grad)
    assert x.grad.count_nonzero() == 0
    # As a function of its five inputs the backward operator has one, where mean is not input's.
    mean, rstd = torch.zeros(rows, device=device), torch.full((rows,), 2.0, device=device)
    if dtype == torch.float32:
        actual = torch.ops.extension_cpp.fused_layer_norm_backward(grad, x, mean, rstd, weight)[0]
        expected = -2 * (2 * x) ** 2 * grad * weight
        torch.testing.assert_close(actual, expected)


@on_each_device
def test_the_layer_norm_has_right_third_derivatives(device):
    # torch.nn.functional.layer_norm has not. The statistics take part, too.
    def thirds(op):
        torch.manual_seed(0)
        x, w, b = (
            torch.randn(*shape, dtype=torch.float64, device=device, requires_grad=True)
            for shape in ((4, 6), (6,), (6,))
        )
        results = []
        grads = list(op(x, w, b, 0.1))
        for _ in range(3):
            value = sum((g * torch.randn(g.shape).to(g)).sum() for g in grads)
            grads = torch.autograd.grad(value, (x, w, b), create_graph=True, materialize_grads=True)
            results += grads
        return results

    expected = thirds(op_reference)
    for actual, e in zip(thirds(torch.ops.extension_cpp.fused_layer_norm), expected, strict=True):
        torch.testing.assert_close(actual, e, rtol=1e-9, atol=1e-9)


@on_each_device
def test_a_layer_norm_of_no_features_or_no_rows_gives_no_nan(device):
    _, mean, rstd = torch.ops.extension_cpp.fused_layer_norm(
        torch.empty(3, 0, device=device), None, None, 0.25
    )
    assert mean.tolist() == [0, 0, 0]
    assert rstd.tolist() == [2, 2, 2]
    w = torch.ones(5, device=device, requires_grad=True)
    fused_layer_norm(torch.empty(0, 5, device=device), w, w).sum().backward()
    assert w.grad.tolist() == [0] * 5


@on_each_device
def test_the_mean_of_no_features_has_second_derivatives(device):
    x = torch.empty(3, 0, device=device, requires_grad=True)
    cotangent = torch.ones(3, device=device, requires_grad=True)
    _, mean, _ = torch.ops.extension_cpp.fused_layer_norm(x)
    (grad,) = torch.autograd.grad(mean, x, cotangent, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), cotangent)
    assert second.tolist() == [0, 0, 0]


@on_each_device
def test_a_layer_norm_of_no_rows_takes_no_memory(device):
    x = torch.empty(0, 2**55, device=device, requires_grad=True)
    output = fused_layer_norm(x)
    assert output.shape == torch.autograd.grad(output.sum(), x)[0].shape == (0, 2**55)


@on_each_device
@pytest.mark.parametrize(
    "options",
    [{}, {"eps": 0.5}, {"bias": False}, {"elementwise_affine": False}],
    ids=["default", "eps", "no bias", "not affine"],
)
@pytest.mark.parametrize("shape", [6, (6,), (4, 6), (3, 4, 6)])
def test_the_layer_replaces_that_of_pytorch(device, shape, options):
    torch.manual_seed(0)
    theirs = nn.LayerNorm(shape, device=device, dtype=torch.float64, **options)
    ours = FusedLayerNorm(shape, device=device, dtype=torch.float64, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    assert ours.load_state_dict(theirs.state_dict(), strict=True)
    # Later versions of torch tell whether there is a bias, too.
    assert repr(ours).startswith(repr(theirs).replace("LayerNorm", "FusedLayerNorm")[:-1])
    x = torch.randn(2, 3, 4, 12, dtype=torch.float64, device=device)[..., ::2]
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("make", [torch.jit.script, torch.fx.symbolic_trace])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}], ids=str)
@pytest.mark.parametrize("shape", [4, (3, 4)])
def test_the_layer_can_be_scripted_and_traced(make, shape, options):
    layer = FusedLayerNorm(shape, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    made = make(layer)
    x = torch.randn(2, 3, 4)
    assert torch.equal(made(x), layer(x))
    with pytest.raises(Exception, match="FusedLayerNorm: the last dimensions of input must be"):
        made(torch.randn(2, 4, 3))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (FusedLayerNorm(4), (3, 5)),
        (FusedLayerNorm((3, 4)), (2, 4, 3)),
        (FusedLayerNorm((3, 4)), (4,)),
    ],
)
def test_the_layer_names_the_shape_it_expects(layer, shape):
    with pytest.raises(RuntimeError, match=r"FusedLayerNorm: the last dimensions of input must be"):
        layer(torch.ones(shape))


def test_backward_operators_check_the_examples_of_a_batch():
    ones = torch.ones
    operators = torch.ops.extension_cpp
    with pytest.raises(
        RuntimeError,
        match=r"affine_backward: a must broadcast to grad_output of shape \(3, 4\), got \(2, 2\)",
    ):
        torch.vmap(operators.affine_backward)(ones(5, 3, 4), ones(5, 2, 2), ones(5, 3, 4))
    with pytest.raises(RuntimeError, match=r"fused_layer_norm_backward: weight must have shape"):
        torch.vmap(operators.fused_layer_norm_backward)(
            ones(5, 3, 4), ones(5, 3, 4), ones(5, 3), ones(5, 3), ones(5)
        )


def test_a_batch_may_be_empty():
    x, weights = torch.ones(3, 4), torch.ones(0, 4)
    grad = torch.func.grad(lambda w: fused_layer_norm(x, w).sum())
    assert torch.vmap(grad)(weights).shape == (0, 4)
    assert torch.vmap(reduce_sum)(weights).shape == (0,)


def test_the_layer_takes_the_shapes_that_pytorchs_takes():
    number = pytest.importorskip("numpy").int64(6)
    for shape in (number, (2, number), [2, 6], torch.Size([2, 6])):
        assert FusedLayerNorm(shape).normalized_shape == nn.LayerNorm(shape).normalized_shape
    layer = FusedLayerNorm(6)
    layer.normalized_shape = [4, 6]  # by whoever changes a layer
    layer.weight = layer.bias = None
    x = torch.randn(2, 4, 6)
    torch.testing.assert_close(layer(x), nn.functional.layer_norm(x, (4, 6)))
    with pytest.raises(ValueError, match="normalized_shape must name at least one dimension"):
        FusedLayerNorm(())


@on_each_device
@pytest.mark.parametrize("dim", [None, (0,), (1,), (0, 2)])
def test_long_sums_lose_no_accuracy(device, dim):
    x = torch.full((500, 4000, 3), 0.1, device=device)
    expected = reduce_sum(x.double(), dim)
    # Added one after the other they would be off by 4e-5 at 4000 terms, by 2e-2 at 6 million.
    torch.testing.assert_close(reduce_sum(x, dim).double(), expected, rtol=1e-5, atol=0)
    half = x.bfloat16()
    expected = reduce_sum(half.double(), dim).bfloat16()
    torch.testing.assert_close(reduce_sum(half, dim), expected, rtol=0, atol=0)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(70, 4096), (3, 50000), (200, 4095), (2, 70, 96)], ids=str)
def test_sums_of_tensors_that_begin_anywhere(device, shape, dtype):
    torch.manual_seed(0)
    numel = torch.Size(shape).numel()
    # Between numbers that would show in a sum. Whole numbers, of which every sum is exact.
    memory = torch.full((numel + 24,), 1024.0)
    values = torch.randint(-1, 3, (numel,))
    for first in range(9):
        memory[first : first + numel] = values
        x = memory.to(device, dtype)[first : first + numel].view(shape)
        for dim in (None, *range(len(shape))):
            exact = x.double().sum() if dim is None else x.double().sum(dim)
            assert torch.equal(reduce_sum(x, dim), exact.to(dtype)), (first, dim)
        memory[first] = 1024.0


# Of a GPU's kernels: so many columns that a thread has its own, of a few rows and of many; many
# columns; few, whose rows blocks share in a cluster, a small and a large one; fewer still, of which
# there are partial sums; rows that are not whole accesses, some of which have no whole strip; rows
# too long to be kept.
@on_each_device
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((3, 70000), 0),
        ((21, 19, 1032), 1),
        ((33, 300000), 0),
        ((400, 261, 256), 1),
        ((257, 40960), 0),
        ((2051, 1024), 0),
        ((5003, 4096), 0),
        ((3, 5003, 1024), 1),
        ((40001, 256), 0),
        ((5003, 1025), 0),
        ((2051, 143), 0),
        ((131, 3002), 0),
        ((600, 40000), 1),
        ((2, 9999, 512), (0, 2)),
    ],
    ids=str,
)
def test_sums_of_large_tensors(device, shape, dim, dtype):
    check_sums_of_large_tensors(device, shape, dim, dtype)


# From 128 MiB on, these are left to strips of a warp.
@on_each_device
def test_sums_of_many_long_rows(device):
    check_sums_of_large_tensors(device, (16411, 4096), 0, torch.bfloat16)


def check_sums_of_large_tensors(device, shape, dim, dtype):
    torch.manual_seed(0)
    # Whole numbers, of which every sum is exact.
    x = torch.randint(-1, 3, shape, device=device, dtype=torch.int8).to(dtype)
    exact = x.double().sum(dim).to(dtype)
    assert torch.equal(reduce_sum(x, dim), exact)
    # An infinity and a NaN stay in their columns.
    x.view(-1)[:: x.numel() // 5 + 1] = torch.inf
    x.view(-1)[-1] = torch.nan
    torch.testing.assert_close(
        reduce_sum(x, dim), x.double().sum(dim).to(dtype), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype):
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            bits = []
            for shape in ((3, 70001), (5000, 40), (600, 1000)):
                x, g = torch.randn(2, *shape).to(dtype)
                w = torch.randn(shape[-1:]).to(dtype)
                bits += [reduce_sum(x), reduce_sum(x, 0), reduce_sum(x, 1)]
                outputs = torch.ops.extension_cpp.fused_layer_norm(x, w, w)
                bits += outputs
                bits += torch.ops.extension_cpp.fused_layer_norm_backward(g, x, *outputs[1:], w, w)
            results.append(bits)
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@on_each_device
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_autocast_gives_the_dtypes_that_pytorch_gives(device, lower):
    w = torch.ones(8, device=device)
    for dtype in (lower, torch.float32):
        x = torch.ones(4, 8, device=device, dtype=dtype)
        with torch.autocast(device, dtype=lower):
            assert reduce_sum(x, -1).dtype == torch.sum(x, -1).dtype
            theirs = nn.functional.layer_norm(x, (8,), w, w)
            assert fused_layer_norm(x, w, w).dtype == theirs.dtype


@pytest.mark.parametrize("keepdim", [False, True])
def test_dimensions_are_those_of_pytorch(keepdim):
    x = torch.randn(2, 3, 1, 4, dtype=torch.float64)
    for count in range(5):
        for dim in itertools.permutations(range(-2, 2), count):
            expected = torch.sum(x, dim, keepdim)
            torch.testing.assert_close(reduce_sum(x, dim, keepdim), expected)
    torch.testing.assert_close(reduce_sum(x, 1, keepdim), torch.sum(x, 1, keepdim))
    torch.testing.assert_close(reduce_sum(x, None, keepdim), torch.sum(x, (), keepdim))


def test_a_dimension_may_be_any_integer():
    numpy = pytest.importorskip("numpy")
    x = torch.randn(3, 4)
    for dim in (numpy.int64(1), numpy.int32(-1), True, torch.tensor(1), (numpy.int64(1),)):
        assert torch.equal(reduce_sum(x, dim), reduce_sum(x, 1))
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        reduce_sum(x, 1.0)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_no_element_is_left_out_of_a_sum_or_counted_twice(device, dtype):
    # Of every length up to several vectors, and of lengths around the segments of long rows.
    for length in [*range(1, 200), 16383, 16384, 16385, 32769, 70001]:
        along = torch.zeros(length, 3, dtype=dtype, device=device)
        along[:: max(1, length // 1000)] = 1  # integers that every dtype has
        expected = along.double().sum(0).to(dtype)
        assert torch.equal(reduce_sum(along.t().contiguous(), [1]), expected), length
        assert torch.equal(reduce_sum(along, [0]), expected), length
        across = along.t().contiguous()
        assert torch.equal(reduce_sum(across, [0]), 3 * along[:, 0]), length
