"""More than 2^31 elements where tests/test_large.py has no sample: all reduced, or out of order."""

import pytest
import torch

from extension_cpp.ops import affine, reduce_sum

COLS = 4096
ROWS = (1 << 31) // COLS + 3
PIECE = 1 << 14  # rows that the reference computes at a time

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.mem_get_info()[1] < 40 << 30,
        reason="needs a GPU with 40 GB of memory",
    ),
]


@pytest.mark.parametrize("dim", [None, 0])
def test_reduce_sum(dim: int | None):
    x = torch.empty(ROWS, COLS, device="cuda").uniform_(-2, 2)
    total = torch.zeros(COLS, dtype=torch.float64, device="cuda")
    for start in range(0, ROWS, PIECE):
        total += x[start : start + PIECE].double().sum(0)
    expected = total.sum() if dim is None else total
    # Terms cancel, so that what counts is the error of float32 sums of many terms below 2.
    torch.testing.assert_close(reduce_sum(x, dim).double(), expected, rtol=1e-5, atol=1.0)


@pytest.mark.parametrize("count", [ROWS, ROWS + 5], ids=["any columns", "whole accesses"])
def test_affine_of_a_transposed_operand(count: int):
    half = {"device": "cuda", "dtype": torch.bfloat16}
    a = torch.empty(COLS, count, **half).uniform_(-2, 2).t()
    x = torch.empty(count, COLS, **half).uniform_(-2, 2)
    b = torch.empty(COLS, **half).uniform_(-2, 2)
    output = affine(a, x, b)
    for start in range(0, count, PIECE):
        rows = slice(start, start + PIECE)
        expected = a[rows].float() * x[rows].float() + b.float()
        torch.testing.assert_close(output[rows].float(), expected, rtol=2e-2, atol=2e-2)
