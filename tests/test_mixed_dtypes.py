"""Elementwise formulas of tensors of several dtypes, of which no worked operator has one."""

import itertools
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_compiler import ROOT
from scratch import copy_repository, load_library, run
from torch import Tensor

from extension_cpp.battery.layouts import strided
from extension_cpp.testing import devices

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SHAPES = [(0, 3), (1,), (4099,), (31, 33), (100, 257), (3, 65, 70), (2, 16, 7, 9), (1,) * 18]
# Of a library that is optimised.
LARGE = [(600, 704), (3, 400, 301)]
INTEGERS = {
    "mask": torch.bool,
    "offset": torch.int16,
    "index": torch.int64,
    "shift": torch.int32,
    "bytes": torch.uint8,
    "small": torch.int8,
}

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOATING = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.bfloat16,
    "four": torch.float8_e4m3fn,
    "five": torch.float8_e5m2,
}


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


# By operator: dtypes of its tensors, its numbers, and what it computes of whole numbers, exactly.
OPERATORS: dict[str, tuple[list[str], list[float], Any]] = {
    "masked": (["own", "mask"], [7.0], lambda x, mask, value: torch.where(mask, value, x)),
    "codes": (
        ["own", "float", "offset"],
        [],
        lambda x, scale, offset: (
            (x.double() * scale + offset).to(torch.int8),
            (x.double() * scale).to(x.dtype),
            x.double() * scale > offset,
        ),
    ),
    "counted": (["own", "mask"], [], lambda x, mask: x + mask),
    "twice": (["own"], [], lambda x: (x, x + x)),
    "places": (["index", "shift"], [], lambda index, offset: index * 3 + offset),
    "less": (["own", "own"], [], lambda a, b: a < b),
    "small": (
        ["own", "four", "five", "half"],
        [],
        lambda x, four, five, half: (
            x.to(torch.float8_e4m3fn),
            x.to(torch.float8_e5m2),
            (x.double() + half).to(torch.float16),
            (x.double() + four.double() + five.double()).to(x.dtype),
        ),
    ),
    "wide": (
        ["bytes", "own", "double"],
        [],
        lambda a, b, c: (a + c, a.to(sum_dtype(b.dtype)) * b.to(sum_dtype(b.dtype))),
    ),
}


def operand(rng: random.Random, like: str, dtype: torch.dtype, shape: list[int], device: str):
    """Whole numbers in any layout and at any alignment, in memory that holds others."""
    floating = {"own": dtype, "sum": sum_dtype(dtype)}
    wanted = {**INTEGERS, **FLOATING, **floating}[like]
    low = 0 if like in ("mask", "bytes") else -8
    x = torch.randint(low, 2 if like == "mask" else 8, shape).to(device, wanted)
    dims = range(len(shape))
    order = rng.choice((dims, rng.sample(dims, len(shape))))
    if wanted.is_floating_point:
        return strided(x, order, [1] * len(shape), rng.choice((0, 0, 1, 5)))
    memory = torch.empty(x.numel() + 5, device=device, dtype=wanted)
    offset = rng.choice((0, 0, 1, 3))
    inverse = [list(order).index(d) for d in dims]
    placed = memory[offset : offset + x.numel()].view([shape[d] for d in order]).permute(inverse)
    return placed.copy_(x)


def compare(namespace: Any, shapes: list[tuple[int, ...]], rounds: int) -> None:
    rng = random.Random(0)
    cases = itertools.product(devices(), DTYPES, shapes, OPERATORS, range(rounds))
    for device, dtype, shape, name, _ in cases:
        kinds, numbers, function = OPERATORS[name]
        operands = []
        for k, kind in enumerate(kinds):
            own = [1 if k and rng.random() < 0.2 else size for size in shape]
            own = own[rng.choice((0, 0, 1)) * (k > 0) :]
            operands.append(operand(rng, kind, dtype, own, device))
        results = getattr(namespace, name)(*operands, *numbers)
        expected = function(*operands, *numbers)
        if isinstance(results, Tensor):
            results, expected = (results,), (expected,)
        for result, wanted in zip(results, expected, strict=True):
            said = (name, device, dtype, [(t.shape, t.stride()) for t in operands])
            assert result.dtype == wanted.dtype, said
            assert torch.equal(comparable(result), comparable(wanted)), said


def comparable(tensor: Tensor) -> Tensor:
    """PyTorch compares no float8."""
    return tensor.float() if tensor.element_size() == 1 and tensor.is_floating_point() else tensor


def compare_writes(namespace: Any, rounds: int) -> None:
    rng = random.Random(0)
    for device, dtype, shape, _ in itertools.product(devices(), DTYPES, SHAPES, range(rounds)):
        param, grad, moment = (
            operand(rng, kind, dtype, list(shape), device) for kind in ("own", "own", "sum")
        )
        next_moment = moment * 2 + grad
        expected = (param.to(moment.dtype) - next_moment / 2).to(dtype)
        namespace.step(param, grad, moment, 0.5, 2.0)
        assert torch.equal(moment, next_moment)
        assert torch.equal(param, expected)


def compare_sums(namespace: Any, rounds: int) -> None:
    """What is summed is exact, and rounded once."""
    rng = random.Random(0)
    names = {"gated": "index", "shaded": "small"}
    cases = itertools.product(devices(), DTYPES, SHAPES, names, range(rounds))
    for device, dtype, shape, name, _ in cases:
        kinds = ("own", "own", "mask", "own", names[name], "own")
        operands: list[Any] = []
        for k, kind in enumerate(kinds):
            own = [1 if k and rng.random() < 0.3 else size for size in shape]
            own = own[rng.choice((0, 0, 1)) * (k > 0) :]
            operands.append(operand(rng, kind, dtype, own, device))
        grad, x, mask, weight, count, bias = operands
        bias = rng.choice((bias, None))
        results = getattr(namespace, name)(grad, x, mask, weight, count, bias)
        given = torch.where(mask, grad, 0).double() * count
        expected = [
            (given * weight.double()).sum_to_size(x.shape),
            (given * x.double()).sum_to_size(weight.shape),
            grad.new_empty(0) if bias is None else grad.double().sum_to_size(bias.shape),
        ]
        for result, wanted in zip(results, expected, strict=True):
            said = (name, device, dtype, [(t.shape, t.stride()) for t in operands])
            assert result.dtype == dtype, said
            assert torch.equal(result, wanted.to(dtype)), said


# Also as for other processors than x86.
@pytest.fixture(scope="module", params=[True, False], ids=["blocks", "elements"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_library("mixed", tmp_path_factory.mktemp("mixed"), has_blocks=request.param)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "devices", lambda: ("cpu",))


@pytest.mark.usefixtures("on_the_cpu")
def test_every_layout_of_every_dtype(library: Any):
    compare(library, SHAPES, 3)


@pytest.mark.usefixtures("on_the_cpu")
def test_what_is_written_has_a_dtype_of_its_own(library: Any):
    compare_writes(library, 3)


@pytest.mark.usefixtures("on_the_cpu")
def test_sums_of_what_takes_several_dtypes(library: Any):
    compare_sums(library, 3)


def test_bytes_that_are_viewed_as_bools(library: Any):
    counts = torch.arange(600).to(torch.uint8)
    for mask in (counts, counts[2:3], counts.view(-1, 1)):
        result = library.counted(torch.zeros(600), mask.view(torch.bool))
        assert torch.equal(result, torch.zeros(600) + mask.ne(0))


def compare_float8(namespace: Any) -> None:
    """Of every bfloat16, of what lies about the middle of two neighbours, and of every code."""
    bits = torch.arange(2**16, dtype=torch.int32)
    codes = torch.arange(2**8, dtype=torch.int32).to(torch.uint8)
    middles = torch.cat([codes.view(kind).float() for kind in EIGHT_BITS]).nan_to_num()
    middles = (middles.unsqueeze(1) + middles).flatten() / 2
    near = [middles, *(middles.nextafter(torch.tensor(end)) for end in (-torch.inf, torch.inf))]
    values = torch.cat([(bits << 16).view(torch.float32), *near])
    for device, dtype in itertools.product(devices(), (torch.float32, torch.float64)):
        x = values.to(device, dtype)
        (four, five), half = (
            (torch.zeros(1, device=device, dtype=d) for d in EIGHT_BITS),
            x[:1].to(torch.bfloat16),
        )
        # Before torch 2.12 its own conversion gives NaN beyond the largest number.
        saturated = x.clamp(-448, 448).to(torch.float8_e4m3fn), x.to(torch.float8_e5m2)
        for result, wanted in zip(namespace.small(x, four, five, half), saturated, strict=False):
            torch.testing.assert_close(
                result.float(), wanted.float(), rtol=0, atol=0, equal_nan=True
            )
        four, five = (codes.to(device).view(d) for d in EIGHT_BITS)
        zero = torch.zeros(1, device=device, dtype=dtype)
        result = namespace.small(zero, four, five, zero.to(torch.bfloat16))[3]
        torch.testing.assert_close(
            result, four.to(dtype) + five.to(dtype), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.usefixtures("on_the_cpu")
def test_float8_is_rounded_to_even_and_saturates(library: Any):
    compare_float8(library)


def test_a_dtype_that_the_types_of_the_formula_do_not_say(library: Any):
    x = torch.ones(3)
    assert torch.equal(library.unfit(x, x > 0), x)
    with pytest.raises(RuntimeError) as error:
        library.unfit(x, x)
    assert str(error.value) == (
        "unfit: by its types a formula takes or gives torch.bool here, got torch.float32"
    )


@pytest.mark.slow
def test_as_it_is_built(tmp_path: Path):
    """Optimised, and on a GPU where there is one."""
    root = copy_repository(tmp_path)
    package = root / "extension_cpp"
    for operator in (package / "operators").iterdir():
        if operator.is_dir():
            shutil.rmtree(operator)
    for name in ("ops.py", "nn.py"):
        (package / name).write_text("")
    for name in ("mixed", "mixed_rows"):
        (package / "operators" / name).mkdir()
        source = (ROOT / "tests" / "abi" / f"{name}.h").read_text()
        (package / "operators" / name / f"{name}.cpp").write_text(
            source.replace("NAMESPACE", "extension_cpp")
        )
    built = run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=root)
    assert built.returncode == 0, built.stdout[-20000:]
    code = """
import torch
import extension_cpp
import test_mixed_dtypes as elements
import test_mixed_rows as rows

elements.compare(torch.ops.extension_cpp, elements.SHAPES, 20)
elements.compare(torch.ops.extension_cpp, elements.LARGE, 20)
elements.compare_float8(torch.ops.extension_cpp)
elements.compare_writes(torch.ops.extension_cpp, 20)
elements.compare_sums(torch.ops.extension_cpp, 20)
rows.compare(torch.ops.extension_cpp, rows.SHAPES, 4)
rows.compare(torch.ops.extension_cpp, rows.LONG, 1)
rows.compare_copies(torch.ops.extension_cpp)
print("equal")
"""
    paths = f"{root}:{root / 'tests'}"
    called = run(sys.executable, "-c", code, cwd=root, env={"PYTHONPATH": paths})
    assert called.returncode == 0, called.stdout
    assert called.stdout.splitlines()[-1] == "equal"
