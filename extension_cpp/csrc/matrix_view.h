// Operands that broadcast, seen as matrices of one shape. Free of torch, as indexing.h.
#pragma once

#include "indexing.h"

#include <memory>

namespace extension_cpp {

struct MatrixShape {
  int64_t rows = 0;  // 0: the operands are no matrices
  int64_t cols = 0;
};

// Where an operand has element (row, col): at row * row_stride + col * col_stride. A stride of 0: one for all.
struct MatrixPlace {
  int64_t row_stride;
  int64_t col_stride;

  bool is_whole(int64_t cols) const { return col_stride == 1 && row_stride == cols; }
  // A value for each column, for each row, for all.
  bool is_row() const { return col_stride == 1 && row_stride == 0; }
  bool is_column() const { return col_stride == 0 && row_stride == 1; }
  bool is_number() const { return col_stride == 0 && row_stride == 0; }
};

// An input, and where it lies in a matrix.
template <class T>
struct PlacedInput {
  const T* data;
  MatrixPlace place;
};

// Elements that are whole accesses, of any type.
constexpr int64_t kWholeAccesses = 16;

// So many elements that follow one another, in rows of at most `longest`, whole accesses: the longest, but no shorter
// than a quarter of that. Where there are none, halves of all elements, as few as can be.
inline MatrixShape as_matrix(int64_t numel, int64_t longest) {
  if (numel > longest && numel % kWholeAccesses == 0) {
    for (int64_t cols = longest / kWholeAccesses * kWholeAccesses; 4 * cols >= longest; cols -= kWholeAccesses) {
      if (numel % cols == 0) {
        return {numel / cols, cols};
      }
    }
  }
  MatrixShape shape{1, numel};
  while (shape.cols > longest && shape.cols % 2 == 0) {
    shape.cols /= 2;
    shape.rows *= 2;
  }
  return shape;
}

// The matrix that the first operand is, whose elements lie densely, and the places of all operands in it, which are
// whole, rows, columns or numbers. What could have any shape has rows as as_matrix() makes them.
inline MatrixShape view_as_matrices(const Geometry* operands, int num, int64_t longest, MatrixPlace* places) {
  std::vector<int64_t> strides(static_cast<size_t>(kMaxDims) * num);
  const std::unique_ptr<bool[]> linear(new bool[num]);
  Divider sizes[kMaxDims];
  const MergedDims merged = merge_dims(operands, num, sizes, strides.data(), linear.get());
  if (!merged.fits || merged.dims > 2 || merged.numel == 0) {
    return {};
  }
  const MatrixShape shape =
      merged.dims == 2 ? MatrixShape{sizes[1].divisor(), sizes[0].divisor()} : as_matrix(merged.numel, longest);
  for (int k = 0; k < num; ++k) {
    const int64_t inner = strides[k];
    places[k] = {merged.dims == 2 ? strides[num + k] : inner * shape.cols, inner};
    const bool is =
        places[k].is_whole(shape.cols) || places[k].is_row() || places[k].is_column() || places[k].is_number();
    if (!is) {
      return {};
    }
  }
  return shape;
}

}  // namespace extension_cpp
