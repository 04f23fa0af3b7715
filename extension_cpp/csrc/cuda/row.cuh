// A row as the functors of rows.cuh see it.
#pragma once

#include "launch.cuh"
#include "team.cuh"
#include "vector.cuh"

#include <array>
#include <cmath>
#include <utility>

namespace extension_cpp::cuda {

// Rows cut into segments of at most segment_cols columns, for functors that need to see no more than a segment.
struct Split {
  int64_t segments;
  int64_t segment_cols;

  static Split none(int64_t cols) { return {1, cols}; }

  // Segments that fit the registers of a block.
  static Split even(int64_t cols) {
    constexpr int64_t kSegment = 8192;
    return {std::max<int64_t>(1, ceil_div(cols, kSegment)), std::min(cols, kSegment)};
  }
};

namespace detail {

template <class T, size_t K>
struct Inputs {
  const T* data[K];
};

template <class T, size_t K, size_t... I>
Inputs<T, K> make_inputs(const std::array<const T*, K>& inputs, std::index_sequence<I...>) {
  return {{inputs[I]...}};
}

// Where a row, or a segment of one, lies.
struct Span {
  int64_t row;
  int64_t segment;
  int64_t first_col;
  int64_t cols;
  bool exists;  // where there is no such row, a team only keeps the others company: cols is 0

  // The index counts segments; end > 0 is the first that is not there.
  __device__ Span(int64_t index, int64_t end, int64_t row_cols, const Split& split) : exists(index < end) {
    index = exists ? index : end - 1;
    row = split.segments == 1 ? index : index / split.segments;
    segment = split.segments == 1 ? 0 : index % split.segments;
    first_col = segment * split.segment_cols;
    const int64_t rest = row_cols - first_col;
    cols = !exists ? 0 : split.segment_cols < rest ? split.segment_cols : rest;
  }
};

// V chunks of N elements of each of K inputs, as they are in memory. V == 0: nothing is kept.
template <class T, int N, int V, size_t K>
struct Kept {
  Chunk<T, N> chunks[K][V > 0 ? V : 1];

  __device__ void read(const Inputs<T, K>& inputs, int64_t row_cols, const Span& span, int lanes, int lane) {
    const int64_t base = span.row * row_cols + span.first_col;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int col = (lane + v * lanes) * N;
        if (col < span.cols) {
          chunks[k][v] = load_chunk<N>(inputs.data[k] + base + col);
        }
      }
    }
  }
};

// What a functor sees of its row. K inputs; C column sums, which only kernels that keep the row can have.
template <class T, int N, int V, size_t K, size_t C>
class Row {
 public:
  using A = acc_t<T>;
  using Sums = Values<A, N>[C > 0 ? C : 1][V > 0 ? V : 1];

  __device__ Row(
      const Inputs<T, K>& inputs, int64_t row_cols, const Split& split, const Span& span, const Kept<T, N, V, K>& kept,
      Team<A>& team, Sums& sums)
      : inputs_(inputs), row_cols_(row_cols), split_(split), span_(span), kept_(kept), team_(team), sums_(sums) {}

  // Always of an existing row, so that statistics may be read without asking.
  __device__ int64_t index() const { return span_.row; }
  // Of the segment, in a [rows, segments] matrix.
  __device__ int64_t segment_index() const { return span_.row * split_.segments + span_.segment; }
  // Elements of the row, or of the segment.
  __device__ int64_t cols() const { return span_.cols; }
  // True for one thread of each row: it writes what there is one of.
  __device__ bool leader() const { return span_.exists && team_.lane() == 0; }

  // The sum over the row of f(inputs..., columns...): a number, or Values of up to four.
  //
  // A column operand has a method at<N>(col), as Parameter above.
  template <class F, class... Columns>
  __device__ auto sum(const F& f, const Columns&... columns) {
    using R = decltype(call(f, std::declval<const Elements&>(), 0, columns.template at<N>(0)...));
    R total{};
    for_each(
        [&](int, int64_t, const Elements& inputs, const auto&... values) {
#pragma unroll
          for (int n = 0; n < N; ++n) {
            total = plus(total, call(f, inputs, n, values...));
          }
        },
        columns...);
    return team_.all_reduce(total, R{}, Plus{});
  }

  // The largest f(inputs..., columns...) of the row; NaN if there is one.
  template <class F, class... Columns>
  __device__ A max(const F& f, const Columns&... columns) {
    const A lowest = -static_cast<A>(INFINITY);
    A largest = lowest;
    for_each(
        [&](int, int64_t, const Elements& inputs, const auto&... values) {
#pragma unroll
          for (int n = 0; n < N; ++n) {
            largest = Larger{}(largest, call(f, inputs, n, values...));
          }
        },
        columns...);
    return team_.all_reduce(largest, lowest, Larger{});
  }

  // output[row, col] = f(inputs..., columns...) for every element. `output` is 16-byte aligned, as every fresh tensor
  // is.
  template <class F, class... Columns>
  __device__ void write(T* output /* [rows, cols] */, const F& f, const Columns&... columns) {
    T* const out = output + span_.row * row_cols_ + span_.first_col;
    for_each(
        [&](int, int64_t col, const Elements& inputs, const auto&... values) {
          Values<A, N> result;
#pragma unroll
          for (int n = 0; n < N; ++n) {
            result[n] = call(f, inputs, n, values...);
          }
          store(out + col, result);
        },
        columns...);
  }

  // write(output, f, columns...) and add_to_columns(g). Of registers there are two passes: one needs more of them.
  template <class F, class G, class... Columns>
  __device__ void write_and_add_to_columns(T* output, const F& f, const G& g, const Columns&... columns) {
    write(output, f, columns...);
    add_to_columns(g);
  }

  // Adds f(inputs..., columns...), Values of C numbers, to the sums of the element's column.
  template <class F, class... Columns>
  __device__ void add_to_columns(const F& f, const Columns&... columns) {
    static_assert(C > 0 && V > 0, "launch_rows_and_column_sums");
    for_each(
        [&](int v, int64_t, const Elements& inputs, const auto&... values) {
#pragma unroll
          for (int n = 0; n < N; ++n) {
            const Values<A, static_cast<int>(C)> terms = call(f, inputs, n, values...);
#pragma unroll
            for (size_t c = 0; c < C; ++c) {
              sums_[c][v][n] += terms[static_cast<int>(c)];
            }
          }
        },
        columns...);
  }

 private:
  struct Elements {
    Values<A, N> inputs[K];
  };

  template <class F, size_t... I, class... Columns>
  __device__ static auto call(
      const F& f, const Elements& elements, int n, std::index_sequence<I...>, const Columns&... columns) {
    return f(elements.inputs[I][n]..., columns[n]...);
  }

  template <class F, class... Columns>
  __device__ static auto call(const F& f, const Elements& elements, int n, const Columns&... columns) {
    return call(f, elements, n, std::make_index_sequence<K>{}, columns...);
  }

  // g(v, col, elements, columns...) for every chunk; col counts from the start of the segment.
  template <class G, class... Columns>
  __device__ void for_each(const G& g, const Columns&... columns) {
    if constexpr (V > 0) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int col = (team_.lane() + v * team_.lanes()) * N;
        if (col < span_.cols) {
          Elements elements;
#pragma unroll
          for (size_t k = 0; k < K; ++k) {
            elements.inputs[k] = to_values(kept_.chunks[k][v]);
          }
          g(v, static_cast<int64_t>(col), elements, columns.template at<N>(span_.first_col + col)...);
        }
      }
    } else {
      const int64_t base = span_.row * row_cols_ + span_.first_col;
#pragma unroll 4
      for (int64_t col = int64_t{team_.lane()} * N; col < span_.cols; col += int64_t{team_.lanes()} * N) {
        Elements elements;
#pragma unroll
        for (size_t k = 0; k < K; ++k) {
          elements.inputs[k] = load<N>(inputs_.data[k] + base + col);
        }
        g(0, col, elements, columns.template at<N>(span_.first_col + col)...);
      }
    }
  }

  const Inputs<T, K>& inputs_;
  int64_t row_cols_;
  const Split& split_;
  const Span& span_;
  const Kept<T, N, V, K>& kept_;
  Team<A>& team_;
  Sums& sums_;
};

}  // namespace detail

}  // namespace extension_cpp::cuda
