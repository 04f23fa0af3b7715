"""Row functors of tensors of several dtypes, of which no worked operator has one."""

import itertools
import random
from typing import Any

import pytest
import torch
from scratch import load_library
from test_mixed_dtypes import DTYPES, comparable, operand, sum_dtype
from torch import Tensor

from extension_cpp.testing import devices

# Rows of every length at which the loops change, and few and many of them.
SHAPES = [(3, 0), (0, 5), (4, 1), (70, 3), (33, 8), (9, 64), (130, 257), (70, 1024), (2, 3, 4099)]
SHAPES += [(3, 17000), (2, 40008), (1, 70001), (600, 16)]
# Those of a library that is optimised.
LONG = [(2, 262144), (1, 3000001), (140, 70000), (3, 65536)]


def rows_of(rng: random.Random, kinds: list[str], dtype: torch.dtype, shape: Any, device: str):
    return [operand(rng, kind, dtype, list(shape), device) for kind in kinds]


def same(results: tuple[Tensor, ...], expected: tuple[Tensor, ...], said: Any) -> None:
    for k, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        assert result.dtype == wanted.dtype, (said, k)
        assert torch.equal(comparable(result), comparable(wanted)), (said, k)


def compare_softmax(rows: Any, rng: random.Random, dtype: torch.dtype, shape: Any, device: str):
    x, mask = rows_of(rng, ["own", "mask"], dtype, shape, device)
    wanted = x.double().masked_fill(mask, -torch.inf).softmax(-1)
    rounding = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 0.01)
    result = rows.masked_softmax(x, mask)
    torch.testing.assert_close(
        result.double(), wanted, rtol=rounding, atol=rounding, equal_nan=True
    )


def compare_quantise(rows: Any, rng: random.Random, dtype: torch.dtype, shape: Any, device: str):
    (x,) = rows_of(rng, ["own"], dtype, shape, device)
    if x.size(-1) == 0:
        return
    x.select(-1, x.size(-1) // 2).copy_(torch.tensor(-127))  # a scale of 1
    codes, scales = rows.quantise(x)
    same((codes, scales), (x.to(torch.int8), torch.ones(x.shape[:-1], device=device)), shape)


def compare_kinds(rows: Any, rng: random.Random, dtype: torch.dtype, shape: Any, device: str):
    kinds = ["own", "index", "sum", "double"]
    x, k, s, d = rows_of(rng, kinds, dtype, shape, device)
    for weight in (None, "own", "sum"):
        w = None if weight is None else operand(rng, weight, dtype, [shape[-1]], device)
        weighted = s.double() * (1 if w is None else w.double())
        products = x.double() * s + d
        expected = (x.double() * k > weighted.sum(-1, True), d + k, products.to(dtype))
        same(rows.compared(x, k, s, d, w), expected, (shape, dtype, weight))


def compare_sums(rows: Any, rng: random.Random, dtype: torch.dtype, shape: Any, device: str):
    x, y, mask = rows_of(rng, ["own", "own", "mask"], dtype, shape, device)
    limit = operand(rng, "offset", dtype, list(shape[:-1]), device)
    there = y.double() * mask
    output = (x.double() - there.sum(-1, True)).to(dtype)
    over = (y.double() > limit.unsqueeze(-1)).to(torch.uint8)
    sums = (x.double() * there).flatten(0, -2).sum(0).to(sum_dtype(dtype))
    same(rows.masked_sums(x, y, mask, limit), (output, over, sums), (shape, dtype))


def compare_float8(rows: Any, rng: random.Random, dtype: torch.dtype, shape: Any, device: str):
    x, five, half = rows_of(rng, ["own", "five", "half"], dtype, shape, device)
    if x.size(-1) == 0:
        return
    codes = (x.double() - half).to(torch.float8_e4m3fn)
    largest = (x.double() + five.double() * half).amax(-1).float()
    same(rows.eights(x, five, half), (codes, largest), (shape, dtype))


COMPARED = (compare_softmax, compare_quantise, compare_kinds, compare_sums, compare_float8)


def compare(rows: Any, shapes: list[tuple[int, ...]], rounds: int) -> None:
    rng = random.Random(0)
    cases = itertools.product(devices(), DTYPES, shapes, COMPARED, range(rounds))
    for device, dtype, shape, compared, _ in cases:
        compared(rows, rng, dtype, shape, device)


# Also as for other processors than x86.
@pytest.fixture(scope="module", params=[True, False], ids=["blocks", "elements"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_library(
        "mixed_rows", tmp_path_factory.mktemp("mixed_rows"), has_blocks=request.param
    )


def test_rows_of_every_length_and_dtype(library: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "devices", lambda: ("cpu",))
    compare(library, SHAPES, 2)


def test_bytes_that_are_viewed_as_bools(library: Any):
    counts = torch.arange(600).to(torch.uint8).view(2, 300)
    x = torch.zeros(2, 300)
    wanted = x.masked_fill(counts.ne(0), -torch.inf).softmax(-1)
    torch.testing.assert_close(library.masked_softmax(x, counts.view(torch.bool)), wanted)


def test_a_dtype_that_the_functor_does_not_say(library: Any):
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError) as error:
        library.unfit_rows(x, x)
    assert str(error.value) == (
        "unfit_rows: the functor has torch.bool here, the tensor is torch.float32"
    )
    with pytest.raises(RuntimeError) as error:
        library.unfit_result(x, x > 0)
    assert str(error.value) == (
        "unfit_result: the functor has torch.float32 here, the tensor is torch.bool"
    )
