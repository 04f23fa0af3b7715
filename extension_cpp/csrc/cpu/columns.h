// Sums over the rows of [rows, cols] matrices on the CPU, in one pass that may write an elementwise result as well.
#pragma once

#include "cpu/clones.h"
#include "cpu/partials.h"
#include "dispatch.h"
#include "values.h"

#include <memory>
#include <utility>

namespace extension_cpp::cpu {

// For each matrix of a [batch, rows, cols] tensor: sums[k][b * cols + col] = sum over its rows of what
// f(i, row, col, acc) adds to acc[k], where i = row * cols + col and row counts through the whole batch.
//
// Row blocks and column tiles have fixed sizes, so that the order of the additions depends on the shape alone, not on
// the number of threads: equal bits from run to run. Blocks are short, which also keeps the rounding error down.
template <class A, size_t K, class Out, class F>
void column_sums(int64_t batch, int64_t rows, int64_t cols, F f, const std::array<Out, K>& sums) {
  constexpr int64_t kTile = 256;
  constexpr int64_t kBlock = 512;
  const int64_t tiles = (cols + kTile - 1) / kTile;
  const int64_t blocks = std::max<int64_t>(1, (rows + kBlock - 1) / kBlock);
  // partial sums, [batch, blocks, K, cols]
  const std::unique_ptr<A[]> buffer(blocks == 1 ? nullptr : new A[batch * blocks * K * cols]);
  A* const partials = buffer.get();
  const int64_t job_size = std::max<int64_t>(1, std::min(kBlock, rows) * std::min(kTile, cols));

  parallel_for(
      0, batch * blocks * tiles, std::max<int64_t>(1, kGrain / job_size),
      [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN {
        for (int64_t job = begin; job < end; ++job) {
          const int64_t b = job / (blocks * tiles);
          const int64_t block = job / tiles % blocks;
          const int64_t first_col = job % tiles * kTile;
          const int64_t width = std::min(kTile, cols - first_col);
          const int64_t last_row = std::min((block + 1) * kBlock, rows);
          A acc[K][kTile];
          for (size_t k = 0; k < K; ++k) {
            std::fill_n(acc[k], width, A(0));
          }
          for (int64_t row = b * rows + block * kBlock; row < b * rows + last_row; ++row) {
            CPU_INDEPENDENT_LOOP
            for (int64_t j = 0; j < width; ++j) {
              A terms[K] = {};
              f(row * cols + first_col + j, row, first_col + j, terms);
              for (size_t k = 0; k < K; ++k) {
                acc[k][j] += terms[k];
              }
            }
          }
          for (size_t k = 0; k < K; ++k) {
            if (partials == nullptr) {
              detail::store_sums(sums[k], b * cols + first_col, acc[k], width);
            } else {
              std::copy_n(acc[k], width, partials + ((b * blocks + block) * K + k) * cols + first_col);
            }
          }
        }
      });

  for (int64_t b = 0; partials != nullptr && b < batch; ++b) {
    add_partials<A>(blocks, cols, partials + b * blocks * K * cols, sums, b * cols);
  }
}

// column_sums for a functor of the form that cuda/columns.cuh asks for: f.operator()<N>(i, row, col, sums), with N = 1.
template <class T, size_t K, class F, class Out>
void launch_column_sums(
    const Tensor& /*like*/, const F& f, int64_t batch, int64_t rows, int64_t cols, bool /*aligned*/,
    const std::array<Out, K>& outputs) {
  using A = acc_t<T>;
  column_sums<A>(
      batch, rows, cols,
      [=](int64_t i, int64_t row, int64_t col, A(&terms)[K]) {
        Values<A, 1> sums[K] = {};
        f.template operator()<1>(i, row, col, sums);
        for (size_t k = 0; k < K; ++k) {
          terms[k] += sums[k][0];
        }
      },
      outputs);
}

// An input of [rows, cols], or of one row for all.
template <class T>
struct ColumnInput {
  const T* data;
  bool one_row;
};

namespace detail {

template <class T, class F, size_t R, size_t C, size_t... K, size_t... M>
void elementwise_with_column_sums(
    const F& f, int64_t rows, int64_t cols, const std::array<ColumnInput<T>, sizeof...(K)>& inputs,
    const std::array<T*, R>& results, const std::array<T*, C>& sums, std::index_sequence<K...>,
    std::index_sequence<M...>) {
  using A = acc_t<T>;
  std::array<const T*, sizeof...(K)> data;
  std::array<int64_t, sizeof...(K)> row_strides;
  for (size_t k = 0; k < inputs.size(); ++k) {
    data[k] = inputs[k].data;
    row_strides[k] = inputs[k].one_row ? 0 : cols;
  }
  column_sums<A>(
      1, rows, cols,
      [=](int64_t i, int64_t row, int64_t col, A(&terms)[C]) {
        const auto value = f(static_cast<A>(data[K][row * row_strides[K] + col])...);
        ((results[M][i] = static_cast<T>(value.results[M])), ...);
        for (size_t c = 0; c < C; ++c) {
          terms[c] += value.terms[c];
        }
      },
      sums);
}

}  // namespace detail

// results[m][row, col] = result m of f(inputs[row, col]...), and sums[c][col] = the sum over the rows of its term c.
template <class T, class F, size_t K, size_t R, size_t C>
void elementwise_with_column_sums(
    const F& f, const Tensor& /*like*/, int64_t rows, int64_t cols, const std::array<ColumnInput<T>, K>& inputs,
    const std::array<T*, R>& results, const std::array<T*, C>& sums) {
  detail::elementwise_with_column_sums<T>(
      f, rows, cols, inputs, results, sums, std::make_index_sequence<K>(), std::make_index_sequence<R>());
}

}  // namespace extension_cpp::cpu
