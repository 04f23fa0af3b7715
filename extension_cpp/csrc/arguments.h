// Optional tensors and lists of tensors, from an operator's arguments to the pointers that its kernel takes.
#pragma once

#include "checks.h"
#include "dispatch.h"
#include "indexing.h"
#include "torch_abi.h"

#include <algorithm>

namespace extension_cpp {

inline std::optional<Tensor> as_contiguous(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? std::optional<Tensor>(as_contiguous(*tensor)) : std::nullopt;
}

inline std::vector<Tensor> as_contiguous(TensorList tensors) {
  std::vector<Tensor> result(tensors.begin(), tensors.end());
  std::transform(result.begin(), result.end(), result.begin(), [](const Tensor& t) { return as_contiguous(t); });
  return result;
}

// The same in the type in which values of `dtype` are computed: a copy of what is in another.
inline Tensor as_accumulated(const Tensor& tensor, ScalarType dtype) {
  const ScalarType wanted = sum_dtype(dtype);
  if (dtype_of(tensor) == wanted) {
    return as_contiguous(tensor);
  }
  Tensor result = new_empty(tensor, tensor.sizes(), wanted);
  copy_into(result, tensor);
  return result;
}

inline std::optional<Tensor> as_accumulated(const std::optional<Tensor>& tensor, ScalarType dtype) {
  return tensor.has_value() ? std::optional<Tensor>(as_accumulated(*tensor, dtype)) : std::nullopt;
}

inline std::vector<Tensor> as_accumulated(TensorList tensors, ScalarType dtype) {
  std::vector<Tensor> result(tensors.begin(), tensors.end());
  std::transform(
      result.begin(), result.end(), result.begin(), [&](const Tensor& t) { return as_accumulated(t, dtype); });
  return result;
}

// Null where there is no tensor.
template <class T>
const T* data_of(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? tensor->const_data_ptr<T>() : nullptr;
}

// The pointers of a list of tensors. They travel to the GPU among the kernel's parameters, hence the limit, which the
// line of shapes says: [64].
constexpr int64_t kMaxPointers = 64;

template <class T>
class Pointers {
 public:
  Pointers() = default;

  explicit Pointers(const std::vector<Tensor>& tensors) : size_(static_cast<int64_t>(tensors.size())) {
    check(size_ <= kMaxPointers, "a list of more than ", kMaxPointers, " tensors: limit it in the line of shapes");
    for (int64_t j = 0; j < size_; ++j) {
      data_[j] = tensors[j].template const_data_ptr<T>();
    }
  }

  HOST_DEVICE int64_t size() const { return size_; }
  HOST_DEVICE const T* operator[](int64_t j) const { return data_[j]; }

 private:
  const T* data_[kMaxPointers];
  int64_t size_ = 0;
};

template <class T>
Pointers<T> data_of(const std::vector<Tensor>& tensors) {
  return Pointers<T>(tensors);
}

}  // namespace extension_cpp
