// Where sums over columns go.
#pragma once

#include "dispatch.h"
#include "torch_abi.h"

#include <array>
#include <type_traits>
#include <utility>

namespace extension_cpp::cuda {

// Where sums go: to a tensor of T or of acc_t<T>, which the kernel asks at run time and need not be compiled for; or
// nowhere, as the gradient of a parameter that is not there.
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

  __device__ void store(int64_t i, acc_t<T> sum) const {
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
__device__ void store_sum(Out* output, int64_t col, A sum) {
  output[col] = static_cast<Out>(sum);
}

template <class T, class A>
__device__ void store_sum(const SumOutput<T>& output, int64_t col, A sum) {
  output.store(col, sum);
}

// std::array has no device functions.
template <class Out, size_t K>
struct SumOutputs {
  Out outputs[K];

  // sums[k] for every k at once would index the parameters of a kernel at run time, which copies them to local memory.
  template <class A>
  __device__ void store(size_t k, int64_t col, A sum) const {
#pragma unroll
    for (size_t j = 0; j < K; ++j) {
      if (j == k) {
        store_sum(outputs[j], col, sum);
      }
    }
  }
};

template <class Out, size_t K, size_t... I>
SumOutputs<Out, K> sum_outputs(const std::array<Out, K>& outputs, std::index_sequence<I...>) {
  return {{outputs[I]...}};
}

}  // namespace detail

}  // namespace extension_cpp::cuda
