// Which rows of a matrix a thread takes, and in what order blocks go through them.
#pragma once

#include "indexing.h"
#include "launch.cuh"

#include <algorithm>

namespace extension_cpp::cuda::detail {

// Which thread has which accesses to the outputs, whose rows may begin anywhere between two boundaries. Accesses come
// in stretches, of 128 bytes unless rows are short, which belong to the row in which they begin. Rows a multiple of
// `period` apart begin at the same place in a stretch: a thread has the same access of `Rows` of these, and takes what
// is one row for all once.
template <int Rows>
struct Turns {
  int rows;
  int cols;
  int stretch;          // elements, a power of two
  int period_bits;      // the period is a power of two
  Divider by_accesses;  // those of the most stretches that begin in a row

  Turns(int64_t rows, int64_t cols, int vector)
      : rows(static_cast<int>(rows)), cols(static_cast<int>(cols)), stretch(8 * vector) {
    while (stretch > vector && cols < 2 * stretch) {
      stretch /= 2;
    }
    period_bits = period_bits_of_rows(cols, stretch);
    by_accesses = Divider(ceil_div(cols, stretch) * (stretch / vector));
  }

  HOST_DEVICE int period() const { return 1 << period_bits; }

  // A period of at least so many elements, if there are rows enough: any multiple is one.
  void move_apart(int64_t elements) {
    while (int64_t{cols} * period() < elements && rows >= 2 * Rows * period()) {
      ++period_bits;
    }
  }

  // Rows that go through all columns together.
  int64_t count() const {
    const int together = Rows * period();
    return rows / together * period() + std::min(rows % together, period());
  }

  int64_t threads() const { return count() * by_accesses.divisor(); }

  // The first row of a thread, and the column from which it has N elements in each of its rows: the last of them may
  // be in the next row. False: it has none.
  template <int N>
  __device__ bool find(int thread, int& row, int& col) const {
    const int turn = by_accesses.divide_small(thread);
    const int access = thread - turn * static_cast<int>(by_accesses.divisor());
    row = (turn >> period_bits) * (Rows * period()) + (turn & (period() - 1));
    const int first = -(row * cols) & (stretch - 1);
    if (row >= rows || first + (access * N & -stretch) >= cols) {
      return false;
    }
    col = first + access * N;
    // In the next row. So it is for all rows of the thread.
    while (col >= cols) {
      col -= cols;
      ++row;
    }
    return true;
  }
};

// The place of a block in the order of the outputs: see in_order().
__device__ inline int own_block() { return static_cast<int>(blockIdx.x * gridDim.y + blockIdx.y); }

// The grid of so many blocks, in the order of the outputs, which go through all columns `turns` times. Where what is
// one row for all, if anything is, has left the L2 cache before the next row wants it, for rows move so many bytes,
// blocks of the same columns run one after the other: those of a turn are along y, or a whole part of them where they
// are too many.
inline dim3 in_order(int64_t blocks, int64_t turns, bool shared, int64_t row_bytes) {
  if (!shared || turns == 1 || !leave_the_cache(row_bytes)) {
    return static_cast<unsigned>(blocks);
  }
  const int64_t of_turn = ceil_div(blocks, turns);
  const int64_t along_y = ceil_div(of_turn, ceil_div(of_turn, kMaxGridY));
  return {static_cast<unsigned>(ceil_div(blocks, along_y)), static_cast<unsigned>(along_y)};
}

}  // namespace extension_cpp::cuda::detail
