// Sums over the rows of [rows, cols] matrices on the CPU, in one pass that may write an elementwise result as well.
#pragma once

#include "cpu/clones.h"
#include "cpu/convert.h"
#include "cpu/row.h"
#include "cpu/sum_target.h"
#include "cpu/wide_rows.h"
#include "dispatch.h"
#include "row_values.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

namespace extension_cpp::cpu {

namespace detail {

using extension_cpp::detail::call_with_row_values;

// Columns of a tile, at most.
constexpr int64_t kTileCols = 512;

// A part of a [rows, cols] matrix that one thread takes at a time.
struct ColumnTile {
  int64_t first_row;
  int64_t rows;
  int64_t first_col;
  int64_t width;
};

// Writes the sums of a tile: sums[k][j] for its column j.
template <class A>
using TileLoop = void (*)(const void* f, const ColumnTile& tile, A* const* sums);

// For each matrix of a [batch, rows, cols] tensor: sums[k][b * cols + col] = the sum over its rows of what the loop
// adds, whose rows count through the whole batch.
//
// Row blocks and column tiles have fixed sizes, so that the order of the additions depends on the shape alone, not on
// the number of threads: equal bits from run to run. Blocks are short, which also keeps the rounding error down.
template <class A>
void column_sums(
    int64_t batch, int64_t rows, int64_t cols, TileLoop<A> loop, const void* f, const SumTarget<A>* sums,
    size_t num_sums);

extern template void column_sums(
    int64_t, int64_t, int64_t, TileLoop<float>, const void*, const SumTarget<float>*, size_t);
extern template void column_sums(
    int64_t, int64_t, int64_t, TileLoop<double>, const void*, const SumTarget<double>*, size_t);

// The sums of K terms of a tile's columns, where the compiler knows that nothing else is.
template <class A, size_t K>
struct TileSums {
  A of[K][kTileCols];

  CPU_INLINE void load(const A* const* sums, int64_t width) {
    for (size_t k = 0; k < K; ++k) {
      std::copy_n(sums[k], width, of[k]);
    }
  }

  CPU_INLINE void store(A* const* sums, int64_t width) const {
    for (size_t k = 0; k < K; ++k) {
      std::copy_n(of[k], width, sums[k]);
    }
  }
};

template <class T, size_t K, class F>
struct ColumnSums {
  const F& f;
  const std::array<const T*, K>& inputs;
  int64_t cols;
};

// What is compiled for each functor. All else is compiled once, in columns.cpp.
template <class T, size_t K, size_t C, class F>
CPU_CLONES CPU_FLATTEN void add_columns(const void* call, const ColumnTile& tile, acc_t<T>* const* sums) {
  const auto [f, inputs, cols] = *static_cast<const ColumnSums<T, K, F>*>(call);
  const int64_t last_row = tile.first_row + tile.rows;
  WideRows<T, K> values(inputs, tile.width, tile.width == cols ? last_row * cols : 0);
  acc_t<T> acc[C * kTileCols] = {};  // [C, width]
  for (int64_t row = tile.first_row; row < last_row; ++row) {
    Row<T, K, C, RowKind::kWhole> part(values, row, row, cols, tile.first_col, tile.width, acc);
    call_with_row_values(f, part);
  }
  for (size_t c = 0; c < C; ++c) {
    std::copy_n(acc + c * tile.width, tile.width, sums[c]);
  }
}

}  // namespace detail

// For each matrix of a [batch, rows, cols] tensor: outputs[c][b * cols + col] = the sum over its rows of what f adds to
// column `col`. f is a functor for a segment of a row (rows.h), whose index counts through the whole batch.
template <class T, size_t K, class F, class Out, size_t C>
void launch_column_sums(
    const Tensor& /*like*/, const F& f, const std::array<const T*, K>& inputs, int64_t batch, int64_t rows,
    int64_t cols, const std::array<Out, C>& outputs) {
  using A = acc_t<T>;
  const detail::ColumnSums<T, K, F> call{f, inputs, cols};
  const auto targets = detail::sum_targets<A>(outputs);
  detail::column_sums<A>(batch, rows, cols, detail::add_columns<T, K, C, F>, &call, targets.data(), C);
}

// An input of [rows, cols], or of one row for all.
template <class T>
struct ColumnInput {
  const T* data;
  bool one_row;
};

namespace detail {

// Rows, and how far apart they lie; 0 of one that stands for all.
template <class T>
struct MatrixRows {
  T* data;
  int64_t stride;
};

// What is compiled for each formula and dtype.
template <class T, class F, size_t C, class Inputs, class Results>
struct ColumnLoop;

template <class T, class F, size_t C, size_t... I, size_t... M>
struct ColumnLoop<T, F, C, std::index_sequence<I...>, std::index_sequence<M...>> {
  using A = acc_t<T>;

  CPU_CLONES CPU_FLATTEN static void run(
      const F& formula, int64_t rows, int64_t width, const MatrixRows<const T>* inputs, const MatrixRows<T>* results,
      A* const* sums) {
    const F f = formula;  // nothing that the loop writes is part of it
    TileSums<A, C> acc;
    acc.load(sums, width);
    for (int64_t row = 0; row < rows; ++row) {
      const T* const from[] = {inputs[I].data + row * inputs[I].stride...};
      T* const to[] = {results[M].data + row * results[M].stride...};
      CPU_INDEPENDENT_LOOP
      for (int64_t j = 0; j < width; ++j) {
        const auto value = f(static_cast<A>(from[I][j])...);
        ((to[M][j] = static_cast<T>(value.results[M])), ...);
        for (size_t c = 0; c < C; ++c) {
          acc.of[c][j] += value.terms[static_cast<int>(c)];
        }
      }
    }
    acc.store(sums, width);
  }
};

// A formula of K inputs, R results and C sums, and its matrices.
template <class T, class F, size_t K, size_t R, size_t C>
struct ColumnFormula {
  using A = acc_t<T>;
  template <class U>
  using Loop = ColumnLoop<U, F, C, std::make_index_sequence<K>, std::make_index_sequence<R>>;

  const F& f;
  int64_t cols;
  const std::array<ColumnInput<T>, K>& inputs;
  const std::array<T*, R>& results;

  // A TileLoop.
  static void add(const void* call, const ColumnTile& tile, A* const* sums) {
    static_cast<const ColumnFormula*>(call)->add(tile, sums);
  }

  void add(const ColumnTile& tile, A* const* sums) const {
    MatrixRows<const T> from[K];
    MatrixRows<T> to[R];
    for (size_t k = 0; k < K; ++k) {
      const int64_t stride = inputs[k].one_row ? 0 : cols;
      from[k] = {inputs[k].data + tile.first_row * stride + tile.first_col, stride};
    }
    for (size_t m = 0; m < R; ++m) {
      to[m] = {results[m] + tile.first_row * cols + tile.first_col, cols};
    }
    for (size_t c = 0; c < C; ++c) {
      std::fill_n(sums[c], tile.width, A(0));
    }
    if constexpr (std::is_same_v<T, Half>) {
      add_copies(tile.rows, tile.width, from, to, sums);
    } else {
      Loop<T>::run(f, tile.rows, tile.width, from, to, sums);
    }
  }

  // By way of copies in the type of the arithmetic, which stay in the L1 cache.
  void add_copies(
      int64_t rows, int64_t width, MatrixRows<const T> (&from)[K], MatrixRows<T> (&to)[R], A* const* sums) const {
    constexpr int64_t kCopied = 2 * kTileCols;
    alignas(64) A values[K + R][kCopied];
    MatrixRows<const A> wide_from[K];
    MatrixRows<A> wide_to[R];
    for (int64_t most = kCopied / width; rows > 0; rows -= most) {
      most = std::min(most, rows);
      for (size_t k = 0; k < K; ++k) {
        A* const copy = values[k];
        for_runs(from[k].stride == 0 ? 1 : most, width, from[k].stride, [&](int64_t at, int64_t offset, int64_t count) {
          widen(from[k].data + offset, copy + at, count);
        });
        from[k].data += most * from[k].stride;
        wide_from[k] = {copy, from[k].stride == 0 ? 0 : width};
      }
      for (size_t m = 0; m < R; ++m) {
        wide_to[m] = {values[K + m], width};
      }
      Loop<A>::run(f, most, width, wide_from, wide_to, sums);
      for (size_t m = 0; m < R; ++m) {
        for_runs(most, width, cols, [&](int64_t at, int64_t offset, int64_t count) {
          narrow(wide_to[m].data + at, to[m].data + offset, count);
        });
        to[m].data += most * cols;
      }
    }
  }

  // visit(at, offset, count) for what lies together of a tile's rows: `count` of its elements from `at` on.
  template <class Visit>
  static void for_runs(int64_t rows, int64_t width, int64_t stride, const Visit& visit) {
    if (stride == width) {
      visit(0, 0, rows * width);
      return;
    }
    for (int64_t row = 0; row < rows; ++row) {
      visit(row * width, row * stride, width);
    }
  }
};

}  // namespace detail

// results[m][row, col] = result m of f(inputs[row, col]...), and sums[c][col] = the sum over the rows of its term c.
template <class T, class F, size_t K, size_t R, size_t C>
void elementwise_with_column_sums(
    const F& f, const Tensor& /*like*/, int64_t rows, int64_t cols, const std::array<ColumnInput<T>, K>& inputs,
    const std::array<T*, R>& results, const std::array<T*, C>& sums) {
  using Formula = detail::ColumnFormula<T, F, K, R, C>;
  const Formula call{f, cols, inputs, results};
  const auto targets = detail::sum_targets<acc_t<T>>(sums);
  detail::column_sums<acc_t<T>>(1, rows, cols, Formula::add, &call, targets.data(), C);
}

}  // namespace extension_cpp::cpu
