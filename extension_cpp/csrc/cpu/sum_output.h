// Where sums over columns go.
#pragma once

#include "dispatch.h"
#include "torch_abi.h"

#include <type_traits>

namespace extension_cpp::cpu {

// A tensor of T or of acc_t<T>; or nowhere, as the gradient of a parameter that is not there.
template <class T>
class SumOutput {
 public:
  SumOutput() = default;

  template <class U>
  explicit SumOutput(U* data) {
    static_assert(std::is_same_v<U, T> || std::is_same_v<U, acc_t<T>>);
    if constexpr (std::is_same_v<U, acc_t<T>>) {
      wide_ = data;
    } else {
      narrow_ = data;
    }
  }

  static SumOutput of(Tensor& tensor) {
    return tensor.element_size() == sizeof(acc_t<T>) ? SumOutput(tensor.mutable_data_ptr<acc_t<T>>())
                                                     : SumOutput(tensor.mutable_data_ptr<T>());
  }

  void store(int64_t i, acc_t<T> sum) const {
    if (wide_ != nullptr) {
      wide_[i] = sum;
    } else if (narrow_ != nullptr) {
      narrow_[i] = static_cast<T>(sum);
    }
  }

 private:
  T* narrow_ = nullptr;
  acc_t<T>* wide_ = nullptr;
};

namespace detail {

template <class Out, class A>
void store_sum(Out* output, int64_t i, A sum) {
  output[i] = static_cast<Out>(sum);
}

template <class T, class A>
void store_sum(const SumOutput<T>& output, int64_t i, A sum) {
  output.store(i, sum);
}

}  // namespace detail

}  // namespace extension_cpp::cpu
