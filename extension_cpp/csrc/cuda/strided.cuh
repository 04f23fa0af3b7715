// Operands of any layout, element by element of the output: the slow path of elementwise.cuh.
#pragma once

#include "indexing.h"
#include "launch.cuh"
#include "operands.cuh"
#include "vector.cuh"

#include <utility>

namespace extension_cpp::cuda::detail {

// Elements `offset`, `offset` + stride, ...
template <int N, class T>
__device__ Values<acc_t<T>, N> load_strided(const T* address, int64_t stride) {
  if (stride == 1) {
    return load_unaligned<N>(address);
  }
  Values<acc_t<T>, N> result;
  const auto first = load<1>(address)[0];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    result[n] = n == 0 || stride == 0 ? first : load<1>(address + n * stride)[0];
  }
  return result;
}

template <int N, class T>
__device__ void store_strided(T* address, int64_t stride, const Values<acc_t<T>, N>& values) {
  if (stride == 1 && reinterpret_cast<uintptr_t>(address) % (N * sizeof(T)) == 0) {
    store(address, values);
    return;
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    address[n * stride] = static_cast<T>(values[n]);
  }
}

template <int N, class F, class T, size_t M, size_t... I>
__device__ void strided_at(
    const F& f, const Indexing<1 + sizeof...(I)>& indexing, const int64_t* offsets, const PointerArray<T, M>& outputs,
    const T* const (&inputs)[sizeof...(I)], std::index_sequence<I...>) {
  const Values<acc_t<T>, N> in[] = {load_strided<N>(inputs[I] + offsets[I + 1], indexing.strides[0][I + 1])...};
  Values<acc_t<T>, N> results[M];
  apply_formula(f, in, results, std::index_sequence<I...>());
#pragma unroll
  for (size_t m = 0; m < M; ++m) {
    store_strided<N>(outputs.data[m] + offsets[0], indexing.strides[0][0], results[m]);
  }
}

template <int N, class F, class T, size_t M, class... Inputs>
__global__ void __launch_bounds__(kBlock) strided_kernel(
    F f, const Indexing<1 + sizeof...(Inputs)> indexing, PointerArray<T, M> outputs, Inputs... pointers) {
  wait_for_previous();
  constexpr auto kInputs = std::make_index_sequence<sizeof...(Inputs)>();
  const T* const inputs[] = {pointers...};
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  if (i >= indexing.numel) {
    return;
  }
  int64_t offsets[1 + sizeof...(Inputs)];
  const int64_t first = indexing.locate(i, offsets);
  if (first + N <= indexing.sizes[0].divisor()) {
    strided_at<N>(f, indexing, offsets, outputs, inputs, kInputs);
    return;
  }
  for (int64_t j = i; j < i + N && j < indexing.numel; ++j) {
    indexing.locate(j, offsets);
    strided_at<1>(f, indexing, offsets, outputs, inputs, kInputs);
  }
}

}  // namespace extension_cpp::cuda::detail
