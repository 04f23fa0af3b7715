// Sums over the rows of [rows, cols] matrices, in one pass over memory that may write an elementwise result as well.
//
// Teams of threads take segments of the columns, and a share of the rows; each thread keeps the sums of its columns in
// registers. Where several blocks share a column, each writes a row of partial sums, and a second kernel adds those in
// a fixed order. No atomics: equal bits from run to run. Most large matrices go another way (column_strips.cuh,
// matrix_sums.cuh).
#pragma once

#include "column_strips.cuh"
#include "launch.cuh"
#include "matrix_sums.cuh"
#include "matrix_view.h"
#include "rows.cuh"
#include "sum_dims.h"
#include "sum_output.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

// make(segments): the functor, for rows in so many segments.
template <class In, class Make, class Out, size_t C>
void column_sums(
    const Tensor& like, const Make& make, const In& inputs, const Extent& extent, const std::array<Out, C>& outputs) {
  using A = acc_t<typename In::Element>;
  const int64_t size = extent.batch * extent.cols;
  if (size == 0) {
    return;
  }
  if (extent.rows == 0) {
    launch_add_partials<A>(like, 0, size, static_cast<const A*>(nullptr), outputs);
    return;
  }
  using T = typename In::Element;
  using F = std::decay_t<decltype(make(1))>;
  with_access_width_for_sums<F>(inputs, extent, [&](auto vector, auto fit, const auto& from) {
    using From = std::decay_t<decltype(from)>;
    constexpr int N = decltype(vector)::value;
    constexpr int V = summed_accesses<T, N, C, F>();
    const int lanes = row_lanes(ceil_div(extent.cols, N), V, kWarp, kLeastLanes<N, decltype(fit)::value>);
    const int64_t segment = int64_t{lanes} * V * N;
    const int64_t segments = ceil_div(extent.cols, segment);
    const auto f = make(segments);
    const auto launch = [&](auto ahead) {
      return launch_column_sums<N, V, decltype(fit)::value, decltype(ahead)::value, false>(
          like, f, from, extent, {segments, segment}, lanes, outputs);
    };
    const bool done = with_ahead<From, N, decltype(fit)::value>(lanes, launch);
    // Every device has memory for a row of a few inputs.
    if constexpr (Queue<From, N, V, decltype(fit)::value>::kWarpBytes * (kBlock / kWarp) > 56 * 1024) {
      if (!done) {
        launch(std::false_type{});
      }
    }
  });
}

}  // namespace detail

// For each matrix of a [batch, rows, cols] tensor: outputs[c][b * cols + col] = the sum over its rows of what f adds to
// column `col`. f is a functor for a segment of a row (rows.cuh), whose index counts through the whole batch; it may
// call whatever needs no more than its own elements: row.add_to_columns, row.write. `like` gives device, stream and
// allocator. An output is a pointer or a SumOutput.
template <class T, size_t K, class F, class Out, size_t C>
void launch_column_sums(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t batch, int64_t rows, int64_t cols,
    const std::array<Out, C>& outputs) {
  const auto same = [&](int64_t /*segments*/) { return f; };
  detail::column_sums(like, same, detail::make_inputs(inputs), {batch, rows, cols}, outputs);
}

// An input of [rows, cols], or of one row for all.
template <class T>
struct ColumnInput {
  const T* data;
  bool one_row;
};

namespace detail {

template <class F, class To>
struct ElementwiseWithSums {
  F f;
  To results;

  template <class Row>
  __device__ void operator()(Row& row) const {
    row.write(results, f);
  }
};

// The results and the terms of a formula as results.
template <class A, class F, size_t R, size_t C>
struct ResultsAndTerms {
  static constexpr int kWork = extension_cpp::detail::kWorkOf<F>;

  F f;

  template <class... Inputs>
  __device__ Values<A, static_cast<int>(R + C)> operator()(const Inputs&... inputs) const {
    const auto made = f(inputs...);
    Values<A, static_cast<int>(R + C)> all;
#pragma unroll
    for (size_t r = 0; r < R; ++r) {
      all[static_cast<int>(r)] = made.results[static_cast<int>(r)];
    }
#pragma unroll
    for (size_t c = 0; c < C; ++c) {
      all[static_cast<int>(R + c)] = made.terms[static_cast<int>(c)];
    }
    return all;
  }
};

}  // namespace detail

// results[m][row, col] = result m of f(inputs[row, col]...), and sums[c][col] = the sum over the rows of its term c.
// `like` gives device, stream and allocator.
template <class T, class F, size_t K, size_t R, size_t C>
void elementwise_with_column_sums(
    const F& f, const Tensor& like, int64_t rows, int64_t cols, const std::array<ColumnInput<T>, K>& inputs,
    const std::array<T*, R>& results, const std::array<T*, C>& sums) {
  const auto to = std::apply([](auto*... result) { return Outputs{result...}; }, results);
  const detail::ElementwiseWithSums<F, std::decay_t<decltype(to)>> g{f, to};
  const auto same = [&](int64_t /*segments*/) { return g; };
  detail::MixedInputs<T, K> from;
  for (size_t k = 0; k < K; ++k) {
    from.data[k] = inputs[k].data;
    from.one_row[k] = inputs[k].one_row;
  }
  if (std::any_of(from.one_row, from.one_row + K, [](bool is) { return is; })) {
    detail::column_sums(like, same, from, {1, rows, cols}, sums);
  } else {
    std::array<const T*, K> matrices;
    std::copy_n(from.data, K, matrices.begin());
    // More would not fit the registers of strips.
    if constexpr (C <= 2 && K + R + C <= 6) {
      if (launch_column_strips(like, f, matrices, 1, rows, cols, results, sums)) {
        return;
      }
    }
    std::array<PlacedInput<T>, K> placed;
    for (size_t k = 0; k < K; ++k) {
      placed[k] = {matrices[k], {cols, 1}};
    }
    std::array<PlacedResult<T>, R + C> places;
    for (size_t r = 0; r < R; ++r) {
      places[r].whole = results[r];
    }
    for (size_t c = 0; c < C; ++c) {
      places[R + c].columns = SumOutput<T>(sums[c]);
    }
    if (launch_matrix_sums(like, detail::ResultsAndTerms<acc_t<T>, F, R, C>{f}, {1, rows, cols}, placed, places)) {
      return;
    }
    // A kernel of its own, which has nothing to shift.
    detail::column_sums(like, same, detail::make_inputs(matrices), {1, rows, cols}, sums);
  }
}

namespace detail {

// Writes or sums each result, to columns.
template <class T, class F, size_t K, size_t M>
struct WriteOrSum {
  F f;
  PointerArray<T, M> whole;  // [rows, cols], or null

  template <class Row>
  __device__ void operator()(Row& row) const {
    row.write_and_sum(whole, f);
  }
};

template <class A>
__device__ bool is_somewhere(const A* output) {
  return output != nullptr;
}
template <class T>
__device__ bool is_somewhere(const SumOutput<T>& output) {
  return output.is_wanted();
}

// Writes each result of f, or sums it to columns, and to its row: to a pointer or a SumOutput, or nowhere.
template <class Row, class T, size_t M, class Out, class F>
__device__ void write_or_sum(
    Row& row, const PointerArray<T, M>& whole, const Out (&row_sums)[M] /* [rows of all matrices, segments] */,
    const F& f) {
  using A = acc_t<T>;
  const auto total = row.write_and_sum(whole, f);
#pragma unroll
  for (size_t m = 0; m < M; ++m) {
    if (is_somewhere(row_sums[m])) {
      const A sum = row.sum_of_threads(total[static_cast<int>(m)]);
      if (row.leader()) {
        store_sum(row_sums[m], row.segment_index(), sum);
      }
    }
  }
}

// The same where inputs are one for a row, which come with the row's values, or results are summed to rows.
template <class T, class F, size_t K, size_t M, class Out>
struct WriteOrSumRows {
  using A = acc_t<T>;
  static constexpr int kInputs = static_cast<int>(K);

  F f;
  PointerArray<T, M> whole;  // [rows of all matrices, cols], or null
  const T* of_rows[K];       // null of what is an input
  int64_t step[K];           // from row to row of those, 1 or 0
  Out row_sums[M];

  __device__ Values<A, kInputs> row_values(int64_t row) const {
    Values<A, kInputs> values{};
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      if (of_rows[k] != nullptr) {
        values[k] = static_cast<A>(of_rows[k][row * step[k]]);
      }
    }
    return values;
  }

  template <class Row>
  __device__ void operator()(Row& row, const Values<A, kInputs>& values) const {
    write_and_sum(row, values, std::make_index_sequence<K>{});
  }

 private:
  template <size_t>
  using Number = A;

  template <class Row, size_t... I>
  __device__ void write_and_sum(Row& row, const Values<A, kInputs>& values, std::index_sequence<I...>) const {
    write_or_sum(row, whole, row_sums, [&](Number<I>... inputs) {
      return f((of_rows[I] != nullptr ? values[static_cast<int>(I)] : inputs)...);
    });
  }
};

// The same where input kNumber is the one that is one for a row, which compilers then know: what follows from it alone
// is computed once a row.
template <size_t kNumber, class T, class F, size_t K, size_t M, class Out>
struct WriteOrSumRowsOfNumber {
  using A = acc_t<T>;

  F f;
  PointerArray<T, M> whole;  // [rows of all matrices, cols], or null
  const T* number;
  int64_t step;  // from row to row of it, 1 or 0
  Out row_sums[M];

  __device__ A row_values(int64_t row) const { return static_cast<A>(number[row * step]); }

  template <class Row>
  __device__ void operator()(Row& row, A value) const {
    write_and_sum(row, value, std::make_index_sequence<K>{}, std::make_index_sequence<K - 1>{});
  }

 private:
  template <size_t>
  using Number = A;

  template <class Row, size_t... I, size_t... J>
  __device__ void write_and_sum(
      Row& row, A value, std::index_sequence<I...> /*all*/, std::index_sequence<J...> /*others*/) const {
    write_or_sum(row, whole, row_sums, [&](Number<J>... inputs) {
      const A others[] = {inputs...};
      return f((I == kNumber ? value : others[I - (I >= kNumber ? 1 : 0)])...);
    });
  }
};

// elementwise_with_sums() by rows_and_column_sums_kernel, for matrices of any size.
template <bool Several, class T, class F, size_t K, size_t M>
void launch_tile_sums(
    const F& f, const Tensor& like, const Matrices& matrices, const std::array<PlacedInput<T>, K>& inputs,
    const std::array<PlacedResult<T>, M>& results) {
  using A = acc_t<T>;
  const auto of_rows = [](const PlacedInput<T>& input) { return input.place.col_stride == 0; };
  PointerArray<T, M> whole;
  std::array<SumOutput<T>, M> columns;
  bool by_rows = std::any_of(inputs.begin(), inputs.end(), of_rows);
  for (size_t m = 0; m < M; ++m) {
    whole.data[m] = results[m].whole;
    columns[m] = results[m].columns;
    by_rows = by_rows || results[m].rows.tensor != nullptr;
  }
  // What is one for a row is an input in vain: it reads what another has for its first row.
  const auto other = std::find_if_not(inputs.begin(), inputs.end(), of_rows);
  std::optional<Tensor> any_row;
  if (other == inputs.end()) {
    any_row = new_empty(like, {matrices.cols});
  }
  const T* const first_row = any_row.has_value() ? any_row->template const_data_ptr<T>() : other->data;
  MixedInputs<T, K, Several> from;
  for (size_t k = 0; k < K; ++k) {
    from.data[k] = of_rows(inputs[k]) ? first_row : inputs[k].data;
    from.one_row[k] = of_rows(inputs[k]) || inputs[k].place.is_row();
    from.step[k] = of_rows(inputs[k]) ? 0 : inputs[k].place.matrix_stride;
  }
  const Extent extent{matrices.count, matrices.rows, matrices.cols};
  if constexpr (!Several) {  // of which there are kernels for both
    if (!by_rows) {
      const auto make = [&](int64_t /*segments*/) { return WriteOrSum<T, F, K, M>{f, whole}; };
      column_sums(like, make, from, extent, columns);
      return;
    }
  }

  WriteOrSumRows<T, F, K, M, A*> g{f, whole};
  for (size_t k = 0; k < K; ++k) {
    g.of_rows[k] = of_rows(inputs[k]) ? inputs[k].data : nullptr;
    g.step[k] = inputs[k].place.row_stride;
  }
  std::array<std::optional<Tensor>, M> row_sums;
  const auto make = [&](int64_t segments) {
    for (size_t m = 0; m < M; ++m) {
      if (results[m].rows.tensor != nullptr) {
        row_sums[m] = new_empty(like, {matrices.count * matrices.rows, segments}, kDtypeOf<A>);
      }
      g.row_sums[m] = row_sums[m].has_value() ? row_sums[m]->template mutable_data_ptr<A>() : nullptr;
    }
    return g;
  };
  column_sums(like, make, from, extent, columns);
  sum_parts_of_rows(row_sums, results);
}

// By rows_kernel, whose inputs are all but kNumber. False, and nothing done, of rows that a block has no registers for.
template <size_t kNumber, class T, class F, size_t K, size_t M, class Out>
bool launch_row_sums_of_number(
    const Tensor& like, const WriteOrSumRows<T, F, K, M, Out>& all, const std::array<const T*, K>& inputs, int64_t rows,
    int64_t cols) {
  WriteOrSumRowsOfNumber<kNumber, T, F, K, M, Out> g{all.f, all.whole, all.of_rows[kNumber], all.step[kNumber]};
  std::copy_n(all.row_sums, M, g.row_sums);
  std::array<const T*, K - 1> others;
  std::copy(inputs.begin() + kNumber + 1, inputs.end(), std::copy_n(inputs.begin(), kNumber, others.begin()));
  return launch_kept_rows<Lengths::kKeptWhole>(like, g, others, rows, cols);
}

// Of half types, columns from which on strips (matrix_sums.cuh) write rows sooner that are not whole accesses.
constexpr int64_t kWideRaggedCols = 2048;

// elementwise_with_sums() by rows_kernel, whose teams have a row each: where nothing is summed to columns, and no input
// is a row for all rows. False, and nothing done, elsewhere, of wide ragged rows, and where rows are longer than a
// block has registers for.
template <class T, class F, size_t K, size_t M>
bool launch_row_sums(
    const F& f, const Tensor& like, const Matrices& matrices, const std::array<PlacedInput<T>, K>& inputs,
    const std::array<PlacedResult<T>, M>& results) {
  using A = acc_t<T>;
  const int64_t rows = matrices.count * matrices.rows;
  WriteOrSumRows<T, F, K, M, SumOutput<T>> g{f};
  std::array<std::optional<Tensor>, M> row_sums;  // of what is summed on
  bool sums_rows = false;
  bool writes = false;
  bool are_accesses = matrices.cols % kVector<T> == 0;
  for (size_t m = 0; m < M; ++m) {
    const RowsOutput& to = results[m].rows;
    g.whole.data[m] = results[m].whole;
    writes = writes || results[m].whole != nullptr;
    if (results[m].columns.is_wanted()) {
      return false;
    }
    sums_rows = sums_rows || to.tensor != nullptr;
  }
  const T* any_whole = nullptr;
  for (const PlacedInput<T>& input : inputs) {
    const bool is_whole = input.place.is_whole(matrices.cols);
    if (!is_whole && input.place.col_stride != 0) {
      return false;
    }
    any_whole = is_whole ? input.data : any_whole;
    are_accesses = are_accesses && (!is_whole || misalignment(input.data) == 0);
  }
  const bool is_ragged = sizeof(T) == 2 && writes && !are_accesses && matrices.cols >= kWideRaggedCols;
  if (!sums_rows || any_whole == nullptr || is_ragged) {
    return false;
  }
  // What is one for a row is an input in vain: it reads what another has.
  std::array<const T*, K> from;
  size_t numbers = 0;
  size_t number = 0;
  for (size_t k = 0; k < K; ++k) {
    const bool is_whole = inputs[k].place.is_whole(matrices.cols);
    from[k] = is_whole ? inputs[k].data : any_whole;
    g.of_rows[k] = is_whole ? nullptr : inputs[k].data;
    g.step[k] = inputs[k].place.row_stride;
    if (!is_whole) {
      ++numbers;
      number = k;
    }
  }
  for (size_t m = 0; m < M; ++m) {
    const RowsOutput& to = results[m].rows;
    if (to.tensor == nullptr) {
      continue;
    }
    if (std::any_of(to.rows.summed.begin(), to.rows.summed.end(), [](bool is) { return is; })) {
      row_sums[m] = new_empty(like, {rows, 1}, kDtypeOf<A>);
      g.row_sums[m] = SumOutput<T>(row_sums[m]->template mutable_data_ptr<A>());
    } else {
      g.row_sums[m] = SumOutput<T>::of(*to.tensor);
    }
  }
  // Of the gradients of two operands, one of them a number: kernels that know which.
  bool done = false;
  if constexpr (K == 3) {
    if (numbers == 1 && are_accesses) {
      done = number == 1   ? launch_row_sums_of_number<1>(like, g, from, rows, matrices.cols)
             : number == 2 ? launch_row_sums_of_number<2>(like, g, from, rows, matrices.cols)
                           : false;
    }
  }
  if (!done && !launch_kept_rows(like, g, from, rows, matrices.cols)) {
    return false;
  }
  sum_parts_of_rows(row_sums, results);
  return true;
}

}  // namespace detail

// Columns of a matrix of which nothing says how wide it is.
constexpr int64_t kMatrixCols = 4096;

// Elements of a matrix that is one of several: one launch is for all.
constexpr int64_t kLeastMatrix = 1;

// Whether an input may be one matrix for all: what is whole lies as what is written.
constexpr bool kOneMatrixForAll = false;

// results[m] of f(inputs[row, col]...) for every element of matrices, written or summed. There are some.
template <class T, class F, size_t K, size_t M>
void elementwise_with_sums(
    const F& f, const Tensor& like, const Matrices& matrices, const std::array<PlacedInput<T>, K>& inputs,
    const std::array<PlacedResult<T>, M>& results) {
  if (detail::launch_row_sums(f, like, matrices, inputs, results) ||
      launch_matrix_sums<true>(like, f, matrices, inputs, results)) {
    return;
  }
  if (matrices.count > 1) {
    detail::launch_tile_sums<true>(f, like, matrices, inputs, results);
  } else {
    detail::launch_tile_sums<false>(f, like, matrices, inputs, results);
  }
}

}  // namespace extension_cpp::cuda
