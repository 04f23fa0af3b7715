// The second half of sums that several blocks share: their partial sums added up.
#pragma once

#include "launch.cuh"
#include "sum_output.cuh"

#include <array>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

// In [parts, K, cols].
template <size_t K>
__device__ int64_t partial_sum_at(int64_t part, size_t k, int64_t cols, int64_t col) {
  return (part * static_cast<int>(K) + static_cast<int>(k)) * cols + col;
}

// blockIdx.y: which of the K outputs.
template <int Threads, class A, size_t K, class Out>
__global__ void __launch_bounds__(Threads) add_partials_kernel(
    int64_t parts, int64_t cols, const A* __restrict__ partials /* [parts, K, cols] */, SumOutputs<Out, K> outputs) {
  __shared__ A shared[Threads];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part_in_block = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kPartsPerBlock = Threads / kWarp;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  A sum = 0;
  wait_for_previous();
  if (!outputs.wants(blockIdx.y)) {
    return;
  }
  if (col < cols) {
#pragma unroll 8
    for (int64_t part = part_in_block; part < parts; part += kPartsPerBlock) {
      sum += partials[partial_sum_at<K>(part, blockIdx.y, cols, col)];
    }
  }
  shared[threadIdx.x] = sum;
  for (int half = kPartsPerBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (part_in_block < half) {
      shared[threadIdx.x] += shared[threadIdx.x + half * kWarp];
    }
  }
  if (part_in_block == 0 && col < cols) {
    outputs.store(blockIdx.y, col, shared[lane]);
  }
}

}  // namespace detail

// outputs[k][col] = the sum of partials[part, k, col] over the parts.
template <class A, class Out, size_t K>
void launch_add_partials(
    const Tensor& like, int64_t parts, int64_t cols, const A* partials, const std::array<Out, K>& outputs) {
  const dim3 grid(static_cast<unsigned>(ceil_div(cols, kWarp)), static_cast<unsigned>(K));
  const auto launch = [&](auto threads) {
    constexpr int kThreads = decltype(threads)::value;
    launch_overlapped(
        detail::add_partials_kernel<kThreads, A, K, Out>, grid, kThreads, 0, current_stream(like), parts, cols,
        partials, detail::sum_outputs(outputs, std::make_index_sequence<K>{}));
  };
  // Columns are waited for the less, the more threads share them; but all blocks shall run at once. Where there are
  // many, small ones are sooner done.
  const int most_threads = device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  const int64_t all = multiprocessors();
  const auto all_run = [&](int threads) { return static_cast<int64_t>(grid.x * K) <= most_threads / threads * all; };
  if (all_run(1024)) {
    launch(std::integral_constant<int, 1024>());
  } else if (all_run(512)) {
    launch(std::integral_constant<int, 512>());
  } else {
    launch(std::integral_constant<int, 128>());
  }
}

}  // namespace extension_cpp::cuda
