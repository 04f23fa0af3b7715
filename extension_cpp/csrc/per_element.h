// Where the elements of a tensor lie that a functor for rows (rows.h) reads besides its inputs. Those of a row follow
// each other; the rows may be expanded, transposed or cut out of longer ones, as those of an attention mask mostly are,
// and are read where they lie.
#pragma once

#include "host_device.h"
#include "indexing.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace extension_cpp {

// Where each row begins.
class RowOffsets {
 public:
  // Of rows that follow each other.
  RowOffsets() = default;

  // Of rows that are one, [cols].
  static RowOffsets of_one_row() {
    RowOffsets found;
    found.follow_ = false;
    return found;
  }

  // Of a tensor, [..., cols]; of one that has to be copied nothing.
  static std::optional<RowOffsets> of(const Geometry& tensor, int64_t cols) {
    const int64_t last = tensor.dim - 1;
    if (last < 0 || tensor.sizes[last] != cols || (cols > 1 && tensor.strides[last] != 1)) {
      return std::nullopt;
    }
    RowOffsets found;
    int dims = 0;
    int64_t rows = 1;
    int64_t extent = 1;       // of the last of these
    int64_t next_stride = 0;  // of a dimension that is one with it
    bool fit = true;
    for (int64_t d = last - 1; d >= 0; --d) {
      const int64_t size = tensor.sizes[d];
      const int64_t stride = tensor.strides[d];
      rows *= size;
      if (size == 0) {
        return RowOffsets();
      }
      if (size == 1) {
        continue;
      }
      if (dims > 0 && stride == next_stride) {
        extent *= size;
      } else {
        if (dims == kDims) {
          return std::nullopt;
        }
        if (dims > 0) {
          found.sizes_[dims - 1] = Divider(extent);
        }
        const int64_t step = stride - next_stride;
        fit = fit && step == static_cast<int>(step);
        found.steps_[dims++] = static_cast<int>(step);
        extent = size;
      }
      next_stride = stride * size;
    }
    found.follow_ = rows <= 1 || (dims == 1 && next_stride == rows * cols);
    return found.follow_ || (fit && rows >> 31 == 0) ? std::optional(found) : std::nullopt;
  }

  // Whether all are.
  bool are_multiples_of(int64_t elements) const {
    return follow_ || std::all_of(steps_, steps_ + kDims, [&](int step) { return step % elements == 0; });
  }

  // Of the element in this row and column. `offset` is what it would be if rows followed each other.
  HOST_DEVICE int64_t at(int64_t row, int64_t col, int64_t offset) const {
    if (follow_) {
      return offset;
    }
    auto index = static_cast<int>(row);
    int64_t begin = int64_t{index} * steps_[0];
    for (int d = 1; d < kDims; ++d) {
      index = sizes_[d - 1].divide_small(index);
      begin += int64_t{index} * steps_[d];
    }
    return begin + col;
  }

 private:
  // Of four dimensions, the last of which is the row's, those before it.
  static constexpr int kDims = 3;

  // From index to index of a dimension, the innermost first, from where those inside it, which begin again, have got.
  int steps_[kDims] = {};
  Divider sizes_[kDims - 1];  // of dimensions that have others outside them
  bool follow_ = true;
};

// Elements of type U, as a member of a functor.
template <class U>
struct PerElement {
  const U* data;
  RowOffsets offsets;

  HOST_DEVICE const U* at(int64_t row, int64_t col, int64_t offset) const {
    return data + offsets.at(row, col, offset);
  }
};

}  // namespace extension_cpp
