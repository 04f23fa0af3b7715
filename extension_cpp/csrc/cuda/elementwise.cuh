// output[i] = f(a[i], b[i], ...): one pass over memory in 16-byte accesses, at any alignment.
//
// elementwise() takes tensors of any layout that broadcast to the output; launch_elementwise() is for operands whose
// relation to element i of the output is known beforehand: Flat and PerColumn below. f takes one value of the
// accumulation type per operand and returns the result in it.
#pragma once

#include "launch.cuh"
#include "layout.h"
#include "vector.cuh"

#include <utility>

namespace extension_cpp::cuda {

// A tensor with the shape and layout of the output.
template <class T>
struct Flat {
  const T* data;

  template <int N>
  __device__ Values<acc_t<T>, N> at(int64_t i) const {
    return load_unaligned<N>(data + i);
  }
};

// A vector of `cols` values, the same for every row of the output.
template <class T>
struct PerColumn {
  const T* data;
  int64_t cols;

  template <int N>
  __device__ Values<acc_t<T>, N> at(int64_t i) const {
    // A 64-bit division costs tens of instructions more than a 32-bit one.
    int64_t col =
        (i | cols) >> 32 == 0 ? static_cast<int64_t>(static_cast<uint32_t>(i) % static_cast<uint32_t>(cols)) : i % cols;
    if (col + N > cols) {
      Values<acc_t<T>, N> result;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        result[k] = load<1>(data + col)[0];
        col = col + 1 == cols ? 0 : col + 1;
      }
      return result;
    }
    return load_unaligned<N>(data + col);
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

// `before`: elements from the 16-byte boundary below `output` to `output`; accesses start there.
template <int N, class F, class T, class... Operands>
__global__ void __launch_bounds__(kBlock)
    elementwise_kernel(F f, int64_t numel, int before, T* output, Operands... operands) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N - before;
  if (i >= 0 && i + N <= numel) {
    elementwise_at<N>(f, i, output, operands...);
  } else {
    for (int64_t j = i < 0 ? 0 : i; j < i + N && j < numel; ++j) {
      elementwise_at<1>(f, j, output, operands...);
    }
  }
}

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

template <int N, class F, class T, size_t... I>
__device__ void strided_at(
    const F& f, const Indexing<1 + sizeof...(I)>& indexing, const int64_t* offsets, T* output,
    const T* const (&inputs)[sizeof...(I)], std::index_sequence<I...>) {
  const Values<acc_t<T>, N> in[] = {load_strided<N>(inputs[I] + offsets[I + 1], indexing.strides[0][I + 1])...};
  Values<acc_t<T>, N> result;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    result[n] = f(in[I][n]...);
  }
  store_strided<N>(output + offsets[0], indexing.strides[0][0], result);
}

template <int N, class F, class T, class... Inputs>
__global__ void __launch_bounds__(kBlock)
    strided_kernel(F f, const Indexing<1 + sizeof...(Inputs)> indexing, T* output, Inputs... pointers) {
  constexpr auto kInputs = std::make_index_sequence<sizeof...(Inputs)>();
  const T* const inputs[] = {pointers...};
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  if (i >= indexing.numel) {
    return;
  }
  int64_t offsets[1 + sizeof...(Inputs)];
  const int64_t first = indexing.locate(i, offsets);
  if (first + N <= indexing.sizes[0].divisor()) {
    strided_at<N>(f, indexing, offsets, output, inputs, kInputs);
    return;
  }
  for (int64_t j = i; j < i + N && j < indexing.numel; ++j) {
    indexing.locate(j, offsets);
    strided_at<1>(f, indexing, offsets, output, inputs, kInputs);
  }
}

}  // namespace detail

// One 16-byte access a thread has enough bytes in flight at full occupancy, and keeps the grid below 2^31 blocks for
// any tensor that fits a GPU. Where the output is exactly one of the operands, each element is read before it is
// written.
template <class F, class T, class... Operands>
void launch_elementwise(const F& f, int64_t numel, T* output, cudaStream_t stream, const Operands&... operands) {
  if (numel == 0) {
    return;
  }
  constexpr int N = kVector<T>;
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(output) % kAccessBytes / sizeof(T));
  const auto blocks = static_cast<unsigned>(ceil_div(before + numel, int64_t{kBlock} * N));
  detail::elementwise_kernel<N><<<blocks, kBlock, 0, stream>>>(f, numel, before, output, operands...);
  CUDA_LAUNCH_CHECK();
}

// output[i] = f(inputs[i]...) for every element of the output, to whose shape the inputs are broadcast; all of dtype T
// and of any layout. The output overlaps no input, unless it is exactly that input.
template <class T, class F, class... Inputs>
void elementwise(const F& f, Tensor& output, const Inputs&... inputs) {
  const auto indexing = make_indexing(output, inputs...);
  if (!indexing.fits) {
    on_contiguous_copies([&](Tensor& to, const auto&... from) { elementwise<T>(f, to, from...); }, output, inputs...);
    return;
  }
  const cudaStream_t stream = current_stream(output);
  T* const data = output.mutable_data_ptr<T>();
  if (indexing.numel == 0) {
    return;
  }
  if (indexing.all_linear()) {
    launch_elementwise(f, indexing.numel, data, stream, Flat<T>{inputs.template const_data_ptr<T>()}...);
    return;
  }
  constexpr int N = kVector<T>;
  const auto blocks = static_cast<unsigned>(ceil_div(indexing.numel, int64_t{kBlock} * N));
  detail::strided_kernel<N><<<blocks, kBlock, 0, stream>>>(f, indexing, data, inputs.template const_data_ptr<T>()...);
  CUDA_LAUNCH_CHECK();
}

}  // namespace extension_cpp::cuda
