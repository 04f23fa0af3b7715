// Layouts of tensors: what indexing.h says of sizes and strides, said of tensors.
#pragma once

#include "indexing.h"
#include "torch_abi.h"

#include <array>

namespace extension_cpp {

inline Geometry geometry(const Tensor& tensor) {
  return {tensor.dim(), tensor.sizes().data(), tensor.strides().data()};
}

// A new output of an elementwise operator, of shape `sizes`, with dtype and device of the first operand. It keeps the
// layout of the operands that have its shape, are dense and agree on one; otherwise it is contiguous.
template <class... Tensors>
Tensor new_elementwise(IntArrayRef sizes, const Tensor& first, const Tensors&... others) {
  const Geometry operands[] = {geometry(first), geometry(others)...};
  const std::vector<int64_t> strides =
      elementwise_strides(static_cast<int64_t>(sizes.size()), sizes.data(), operands, 1 + sizeof...(others));
  return empty_with_strides(first, sizes, strides);
}

template <class... Tensors>
Indexing<1 + sizeof...(Tensors)> make_indexing(const Tensor& output, const Tensors&... inputs) {
  return Indexing<1 + sizeof...(Tensors)>({geometry(output), geometry(inputs)...});
}

// Whether equal indices mean equal offsets.
inline bool same_layout(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim()) {
    return false;
  }
  const Geometry x = geometry(a);
  const Geometry y = geometry(b);
  for (int64_t d = 0; d < x.dim; ++d) {
    if (x.sizes[d] != y.sizes[d] || (x.sizes[d] != 1 && x.strides[d] != y.strides[d])) {
      return false;
    }
  }
  return true;
}

// From the first byte of a tensor to behind its last.
inline std::pair<const char*, const char*> bytes_of(const Tensor& tensor) {
  const Geometry layout = geometry(tensor);
  int64_t count = 1;
  for (int64_t d = 0; d < layout.dim; ++d) {
    count = layout.sizes[d] == 0 || count == 0 ? 0 : count + (layout.sizes[d] - 1) * layout.strides[d];
  }
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + count * static_cast<int64_t>(tensor.element_size())};
}

// Whether a byte belongs to both.
inline bool share_memory(const Tensor& a, const Tensor& b) {
  return share_memory(
      a.const_data_ptr(), geometry(a), static_cast<int64_t>(a.element_size()), b.const_data_ptr(), geometry(b),
      static_cast<int64_t>(b.element_size()));
}

// `tensor` broadcast to the shape of `like` and laid out as it: a copy, unless it is so already.
inline Tensor with_layout_of(const Tensor& like, const Tensor& tensor) {
  if (same_layout(tensor, like)) {
    return tensor;
  }
  Tensor result = empty_with_strides(like, like.sizes(), like.strides(), dtype_of(tensor));
  copy_into(result, tensor);
  return result;
}

// compute(outputs, inputs...) by way of contiguous copies, for operands of more dimensions than Indexing holds.
template <class F, size_t M, class... Tensors>
void on_contiguous_copies(const F& compute, std::array<Tensor, M>& outputs, const Tensors&... inputs) {
  std::array<Tensor, M> results = outputs;
  for (Tensor& result : results) {
    result = new_empty(result, result.sizes());
  }
  compute(results, with_layout_of(results[0], inputs)...);
  for (size_t m = 0; m < M; ++m) {
    copy_into(outputs[m], results[m]);
  }
}

}  // namespace extension_cpp
