// Operands that broadcast, seen as matrices of one shape. Free of torch, as indexing.h.
#pragma once

#include "indexing.h"

namespace extension_cpp {

struct MatrixShape {
  int64_t rows;
  int64_t cols;
};

// So many of [rows, cols], one behind the other.
struct Matrices {
  int64_t count;
  int64_t rows;
  int64_t cols;
};

// Where an operand has element (row, col) of the first matrix, at row * row_stride + col * col_stride, and how far it
// is to that of the next one. A stride of 0: one for all.
struct MatrixPlace {
  int64_t row_stride;
  int64_t col_stride;
  int64_t matrix_stride = 0;

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

// Sizes, the outermost first, and which of them are summed over.
struct SummedSizes {
  std::vector<int64_t> sizes;
  std::vector<bool> summed;

  void add(int64_t size, bool is_summed) {
    sizes.push_back(size);
    summed.push_back(is_summed);
  }
};

// A bit for each axis of a MatrixView.
using AxisSet = uint64_t;

// What operands broadcast to, as matrices. Its axes are its dimensions in the order of memory, the innermost first;
// neighbours of which every operand has both or neither are one. The first axis is the columns, the next ones are the
// rows: as many as may be for each operand that is a row for all rows of a matrix. The others count the matrices.
//
// An operand has an axis, or is broadcast along it. It is whole; or a row of a matrix, where it has the first axis and
// not the second; or it has numbers for rows, or for matrices; or it is whole in some axes alone.
class MatrixView {
 public:
  // `whole` is dense, and has elements: it counts for its sizes and the order of its strides. Of what could have any
  // shape rows are as as_matrix() makes them. Those that `decide` say where an axis ends: operands from this one on.
  // Others are copied whole where they have a part of an axis.
  MatrixView(const Geometry& whole, const Geometry* operands, size_t num, size_t decide, int64_t longest)
      : whole_(whole), axis_of_(whole.dim, 0), operands_(num) {
    order_dims();
    for (size_t k = 0; k < num; ++k) {
      look_at(operands[k], operands_[k]);
    }
    merge_dims(decide);
    if (sizes_.size() > 1) {
      first_of_matrices_ = sizes_.size();
      for (const Operand& operand : operands_) {
        const bool is_in_matrices = !operand.in_part && is_row(operand.axes);
        for (size_t axis = 2; is_in_matrices && axis < first_of_matrices_; ++axis) {
          first_of_matrices_ = has(operand.axes, axis) ? axis : first_of_matrices_;
        }
      }
      matrices_ = {size_of(matrix_axes()), size_of(row_axes()), sizes_[0]};
    } else {
      first_of_matrices_ = 1;
      const MatrixShape shape = as_matrix(size_of(all_axes()), longest);
      matrices_ = {1, shape.rows, shape.cols};
    }
  }

  const Matrices& matrices() const { return matrices_; }

  AxisSet axes_of(size_t operand) const { return operands_[operand].axes; }
  // Whether the elements of an operand lie densely, in the order of the axes.
  bool is_in_order(size_t operand) const { return operands_[operand].in_order && !operands_[operand].in_part; }

  AxisSet all_axes() const { return first_axes(sizes_.size()); }
  AxisSet row_axes() const { return first_axes(first_of_matrices_) & ~AxisSet{1}; }
  AxisSet matrix_axes() const { return all_axes() & ~first_axes(first_of_matrices_); }

  bool is_whole(AxisSet axes) const { return axes == all_axes(); }
  bool is_row(AxisSet axes) const { return sizes_.size() > 1 && has(axes, 0) && !has(axes, 1); }

  bool is_whole_in_some(AxisSet axes) const { return has(axes, 0) && !is_row(axes) && !is_whole(axes); }

  // The axes that an operand shall have for a place() in the matrices: its own, or those of a copy. (A copy has also
  // those that the operand is expanded along, for it is made of what broadcasts to it.) `one_for_all`: one matrix for
  // all of them has a place.
  AxisSet axes_in_place(size_t operand, bool one_for_all) const {
    const auto [axes, sized, in_order, in_part] = operands_[operand];
    if (in_part) {
      return all_axes();
    }
    if (one_for_all && in_order && is_matrix_for_all(axes)) {
      return axes;
    }
    AxisSet completed = axes;
    if (is_row(axes)) {
      completed = AxisSet{1} | (is_one_for_matrices(axes) ? 0 : matrix_axes());
    } else if (axes != 0) {
      completed = has(axes, 0) ? all_axes() : row_axes() | matrix_axes();
    }
    const bool is_copied = !in_order || completed != axes;
    return is_copied && sized != axes ? all_axes() : completed;
  }

  // What there is one of for all matrices, of which there are several.
  bool is_one_for_matrices(AxisSet axes) const { return matrix_axes() != 0 && (axes & matrix_axes()) == 0; }

  // Of axes_in_place(), in order.
  MatrixPlace place(AxisSet axes) const {
    const auto [count, rows, cols] = matrices_;
    if (is_whole(axes) || is_matrix_for_all(axes)) {
      return {cols, 1, is_whole(axes) ? rows * cols : 0};
    }
    if (is_row(axes)) {
      return {0, 1, is_one_for_matrices(axes) ? 0 : cols};
    }
    return axes == 0 ? MatrixPlace{0, 0, 0} : MatrixPlace{1, 0, rows};
  }

  // Those axes, of which others than `kept` are summed over.
  SummedSizes summed(AxisSet axes, AxisSet kept) const {
    SummedSizes result;
    for (size_t axis = sizes_.size(); axis-- > 0;) {
      if (has(axes, axis)) {
        result.add(sizes_[axis], !has(kept, axis));
      }
    }
    return result;
  }

  // Sizes and strides of what has these axes, in order, with the dimensions of the whole.
  std::array<std::vector<int64_t>, 2> layout_of(AxisSet axes) const {
    std::vector<int64_t> sizes(whole_.dim, 1);
    std::vector<int64_t> strides(whole_.dim, 1);
    int64_t stride = 1;
    for (const int64_t d : order_) {
      if (has(axes, axis_of_[d])) {
        sizes[d] = whole_.sizes[d];
        strides[d] = stride;
        stride *= sizes[d];
      }
    }
    return {std::move(sizes), std::move(strides)};
  }

 private:
  struct Operand {
    AxisSet axes = 0;
    AxisSet sized = 0;  // those, and what it is expanded along
    bool in_order = true;
    bool in_part = false;  // has some dimensions of an axis, and some not
  };

  bool is_matrix_for_all(AxisSet axes) const { return axes == (AxisSet{1} | row_axes()) && is_one_for_matrices(axes); }

  // Fewer than 64, for all are larger than 1.
  static bool has(AxisSet axes, size_t axis) { return (axes >> axis & 1) != 0; }
  static AxisSet first_axes(size_t count) { return (AxisSet{1} << count) - 1; }

  int64_t size_of(AxisSet axes) const {
    int64_t size = 1;
    for (size_t axis = 0; axis < sizes_.size(); ++axis) {
      size *= has(axes, axis) ? sizes_[axis] : 1;
    }
    return size;
  }

  void order_dims() {
    order_.reserve(whole_.dim);
    for (int64_t d = whole_.dim - 1; d >= 0; --d) {
      if (whole_.sizes[d] != 1) {
        const auto is_before = [&](int64_t a, int64_t b) { return whole_.strides[a] < whole_.strides[b]; };
        order_.insert(std::upper_bound(order_.begin(), order_.end(), d, is_before), d);
      }
    }
  }

  // Before dimensions are merged there is an axis for each. What is expanded along some has one number there, unless it
  // has to be copied anyway.
  void look_at(const Geometry& given, Operand& operand) const {
    int64_t expected = 1;
    for (size_t at = 0; at < order_.size(); ++at) {
      const int64_t own = order_[at] - (whole_.dim - given.dim);
      if (own < 0 || given.sizes[own] == 1) {
        continue;
      }
      operand.sized |= AxisSet{1} << at;
      if (given.strides[own] != 0) {
        operand.axes |= AxisSet{1} << at;
        operand.in_order = operand.in_order && given.strides[own] == expected;
        expected *= given.sizes[own];
      }
    }
    operand.axes = operand.in_order ? operand.axes : operand.sized;
  }

  void merge_dims(size_t decide) {
    const std::vector<Operand> of_dims = operands_;
    sizes_.reserve(order_.size());
    for (Operand& operand : operands_) {
      operand.axes = 0;
      operand.sized = 0;
    }
    for (size_t at = 0; at < order_.size(); ++at) {
      const int64_t size = whole_.sizes[order_[at]];
      const auto merges_for = [&](const Operand& operand) {
        return has(operand.axes, at) == has(operand.axes, at - 1);
      };
      const bool merges = at > 0 && std::all_of(of_dims.begin() + decide, of_dims.end(), merges_for);
      if (merges) {
        sizes_.back() *= size;
      } else {
        sizes_.push_back(size);
      }
      const size_t axis = sizes_.size() - 1;
      axis_of_[order_[at]] = axis;
      for (size_t k = 0; k < operands_.size(); ++k) {
        operands_[k].in_part = operands_[k].in_part || (merges && !merges_for(of_dims[k]));
        operands_[k].axes |= AxisSet{has(of_dims[k].axes, at)} << axis;
        operands_[k].sized |= AxisSet{has(of_dims[k].sized, at)} << axis;
      }
    }
  }

  Geometry whole_;
  std::vector<int64_t> order_;   // of dimensions, the innermost in memory first, without those of one element
  std::vector<size_t> axis_of_;  // of a dimension that is one of these
  std::vector<int64_t> sizes_;   // of axes
  std::vector<Operand> operands_;
  size_t first_of_matrices_ = 0;  // axis
  Matrices matrices_;
};

}  // namespace extension_cpp
