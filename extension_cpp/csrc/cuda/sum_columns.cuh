// Sums over rows of elements as they are, by the kernel that suits: where columns are many, those of a thread are its
// own; else threads share columns, in strips, and leave something to add up.
#pragma once

#include "column_strips.cuh"
#include "indexing.h"
#include "launch.cuh"
#include "matrix_sums.cuh"
#include "partials.cuh"
#include "sum_output.h"
#include "team.cuh"
#include "vector.cuh"

#include <array>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

constexpr int kWideSumThreads = 256;

// Rows that a thread has on their way.
constexpr int kWideSumRows = 8;

template <class T, class A, int N>
__device__ void store_sums(const SumOutput<T>& output, int64_t at, const Values<A, N>& sums) {
  if (output.wide() == nullptr) {
    store(output.narrow() + at, sums);
    return;
  }
  constexpr int kEach = N < kVector<A> ? N : kVector<A>;
#pragma unroll
  for (int first = 0; first < N; first += kEach) {
    Values<A, kEach> some;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      some[n] = sums[first + n];
    }
    store(output.wide() + at + first, some);
  }
}

// A thread has the same access of every row of a matrix.
template <class T, class Out>
__global__ void __launch_bounds__(kWideSumThreads) wide_sums_kernel(
    const T* __restrict__ input /* [batch, rows, accesses] */, int64_t rows, Divider by_accesses, int64_t all,
    SumOutput<Out> output /* [batch, accesses] */) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  constexpr int kRows = kWideSumRows;
  may_begin_next();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kWideSumThreads + threadIdx.x;
  if (i >= all) {
    return;
  }
  const int64_t cols = by_accesses.divisor() * N;
  const T* at = input + i * N + by_accesses.divide(i) * (rows - 1) * cols;
  Values<A, N> sums{};
  int64_t left = rows;
  for (; left >= kRows; left -= kRows) {
    Chunk<T, N> chunks[kRows];
#pragma unroll
    for (Chunk<T, N>& chunk : chunks) {
      chunk = load_chunk<N>(at);
      at += cols;
    }
#pragma unroll
    for (const Chunk<T, N>& chunk : chunks) {
      sums = plus(sums, to_values(chunk));
    }
  }
#pragma unroll 4
  for (; left > 0; --left, at += cols) {
    sums = plus(sums, load<N>(at));
  }
  store_sums(output, i * N, sums);
}

// The element as it is.
template <class A>
struct Itself {
  __device__ Values<A, 1> operator()(A x) const { return {x}; }
};

// False, and nothing done, of narrow matrices, and where rows or sums are not whole, aligned accesses.
template <class T, class Out>
bool sum_wide_columns(
    const Tensor& like, const T* input, int64_t batch, int64_t rows, int64_t cols, const SumOutput<Out>& output) {
  // Of more rows there have to be threads enough to hide that each waits for its own; from so many on strips do that.
  constexpr int64_t kFewRows = 32;
  constexpr int64_t kManyRows = 256;
  constexpr int64_t kManyThreads = int64_t{1} << 15;
  constexpr int64_t kLeastAccesses = 8;  // of a row: 128 bytes
  constexpr int N = kVector<T>;
  const int64_t accesses = cols / N;
  const int64_t all = batch * accesses;
  const int64_t blocks = ceil_div(all, kWideSumThreads);
  if (all == 0 || cols % N != 0 || accesses < kLeastAccesses || rows >= kManyRows ||
      (rows > kFewRows && all < kManyThreads) || blocks > kMaxGridX || !is_aligned(input) ||
      !is_aligned(output.narrow()) || !is_aligned(output.wide())) {
    return false;
  }
  launch_overlapped(
      wide_sums_kernel<T, Out>, static_cast<unsigned>(blocks), kWideSumThreads, 0, current_stream(like), input, rows,
      Divider(accesses), all, output);
  return true;
}

// As if they were partial sums: one kernel instead of two. False, and nothing done, of large matrices.
template <class T, class Out>
bool sum_small_columns(
    const Tensor& like, const T* input, int64_t batch, int64_t rows, int64_t cols, const SumOutput<Out>& output) {
  constexpr int64_t kMostRows = 1024;
  constexpr int64_t kMostElements = int64_t{1} << 20;
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    if (batch == 1 && cols > 0 && rows <= kMostRows && rows * cols <= kMostElements) {
      launch_add_partials<T>(like, rows, cols, input, std::array{output});
      return true;
    }
  }
  return false;
}

// By strips of a warp. False, and nothing done, of a batch, and where launch_matrix_sums() does nothing.
template <class T, class Out>
bool sum_columns_by_warps(
    const Tensor& like, const T* input, int64_t batch, int64_t rows, int64_t cols, const SumOutput<Out>& output) {
  if constexpr (std::is_same_v<T, Out>) {
    if (batch == 1) {
      PlacedResult<T> sum;
      sum.columns = output;
      return launch_matrix_sums(
          like, Itself<acc_t<T>>{}, {1, rows, cols}, std::array{PlacedInput<T>{input, {cols, 1}}}, std::array{sum});
    }
  }
  return false;
}

}  // namespace detail

// output[b, col] = the sum over the rows of [batch, rows, cols]. False, and nothing done, where launch_column_sums() is
// the way.
template <class T, class Out>
bool sum_columns(
    const Tensor& like, const T* input, int64_t batch, int64_t rows, int64_t cols, const SumOutput<Out>& output) {
  // Of these a thread sends for all at once.
  const bool fewest_rows = rows <= detail::kWideSumRows;
  // Of large matrices with many rows warps are faster than blocks, though a second kernel adds up what they leave.
  constexpr int64_t kManyRows = 8192;
  constexpr int64_t kLargeBytes = int64_t{128} << 20;
  const bool large = rows >= kManyRows && rows * cols * static_cast<int64_t>(sizeof(T)) >= kLargeBytes;
  const auto wide = [&] { return detail::sum_wide_columns(like, input, batch, rows, cols, output); };
  const auto small = [&] { return detail::sum_small_columns(like, input, batch, rows, cols, output); };
  const auto by_warps = [&] { return detail::sum_columns_by_warps(like, input, batch, rows, cols, output); };
  return (fewest_rows ? wide() || small() : small() || wide()) || (large && by_warps()) ||
         launch_column_strips(
             like, detail::Itself<acc_t<T>>{}, std::array{input}, batch, rows, cols, std::array<T*, 0>{},
             std::array{output}) ||
         (!large && by_warps());
}

}  // namespace extension_cpp::cuda
