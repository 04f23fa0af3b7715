// Where a row of a matrix lies, or a segment of one, and its accesses.
#pragma once

#include "launch.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>
#include <type_traits>

namespace extension_cpp::cuda {

// Rows cut into segments of at most segment_cols columns, for functors that need to see no more than a segment.
struct Split {
  int64_t segments;
  int64_t segment_cols;

  static Split none(int64_t cols) { return {1, cols}; }

  // Segments of so many columns, which are whole accesses.
  static Split of(int64_t cols, int64_t segment) {
    return {std::max<int64_t>(1, ceil_div(cols, segment)), std::min(cols, segment)};
  }

  // Segments of whole accesses that fit the registers of a block, of so many inputs. (A little less for all took
  // longer.)
  static Split even(int64_t cols, int64_t inputs = 1) { return of(cols, 8192 / inputs / kAccessBytes * kAccessBytes); }
};

namespace detail {

// Where a row, or a segment of one, lies.
struct Span {
  int64_t matrix;  // of several that follow one another
  int64_t row;     // of all
  int64_t segment;
  int64_t first_col;
  int64_t offset;  // of its first element in the matrices
  int64_t cols;
  // Of ragged rows, which are not whole accesses: the elements before the first 16-byte boundary of an output that
  // begins at one. They, and those that are left after the last whole access, are the edges.
  int head;
  bool exists;  // where there is no such row, a team only keeps the others company: cols is 0
};

// Matrices of the rows. AtBoundaries: whole accesses to all of them are aligned, for they lie as what is written, where
// rows are ragged, too.
template <class T, size_t K, bool AtBoundaries = true>
struct Inputs {
  using Element = T;
  using Shifted = Inputs<T, K, false>;
  static constexpr size_t kCount = K;
  static constexpr bool kAtBoundaries = AtBoundaries;
  // Whether accesses of ragged rows may have to be shifted.
  static constexpr bool kMayShift = !AtBoundaries;

  const T* data[K];

  __device__ const T* row(size_t k, const Span& span) const { return data[k] + span.offset; }

  // Whether an input is one row for all of a matrix.
  HOST_DEVICE constexpr bool is_one_row(size_t /*k*/) const { return false; }

  Shifted shifted() const {
    Shifted result;
    std::copy_n(data, K, result.data);
    return result;
  }
};

template <class T, size_t K>
Inputs<T, K> make_inputs(const std::array<const T*, K>& inputs) {
  Inputs<T, K> result;
  std::copy_n(inputs.begin(), K, result.data);
  return result;
}

// Matrices of the rows, or one row for all, or, of Several matrices, for all of each. AtBoundaries is of the matrices.
template <class T, size_t K, bool Several = false, bool AtBoundaries = true>
struct MixedInputs {
  using Element = T;
  using Shifted = MixedInputs<T, K, Several, false>;
  static constexpr size_t kCount = K;
  static constexpr bool kAtBoundaries = AtBoundaries;
  static constexpr bool kMayShift = true;

  const T* data[K];
  bool one_row[K];
  int64_t step[K] = {};  // of what is one row, from matrix to matrix

  __device__ const T* row(size_t k, const Span& span) const {
    const int64_t before = Several ? span.matrix * step[k] : 0;
    return data[k] + (one_row[k] ? before + span.first_col : span.offset);
  }

  HOST_DEVICE bool is_one_row(size_t k) const { return one_row[k]; }

  Shifted shifted() const {
    Shifted result;
    std::copy_n(data, K, result.data);
    std::copy_n(one_row, K, result.one_row);
    std::copy_n(step, K, result.step);
    return result;
  }
};

// How rows lie in accesses: some begin or end between two boundaries; all are whole accesses (where rows are written,
// to the output, and those to inputs may have to be shifted); and each thread has as many of them, so that none is
// asked whether it exists, and what they read is waited for once.
enum class Fit { kRagged, kWhole, kFull };

template <Fit Rows>
constexpr bool kRagged = Rows == Fit::kRagged;
template <Fit Rows>
constexpr bool kFull = Rows == Fit::kFull;

template <Fit Rows>
using FitConstant = std::integral_constant<Fit, Rows>;

// Columns of a row that is kept: short.
template <int V>
using ColumnIndex = std::conditional_t<(V > 0), unsigned, int64_t>;

// The columns of a span that are in whole accesses; they begin at its head.
template <int N, Fit Rows>
__device__ int64_t whole_cols(const Span& span) {
  if constexpr (kRagged<Rows>) {
    return span.cols > span.head ? (span.cols - span.head) / N * N : 0;
  } else {
    return span.cols;
  }
}

// The column of an access of a full row. An address of it is one instruction, whatever the step is.
struct SteppedColumn {
  unsigned first;  // of the thread
  unsigned step;
  int v;

  __device__ operator int64_t() const { return first + static_cast<unsigned>(v) * step; }
};

template <class T>
__device__ T* operator+(T* row, const SteppedColumn& col) {
  T* address = row + col.first;
  if (col.v > 0) {
    asm("mad.wide.u32 %0, %1, %2, %3;"
        : "=l"(address)
        : "r"(col.step), "r"(col.v * static_cast<int>(sizeof(T))), "l"(address));
  }
  return address;
}

// Of V accesses of a thread, which takes every `step`th from the one called `access` on, the v-th. Of full rows that is
// of a row that exists.
template <int N, int V, class Index, Fit Rows, bool Steps = (kFull<Rows> && V == 4)>
struct Place {
  Index col;  // from the head on
  Index cols;

  __device__ Place(int64_t whole_cols, Index access, int step, int v)
      : col(access * N + static_cast<Index>(v * (step * N))), cols(static_cast<Index>(whole_cols)) {}

  __device__ bool exists() const { return kFull<Rows> || col < cols; }
  // Of one that exists, whether it is the last of the row.
  __device__ bool is_last() const { return col + N >= cols; }
};

// Of more accesses the addresses would be kept, for which there are no registers; of fewer nothing is gained.
template <int N, int V, class Index, Fit Rows>
struct Place<N, V, Index, Rows, true> {
  SteppedColumn col;

  __device__ Place(int64_t /*whole_cols*/, Index access, int step, int v)
      : col{static_cast<unsigned>(access * N), static_cast<unsigned>(step * N), v} {}

  __device__ bool exists() const { return true; }
  __device__ bool is_last() const { return false; }  // which is for rows that are not full
};

// The element of the edges that is a thread's: there are fewer than 2 N, for the first threads of a team.
template <int N>
struct EdgePlace {
  int64_t col;  // of the span
  bool is;

  __device__ EdgePlace(const Span& span, int lane)
      : col(lane < span.head ? lane : whole_cols<N, Fit::kRagged>(span) + lane), is(lane < 2 * N && col < span.cols) {}
};

}  // namespace detail

}  // namespace extension_cpp::cuda
