// output[i] = f(a[i], b[i], ...): one pass over memory in 16-byte accesses.
//
// An operand says how element i of the output finds its value: Flat and PerColumn below. f takes one value of the
// accumulation type per operand and returns the result in it.
#pragma once

#include "launch.cuh"
#include "vector.cuh"

namespace extension_cpp::cuda {

// A tensor with the shape and layout of the output.
template <class T>
struct Flat {
  const T* data;

  bool aligned() const { return is_aligned(data); }

  template <int N>
  __device__ Values<acc_t<T>, N> at(int64_t i) const {
    return load<N>(data + i);
  }
};

// A vector of `cols` values, the same for every row of the output.
template <class T>
struct PerColumn {
  const T* data;
  int64_t cols;

  bool aligned() const { return true; }

  template <int N>
  __device__ Values<acc_t<T>, N> at(int64_t i) const {
    // A 64-bit division costs tens of instructions more than a 32-bit one.
    int64_t col =
        (i | cols) >> 32 == 0 ? static_cast<int64_t>(static_cast<uint32_t>(i) % static_cast<uint32_t>(cols)) : i % cols;
    if constexpr (N > 1) {
      if (cols % N != 0 || reinterpret_cast<uintptr_t>(data) % (N * sizeof(T)) != 0) {
        Values<acc_t<T>, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) {
          result[k] = load<1>(data + col)[0];
          col = col + 1 == cols ? 0 : col + 1;
        }
        return result;
      }
    }
    return load<N>(data + col);
  }
};

namespace detail {

template <int N, class F, class T, class... Operands>
__device__ void elementwise_at(const F& f, int64_t i, T* output, const Operands&... operands) {
  const auto apply = [&](const auto&... inputs) {
    Values<acc_t<T>, N> result;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      result[k] = f(inputs[k]...);
    }
    store(output + i, result);
  };
  apply(operands.template at<N>(i)...);
}

template <int N, class F, class T, class... Operands>
__global__ void __launch_bounds__(kBlock)
    elementwise_kernel(F f, int64_t numel, T* __restrict__ output, Operands... operands) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  if (i + N <= numel) {
    elementwise_at<N>(f, i, output, operands...);
  } else {
    for (int64_t j = i; j < numel; ++j) {
      elementwise_at<1>(f, j, output, operands...);
    }
  }
}

}  // namespace detail

// `output` holds numel elements and is 16-byte aligned, as every fresh tensor is.
template <class F, class T, class... Operands>
void launch_elementwise(const F& f, int64_t numel, T* output, cudaStream_t stream, const Operands&... operands) {
  if (numel == 0) {
    return;
  }
  // One 16-byte access a thread has enough bytes in flight at full occupancy, and keeps the grid below 2^31 blocks for
  // any tensor that fits a GPU.
  if ((operands.aligned() && ...)) {
    constexpr int N = kVector<T>;
    const auto blocks = static_cast<unsigned>(ceil_div(numel, int64_t{kBlock} * N));
    detail::elementwise_kernel<N><<<blocks, kBlock, 0, stream>>>(f, numel, output, operands...);
  } else {
    const auto blocks = static_cast<unsigned>(ceil_div(numel, kBlock));
    detail::elementwise_kernel<1><<<blocks, kBlock, 0, stream>>>(f, numel, output, operands...);
  }
  CUDA_LAUNCH_CHECK();
}

}  // namespace extension_cpp::cuda
