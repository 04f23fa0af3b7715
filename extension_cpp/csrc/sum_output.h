// Where sums go, on both backends.
#pragma once

#include "dispatch.h"
#include "host_device.h"
#include "matrix_view.h"
#include "torch_abi.h"

#include <type_traits>

namespace extension_cpp {

// To a tensor of T or of acc_t<T>, which is asked at run time and need not be compiled for; or nowhere, as the gradient
// of a parameter that is not there.
template <class T>
class SumOutput {
 public:
  using A = acc_t<T>;

  SumOutput() = default;

  template <class U>
  explicit SumOutput(U* data) {
    static_assert(std::is_same_v<U, T> || std::is_same_v<U, A>);
    if constexpr (std::is_same_v<U, A>) {
      wide_ = data;
    } else {
      narrow_ = data;
    }
  }

  static SumOutput of(Tensor& tensor) {
    return tensor.element_size() == sizeof(A) ? SumOutput(tensor.mutable_data_ptr<A>())
                                              : SumOutput(tensor.mutable_data_ptr<T>());
  }

  // What begins at the i-th number.
  SumOutput from(int64_t i) const {
    SumOutput result = *this;
    result.narrow_ = narrow_ == nullptr ? nullptr : narrow_ + i;
    result.wide_ = wide_ == nullptr ? nullptr : wide_ + i;
    return result;
  }

  // One of the two, or neither.
  HOST_DEVICE A* wide() const { return wide_; }
  HOST_DEVICE T* narrow() const { return narrow_; }

  HOST_DEVICE bool is_wanted() const { return wide_ != nullptr || narrow_ != nullptr; }

  HOST_DEVICE void store(int64_t i, A sum) const {
    if (wide_ != nullptr) {
      wide_[i] = sum;
    } else if (narrow_ != nullptr) {
      narrow_[i] = static_cast<T>(sum);
    }
  }

 private:
  T* narrow_ = nullptr;
  A* wide_ = nullptr;
};

// Where sums of rows go, which are seen as of these sizes and summed on.
struct RowsOutput {
  Tensor* tensor = nullptr;  // none: nowhere
  SummedSizes rows;
};

// Where a result for each element of matrices goes: to matrices, or what it adds up to in the columns of each, in the
// rows of all, or nowhere.
template <class T>
struct PlacedResult {
  T* whole = nullptr;
  SumOutput<T> columns;
  RowsOutput rows;
};

}  // namespace extension_cpp
