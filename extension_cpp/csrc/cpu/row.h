// A row as the functors of rows.h see it: what cuda/row.cuh is for CUDA.
#pragma once

#include "cpu/clones.h"
#include "cpu/row_sums.h"
#include "dispatch.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>

namespace extension_cpp::cpu {

// Rows cut into segments of at most segment_cols columns, for functors that need to see no more than a segment.
struct Split {
  int64_t segments;
  int64_t segment_cols;

  static Split none(int64_t cols) { return {1, cols}; }

  static Split even(int64_t cols) {
    return {std::max<int64_t>(1, (cols + kSegment - 1) / kSegment), std::min(cols, kSegment)};
  }
};

namespace detail {

template <class A>
CPU_INLINE A larger(A a, A b) {
  return a > b || a != a ? a : b;  // NaN wins
}

// A row, or a segment of one. K inputs; C column sums. Shared: the passes over this row are shared out between threads;
// else one thread has it. Either way long rows are cut into the same segments, and give the same bits.
template <class T, size_t K, size_t C, bool Shared>
class Row {
 public:
  using A = acc_t<T>;

  // The index counts segments.
  CPU_INLINE Row(
      const std::array<const T*, K>& inputs, int64_t index, int64_t row_cols, const Split& split,
      A* column_sums /* [C, cols] */)
      : index_(split.segments == 1 ? index : index / split.segments),
        segment_index_(index),
        first_col_((index - index_ * split.segments) * split.segment_cols),
        cols_(std::min(split.segment_cols, row_cols - first_col_)),
        offset_(index_ * row_cols + first_col_),
        column_sums_(column_sums) {
    for (size_t k = 0; k < K; ++k) {
      inputs_[k] = inputs[k] + offset_;
    }
  }

  int64_t index() const { return index_; }
  // Of the segment, in a [rows, segments] matrix.
  int64_t segment_index() const { return segment_index_; }
  // Elements of the row, or of the segment.
  int64_t cols() const { return cols_; }
  // On CUDA true for one thread of each row, which writes what there is one of.
  bool leader() const { return true; }

  // The sum over the row of f(inputs..., columns...): a number, or Values of several.
  //
  // A column operand has a method at<N>(col), as Parameter.
  template <class F, class... Columns>
  CPU_INLINE auto sum(const F& f, const Columns&... columns) const {
    using R = decltype(call(f, 0, columns...));
    constexpr size_t S = ResultCounts<R>::results;
    using Sums = std::array<A, S>;
    const auto segment_sum = [&](int64_t segment) {
      const int64_t first = segment * kSegment;
      return sum_over<A, S>(std::min(kSegment, cols_ - first), [&](int64_t j, A(&terms)[S]) {
        const auto values = as_values(call(f, first + j, columns...));
        for (size_t s = 0; s < S; ++s) {
          terms[s] += values[static_cast<int>(s)];
        }
      });
    };
    Sums total;
    if (cols_ <= kSegment) {
      total = segment_sum(0);
    } else {
      const int64_t segments = (cols_ + kSegment - 1) / kSegment;
      double sums[S] = {};
      const auto add = [&](const Sums& terms) {
        for (size_t s = 0; s < S; ++s) {
          sums[s] += static_cast<double>(terms[s]);
        }
      };
      if constexpr (Shared) {
        const std::unique_ptr<Sums[]> buffer(new Sums[segments]);
        Sums* const partials = buffer.get();
        const auto* const of_segment = &segment_sum;
        parallel_for(0, segments, row_grain(kSegment), [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN {
          for (int64_t segment = begin; segment < end; ++segment) {
            partials[segment] = (*of_segment)(segment);
          }
        });
        std::for_each(partials, partials + segments, add);
      } else {
        for (int64_t segment = 0; segment < segments; ++segment) {
          add(segment_sum(segment));
        }
      }
      std::transform(sums, sums + S, total.begin(), [](double sum) { return static_cast<A>(sum); });
    }
    if constexpr (std::is_same_v<R, A>) {
      return total[0];
    } else {
      R result;
      std::copy_n(total.begin(), S, result.values);
      return result;
    }
  }

  // The largest f(inputs..., columns...) of the row; NaN if there is one.
  template <class F, class... Columns>
  CPU_INLINE A max(const F& f, const Columns&... columns) const {
    const auto largest_of = [&](int64_t begin, int64_t end) {
      constexpr int kLanes = 32;
      A lanes[kLanes];
      std::fill_n(lanes, kLanes, -std::numeric_limits<A>::infinity());
      int64_t j = begin;
      for (; j + kLanes <= end; j += kLanes) {
        CPU_INDEPENDENT_LOOP
        for (int lane = 0; lane < kLanes; ++lane) {
          lanes[lane] = larger(lanes[lane], call(f, j + lane, columns...));
        }
      }
      for (; j < end; ++j) {
        lanes[0] = larger(lanes[0], call(f, j, columns...));
      }
      for (int lane = 1; lane < kLanes; ++lane) {
        lanes[0] = larger(lanes[0], lanes[lane]);
      }
      return lanes[0];
    };
    if constexpr (Shared) {
      const int64_t segments = (cols_ + kSegment - 1) / kSegment;
      const std::unique_ptr<A[]> buffer(new A[segments]);
      A* const partials = buffer.get();
      const auto* const of = &largest_of;
      const int64_t cols = cols_;
      parallel_for(0, segments, row_grain(kSegment), [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN {
        for (int64_t segment = begin; segment < end; ++segment) {
          partials[segment] = (*of)(segment * kSegment, std::min(cols, (segment + 1) * kSegment));
        }
      });
      A largest = -std::numeric_limits<A>::infinity();
      for (int64_t segment = 0; segment < segments; ++segment) {
        largest = larger(largest, partials[segment]);
      }
      return largest;
    } else {
      return largest_of(0, cols_);
    }
  }

  // output[row, col] = f(inputs..., columns...) for every element.
  template <class F, class... Columns>
  CPU_INLINE void write(T* output /* [rows, cols] */, const F& f, const Columns&... columns) const {
    T* const out = output + offset_;
    for_columns([&](int64_t begin, int64_t end) {
      CPU_INDEPENDENT_LOOP
      for (int64_t j = begin; j < end; ++j) {
        out[j] = static_cast<T>(call(f, j, columns...));
      }
    });
  }

  // Adds f(inputs..., columns...), Values of C numbers, to the sums of the element's column.
  template <class F, class... Columns>
  CPU_INLINE void add_to_columns(const F& f, const Columns&... columns) const {
    CPU_INDEPENDENT_LOOP
    for (int64_t j = 0; j < cols_; ++j) {
      add(j, call(f, j, columns...));
    }
  }

  // write(output, f, columns...) and add_to_columns(g) in one pass.
  template <class F, class G, class... Columns>
  CPU_INLINE void write_and_add_to_columns(T* output, const F& f, const G& g, const Columns&... columns) const {
    T* const out = output + offset_;
    CPU_INDEPENDENT_LOOP
    for (int64_t j = 0; j < cols_; ++j) {
      out[j] = static_cast<T>(call(f, j, columns...));
      add(j, call(g, j));
    }
  }

 private:
  CPU_INLINE void add(int64_t j, const Values<A, static_cast<int>(C)>& terms) const {
    static_assert(C > 0 && !Shared, "launch_rows_and_column_sums");
    for (size_t c = 0; c < C; ++c) {
      column_sums_[c * cols_ + j] += terms[static_cast<int>(c)];
    }
  }

  template <class F, size_t... I, class... Columns>
  CPU_INLINE auto call(const F& f, int64_t j, std::index_sequence<I...>, const Columns&... columns) const {
    return f(static_cast<A>(inputs_[I][j])..., columns.template at<1>(first_col_ + j)[0]...);
  }

  template <class F, class... Columns>
  CPU_INLINE auto call(const F& f, int64_t j, const Columns&... columns) const {
    return call(f, j, std::make_index_sequence<K>(), columns...);
  }

  // loop(begin, end) for all columns of the row.
  template <class Loop>
  CPU_INLINE void for_columns(const Loop& loop) const {
    if constexpr (Shared) {
      const auto* const all = &loop;
      parallel_for(0, cols_, kGrain, [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN { (*all)(begin, end); });
    } else {
      loop(0, cols_);
    }
  }

  std::array<const T*, K> inputs_;
  int64_t index_;
  int64_t segment_index_;
  int64_t first_col_;
  int64_t cols_;
  int64_t offset_;  // of the first element
  A* column_sums_;
};

}  // namespace detail

}  // namespace extension_cpp::cpu
