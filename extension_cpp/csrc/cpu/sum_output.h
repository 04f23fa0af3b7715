// Where sums over columns go.
#pragma once

#include "cpu/clones.h"
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

  // sums[j] at place i + j. Where they go is asked once: the loops become vector instructions.
  CPU_INLINE void store(int64_t i, const acc_t<T>* sums, int64_t count) const {
    if (wide_ != nullptr) {
      for (int64_t j = 0; j < count; ++j) {
        wide_[i + j] = sums[j];
      }
    } else if (narrow_ != nullptr) {
      for (int64_t j = 0; j < count; ++j) {
        narrow_[i + j] = static_cast<T>(sums[j]);
      }
    }
  }

  CPU_INLINE void store(int64_t i, acc_t<T> sum) const { store(i, &sum, 1); }

 private:
  T* narrow_ = nullptr;
  acc_t<T>* wide_ = nullptr;
};

namespace detail {

template <class Out, class A>
CPU_INLINE void store_sums(Out* output, int64_t i, const A* sums, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    output[i + j] = static_cast<Out>(sums[j]);
  }
}

template <class T, class A>
CPU_INLINE void store_sums(const SumOutput<T>& output, int64_t i, const A* sums, int64_t count) {
  output.store(i, sums, count);
}

}  // namespace detail

}  // namespace extension_cpp::cpu
