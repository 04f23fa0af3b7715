"""The CPU's side of `csrc/rows.h`, which the functors of row kernels are written against."""

import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import CUDA_HOME, TORCH_LIB_PATH, include_paths

import extension_cpp

CSRC = Path(extension_cpp.__file__).parent / "csrc"
if not CSRC.exists():  # an installed package
    CSRC = Path(__file__).parents[1] / "extension_cpp" / "csrc"

COMPILED_ONCE = (
    "operator.cpp",
    "notation.cpp",
    "cpu/columns.cpp",
    "cpu/convert.cpp",
    "cpu/partials.cpp",
)

# Of both compilers.
FLAGS = (
    *("-shared", "-std=c++20", "-DEXTENSION_CPP_STABLE_ABI=1"),
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
)

# Also compiled for CUDA, where there is a GPU.
KEPT = """
#include "rows.h"

namespace extension_cpp {

const Operator kKept{
    "kept(Tensor x, Tensor y, Tensor? w, bool one_pass) -> (Tensor, Tensor)",
    "*rows n, *rows n, n:wide -> *rows n, *rows n"};

// softmax(x) - sum(w x y), and w x y + the largest of all x y of the row.
template <class T>
struct Kept {
  using A = acc_t<T>;
  T* first;
  T* second;
  backend::Parameter<T> weight;
  bool one_pass;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A max = row.max([](A x, A) { return x; });
    const auto powers = row.keep([=](A x, A) { return math::exp(x - max); });
    const auto products = row.keep([](A x, A y) { return x * y; });
    const Divisor<A> total = row.sum([](A, A, A power) { return power; }, powers);
    const A sum = row.sum([](A, A, A product, A w) { return product * w; }, products, weight);
    const A largest = row.max([](A, A, A product) { return product; }, products);
    if (one_pass) {
      row.write(
          Outputs{first, second},
          [=](A, A, A power, A w, A xy) {
            return Values<A, 2>{power / total - sum, xy * w + largest};
          },
          powers, weight, products);
      return;
    }
    row.write(first, [=](A, A, A power) { return power / total - sum; }, powers);
    row.write(second, [=](A, A, A w, A xy) { return xy * w + largest; }, weight, products);
  }
};

std::tuple<Tensor, Tensor> kept(
    const Tensor& x, const Tensor& y, const std::optional<Tensor>& w, bool one_pass) {
  return rowwise<Kept, 2>(kKept, x, y, per_column(w, 1), one_pass);
}

const Operator kWrittenAndKept{
    "written_and_kept(Tensor x, Tensor y) -> (Tensor, Tensor)",
    "*rows n, *rows n -> *rows n, *rows n"};

// x + y, and how much less it is than the largest, as these are rounded.
template <class T>
struct WrittenAndKept {
  using A = acc_t<T>;
  T* sum;
  T* less;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto sums = row.write_and_keep(sum, [](A x, A y) { return x + y; });
    const A largest = row.max([](A, A, A sum) { return sum; }, sums);
    row.write(less, [=](A, A, A sum) { return largest - sum; }, sums);
  }
};

std::tuple<Tensor, Tensor> written_and_kept(const Tensor& x, const Tensor& y) {
  return rowwise<WrittenAndKept, 2>(kWrittenAndKept, x, y);
}

const Operator kLargest{"largest(Tensor x) -> Tensor", "*rows n -> *rows n"};

// The largest element of the row, in place of each.
template <class T>
struct LargestOfRow {
  using A = acc_t<T>;
  T* output;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A largest = row.max();
    row.write(output, [=](A) { return largest; });
  }
};

Tensor largest(const Tensor& x) { return rowwise<LargestOfRow>(kLargest, x); }

// 2 x w + 1, by segments.
template <class T>
struct KeptOfSegment {
  using A = acc_t<T>;
  T* output;
  backend::Parameter<T> weight;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto doubled = row.keep([](A x) { return A(2) * x; });
    const A none = row.sum([](A, A doubled) { return doubled; }, doubled) * A(0);
    row.write(output, [=](A, A twice, A w) { return twice * w + A(1) + none; }, doubled, weight);
  }
};

Tensor kept_of_segments(const Tensor& x, const Tensor& w) {
  const DeviceGuard guard(x);
  Tensor output = new_empty(x, x.sizes());
  const int64_t cols = x.size(1);
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const KeptOfSegment<T> f{output.mutable_data_ptr<T>(), backend::Parameter<T>(w, 1, cols)};
    backend::launch_segments<T>(
        x, f, std::array{x.const_data_ptr<T>()}, x.size(0), cols, backend::Split::even(cols));
  });
  return output;
}

}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(rows_test, BACKEND, m) {
  m.impl("kept", TORCH_BOX(&extension_cpp::kept));
  m.impl("written_and_kept", TORCH_BOX(&extension_cpp::written_and_kept));
  m.impl("largest", TORCH_BOX(&extension_cpp::largest));
  m.impl("kept_of_segments", TORCH_BOX(&extension_cpp::kept_of_segments));
}
"""

SOURCE = """
#include "rows.h"

namespace extension_cpp {

template <class T>
struct Softmax {
  using A = acc_t<T>;
  T* output;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A max = row.max();
    const A total = row.sum([=](A x) { return math::exp(x - max); });
    row.write(output, [=](A x) { return math::exp(x - max) / total; });
  }
};

// grad_x = x - sum(w x y) y + sum(x), and over the rows the sums of sum(w x y) x and of y.
template <class T>
struct RowsAndColumns {
  using A = acc_t<T>;
  T* output;
  backend::Parameter<T> weight;
  bool one_pass;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto sums = row.sum([](A x, A y, A w) { return Values<A, 2>{w * x * y, x}; }, weight);
    const auto grad = [=](A x, A y) { return x - sums[0] * y + sums[1]; };
    const auto terms = [=](A x, A y) { return Values<A, 2>{x * sums[0], y}; };
    if (one_pass) {
      row.write(output, [=](A x, A y) { return WithSums<A, 1, 2>{{grad(x, y)}, terms(x, y)}; });
    } else {
      row.write(output, grad);
      row.add_to_columns(terms);
    }
  }
};

using Made = std::tuple<Tensor, Tensor, Tensor, Tensor, bool>;

Made run(const Tensor& x, const Tensor& y, const std::optional<Tensor>& w) {
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  Tensor softmax = new_empty(x, x.sizes());
  Tensor grad = new_empty(x, x.sizes());
  Tensor a = new_empty(x, {cols});
  Tensor b = new_empty(x, {cols});
  bool done = false;
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const data = x.const_data_ptr<T>();
    backend::launch_rows<T>(
        x, Softmax<T>{softmax.mutable_data_ptr<T>()}, std::array{data}, rows, cols);
    done = backend::launch_rows_and_column_sums<T>(
        x,
        RowsAndColumns<T>{
            grad.mutable_data_ptr<T>(), backend::Parameter<T>(w, 1, cols), w.has_value()},
        std::array{data, y.const_data_ptr<T>()}, rows, cols,
        std::array{a.mutable_data_ptr<T>(), b.mutable_data_ptr<T>()});
  });
  return {softmax, grad, a, b, done};
}

const Operator kSoftmax{"softmax(Tensor x) -> Tensor", "*rows n -> *rows n"};

Tensor softmax(const Tensor& x) { return rowwise<Softmax>(kSoftmax, x); }

const Operator kScale{
    "scale(Tensor x, Tensor s, Tensor? w, Tensor y, Tensor shift, float a) -> (Tensor, Tensor)",
    "*rows n, *rows:sum, n:wide, *rows n, *rows:int64 -> *rows n, *rows:sum"};

template <class T>
struct Scale {
  using A = acc_t<T>;
  T* output;
  A* largest;
  const A* scale;
  backend::Parameter<T> weight;
  const int64_t* shift;
  A a;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A factor = scale[row.index()];
    const A added = static_cast<A>(shift[row.index()]) + a;
    const A max = row.max([](A x, A y) { return x * y; });
    row.write(output, [=](A x, A y, A w) { return x * y * w * factor + added; }, weight);
    if (row.leader()) {
      largest[row.index()] = max;
    }
  }
};

std::tuple<Tensor, Tensor> scale(
    const Tensor& x, const Tensor& s, const std::optional<Tensor>& w, const Tensor& y,
    const Tensor& shift, double a) {
  return rowwise<Scale, 2>(
      kScale, x, per_row(s), per_column(w, 1), y, per_row(shift), a);
}

const Operator kBare{"bare(Tensor x, Tensor w) -> Tensor", "*rows n, n -> *rows n"};

template <class T>
struct Bare {
  T* output;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    using A = acc_t<T>;
    row.write(output, [](A x, A w) { return x * w; });
  }
};

Tensor bare(const Tensor& x, const Tensor& w) { return rowwise<Bare>(kBare, x, w); }

const Operator kFirsts{"firsts(Tensor x, Tensor y) -> Tensor", "*rows n, *rows n -> *rows n"};

template <class T>
struct Firsts {
  using A = acc_t<T>;
  T* output;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A first = row.first(0) - A(2) * row.first(1);
    row.write(output, [=](A x, A) { return x + first; });
  }
};

Tensor firsts(const Tensor& x, const Tensor& y) { return rowwise<Firsts>(kFirsts, x, y); }

// The backward of x * w * sum(x), and of + b.
const Operator kColumnSums{
    "column_sums(Tensor g, Tensor x, Tensor w, float a) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n, n:wide -> *rows n, n:w, n"};

template <class T>
struct ColumnSums {
  using A = acc_t<T>;
  using RowValues = Values<A, 2>;
  T* grad;
  backend::Parameter<T> weight;
  A a;

  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&weight}}; }

  template <class Row>
  HOST_DEVICE RowValues of_row(Row& row) const {
    return row.sum([](A g, A x, A w) { return Values<A, 2>{x, g * x * w}; }, weight);
  }

  template <class Row>
  HOST_DEVICE void write(Row& row, const RowValues& values) const {
    row.write(
        grad,
        [=, a = a](A g, A x, A w) {
          return WithSums<A, 1, 2>{{a * (g * w * values[0] + values[1])}, {g * x * values[0], g}};
        },
        weight);
  }
};

std::tuple<Tensor, Tensor, Tensor> column_sums(
    const Tensor& g, const Tensor& x, const Tensor& w, double a) {
  return rowwise_with_column_sums<ColumnSums, 1, 2>(kColumnSums, g, x, per_column(w), a);
}

}  // namespace extension_cpp

TORCH_LIBRARY(rows_test, m) {
  m.def("run(Tensor x, Tensor y, Tensor? w) -> (Tensor, Tensor, Tensor, Tensor, bool)");
  m.def(extension_cpp::kSoftmax.schema());
  m.def(extension_cpp::kScale.schema());
  m.def(extension_cpp::kBare.schema());
  m.def(extension_cpp::kColumnSums.schema());
  m.def(extension_cpp::kFirsts.schema());
  m.def("kept(Tensor x, Tensor y, Tensor? w, bool one_pass) -> (Tensor, Tensor)");
  m.def("kept_of_segments(Tensor x, Tensor w) -> Tensor");
  m.def("written_and_kept(Tensor x, Tensor y) -> (Tensor, Tensor)");
  m.def(extension_cpp::kLargest.schema());
}
TORCH_LIBRARY_IMPL(rows_test, BACKEND, m) {
  m.impl("run", TORCH_BOX(&extension_cpp::run));
  m.impl("softmax", TORCH_BOX(&extension_cpp::softmax));
  m.impl("scale", TORCH_BOX(&extension_cpp::scale));
  m.impl("bare", TORCH_BOX(&extension_cpp::bare));
  m.impl("column_sums", TORCH_BOX(&extension_cpp::column_sums));
  m.impl("firsts", TORCH_BOX(&extension_cpp::firsts));
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("rows")
    source, library = folder / "rows.cpp", folder / "rows.so"
    # As one source: what they include takes most of the time.
    shared = "".join(f'#include "{name}"\n' for name in COMPILED_ONCE)
    source.write_text(KEPT + SOURCE + shared)
    subprocess.run(
        [
            *("c++", *FLAGS, "-fPIC", "-fvisibility=hidden"),
            *shlex.split(os.environ.get("ROWS_FLAGS", "-O0")),
            *(f"-I{path}" for path in (CSRC, *include_paths("cpu"))),
            *(source, "-o", library),
            *(f"-L{TORCH_LIB_PATH}", "-ltorch_cpu"),
        ],
        check=True,
    )
    torch.ops.load_library(str(library))
    return torch.ops.rows_test.run


OPTIMISED = "-O3 -fno-trapping-math -fno-math-errno"


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [OPTIMISED, f"{OPTIMISED} -DWIDEST_BLOCK=32", "-O0 -DHAS_BLOCKS=0"]
)
def test_rows_as_they_are_compiled_for(flags: str):
    """All of this file on the CPU, optimised, and for processors with less than this one has."""
    outcome = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-m", "not slow", "-k", "not cuda", __file__),
        ],
        env={**os.environ, "ROWS_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout


DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest, run, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "cuda":
        folder = tmp_path_factory.mktemp("rows_cuda")
        source, library = folder / "kept.cu", folder / "kept.so"
        source.write_text(KEPT)
        nvcc = Path(CUDA_HOME or "/usr/local/cuda") / "bin" / "nvcc"
        subprocess.run(
            [
                *(nvcc, *FLAGS, "-Xcompiler", "-fPIC", "-arch=native", "-DUSE_CUDA"),
                *("--expt-relaxed-constexpr", "--expt-extended-lambda"),
                *(f"-I{path}" for path in (CSRC, *include_paths("cuda"))),
                *(source, CSRC / "cuda" / "operator.cu", "-o", library),
                *(f"-L{TORCH_LIB_PATH}", "-ltorch_cpu", "-ltorch_cuda"),
            ],
            check=True,
        )
        torch.ops.load_library(str(library))
    return request.param


# Rows of less than a block, of some and of part of one; of one segment and of several; few long
# rows, which threads share, and many.
SHAPES = [
    *((0, 5), (1, 1), (20, 9), (20, 15), (20, 16), (20, 24), (3, 31), (20, 47), (100, 33)),
    *((7, 16384), (3, 50001), (70, 20001)),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_and_column_sums(run, shape: tuple[int, int], dtype: torch.dtype):
    x, y = torch.randn(2, *shape).mul(0.1).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weight = torch.randn(shape[1])
    for w in (None, weight.to(dtype), weight.to(wide)):
        *results, has_column_sums = run(x, y, w)
        # Few long rows are for functors that take segments of them.
        assert has_column_sums == (shape != (3, 50001))
        x64, y64 = x.double(), y.double()
        product = ((1 if w is None else w.double()) * x64 * y64).sum(1, keepdim=True)
        expected = (
            x64.softmax(1),
            x64 - product * y64 + x64.sum(1, keepdim=True),
            (x64 * product).sum(0),
            y64.sum(0),
        )
        results, expected = (r[: None if has_column_sums else 1] for r in (results, expected))
        for result, right in zip(results, expected, strict=True):
            largest = right.abs().max().item() if right.numel() else 1.0
            # A unit in the last place of the largest result, and of float32 sums some more.
            error = max(torch.finfo(dtype).eps, 1e-5 if wide == torch.float32 else 1e-12)
            smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps  # subnormal
            atol = error * largest + smallest
            torch.testing.assert_close(result.double(), right, rtol=error, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 50001), (3, 70001), (70, 16421), (100, 33)], ids=str)
def test_the_same_bits_with_any_number_of_threads(run, shape: tuple[int, int], dtype: torch.dtype):
    x, y = torch.randn(2, *shape).to(dtype)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            *tensors, has_column_sums = run(x, y, None)
            kept = torch.ops.rows_test.kept(x, y, None, True)
            results.append([*(tensors if has_column_sums else tensors[:1]), *kept])
    finally:
        torch.set_num_threads(threads)
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.mark.parametrize("cols", [5, 40, 40000])
def test_the_largest_of_a_row_with_nan_is_nan(run, cols: int):
    for place in (0, cols // 2, cols - 1):
        x = torch.randn(3, cols)
        x[1, place] = float("nan")
        softmax = run(x, x, None)[0]
        assert softmax[1].isnan().all()
        assert not softmax[::2].isnan().any()


# On CUDA rows of a warp, of a block, shared by a cluster and read again; in whole accesses and not.
LENGTHS = [1, 2, 9, 31, 256, 1000, 4095, 4096, 12345, 40000, 70001, 131072, 1 << 20]


# On a CPU the longest go through the same loop in every dtype.
LONGEST = [(LENGTHS[-1], torch.float32)]
DTYPES_OF_LENGTHS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("cols", "dtype"), [*itertools.product(LENGTHS[:-1], DTYPES_OF_LENGTHS), *LONGEST]
)
def test_the_largest_of_the_elements(device: str, cols: int, dtype: torch.dtype):
    for offset in (0, 1, 3):
        x = -1000 - torch.rand(offset + 5 * cols, device=device).mul(100)
        x = x.to(dtype)[offset:].view(5, cols)
        x[4] = float("-inf")
        for place in {0, cols // 3, max(cols - 2, 0), cols - 1}:
            x[1, place] = -900  # which the others are less than in every type
            x[2, place] = float("nan")
            x[3, place] = float("inf")
            largest = torch.ops.rows_test.largest(x)
            right = x.amax(1, keepdim=True).expand(5, cols)
            torch.testing.assert_close(largest, right, rtol=0, atol=0, equal_nan=True)
            assert largest[1:, 0].tolist()[::2] == [-900, float("inf")]
            x[1:4, place] = x[0, place]


# No rows, rows of nothing, one row, more dimensions than two.
ROWS_OF_TENSORS = [(0, 5), (3, 0), (7,), (3, 4, 33), (2, 0, 3)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", ROWS_OF_TENSORS, ids=str)
def test_rowwise(run, shape: tuple[int, ...], dtype: torch.dtype):
    ops = torch.ops.rows_test
    x, y = torch.randn(2, *shape).to(dtype)
    strided = torch.stack([x, y], -1)[..., 0]
    torch.testing.assert_close(ops.softmax(strided), x.double().softmax(-1).to(dtype))
    assert ops.softmax(strided).is_contiguous()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rows = shape[:-1]
    factor, shift = torch.randn(*rows, 2, dtype=wide)[..., 0], torch.randint(9, rows)
    product = x.to(wide) * y.to(wide)
    for w in (None, torch.randn(2 * shape[-1])[::2].to(dtype), torch.randn(shape[-1], dtype=wide)):
        output, largest = ops.scale(strided, factor, w, y, shift, 0.5)
        weighted = product if w is None else product * w
        expected = weighted * factor[..., None] + (shift + 0.5)[..., None]
        torch.testing.assert_close(output, expected.to(dtype))
        if shape[-1]:
            torch.testing.assert_close(largest, product.amax(-1))
        assert largest.shape == rows


# Of few long rows, too, which threads share.
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 1), (100, 33), (2, 50000)], ids=str)
def test_rows_have_a_first_element_of_each_input(run, shape: tuple[int, ...], dtype: torch.dtype):
    x, y = torch.randint(-8, 8, (2, *shape)).to(dtype)  # exact in every dtype
    result = torch.ops.rows_test.firsts(x, y)
    assert torch.equal(result, x + (x[:, :1] - 2 * y[:, :1]))


KEPT_SHAPES = [(0, 5), (3, 0), (1, 1), (200, 8), (100, 33), (101, 256)]
KEPT_SHAPES += [(9, 4095), (7, 8192), (3, 50000), (70, 20000)]


# 8192 columns of half types are the most of which a GPU's thread keeps results; 4095 are ragged; of
# 256 each thread has as many as the others.
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", KEPT_SHAPES, ids=str)
def test_what_is_kept_of_a_row(device: str, shape: tuple[int, int], dtype: torch.dtype):
    x, y = torch.randn(2, *shape, device=device).mul(0.1).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weight = torch.randn(shape[1], device=device)
    product = x.double() * y.double()
    for w in (None, weight.to(dtype), weight.to(wide)):
        weighted = product if w is None else product * w.double()
        first, second = torch.ops.rows_test.kept(x, y, w, False)
        # Of one pass the same bits.
        both = torch.ops.rows_test.kept(x, y, w, True)
        assert torch.equal(first, both[0])
        assert torch.equal(second, both[1])
        expected = x.double().softmax(1) - weighted.sum(1, keepdim=True)
        error = max(torch.finfo(dtype).eps, 1e-5 if wide == torch.float32 else 1e-12)
        torch.testing.assert_close(first.double(), expected, rtol=error, atol=error)
        if shape[1]:
            expected = weighted + product.amax(1, keepdim=True)
            torch.testing.assert_close(second.double(), expected, rtol=error, atol=error * 0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (200, 7), (9, 4095), (7, 8192), (3, 50000)])
def test_what_is_kept_is_what_was_written(device: str, shape: tuple[int, int], dtype: torch.dtype):
    x, y = torch.randn(2, *shape, device=device).to(dtype)
    total, less = torch.ops.rows_test.written_and_kept(x, y)
    assert torch.equal(total, x + y)
    if shape[0]:
        assert torch.equal(less, total.amax(1, keepdim=True) - total)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(100, 33), (3, 24576), (2, 50001), (3, 100000)], ids=str)
def test_what_is_kept_of_a_segment(device: str, shape: tuple[int, int], dtype: torch.dtype):
    x = torch.randint(-8, 8, shape, device=device).to(dtype)  # exact in every dtype
    w = torch.randint(-8, 8, shape[1:], device=device).to(dtype)
    assert torch.equal(torch.ops.rows_test.kept_of_segments(x, w), 2 * x * w + 1)


def test_rowwise_refuses_what_would_be_read_out_of_bounds(run):
    with pytest.raises(RuntimeError, match=r"^bare: what is not of the rows' shape is per_row or"):
        torch.ops.rows_test.bare(torch.randn(3, 5), torch.randn(5))


# Of few long rows the sums take a second pass.
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [*ROWS_OF_TENSORS, (3, 50000), (70, 20000)], ids=str)
@pytest.mark.parametrize("is_wide", [False, True], ids=["", "wide"])
def test_rowwise_with_column_sums(
    run, shape: tuple[int, ...], dtype: torch.dtype, is_wide: bool
) -> None:
    g, x = (torch.randn(2, *shape).mul(0.1) / max(1, shape[-1]) ** 0.5).to(dtype)
    x.abs_()  # what adds up to next to nothing has no digits to compare
    w = torch.randn(shape[-1]).to(torch.float32 if is_wide and dtype.itemsize == 2 else dtype)
    grad, grad_w, grad_b = torch.ops.rows_test.column_sums(g, x, w, 2.5)
    g64, x64 = g.double(), x.double()
    total = x64.sum(-1, keepdim=True)
    inner = (g64 * x64 * w.double()).sum(-1, keepdim=True)
    sizes = shape[-1:]
    expected = (
        2.5 * (g64 * w.double() * total + inner),
        (g64 * x64 * total).sum_to_size(sizes),
        g64.sum_to_size(sizes),
    )
    dtypes = dtype, w.dtype, dtype
    for result, right, wanted in zip((grad, grad_w, grad_b), expected, dtypes, strict=True):
        assert result.dtype == wanted
        largest = right.abs().max().item() if right.numel() else 1.0
        error = max(torch.finfo(wanted).eps, 1e-5 if wanted != torch.float64 else 1e-12)
        atol = error * largest + torch.finfo(wanted).tiny * torch.finfo(wanted).eps
        torch.testing.assert_close(result.double(), right, rtol=error, atol=atol)
