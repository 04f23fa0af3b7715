"""Elementwise formulas with several results, of which no worked operator has one: built here."""

import shutil
import sys

import pytest
from scratch import copy_repository, run

pytestmark = pytest.mark.slow

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
