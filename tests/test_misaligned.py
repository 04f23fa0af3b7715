"""Rows that do not begin at a boundary of 16 bytes, or are not whole accesses."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from extension_cpp import ops
from extension_cpp.testing import devices

# Whole accesses, as many for each thread or not, and others, kept by a thread, a warp, a block,
# and read again.
COLS = (65, 96, 256, 257, 1001, 1024, 4096, 40000, 40003)
# So few that column sums begin each at another place between two boundaries, and more.
ROWS = (5, 83)
OFFSETS = ((0, 0), (0, 1), (1, 1), (3, 6))


def placed(values: Tensor, offset: int) -> Tensor:
    """The same values in memory that begins `offset` elements after a boundary."""
    memory = values.new_empty(values.numel() + offset)
    return memory[offset:].view(values.shape).copy_(values)


def places(device, dtype):
    """Two matrices, where each is that lies as said, and one of whole rows beside them."""
    torch.manual_seed(0)
    for rows, cols, offsets in itertools.product(ROWS, COLS, OFFSETS):
        values = [torch.randn(rows, cols, device=device, dtype=dtype) for _ in range(2)]
        yield [placed(*pair) for pair in zip(values, offsets, strict=True)]


def check(actual: Tensor, expected: Tensor, terms: int = 1) -> None:
    """`expected` is of float64; of a sum of so many terms that are about 1."""
    eps = torch.finfo(actual.dtype).eps
    bound = 4 * eps * max(1.0, expected.abs().max().item()) + 4 * 1.2e-7 * terms
    assert (actual.double() - expected).abs().max().item() <= bound


def check_with_gradients(
    actual: Tensor,
    expected: Tensor,
    inputs: list[Tensor],
    doubles: list[Tensor],
    grad: Tensor,
    terms: int = 1,
) -> None:
    """The values, and the gradients of the inputs, whose sums are of so many terms."""
    check(actual, expected)
    found = torch.autograd.grad(actual, inputs, grad)
    references = torch.autograd.grad(expected, doubles, grad.double())
    for gradient, reference in zip(found, references, strict=True):
        check(gradient, reference, terms)


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_layer_norm(device, dtype):
    for x, grad in places(device, dtype):
        cols = x.shape[1]
        parameters = [torch.randn(cols, device=device, dtype=dtype) for _ in range(2)]
        inputs = [t.requires_grad_() for t in (x, *parameters)]
        doubles = [t.detach().double().requires_grad_() for t in inputs]
        actual = ops.fused_layer_norm(*inputs)
        expected = F.layer_norm(doubles[0], (cols,), *doubles[1:])
        check_with_gradients(actual, expected, inputs, doubles, grad, terms=100)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_op(device, dtype):
    for x, grad in places(device, dtype):
        bias = torch.randn(x.shape[1], device=device, dtype=dtype)
        # No element at the kink, nor so near that rounding takes it to the other side.
        x = torch.where((x * 1.5 + bias).abs() < 0.05, torch.ones_like(x) - bias, x)
        inputs = [placed(x, 3).requires_grad_(), bias.requires_grad_()]
        doubles = [t.detach().double().requires_grad_() for t in inputs]
        actual = ops.fused_op(*inputs, 1.5)
        expected = torch.relu(doubles[0] * 1.5 + doubles[1])
        check_with_gradients(actual, expected, inputs, doubles, grad, terms=100)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm(device, dtype):
    for x, residual in places(device, dtype):
        weight = torch.randn(x.shape[1], device=device, dtype=dtype)
        normalised, total = ops.add_rms_norm(x, residual, weight)
        assert torch.equal(total, x + residual)
        check(normalised, F.rms_norm(total.double(), (x.shape[1],), weight.double(), 1e-6))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduce_sum(device, dtype):
    for x, _ in places(device, dtype):
        for dim in (0, 1, (0, 1)):
            expected = x.double().sum(dim)
            check(ops.reduce_sum(x, dim), expected, terms=x.numel())


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_cross_entropy(device, dtype):
    for logits, grad in places(device, dtype):
        target = torch.randint(logits.shape[1], logits.shape[:1], device=device)
        doubles = logits.double().requires_grad_()
        logits.requires_grad_()
        actual = ops.softmax_cross_entropy(logits, target)
        expected = F.cross_entropy(doubles, target, reduction="none")
        check_with_gradients(actual, expected, [logits], [doubles], grad[:, 0])


# Rows of 8 MiB, which a GPU normalises together, 128 MiB, whose rows it sends for ahead, and so
# many rows that none is cut.
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    ("shape", "dtype", "offset"),
    [
        ((3, 2**21), torch.float32, 0),
        ((3, 2**21 + 8), torch.float32, 0),
        ((2, 2**22 + 9), torch.bfloat16, 0),
        ((16389, 4095), torch.bfloat16, 1),
        ((8193, 4096), torch.float32, 0),
        ((8193, 4096), torch.float32, 1),
        # Read again, and shared by clusters.
        ((140, 50000), torch.bfloat16, 1),
        ((140, 28004), torch.float32, 1),
        ((140, 65536), torch.bfloat16, 1),
        ((140, 65536), torch.float32, 1),
        ((140, 131072), torch.bfloat16, 1),
    ],
    ids=str,
)
def test_large_rows_and_many(device, shape, dtype, offset):
    torch.manual_seed(0)
    if device == "cpu":
        shape = (min(shape[0], 1000), shape[1])
    x = placed(torch.randn(shape, device=device, dtype=dtype), offset)
    weight, bias = torch.randn(2, shape[1], device=device, dtype=dtype)
    expected = F.layer_norm(x.double(), shape[1:], weight.double(), bias.double())
    check(ops.fused_layer_norm(x, weight, bias), expected)
