"""The arithmetic of `csrc/indexing.h` beyond 2^31 elements, and its rules beside those in Python.

The header is free of torch and CUDA: a few lines of C++ make it a library of plain functions.
"""

import ctypes
import itertools
import math
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import extension_cpp
from extension_cpp.layout import is_non_overlapping, new_elementwise

CSRC = Path(extension_cpp.__file__).parent / "csrc"
# Where the sources are: an installed package has none.
if not CSRC.exists():
    CSRC = Path(__file__).parents[1] / "extension_cpp" / "csrc"

SOURCE = r"""
#include "indexing.h"
#include "matrix_view.h"

using namespace extension_cpp;

extern "C" {

// Returns the number of dimensions that are left.
int locate(
    int num, int64_t dim,
    const int64_t* sizes,     // [num, dim], 1 where an operand is broadcast
    const int64_t* strides,   // [num, dim]
    int64_t count,
    const int64_t* elements,  // [count]
    int64_t* offsets,         // [count, num]
    int* linear) {            // [num]
  const auto run = [&](auto tag) {
    constexpr int K = decltype(tag)::value;
    std::array<Geometry, K> operands;
    for (int k = 0; k < K; ++k) {
      operands[k] = {dim, sizes + k * dim, strides + k * dim};
    }
    const Indexing<K> indexing(operands);
    for (int64_t n = 0; n < count; ++n) {
      int64_t found[K];
      indexing.locate(elements[n], found);
      std::copy(found, found + K, offsets + n * K);
    }
    std::copy(indexing.linear, indexing.linear + K, linear);
    return indexing.dims;
  };
  return num == 2 ? run(std::integral_constant<int, 2>())
                  : run(std::integral_constant<int, 3>());
}

void as_matrix(int64_t numel, int64_t longest, int64_t* rows_and_cols) {
  const MatrixShape shape = extension_cpp::as_matrix(numel, longest);
  rows_and_cols[0] = shape.rows;
  rows_and_cols[1] = shape.cols;
}

int64_t divide(int64_t n, int64_t divisor) { return Divider(divisor).divide(n); }

int divide_small(int n, int64_t divisor) { return Divider(divisor).divide_small(n); }

void strides_of(
    int num, int64_t dim, const int64_t* sizes, const int64_t* strides, int64_t* result) {
  std::vector<Geometry> operands;
  for (int k = 0; k < num; ++k) {
    operands.push_back({dim, sizes, strides + k * dim});
  }
  const auto found = elementwise_strides(dim, sizes, operands.data(), operands.size());
  std::copy(found.begin(), found.end(), result);
}

bool non_overlapping(int64_t dim, const int64_t* sizes, const int64_t* strides) {
  return is_non_overlapping({dim, sizes, strides});
}

bool shared(
    int64_t offset, int64_t bytes_a, int64_t bytes_b, int64_t dim_a, const int64_t* sizes_a,
    const int64_t* strides_a, int64_t dim_b, const int64_t* sizes_b, const int64_t* strides_b) {
  const char* const base = reinterpret_cast<const char*>(int64_t{1} << 40);
  return share_memory(
      base, {dim_a, sizes_a, strides_a}, bytes_a, base + offset, {dim_b, sizes_b, strides_b},
      bytes_b);
}
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler, named c++")
    folder = tmp_path_factory.mktemp("indexing")
    (folder / "indexing.cpp").write_text(SOURCE)
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{CSRC}"]
    subprocess.run([*command, "indexing.cpp", "-o", "indexing.so"], cwd=folder, check=True)
    loaded = ctypes.CDLL(str(folder / "indexing.so"))
    loaded.divide.restype = ctypes.c_int64
    loaded.non_overlapping.restype = loaded.shared.restype = ctypes.c_bool
    return loaded


def int64s(values):
    values = list(values)
    return (ctypes.c_int64 * len(values))(*values)


def locate(library, operands, elements):
    """Offsets of elements in operands given as (sizes, strides), and which of them are linear."""
    dim = len(operands[0][0])
    offsets = int64s([0] * (len(elements) * len(operands)))
    linear = (ctypes.c_int * len(operands))()
    dims = library.locate(
        len(operands),
        ctypes.c_int64(dim),
        int64s(itertools.chain(*(sizes for sizes, _ in operands))),
        int64s(itertools.chain(*(strides for _, strides in operands))),
        ctypes.c_int64(len(elements)),
        int64s(elements),
        offsets,
        linear,
    )
    step = len(operands)
    return (
        [tuple(offsets[i : i + step]) for i in range(0, len(offsets), step)],
        [bool(is_linear) for is_linear in linear],
        dims,
    )


def offsets_by_hand(operands, element):
    """The same in Python's integers: element by the order of the output's strides."""
    sizes, strides = operands[0]
    order = sorted((d for d in range(len(sizes)) if sizes[d] != 1), key=lambda d: (strides[d], -d))
    place = {}
    for d in order:
        element, place[d] = divmod(element, sizes[d])
    return tuple(
        sum(place[d] * own_strides[d] for d in order if own_sizes[d] != 1)
        for own_sizes, own_strides in operands
    )


HUGE = 1 << 33
CASES = {
    "flat": [((HUGE,), (1,))] * 2,
    "many rows, a value per column": [
        ((HUGE // 1000, 1000), (1000, 1)),
        ((1, 1000), (77, 1)),
    ],
    "few rows, a value per row": [((3, HUGE), (HUGE, 1)), ((3, 1), (1, 1))],
    "rows longer than 2^32": [((3, HUGE), (HUGE, 1)), ((1, HUGE), (0, 1))],
    "transposed": [((70001, 70003), (70003, 1)), ((70001, 70003), (1, 70001))],
    "output transposed": [((70001, 70003), (1, 70001)), ((70001, 1), (5, 1))],
    "channels-last with a value per channel": [
        ((640, 17, 501, 499), (17 * 501 * 499, 1, 17 * 499, 17)),
        ((1, 17, 1, 1), (17, 1, 1, 1)),
        ((640, 17, 501, 499), (17 * 501 * 499, 501 * 499, 499, 1)),
    ],
    "every second element": [((HUGE,), (1,)), ((HUGE,), (2,))],
    "gaps in the output": [((1 << 16, 1 << 17), (1 << 20, 2)), ((1 << 16, 1 << 17), (1 << 17, 1))],
    "many dimensions": [
        ((2, 3) * 8, tuple(math.prod(((2, 3) * 8)[d + 1 :]) for d in range(16))),
        ((2, 1) * 8, (1, 1) * 8),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_offsets_beyond_32_bits(library, name):
    operands = CASES[name]
    numel = math.prod(operands[0][0])
    generator = random.Random(0)
    places = {0, 1, numel // 2, numel - 2, numel - 1}
    places |= {edge + d for edge in (2**31, 2**32) for d in (-1, 0, 1) if edge + d < numel}
    places |= {generator.randrange(numel) for _ in range(200)}
    elements = sorted(places)
    found, linear, _ = locate(library, operands, elements)
    assert found == [offsets_by_hand(operands, element) for element in elements]
    for k, is_linear in enumerate(linear):
        by_hand = all(o[k] == e for o, e in zip(found, elements, strict=True))
        assert is_linear == by_hand


def test_dimensions_merge(library):
    contiguous = ((6, 5, 4), (20, 4, 1))
    permuted = ((6, 5, 4), (1, 24, 6))
    assert locate(library, [contiguous, contiguous], [0])[2] == 1
    assert locate(library, [permuted, permuted], [0])[2] == 1
    assert locate(library, [contiguous, ((1, 1, 4), (9, 9, 1))], [0])[2] == 2
    assert locate(library, [contiguous, ((6, 1, 1), (1, 9, 9))], [0])[2] == 2
    assert locate(library, [contiguous, ((1, 5, 1), (9, 1, 9))], [0])[2] == 3
    assert locate(library, [contiguous, ((1, 1, 1), (9, 9, 9))], [0])[2] == 1
    assert locate(library, [((1, 1), (7, 7)), ((1, 1), (8, 9))], [0]) == ([(0, 0)], [True, True], 1)


def test_division(library):
    generator = random.Random(0)
    edges = [1, 2, 3, 5, 7, 641, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 1]
    divisors = edges + [generator.randrange(1, 2**31) for _ in range(200)]
    for divisor in divisors:
        numbers = {0, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62} | {
            n + d for n in edges for d in (-1, 0)
        }
        for k in (1, 2, 1000, (2**32 - 1) // divisor):
            numbers |= {k * divisor - 1, k * divisor, k * divisor + 1}
        numbers |= {generator.randrange(2**32) for _ in range(50)}
        for n in numbers:
            if n >= 0:
                found = library.divide(ctypes.c_int64(n), ctypes.c_int64(divisor))
                assert found == n // divisor, (n, divisor)
            if 0 <= n < 2**31 and divisor < 2**31:
                found = library.divide_small(n, ctypes.c_int64(divisor))
                assert found == n // divisor, (n, divisor)


def layouts(shape):
    """Stride tuples for a shape: dense in every order, with odd strides at ones, gaps, overlaps."""
    found = set()
    for order in itertools.permutations(range(len(shape))):
        strides, stride = [0] * len(shape), 1
        for d in reversed(order):
            strides[d] = stride
            stride *= max(shape[d], 1)
        found.add(tuple(strides))
        found.add(tuple(77 if n == 1 else s for n, s in zip(shape, strides, strict=True)))
        found.add(tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True)))
        found.add(tuple(2 * s for s in strides))
        found.add((0, *strides[1:]))
    return sorted(found)


SHAPES = [
    (5,),
    (1,),
    (0,),
    (3, 4),
    (2, 1, 3),
    (2, 0, 3),
    (1, 1, 1),
    (2, 3, 1, 1),
    (1, 3, 4, 4),
    (2, 3, 4, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strides_of_outputs(library, shape):
    """C++, Python and, where inputs are dense, the layout that torch gives agree."""
    generator = random.Random(0)
    pairs = list(itertools.product(layouts(shape), repeat=2))
    for operands in generator.sample(pairs, min(len(pairs), 400)):
        result = int64s([0] * len(shape))
        flat = int64s(itertools.chain(*operands))
        library.strides_of(2, ctypes.c_int64(len(shape)), int64s(shape), flat, result)
        tensors = [torch.empty_strided(shape, s, device="meta") for s in operands]
        fake = new_elementwise(torch.Size(shape), *tensors)
        assert tuple(result) == fake.stride(), operands
        for strides in operands:
            library.strides_of(
                1, ctypes.c_int64(len(shape)), int64s(shape), int64s(strides), result
            )
            tensor = torch.empty_strided(shape, strides, device="meta")
            assert tuple(result) == new_elementwise(torch.Size(shape), tensor).stride(), strides
            if torch.ops.aten.is_non_overlapping_and_dense(tensor):
                for d, size in enumerate(shape):
                    assert size <= 1 or result[d] == torch.relu(tensor).stride(d), strides


def test_operands_of_another_shape_have_no_say():
    channels_last = torch.empty(2, 3, 4, 4, device="meta").to(memory_format=torch.channels_last)
    bias = torch.empty(3, 1, 1, device="meta")
    assert (
        new_elementwise(channels_last.shape, bias, channels_last).stride() == channels_last.stride()
    )


def memory(offset, sizes, strides):
    ranges = [range(n) for n in sizes]
    return [
        offset + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*ranges)
    ]


def geometry(sizes, strides):
    return ctypes.c_int64(len(sizes)), int64s(sizes), int64s(strides)


def test_overlap_with_itself(library):
    generator = random.Random(0)
    for _ in range(2000):
        dim = generator.randrange(4)
        sizes = [generator.randrange(4) for _ in range(dim)]
        strides = [generator.randrange(8) for _ in range(dim)]
        elements = memory(0, sizes, strides)
        found = library.non_overlapping(*geometry(sizes, strides))
        assert found == is_non_overlapping(torch.empty_strided(sizes, strides, device="meta"))
        # Safe, if not complete: strides that interleave count as overlapping.
        assert not found or len(set(elements)) == len(elements), (sizes, strides)
        nested = len(elements) > 0 and all(
            b % a == 0 for a, b in itertools.pairwise(sorted(s for s in strides if s))
        )
        if nested and 0 not in strides:
            assert found == (len(set(elements)) == len(elements)), (sizes, strides)


@pytest.mark.parametrize("itemsizes", [(1, 1), (4, 4), (2, 4), (4, 1)])
def test_overlap_of_two(library, itemsizes):
    generator = random.Random(0)
    both = [0, 0]
    for _ in range(3000):
        regions = []
        for _ in range(2):
            dim = generator.randrange(4)
            sizes = [generator.choice([0, 1, 2, 3, 3, 4]) for _ in range(dim)]
            regions.append(
                (sizes, [generator.choice([0, 1, 2, 3, 4, 6, 8, 12]) for _ in range(dim)])
            )
        offset = generator.randrange(-20, 20)
        a, b = (
            {e * itemsize + start + byte for e in memory(0, *region) for byte in range(itemsize)}
            for start, region, itemsize in zip((0, offset), regions, itemsizes, strict=True)
        )
        found = library.shared(
            ctypes.c_int64(offset),
            *map(ctypes.c_int64, itemsizes),
            *geometry(*regions[0]),
            *geometry(*regions[1]),
        )
        assert found == bool(a & b), (offset, regions)
        both[found] += 1
    assert min(both) > 100


@pytest.mark.parametrize(("offset", "shared"), [(4, False), (8, True)])
def test_overlap_of_overlapping_frames_and_what_lies_between(library, offset, shared):
    """Of two interleaved channels, float32; an element of the frames may be one of many."""
    frames, channel = ([200, 400], [320, 2]), ([40000], [2])
    itemsizes = map(ctypes.c_int64, (offset, 4, 4))
    assert library.shared(*itemsizes, *geometry(*frames), *geometry(*channel)) == shared


@pytest.mark.parametrize(
    ("numel", "expected"),
    [
        (16384 * 4096, 4096),
        (16384 * 4095, 4096),  # not 4095, which are not whole accesses
        (1000 * 1000, 4000),
        (4096, 4096),
        (4095, 4095),
        (3 * 4095, 3 * 4095),  # odd: one row
        (4095 * 4095 * 2, 4095 * 4095),
        (16 * 10007, 10007),  # 16 columns would be too short
    ],
)
def test_the_rows_of_a_matrix_that_could_have_any_shape(library, numel, expected):
    shape = (ctypes.c_int64 * 2)()
    library.as_matrix(ctypes.c_int64(numel), ctypes.c_int64(4096), shape)
    assert list(shape) == [numel // expected, expected]
