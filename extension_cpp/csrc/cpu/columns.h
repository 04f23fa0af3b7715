// Sums over the rows of [rows, cols] matrices on the CPU, in one pass that may write an elementwise result as well.
#pragma once

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "cpu/convert.h"
#include "cpu/elements.h"
#include "cpu/lines.h"
#include "cpu/row.h"
#include "cpu/row_isa.h"
#include "cpu/sum_target.h"
#include "cpu/wide_rows.h"
#include "dispatch.h"
#include "matrix_view.h"
#include "row_values.h"
#include "sum_dims.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

namespace extension_cpp::cpu {

namespace detail {

using extension_cpp::detail::call_with_row_values;

// Columns of a tile, at most, whose sums stay in the L1 cache: rows that are read whole, or in long pieces, the
// processor reads ahead.
constexpr int64_t kNarrowTile = 512;
template <class T>
constexpr int64_t kTileCols = 8192 / sizeof(acc_t<T>);

// Rows of a block of narrow tiles; of wider ones it has fewer, so that there are as many jobs.
constexpr int64_t kBlockRows = 512;

// Tiles of about the same width, narrow ones of few rows, for they are the jobs; none where there are no columns.
struct ColumnTiles {
  int64_t count;
  int64_t width;
};

template <class T>
ColumnTiles column_tiles(int64_t rows, int64_t cols) {
  constexpr int64_t kAligned = 16;
  const int64_t most = rows < kBlockRows ? kNarrowTile : kTileCols<T>;
  const int64_t count = (cols + most - 1) / most;
  const int64_t width = count == 0 ? 0 : (cols + count - 1) / count;
  return {count, (width + kAligned - 1) / kAligned * kAligned};
}

// A part of a [rows, cols] matrix that one thread takes at a time.
struct ColumnTile {
  int64_t first_row;
  int64_t rows;
  int64_t first_col;
  int64_t width;
};

// Writes the sums of a tile: sums[k][j] for its column j, where sums[k] is not null.
template <class A>
using TileLoop = void (*)(const void* f, const ColumnTile& tile, A* const* sums);

// For each matrix of a [batch, rows, cols] tensor: sums[k][b * cols + col] = the sum over its rows of what the loop
// adds, whose rows count through the whole batch.
//
// Row blocks and column tiles have sizes of their own, so that the order of the additions depends on the shape alone,
// not on the number of threads: equal bits from run to run. Blocks are short, which also keeps the rounding error down.
template <class A>
void column_sums(
    int64_t batch, int64_t rows, int64_t cols, ColumnTiles tiles, TileLoop<A> loop, const void* f,
    const SumTarget<A>* sums, size_t num_sums);

extern template void column_sums(
    int64_t, int64_t, int64_t, ColumnTiles, TileLoop<float>, const void*, const SumTarget<float>*, size_t);
extern template void column_sums(
    int64_t, int64_t, int64_t, ColumnTiles, TileLoop<double>, const void*, const SumTarget<double>*, size_t);

// The sums of K terms of a tile's columns, where the compiler knows that nothing else is.
template <class A, size_t K>
struct TileSums {
  A of[K][kTileCols<A>];

  CPU_INLINE void load(const A* const* sums, int64_t width) {
    for (size_t k = 0; k < K; ++k) {
      if (sums[k] != nullptr) {
        std::copy_n(sums[k], width, of[k]);
      } else {
        std::fill_n(of[k], width, A(0));
      }
    }
  }

  CPU_INLINE void store(A* const* sums, int64_t width) const {
    for (size_t k = 0; k < K; ++k) {
      if (sums[k] != nullptr) {
        std::copy_n(of[k], width, sums[k]);
      }
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
void add_columns(const void* call, const ColumnTile& tile, acc_t<T>* const* sums) {
  for_row_isa<T>([=](auto isa) {
    const auto [f, inputs, cols] = *static_cast<const ColumnSums<T, K, F>*>(call);
    const int64_t last_row = tile.first_row + tile.rows;
    WideRows<T, K> values(inputs, tile.width, tile.width == cols ? last_row * cols : 0);
    acc_t<T> acc[C * kTileCols<T>] = {};  // [C, width]
    for (int64_t row = tile.first_row; row < last_row; ++row) {
      Row<T, K, C, RowKind::kWhole, decltype(isa)> part(values, row, row, cols, tile.first_col, tile.width, acc);
      call_with_row_values(f, part);
    }
    for (size_t c = 0; c < C; ++c) {
      if (sums[c] != nullptr) {
        std::copy_n(acc + c * tile.width, tile.width, sums[c]);
      }
    }
  });
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
  detail::column_sums<A>(
      batch, rows, cols, detail::column_tiles<T>(rows, cols), detail::add_columns<T, K, C, F>, &call, targets.data(),
      C);
}

namespace detail {

template <class T>
struct ColumnElements {
  const T* data;
  int64_t cols;

  // A TileLoop.
  static void add(const void* matrix, const ColumnTile& tile, acc_t<T>* const* sums) {
    const auto [data, cols] = *static_cast<const ColumnElements*>(matrix);
    std::fill_n(sums[0], tile.width, acc_t<T>(0));
    add_elements(data + tile.first_row * cols + tile.first_col, cols, tile.rows, tile.width, sums[0]);
  }
};

}  // namespace detail

// output[b * cols + col] = the sum over the rows of a [batch, rows, cols] tensor.
template <class T, class Out>
void sum_columns(const T* input, int64_t batch, int64_t rows, int64_t cols, const Out& output) {
  const detail::ColumnElements<T> matrix{input, cols};
  const detail::SumTarget<acc_t<T>> sums(output);
  detail::column_sums<acc_t<T>>(
      batch, rows, cols, detail::column_tiles<T>(rows, cols), detail::ColumnElements<T>::add, &matrix, &sums, 1);
}

// Columns of a matrix of which nothing says how wide it is: no more than a tile of it has, so that its rows are read
// one after another. Where tiles are parts of rows, the processor does not read on to the next one.
constexpr int64_t kMatrixCols = 1024;

// Elements of a matrix that is one of several, at least: each has a call of its own. (Of fewer, copies of everything
// take no longer.)
constexpr int64_t kLeastMatrix = 512;

// Whether an input may be one matrix for all.
constexpr bool kOneMatrixForAll = true;

// An input of [rows, cols], or of one row for all.
template <class T>
struct ColumnInput {
  const T* data;
  bool one_row;
};

namespace detail {

// Rows, and how far apart they lie; 0 of one that stands for all. Or a number for each row.
template <class T>
struct MatrixRows {
  T* data;
  int64_t stride;
  bool numbers = false;
};

// What an element adds to the sums of columns: all results, or what is said to.
template <class A, int N>
CPU_INLINE const Values<A, N>& results_of(const Values<A, N>& values) {
  return values;
}
template <class A, int N, int C>
CPU_INLINE const Values<A, N>& results_of(const WithSums<A, N, C>& values) {
  return values.results;
}
template <class A, int N>
CPU_INLINE const Values<A, N>& terms_of(const Values<A, N>& values) {
  return values;
}
template <class A, int N, int C>
CPU_INLINE const Values<A, C>& terms_of(const WithSums<A, N, C>& values) {
  return values.terms;
}

// What results add up to in the rows of a tile, a number for each row: R of them, or none where there is no place.
template <class A, size_t R>
struct RowSums {
  A* to[R] = {};
  int64_t stride = 0;  // from row to row

  bool any() const {
    return std::any_of(to, to + R, [](const A* place) { return place != nullptr; });
  }

  CPU_INLINE void put(int64_t row, const Values<A, static_cast<int>(R)>& totals) const {
    for (size_t m = 0; m < R; ++m) {
      if (to[m] != nullptr) {
        to[m][row * stride] = totals[static_cast<int>(m)];
      }
    }
  }
};

// The rows of a tile, and where their results and sums go.
template <class T, size_t M>
struct TileRows {
  int64_t rows;
  int64_t width;
  const MatrixRows<const T>* inputs;
  const MatrixRows<T>* results;  // of those that are not wanted, null
  acc_t<T>* const* sums;
  RowSums<acc_t<T>, M> row_sums;
};

// What is compiled for each formula and dtype. The formula returns WithSums; or Values, all of which are also summed.
template <class T, class F, size_t C, class Inputs, class Results>
struct ColumnLoop;

template <class T, class F, size_t C, size_t... I, size_t... M>
struct ColumnLoop<T, F, C, std::index_sequence<I...>, std::index_sequence<M...>> {
  using A = acc_t<T>;
  using Tile = TileRows<T, sizeof...(M)>;

  static void run(const F& f, const Tile& tile) {
    with_blocks(
        [&](auto isa) { on_blocks_of(isa, f, tile); },
        [&] {
          if constexpr (!std::is_same_v<T, Half>) {  // of which there are copies here, add_copies()
            on_elements(f, tile);
          }
        });
  }

  CPU_FLATTEN static void on_elements(const F& formula, const Tile& tile) {
    const F f = formula;  // nothing that the loop writes is part of it
    const auto& [rows, width, inputs, results, sums, row_sums] = tile;
    const bool sums_rows = row_sums.any();
    const bool sums_columns = std::any_of(sums, sums + C, [](const A* place) { return place != nullptr; });
    T repeated[sizeof...(I)][kTileCols<T>];
    T unwanted[kTileCols<T>];
    TileSums<A, C> acc;
    acc.load(sums, width);
    for (int64_t row = 0; row < rows; ++row) {
      const T* const from[] = {elements_of(inputs[I], row, width, repeated[I])...};
      T* const to[] = {results[M].data == nullptr ? unwanted : results[M].data + row * results[M].stride...};
      const auto write = [&](int64_t j) CPU_INLINE_LAMBDA {
        const auto value = f(static_cast<A>(from[I][j])...);
        ((to[M][j] = static_cast<T>(results_of(value)[M])), ...);
        return value;
      };
      if (sums_columns) {
        CPU_INDEPENDENT_LOOP
        for (int64_t j = 0; j < width; ++j) {
          const auto value = write(j);
          for (size_t c = 0; c < C; ++c) {
            acc.of[c][j] += terms_of(value)[static_cast<int>(c)];
          }
        }
      } else {
        CPU_INDEPENDENT_LOOP
        for (int64_t j = 0; j < width; ++j) {
          write(j);
        }
      }
      if (sums_rows) {
        row_sums.put(row, reduce_over(0, width, A(0), Add(), [&](int64_t j) CPU_INLINE_LAMBDA {
                       return results_of(f(static_cast<A>(from[I][j])...));
                     }));
      }
    }
    acc.store(sums, width);
  }

#if HAS_BLOCKS

  CPU_AVX512 CPU_FLATTEN static void on_blocks_of(Avx512, const F& f, const Tile& tile) { on_blocks<Avx512>(f, tile); }

  // Where nothing is converted, the two loops that compilers make of a row take less time than one over short blocks.
  CPU_AVX2 CPU_FLATTEN static void on_blocks_of(Avx2, const F& f, const Tile& tile) {
    if constexpr (std::is_same_v<T, A>) {
      on_elements(f, tile);
    } else {
      on_blocks<Avx2>(f, tile);
    }
  }

  template <class Isa>
  static void on_blocks(const F& formula, const Tile& tile) {
    constexpr int kBlock = Isa::template kBlock<T>;
    constexpr int kLine = kLineBytes / sizeof(T);
    constexpr bool kSends = std::is_same_v<Isa, Avx512>;  // half types with AVX2 take longer for it
    static_assert(kTileCols<T> % kBlock == 0);
    const F f = formula;
    const auto& [rows, width, inputs, results, sums, row_sums] = tile;
    const bool sums_rows = row_sums.any();
    bool sums_columns[C];
    std::transform(sums, sums + C, sums_columns, [](const A* place) { return place != nullptr; });
    const int64_t ahead[] = {bytes_ahead(inputs[I], rows, width)...};
    const int64_t results_ahead[] = {bytes_ahead(results[M], rows, width)...};
    TileSums<A, C> acc;
    acc.load(sums, width);
    for (int64_t row = 0; row < rows; ++row) {
      T repeated[sizeof...(I)][kBlock];
      ((inputs[I].numbers ? repeat<kBlock>(*row_of(inputs[I], row), repeated[I]) : void()), ...);
      const T* const from[] = {inputs[I].numbers ? repeated[I] : row_of(inputs[I], row)...};
      const int64_t step[] = {inputs[I].numbers ? 0 : 1 ...};
      T* const to[] = {results[M].data == nullptr ? nullptr : results[M].data + row * results[M].stride...};
      A values[sizeof...(I)][kBlock];
      A elements[sizeof...(M)][kBlock];
      A totals[sizeof...(M)][kBlock] = {};
      int64_t j = 0;
      for (; j + kBlock <= width; j += kBlock) {
        if (kSends && j % kLine < kBlock) {
          (send_for<kLine, kToRead>(from[I] + j * step[I], ahead[I]), ...);
          ((to[M] == nullptr ? void() : send_for<kLine, kToWrite>(to[M] + j, results_ahead[M])), ...);
        }
        (Isa::load_block(from[I] + j * step[I], values[I]), ...);
        on_block<kBlock>(f, values, elements, sums_columns, acc, j);
        ((to[M] == nullptr ? void() : Isa::store_block(elements[M], to[M] + j)), ...);
        for (int k = 0; k < kBlock && sums_rows; ++k) {
          ((totals[M][k] += elements[M][k]), ...);
        }
      }
      if (const int64_t count = width - j; count > 0) {
        (Isa::load_rest(from[I] + j * step[I], count, values[I]), ...);
        on_block<kBlock>(f, values, elements, sums_columns, acc, j);
        ((to[M] == nullptr ? void() : Isa::store_rest(elements[M], count, to[M] + j)), ...);
        for (int64_t k = 0; k < count && sums_rows; ++k) {
          ((totals[M][k] += elements[M][k]), ...);
        }
      }
      if (sums_rows) {
        row_sums.put(row, Values<A, sizeof...(M)>{fold_numbers<kBlock>(totals[M], Add())...});
      }
    }
    acc.store(sums, width);
  }

  // Each array becomes a register.
  template <int kBlock>
  static void on_block(
      const F& f, const A (&values)[sizeof...(I)][kBlock], A (&results)[sizeof...(M)][kBlock],
      const bool (&sums_columns)[C], TileSums<A, C>& acc, int64_t first) {
    A terms[C][kBlock];
    CPU_INDEPENDENT_LOOP
    CPU_ROLLED_LOOP
    for (int k = 0; k < kBlock; ++k) {
      const auto value = f(values[I][k]...);
      ((results[M][k] = results_of(value)[M]), ...);
      for (size_t c = 0; c < C; ++c) {
        terms[c][k] = terms_of(value)[static_cast<int>(c)];
      }
    }
    for (size_t c = 0; c < C; ++c) {
      if (sums_columns[c]) {
        CPU_INDEPENDENT_LOOP
        CPU_ROLLED_LOOP
        for (int k = 0; k < kBlock; ++k) {
          acc.of[c][first + k] += terms[c][k];
        }
      }
    }
  }

#endif

 private:
  CPU_INLINE static const T* row_of(const MatrixRows<const T>& input, int64_t row) {
    return input.data + row * input.stride;
  }

  // How far behind an element lies what is sent for meanwhile: what the tile goes on with, or, where it is a part of
  // several rows, the one below. 0: nowhere.
  template <class U>
  static int64_t bytes_ahead(const MatrixRows<U>& matrix, int64_t rows, int64_t width) {
    if (matrix.data == nullptr || matrix.numbers) {
      return 0;
    }
    return rows == 1 || matrix.stride == width ? kBytesAhead : matrix.stride * static_cast<int64_t>(sizeof(T));
  }

  CPU_INLINE static const T* elements_of(const MatrixRows<const T>& input, int64_t row, int64_t count, T* repeated) {
    const T* const first = row_of(input, row);
    return input.numbers ? (std::fill_n(repeated, count, *first), repeated) : first;
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
  ColumnTiles tiles;
  std::array<MatrixRows<const T>, K> inputs;
  std::array<T*, R> results;  // [rows, cols], or null
  RowSums<A, R> row_sums;     // [rows, tiles]

  // A TileLoop.
  static void add(const void* call, const ColumnTile& tile, A* const* sums) {
    static_cast<const ColumnFormula*>(call)->add(tile, sums);
  }

  void add(const ColumnTile& tile, A* const* sums) const {
    MatrixRows<const T> from[K];
    MatrixRows<T> to[R] = {};
    RowSums<A, R> own_row_sums = row_sums;
    for (size_t k = 0; k < K; ++k) {
      const MatrixRows<const T>& input = inputs[k];
      from[k] = input;
      from[k].data += tile.first_row * input.stride + (input.numbers ? 0 : tile.first_col);
    }
    for (size_t m = 0; m < R; ++m) {
      if (results[m] != nullptr) {
        to[m] = {results[m] + tile.first_row * cols + tile.first_col, cols};
      }
      if (own_row_sums.to[m] != nullptr) {
        own_row_sums.to[m] += tile.first_row * row_sums.stride + tile.first_col / tiles.width;
      }
    }
    for (size_t c = 0; c < C; ++c) {
      if (sums[c] != nullptr) {
        std::fill_n(sums[c], tile.width, A(0));
      }
    }
    if constexpr (!std::is_same_v<T, A>) {
      if (tile.width < kNarrow || !converts_in_loops<T>()) {
        add_copies(tile.rows, tile.width, from, to, sums, own_row_sums);
        return;
      }
    }
    Loop<T>::run(f, {tile.rows, tile.width, from, to, sums, own_row_sums});
  }

  // Rows of fewer elements than a vector has, one by one, take ten times as long as by way of copies.
  static constexpr int64_t kNarrow = 16;

  // By way of copies in the type of the arithmetic.
  void add_copies(
      int64_t rows, int64_t width, MatrixRows<const T> (&from)[K], MatrixRows<T> (&to)[R], A* const* sums,
      RowSums<A, R> own_row_sums) const {
    constexpr int64_t kCopied = kTileCols<T>;
    alignas(kLineBytes) A values[K + R][kCopied];
    MatrixRows<const A> wide_from[K];
    MatrixRows<A> wide_to[R] = {};
    for (int64_t most = kCopied / width; rows > 0; rows -= most) {
      most = std::min(most, rows);
      for (size_t k = 0; k < K; ++k) {
        A* const copy = values[k];
        const bool one = from[k].stride == 0;
        const int64_t length = from[k].numbers ? 1 : width;
        for_runs(one ? 1 : most, length, from[k].stride, [&](int64_t at, int64_t offset, int64_t count) {
          widen(from[k].data + offset, copy + at, count);
        });
        from[k].data += most * from[k].stride;
        wide_from[k] = {copy, one ? 0 : length, from[k].numbers};
      }
      for (size_t m = 0; m < R; ++m) {
        if (to[m].data != nullptr) {
          wide_to[m] = {values[K + m], width};
        }
      }
      Loop<A>::run(f, {most, width, wide_from, wide_to, sums, own_row_sums});
      for (size_t m = 0; m < R; ++m) {
        if (to[m].data != nullptr) {
          for_runs(most, width, cols, [&](int64_t at, int64_t offset, int64_t count) {
            narrow(wide_to[m].data + at, to[m].data + offset, count);
          });
          to[m].data += most * cols;
        }
        if (own_row_sums.to[m] != nullptr) {
          own_row_sums.to[m] += most * own_row_sums.stride;
        }
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

  template <class Out>
  void run(int64_t rows, const std::array<Out, C>& sums) const {
    const auto targets = sum_targets<A>(sums);
    column_sums<A>(1, rows, cols, tiles, add, this, targets.data(), C);
  }
};

}  // namespace detail

// results[m][row, col] = result m of f(inputs[row, col]...), and sums[c][col] = the sum over the rows of its term c.
template <class T, class F, size_t K, size_t R, size_t C>
void elementwise_with_column_sums(
    const F& f, const Tensor& /*like*/, int64_t rows, int64_t cols, const std::array<ColumnInput<T>, K>& inputs,
    const std::array<T*, R>& results, const std::array<T*, C>& sums) {
  detail::ColumnFormula<T, F, K, R, C> formula{f, cols, detail::column_tiles<T>(rows, cols), {}, results, {}};
  std::transform(inputs.begin(), inputs.end(), formula.inputs.begin(), [&](const ColumnInput<T>& input) {
    return detail::MatrixRows<const T>{input.data, input.one_row ? 0 : cols};
  });
  formula.run(rows, sums);
}

// results[m] of f(inputs[row, col]...), Values, for every element of matrices, written or summed. There are some.
// Threads have matrices of their own, or share each of fewer.
template <class T, class F, size_t K, size_t M>
void elementwise_with_sums(
    const F& f, const Tensor& like, const Matrices& matrices, const std::array<PlacedInput<T>, K>& inputs,
    const std::array<PlacedResult<T>, M>& results) {
  using A = acc_t<T>;
  const int64_t count = matrices.count;
  const int64_t rows = matrices.rows;
  const int64_t cols = matrices.cols;
  const detail::ColumnTiles tiles = detail::column_tiles<T>(rows, cols);
  std::array<std::optional<Tensor>, M> row_sums;
  std::array<A*, M> row_sums_data{};
  for (size_t m = 0; m < M; ++m) {
    if (results[m].rows.tensor != nullptr) {
      row_sums[m] = new_empty(like, {count * rows, tiles.count}, kDtypeOf<A>);
      row_sums_data[m] = row_sums[m]->template mutable_data_ptr<A>();
    }
  }
  const auto compute = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      detail::ColumnFormula<T, F, K, M, M> formula{f, cols, tiles, {}, {}, {}};
      std::transform(inputs.begin(), inputs.end(), formula.inputs.begin(), [=](const PlacedInput<T>& input) {
        const MatrixPlace& place = input.place;
        return detail::MatrixRows<const T>{
            input.data + i * place.matrix_stride, place.row_stride, place.col_stride == 0};
      });
      formula.row_sums.stride = tiles.count;
      std::array<SumOutput<T>, M> columns;
      for (size_t m = 0; m < M; ++m) {
        formula.results[m] = results[m].whole == nullptr ? nullptr : results[m].whole + i * rows * cols;
        formula.row_sums.to[m] = row_sums_data[m] == nullptr ? nullptr : row_sums_data[m] + i * rows * tiles.count;
        columns[m] = results[m].columns.from(i * cols);
      }
      formula.run(rows, columns);
    }
  };
  if (count > 1 && count >= int64_t{get_num_threads()}) {
    parallel_for(0, count, 1, compute);
  } else {
    compute(0, count);
  }
  sum_parts_of_rows(row_sums, results);
}

}  // namespace extension_cpp::cpu
