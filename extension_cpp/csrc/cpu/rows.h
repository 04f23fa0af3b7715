// Row loops on the CPU: reduce each row of a [rows, cols] matrix, then write one result per element. The functors are
// those of cuda/rows.cuh.
#pragma once

#include "cpu/clones.h"
#include "cpu/parameter.h"
#include "cpu/partials.h"
#include "cpu/row.h"
#include "cpu/row_sums.h"

#include <algorithm>
#include <array>
#include <memory>

namespace extension_cpp::cpu {

namespace detail {

// Whether each row is shared out between threads, one after the other: there are too few for a thread to take whole
// ones.
inline bool shares_rows(int64_t rows, int64_t cols) { return cols > kSegment && rows < 64; }

}  // namespace detail

// f(row) for every row of K inputs, [rows, cols] each.
template <class T, size_t K, class F>
void launch_rows(
    const Tensor& /*like*/, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  if (detail::shares_rows(rows, cols)) {
    for (int64_t index = 0; index < rows; ++index) {
      detail::Row<T, K, 0, true> row(inputs, index, cols, nullptr);
      f(row);
    }
    return;
  }
  const F* const each = &f;
  parallel_for(0, rows, row_grain(cols), [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN {
    for (int64_t index = begin; index < end; ++index) {
      detail::Row<T, K, 0, false> row(inputs, index, cols, nullptr);
      (*each)(row);
    }
  });
}

// launch_rows for a functor that adds to columns: outputs[c][col] = the sum over the rows. An output is a pointer or a
// SumOutput.
template <class T, size_t K, class F, class Out, size_t C>
void launch_rows_and_column_sums(
    const Tensor& /*like*/, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const std::array<Out, C>& outputs) {
  using A = acc_t<T>;
  // As in column_sums, blocks of rows depend on the shape alone: equal bits with any number of threads. Of long rows
  // there are fewer, for the memory that their sums take.
  const bool shared = detail::shares_rows(rows, cols);
  const int64_t most = std::clamp<int64_t>((int64_t{1} << 24) / std::max<int64_t>(1, cols), 4, 128);
  const int64_t block_rows = shared ? rows : std::max<int64_t>(8, (rows + most - 1) / most);
  const int64_t blocks = rows == 0 ? 0 : (rows + block_rows - 1) / block_rows;
  const int64_t size = static_cast<int64_t>(C) * cols;
  const std::unique_ptr<A[]> buffer(new A[blocks * size]);
  A* const partials = buffer.get();  // [blocks, C, cols]
  if (shared && rows > 0) {
    std::fill_n(partials, size, A(0));
    for (int64_t index = 0; index < rows; ++index) {
      detail::Row<T, K, C, true> row(inputs, index, cols, partials);
      f(row);
    }
  } else {
    const F* const each = &f;
    const int64_t grain = std::max<int64_t>(1, row_grain(cols) / block_rows);
    parallel_for(0, blocks, grain, [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN {
      for (int64_t block = begin; block < end; ++block) {
        A* const sums = partials + block * size;
        std::fill_n(sums, size, A(0));
        const int64_t last_row = std::min(rows, (block + 1) * block_rows);
        for (int64_t index = block * block_rows; index < last_row; ++index) {
          detail::Row<T, K, C, false> row(inputs, index, cols, sums);
          (*each)(row);
        }
      }
    });
  }
  add_partials<A>(blocks, cols, partials, outputs);
}

}  // namespace extension_cpp::cpu
