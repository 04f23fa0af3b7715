// Row loops on the CPU: reduce each row of a [rows, cols] matrix, then write one result per element. The functors are
// those of cuda/rows.cuh.
#pragma once

#include "cpu/elements.h"
#include "cpu/lines.h"
#include "cpu/parameter.h"
#include "cpu/partials.h"
#include "cpu/row.h"
#include "cpu/row_isa.h"
#include "cpu/row_sums.h"
#include "cpu/sum_target.h"
#include "cpu/wide_rows.h"
#include "row_values.h"

#include <algorithm>
#include <array>
#include <type_traits>

namespace extension_cpp::cpu {

namespace detail {

using extension_cpp::detail::call_with_row_values;

// Whether there are too few rows for a thread to take whole ones.
inline bool few_long_rows(int64_t rows, int64_t cols) { return cols > kSegment && rows < 64; }

}  // namespace detail

// The segments of few long rows, for every thread to have some of; of others none.
inline Split split_few_rows(int64_t rows, int64_t cols) {
  return detail::few_long_rows(rows, cols) ? Split::even(cols) : Split::none(cols);
}

inline Split split_for_sums(int64_t rows, int64_t cols, int64_t /*element_bytes*/) {
  return split_few_rows(rows, cols);
}

// f(row) for every segment of every row of K inputs, [rows, cols] each.
template <class T, size_t K, class F>
void launch_segments(
    const Tensor& /*like*/, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const Split& split, bool /*again*/ = false) {
  const F* const each = &f;
  const int64_t grain = row_grain(split.segment_cols);
  parallel_for(0, rows * split.segments, grain, [=](int64_t begin, int64_t end) {
    detail::for_row_isa<T>([=](auto isa) {
      using Segment = detail::Row<T, K, 0, detail::RowKind::kWhole, decltype(isa)>;
      detail::WideRows<T, K> values(inputs, split.segment_cols, 0);
      int64_t index = begin / split.segments;
      int64_t first_col = (begin - index * split.segments) * split.segment_cols;
      for (int64_t segment_index = begin; segment_index < end; ++segment_index) {
        const int64_t count = std::min(split.segment_cols, cols - first_col);
        Segment row(values, index, segment_index, cols, first_col, count, nullptr);
        detail::call_with_row_values(*each, row);
        first_col += count;
        if (first_col >= cols) {
          first_col = 0;
          ++index;
        }
      }
    });
  });
}

namespace detail {

template <RowKind kKind, class T, size_t K, class F>
void launch_whole_rows(const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  const F* const each = &f;
  parallel_for(0, rows, row_grain(cols), [=](int64_t begin, int64_t end) {
    for_row_isa<T>([=](auto isa) {
      WideRows<T, K> values(inputs, cols, end * cols);
      for (int64_t index = begin; index < end; ++index) {
        Row<T, K, 0, kKind, decltype(isa)> row(values, index, index, cols, 0, cols, nullptr);
        call_with_row_values(*each, row);
      }
    });
  });
}

}  // namespace detail

// f(row) for every row.
template <class T, size_t K, class F>
void launch_rows(
    const Tensor& /*like*/, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  using detail::RowKind;
  if (cols < kShortRow) {
    detail::launch_whole_rows<RowKind::kShort>(f, inputs, rows, cols);
  } else if (!detail::few_long_rows(rows, cols)) {
    detail::launch_whole_rows<RowKind::kWhole>(f, inputs, rows, cols);
  } else {
    detail::WideRows<T, K> values(inputs, 1, 0);  // each thread has its own for segments
    detail::with_row_isa<T>([&](auto isa) {
      for (int64_t index = 0; index < rows; ++index) {
        detail::Row<T, K, 0, RowKind::kShared, decltype(isa)> row(values, index, index, cols, 0, cols, nullptr);
        detail::call_with_row_values(f, row);
      }
    });
  }
}

// The same of rows that a thread takes whole. False, and nothing done, for few long ones, which threads share.
template <class T, size_t K, class F>
bool launch_kept_rows(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  if (rows > 0 && detail::few_long_rows(rows, cols)) {
    return false;
  }
  launch_rows(like, f, inputs, rows, cols);
  return true;
}

// output[row] = the sum of each row. False, and nothing done, for short rows and those of several segments, of which
// launch_rows() makes as much.
template <class T, class Out>
bool sum_rows(const T* input, int64_t rows, int64_t cols, const Out& output) {
  if (cols < kShortRow || cols > kSegment) {
    return false;
  }
  const detail::SumTarget<acc_t<T>> target(output);
  parallel_for(0, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    constexpr int64_t kSums = 256;
    acc_t<T> sums[kSums];
    for (int64_t row = begin; row < end; row += kSums) {
      const int64_t count = std::min(kSums, end - row);
      sum_elements(input + row * cols, count, cols, sums);
      target.store(row, sums, count);
    }
  });
  return true;
}

namespace detail {

// sums[c][col] = the sum over rows begin ... end - 1.
template <RowKind kKind, class T, size_t K, size_t C, class F>
void add_rows(
    const F& f, WideRows<T, K>& inputs, int64_t begin, int64_t end, int64_t cols, acc_t<T>* sums /* [C, cols] */) {
  for_row_isa<T>([=, &f, &inputs](auto isa) {
    std::fill_n(sums, static_cast<int64_t>(C) * cols, acc_t<T>(0));
    for (int64_t index = begin; index < end; ++index) {
      Row<T, K, C, kKind, decltype(isa)> row(inputs, index, index, cols, 0, cols, sums);
      call_with_row_values(f, row);
    }
  });
}

}  // namespace detail

// launch_rows for a functor that adds to columns: outputs[c][col] = the sum over the rows. Returns false, and does
// nothing, where there are few long rows. An output is a pointer or a SumOutput.
template <class T, size_t K, class F, class Out, size_t C>
bool launch_rows_and_column_sums(
    const Tensor& /*like*/, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const std::array<Out, C>& outputs) {
  using A = acc_t<T>;
  if (detail::few_long_rows(rows, cols)) {
    return false;
  }
  // As in column_sums, blocks of rows depend on the shape alone: equal bits with any number of threads. They are short,
  // which keeps the rounding error down, though not much shorter than what a thread takes, and of long rows there are
  // fewer, for the memory that their sums take.
  constexpr int64_t kShortBlock = 128;
  const int64_t most = std::clamp<int64_t>((int64_t{1} << 24) / std::max<int64_t>(1, cols), 4, 128);
  const int64_t least_rows = std::max({int64_t{8}, std::min(row_grain(cols), kShortBlock), (rows + most - 1) / most});
  const int64_t blocks = (rows + least_rows - 1) / least_rows;
  const int64_t block_rows = blocks == 0 ? least_rows : (rows + blocks - 1) / blocks;
  const int64_t size = static_cast<int64_t>(C) * cols;
  const Lines<A> buffer = new_lines<A>(blocks * size);
  A* const partials = buffer.get();  // [blocks, C, cols]
  const auto add_rows = cols < kShortRow ? detail::add_rows<detail::RowKind::kShort, T, K, C, F>
                                         : detail::add_rows<detail::RowKind::kWhole, T, K, C, F>;
  const int64_t grain = std::max<int64_t>(1, row_grain(cols) / block_rows);
  parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    detail::WideRows<T, K> values(inputs, cols, std::min(rows, end * block_rows) * cols);
    for (int64_t block = begin; block < end; ++block) {
      add_rows(f, values, block * block_rows, std::min(rows, (block + 1) * block_rows), cols, partials + block * size);
    }
  });
  const auto targets = detail::sum_targets<A>(outputs);
  detail::add_partials(blocks, cols, partials, targets.data(), C);
  return true;
}

}  // namespace extension_cpp::cpu
