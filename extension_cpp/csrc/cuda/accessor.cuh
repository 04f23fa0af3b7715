// Packed accessors, as packed_accessor64 of ATen gives: a pointer with sizes and strides, which a kernel takes by value
// and indexes, input[row][col]. Of a tensor that is not contiguous they read the elements where they lie.
#pragma once

#include "torch_abi.h"

#include <torch/headeronly/core/TensorAccessor.h>

namespace extension_cpp::cuda {

template <class T, size_t N>
using PackedAccessor =
    torch::headeronly::HeaderOnlyGenericPackedTensorAccessor<T, N, torch::headeronly::RestrictPtrTraits, int64_t>;

// Of a contiguous tensor, [..., cols], as a matrix, [rows, cols].
template <class T>
PackedAccessor<const T, 2> packed_rows(const Tensor& contiguous, int64_t rows, int64_t cols) {
  const int64_t sizes[] = {rows, cols};
  const int64_t strides[] = {cols, 1};
  return PackedAccessor<const T, 2>(contiguous.const_data_ptr<T>(), sizes, strides);
}

}  // namespace extension_cpp::cuda
