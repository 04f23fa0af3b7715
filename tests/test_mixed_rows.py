"""Row functors of tensors of several dtypes, of which no worked operator has one."""

import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from called import copies_in
from scratch import EVERY, load_library
from test_mixed_dtypes import DTYPES, comparable, operand, sum_dtype
from torch import Tensor

from extension_cpp.battery.layouts import strided
from extension_cpp.testing import devices

# Rows of every length at which the loops change, and few and many of them.
SHAPES = [
    (3, 0),
    (0, 5),
    (0, 2, 3, 5),
    (2, 0, 3, 5),
    (4, 1),
    (70, 3),
    (33, 8),
    (9, 64),
    (130, 257),
    (70, 1024),
    (2, 3, 4099),
]
SHAPES += [(3, 17000), (2, 40008), (1, 70001), (600, 16)]
# And of several dimensions.
SHAPES += [(2, 3, 0), (0, 3, 8), (3, 2, 4, 1), (2, 3, 5, 64), (2, 3, 4, 5, 33), (2, 2, 3, 2, 2, 16)]
# Those of a library that is optimised.
LONG = [(2, 262144), (1, 3000001), (140, 70000), (3, 65536)]
LONG += [(6, 16, 33, 256), (4, 6, 50, 577), (3, 2, 5, 4, 3, 1032), (2, 3, 131072)]


def rows_of(rng: random.Random, kinds: list[str], dtype: torch.dtype, shape: Any, device: str):
    def make(kind: str) -> Tensor:
        lies = operand if kind == "own" or rng.random() < 0.3 else with_rows_anywhere
        return lies(rng, kind, dtype, list(shape), device)

    return [make(kind) for kind in kinds]


def with_rows_anywhere(
    rng: random.Random, kind: str, dtype: torch.dtype, shape: list[int], device: str
):
    """Expanded, in any order, and cut out of what holds others."""
    *leading, cols = shape
    own = [1 if rng.random() < 0.4 else size for size in leading]
    more = rng.choice((0, 0, 1, 16))
    values = operand(rng, kind, dtype, [*own, cols + more], device)
    dims = range(len(own))
    order = rng.choice((dims, rng.sample(dims, len(own))))
    steps = [rng.choice((1, 1, 2)) for _ in own]
    placed = strided(values, [*order, len(own)], [*steps, 1], rng.choice((0, 0, 1, 5)))
    return placed.narrow(-1, rng.choice((0, more)), cols).expand(shape)


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


def compare_numbers(rows: Any, rng: random.Random, dtype: torch.dtype, shape: Any, device: str):
    """Of columns that a row has, and of some that it has not."""
    x, y = rows_of(rng, ["own", "own"], dtype, shape, device)
    cols = shape[-1]
    k = torch.randint(-2, cols + 3, shape[:-1], device=device)
    mask, w = (operand(rng, kind, dtype, [cols], device) for kind in ("mask", rng.choice(KINDS)))
    at, numbers = k.unsqueeze(-1), torch.arange(cols, device=device)
    before = (y.double() * (mask & (numbers < at))).sum(-1, True)
    output = torch.where(numbers == at, w.double(), x.double() - before).to(dtype)
    outside = (k < 0) | (k >= cols)
    picked = torch.full(k.shape, torch.nan, dtype=dtype, device=device)
    if cols:
        inside = at.clamp(0, cols - 1)
        there = (y.double().gather(-1, inside) + w.double()[inside]).squeeze(-1)
        picked = torch.where(outside, torch.nan, there).to(dtype)
    sums = (y.double() * (mask & (numbers > at))).flatten(0, -2).sum(0).to(sum_dtype(dtype))
    found = rows.numbered(x, y, k, mask, w)
    assert torch.equal(found[1].isnan(), outside), (shape, dtype)
    found, expected = ((a, b.nan_to_num(), c) for a, b, c in (found, (output, picked, sums)))
    same(found, expected, (shape, dtype))


def compare_before(rows: Any, rng: random.Random, dtype: torch.dtype, shape: Any, device: str):
    x, y = rows_of(rng, ["own", "own"], dtype, shape, device)
    k = torch.randint(-2, shape[-1] + 3, (*shape[:-1], 1), device=device, dtype=torch.int32)
    numbers = torch.arange(shape[-1], device=device)
    before = x.double() * y * (numbers < k)
    sums = before.sum(-1).to(sum_dtype(dtype))
    same(rows.before(x, y, k), (before.to(dtype), numbers.expand(shape), sums), (shape, dtype))


KINDS = ("own", "sum")
COMPARED = (compare_softmax, compare_quantise, compare_kinds, compare_sums, compare_float8)
COMPARED += (compare_numbers, compare_before)


def compare(rows: Any, shapes: list[tuple[int, ...]], rounds: int) -> None:
    rng = random.Random(0)
    cases = itertools.product(devices(), DTYPES, shapes, COMPARED, range(rounds))
    for device, dtype, shape, compared, _ in cases:
        compared(rows, rng, dtype, shape, device)


def masks(device: str) -> Iterator[tuple[Tensor, tuple[int, ...], int]]:
    """The shapes to which they are expanded, and how many copies are made of each."""

    def mask(*shape: int) -> Tensor:
        return torch.rand(shape, device=device) < 0.5

    shape = b, h, s, n = 3, 4, 5, 72
    rows = [(b, 1, 1), (1, h, 1), (1, 1, s), (b, h, 1), (b, 1, s), (1, h, s), (1, 1, 1), (b, h, s)]
    for cols in (n, n - 1, 1):
        yield from ((mask(*each, cols), (b, h, s, cols), 0) for each in rows)
    yield mask(b, 1, 2, s, n), (b, h, 2, s, n), 0  # of which two are one
    larger = mask(b + 1, h + 1, s + 1, n + 16)
    yield larger[1:, :h, :s, :n], shape, 0
    yield larger[1:, 1:2, 1:, 8 : n + 8], shape, 0
    yield larger[:1, :1, 1:, 3 : n + 2], (b, h, s, n - 1), 0
    yield mask(s, h, b, n).transpose(0, 2), shape, 0
    yield mask(h, s, 1, n).permute(2, 0, 1, 3), shape, 0
    # On a GPU accesses are whole where those to the rows are.
    copied = int(device != "cpu")
    yield larger[1:, :h, :s, 1 : n + 1], shape, copied
    yield mask(b * n + 1)[1:].view(b, 1, 1, n), shape, copied
    yield mask(b, 1, s, n + 1)[..., :n], shape, copied
    # No elements that follow each other, and more dimensions than are kept.
    yield mask(b, h, s, 1), shape, 1
    yield mask(b, h, s, 2 * n)[..., ::2], shape, 1
    yield mask(b, 1, s, 1, n), (b, h, s, 2, n), 1


def compare_copies(rows: Any) -> None:
    for device in devices():
        for mask, shape, copies in masks(device):
            x = torch.randn(shape, device=device)
            wanted = x.masked_fill(mask, -torch.inf).softmax(-1)
            call = partial(rows.masked_softmax, x, mask.expand(shape))
            assert copies_in(call) == copies, (device, mask.shape, mask.stride(), shape)
            torch.testing.assert_close(call(), wanted, equal_nan=True)


BLOCKS = [True, False] if EVERY else [True]


# By `make test-all` also as for other processors than x86, as test_mixed_dtypes.py always.
@pytest.fixture(scope="module", params=BLOCKS, ids=["blocks", "elements"][: len(BLOCKS)])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_library(
        "mixed_rows", tmp_path_factory.mktemp("mixed_rows"), has_blocks=request.param
    )


def test_rows_of_every_length_and_dtype(library: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "devices", lambda: ("cpu",))
    compare(library, SHAPES, 2)


def test_rows_are_read_where_they_lie(library: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "devices", lambda: ("cpu",))
    compare_copies(library)


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
