// Sums over the rows of [rows, cols] matrices, in one pass over memory that may write an elementwise result as well.
//
// Teams of threads take segments of the columns, and a share of the rows; each thread keeps the sums of its columns in
// registers. Where several blocks share a column, each writes a row of partial sums, and a second kernel adds those in
// a fixed order. No atomics: equal bits from run to run.
#pragma once

#include "launch.cuh"
#include "rows.cuh"
#include "sum_output.cuh"
#include "vector.cuh"

#include <array>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

template <class In, class F, class Out, size_t C>
void column_sums(
    const Tensor& like, const F& f, const In& inputs, const Extent& extent, const std::array<Out, C>& outputs) {
  using A = acc_t<typename In::Element>;
  const int64_t size = extent.batch * extent.cols;
  if (size == 0) {
    return;
  }
  if (extent.rows == 0) {
    launch_add_partials<A>(like, 0, size, static_cast<const A*>(nullptr), outputs);
    return;
  }
  with_access_width(inputs, extent.cols, [&](auto vector, auto ragged) {
    constexpr int N = decltype(vector)::value;
    constexpr int V = kSummedAccesses<typename In::Element, N>;
    const int lanes = row_lanes(ceil_div(extent.cols, N), V, kWarp, kLeastLanes<N, decltype(ragged)::value>);
    const int64_t segment = int64_t{lanes} * V * N;
    const int64_t segments = ceil_div(extent.cols, segment);
    const auto launch = [&](auto ahead) {
      return launch_column_sums<N, V, decltype(ragged)::value, decltype(ahead)::value>(
          like, f, inputs, extent, {segments, segment}, lanes, outputs);
    };
    const bool done = with_ahead<In, N, decltype(ragged)::value>(lanes, launch);
    // Every device has memory for a row of a few inputs.
    if constexpr (Queue<In, N, V, decltype(ragged)::value>::kBytes * kBlock > 56 * 1024) {
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
  detail::column_sums(like, f, detail::make_inputs(inputs), {batch, rows, cols}, outputs);
}

// An input of [rows, cols], or of one row for all.
template <class T>
struct ColumnInput {
  const T* data;
  bool one_row;
};

namespace detail {

template <class T, class F, size_t R>
struct ElementwiseWithSums {
  F f;
  PointerArray<T, R> results;  // [rows, cols]

  template <class Row>
  __device__ void operator()(Row& row) const {
    row.write_with_sums(results, f);
  }
};

}  // namespace detail

// results[m][row, col] = result m of f(inputs[row, col]...), and sums[c][col] = the sum over the rows of its term c.
// `like` gives device, stream and allocator.
template <class T, class F, size_t K, size_t R, size_t C>
void elementwise_with_column_sums(
    const F& f, const Tensor& like, int64_t rows, int64_t cols, const std::array<ColumnInput<T>, K>& inputs,
    const std::array<T*, R>& results, const std::array<T*, C>& sums) {
  detail::MixedInputs<T, K> from;
  for (size_t k = 0; k < K; ++k) {
    from.data[k] = inputs[k].data;
    from.one_row[k] = inputs[k].one_row;
  }
  detail::ElementwiseWithSums<T, F, R> g{f};
  std::copy_n(results.begin(), R, g.results.data);
  detail::column_sums(like, g, from, {1, rows, cols}, sums);
}

}  // namespace extension_cpp::cuda
