// Where kernels leave sums over columns.
#pragma once

#include "sum_output.h"

#include <array>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

template <class Out, class A>
__device__ void store_sum(Out* output, int64_t col, A sum) {
  output[col] = static_cast<Out>(sum);
}

template <class T, class A>
__device__ void store_sum(const SumOutput<T>& output, int64_t col, A sum) {
  output.store(col, sum);
}

template <class Out>
__device__ bool is_wanted(Out* /*output*/) {
  return true;
}

template <class T>
__device__ bool is_wanted(const SumOutput<T>& output) {
  return output.is_wanted();
}

// std::array has no device functions.
template <class Out, size_t K>
struct SumOutputs {
  Out outputs[K];

  __device__ bool wants(size_t k) const {
    bool wants = false;
#pragma unroll
    for (size_t j = 0; j < K; ++j) {
      wants = j == k ? is_wanted(outputs[j]) : wants;
    }
    return wants;
  }

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
