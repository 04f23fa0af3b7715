"""Elementwise formulas of several results, of which no worked operator has one, and unfit ones."""

import shutil
import sys
from typing import Any

import pytest
import torch
from scratch import compile_library, copy_repository, run
from torch import Tensor

SOURCE = """
#include "elementwise.h"

namespace extension_cpp {
namespace {

const Operator kSeveral{
    "several(Tensor a, Tensor b, Tensor c) -> (Tensor, Tensor, Tensor)",
    "..., ..., ... -> ..., ..., ..."};

template <class A>
struct Several {
  HOST_DEVICE Values<A, 3> operator()(A a, A b, A c) const { return {a - b, a * b + c, c}; }
};

std::tuple<Tensor, Tensor, Tensor> several(const Tensor& a, const Tensor& b, const Tensor& c) {
  return elementwise<Several>(kSeveral, a, b, c);
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) { m.def(extension_cpp::kSeveral.schema()); }

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("several", TORCH_BOX(&extension_cpp::several));
}
"""

# Whole numbers, which every dtype adds and multiplies exactly. Dimensions out of order, of size one
# (the operand is broadcast) or not, at any alignment, in memory that is NaN elsewhere.
CALLS = """
import itertools
import random

import torch

from extension_cpp.battery.layouts import strided
from extension_cpp.testing import devices

generator, choices = torch.Generator().manual_seed(0), random.Random(0)
shapes = [(4099,), (31, 33), (64, 128), (100, 257), (3, 65, 70), (2, 16, 7, 9)]
dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
for device, dtype, shape, _ in itertools.product(devices(), dtypes, shapes, range(30)):
    dims = range(len(shape))
    one = choices.sample(dims, len(shape))
    operands = []
    for k in range(3):
        own = [1 if k and choices.random() < 0.2 else size for size in shape]
        x = torch.randint(-8, 8, own, generator=generator).to(device, dtype)
        order = choices.choice((dims, one, choices.sample(dims, len(shape))))
        operands.append(strided(x, order, [1] * len(shape), choices.choice((0, 0, 1, 5))))
    a, b, c = operands
    results = torch.ops.extension_cpp.several(a, b, c)
    for result, expected in zip(results, (a - b, a * b + c, c.expand(shape)), strict=True):
        assert torch.equal(result, expected), (device, dtype, [t.stride() for t in operands])
print("equal")
"""


@pytest.mark.slow
def test_several_results(tmp_path):
    root = copy_repository(tmp_path)
    package = root / "extension_cpp"
    for operator in (package / "operators").iterdir():
        if operator.is_dir():
            shutil.rmtree(operator)
    for name in ("ops.py", "nn.py"):
        (package / name).write_text("")
    (package / "operators" / "several").mkdir()
    (package / "operators" / "several" / "several.cpp").write_text(SOURCE)
    built = run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=root)
    assert built.returncode == 0, built.stdout[-20000:]
    called = run(sys.executable, "-c", CALLS, cwd=root, env={"PYTHONPATH": str(root)})
    assert called.returncode == 0, called.stdout
    assert called.stdout.splitlines()[-1] == "equal"


@pytest.fixture(scope="module")
def formulas(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library, result = compile_library("formulas", "stable", tmp_path_factory.mktemp("formulas"))
    assert result.returncode == 0, result.stderr
    torch.ops.load_library(str(library))
    return torch.ops.extension_cpp_formulas


ONES = torch.ones(4, 4)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("mask", [ONES], "takes and gives one dtype, got torch.float32 and torch.bool"),
        ("masked", [ONES, ONES > 0], "takes and gives one dtype, got torch.float32 and torch.bool"),
        ("first", [ONES], "gives results of one shape, (4, 4), got (4,)"),
        (
            "scale_rows",
            [ONES, ONES[0]],
            "takes tensors that broadcast to its result, which the shapes, *rows n, *rows -> "
            "*rows n, do not say",
        ),
    ],
)
def test_what_no_formula_is_for(formulas: Any, name: str, inputs: list[Tensor], message: str):
    with pytest.raises(RuntimeError) as error:
        getattr(formulas, name)(*inputs)
    assert str(error.value) == f"{name}: a formula {message}"


def test_sums_of_what_does_not_broadcast(formulas: Any):
    with pytest.raises(RuntimeError) as error:
        formulas.row_sums(ONES, ONES, ONES[0])
    assert str(error.value) == (
        "row_sums: a formula takes tensors that broadcast to its first, which the shapes, "
        "*rows n, *rows n, *rows -> *rows n, *rows, do not say"
    )
    _, of_columns = formulas.sums(ONES, ONES, ONES[0])
    assert torch.equal(of_columns, 4 * ONES[0])
    for scale in (torch.ones(3), torch.ones(5, 4), torch.ones(2, 4, 4)):
        with pytest.raises(RuntimeError, match=r"^sums: a formula takes tensors that broadcast to"):
            formulas.sums(ONES, ONES, scale)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_one_number_beside_a_tensor_of_any_shape(formulas: Any, shape: tuple[int, ...]):
    x = torch.randn(shape)
    assert torch.equal(formulas.one_weight(x, torch.tensor([2.0])), 2 * x)


def test_a_formula_of_complex_numbers(formulas: Any):
    with pytest.raises(RuntimeError, match=r"^conjugate: the result of a formula must be torch\."):
        formulas.conjugate(ONES.to(torch.complex64))


@pytest.mark.parametrize("to", ["whole", "part", "transposed"])
@pytest.mark.parametrize("from_", ["whole", "part", "transposed"])
def test_several_results_of_several_layouts(formulas: Any, to: str, from_: str):
    """Each is written where it is, and nothing beside it."""

    def placed(layout: str) -> tuple[Tensor, Tensor]:
        memory = torch.randn(8, 8)
        part = memory[:3, :4] if layout == "part" else memory.flatten()[:12].view(3, 4)
        return memory, memory[:4, :3].t() if layout == "transposed" else part

    (_, a), (memory, b) = placed(to), placed(from_)
    x = torch.randn(3, 4)
    expected, rest = a + x, memory.clone()
    torch.as_strided(rest, b.shape, b.stride()).sub_(x)
    formulas.move(x, a, b)
    assert torch.equal(a, expected)
    assert torch.equal(memory, rest)


def test_what_is_written_and_what_shares_its_memory(formulas: Any):
    x, memory = torch.ones(10), torch.zeros(20)
    formulas.move(memory[:10], memory[:10], memory[10:])  # the same, and apart
    for a, b in ((memory[:10], memory[5:15]), (memory[:10], memory[:10])):
        with pytest.raises(RuntimeError, match=r"^move: from must share no memory with to$"):
            formulas.move(x, a, b)
    message = r"^move: to must be x itself or share no memory with it, but overlaps it in part$"
    with pytest.raises(RuntimeError, match=message):
        formulas.move(memory[1:11], memory[:10], x)
    with pytest.raises(RuntimeError, match=r"^elementwise_into: a formula gives results of"):
        formulas.move(x, memory[:10], memory[10:11])
    with pytest.raises(RuntimeError, match=r"takes tensors that broadcast to \(10,\)"):
        formulas.move(x.expand(2, 10), memory[:10], memory[10:])


# Of contiguous tensors, transposed ones, parts of others, and none at all.
LAYOUTS = [
    torch.randn(3, 5, 8),
    torch.randn(8, 5, 3).transpose(0, 2),
    torch.randn(3, 5, 17)[..., 1::2],
    torch.randn(4, 6, 24)[1:, ::2, 3:11],
    torch.randn(8),
    torch.randn(0, 5, 8),
    torch.randn(3, 0),
]


@pytest.mark.parametrize("x", LAYOUTS, ids=lambda x: str((*x.shape, *x.stride())))
def test_parts_are_read_and_written_where_they_lie(formulas: Any, x: Tensor):
    x1, x2 = x.chunk(2, -1)
    for weight in (torch.randn(x.shape[-1] // 2), torch.randn(x1.shape), torch.randn_like(x1)):
        result = formulas.turned(x, weight)
        assert torch.equal(result, torch.cat((x2 * weight, -x1 * weight), -1))
        assert result.is_contiguous()
        result, sums = formulas.turned_sums(x, weight)
        assert torch.equal(result, torch.cat((x2 * weight, -x1 * weight), -1))
        torch.testing.assert_close(sums, (x1 + x2).sum_to_size(weight.shape))


def test_parts_share_the_memory_of_the_whole(formulas: Any):
    for x in (torch.randn(2, 9), torch.randn(4, 20)[1:3, 2:20:2], torch.randn(9, 2).t()):
        part, expected = formulas.thirds(x), x.chunk(3, -1)[2]
        assert (part.data_ptr(), part.shape) == (expected.data_ptr(), expected.shape)
        assert part.stride() == expected.stride()
    for x, shape in ((torch.randn(2, 8), r"\(2, 8\)"), (torch.tensor(1.0), r"\(\)")):
        with pytest.raises(RuntimeError, match=f"^parts: expected .* of 3 parts .* {shape}$"):
            formulas.thirds(x)
