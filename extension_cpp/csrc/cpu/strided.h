// Copies between operands of any layout and values that lie in a row, which is what loops vectorise.
#pragma once

#include "indexing.h"

#include <algorithm>

namespace extension_cpp::cpu::detail {

// visit(at, offset, width) for every piece of a row among elements begin ... begin + count - 1 of operand k: the
// elements from begin + at on lie from `offset` on.
template <int K, class Visit>
void visit_rows(const Indexing<K>& indexing, int k, int64_t begin, int64_t count, const Visit& visit) {
  int64_t place[kMaxDims];
  int64_t offset = 0;
  for (int d = 0; d < indexing.dims; ++d) {
    const int64_t outer = indexing.sizes[d].divide(begin);
    place[d] = begin - outer * indexing.sizes[d].divisor();
    offset += place[d] * indexing.strides[d][k];
    begin = outer;
  }
  for (int64_t at = 0; at < count;) {
    const int64_t width = std::min(indexing.sizes[0].divisor() - place[0], count - at);
    visit(at, offset, width);
    at += width;
    offset -= place[0] * indexing.strides[0][k];
    place[0] = 0;
    for (int d = 1; d < indexing.dims; ++d) {  // carry
      offset += indexing.strides[d][k];
      if (++place[d] < indexing.sizes[d].divisor()) {
        break;
      }
      offset -= place[d] * indexing.strides[d][k];
      place[d] = 0;
    }
  }
}

// Copies elements begin ... begin + count - 1 of operand k to `buffer`.
template <class T, int K>
void gather(const Indexing<K>& indexing, int k, const T* data, int64_t begin, int64_t count, T* buffer) {
  const int64_t stride = indexing.strides[0][k];
  visit_rows(indexing, k, begin, count, [=](int64_t at, int64_t offset, int64_t width) {
    if (stride == 0) {
      const T value = data[offset];
      for (int64_t j = 0; j < width; ++j) {
        buffer[at + j] = value;
      }
    } else {
      for (int64_t j = 0; j < width; ++j) {
        buffer[at + j] = data[offset + j * stride];
      }
    }
  });
}

// Copies `values` to elements begin ... begin + count - 1 of the output, operand 0.
template <class T, int K>
void scatter(const Indexing<K>& indexing, const T* values, int64_t begin, int64_t count, T* output) {
  const int64_t stride = indexing.strides[0][0];
  visit_rows(indexing, 0, begin, count, [=](int64_t at, int64_t offset, int64_t width) {
    for (int64_t j = 0; j < width; ++j) {
      output[offset + j * stride] = values[at + j];
    }
  });
}

}  // namespace extension_cpp::cpu::detail
