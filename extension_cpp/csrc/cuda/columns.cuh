// Sums over the rows of a [rows, cols] matrix, in one pass over memory that may write an elementwise result as well.
//
// Blocks take tiles of columns and a share of the rows; each thread owns N neighbouring columns and keeps their sums in
// registers. A block adds up its threads in shared memory and writes one row of partial sums; a second kernel adds
// those rows in a fixed order. No atomics: equal bits from run to run.
#pragma once

#include "launch.cuh"
#include "vector.cuh"

#include <array>

namespace extension_cpp::cuda {

namespace detail {

// lanes: threads of a block along a row, a power of two; the other kBlock / lanes go along the rows.
template <int N, size_t K, class A, class F>
__global__ void __launch_bounds__(kBlock) column_sums_kernel(
    F f, int64_t rows, int64_t cols, int lanes, A* __restrict__ partials /* [gridDim.x, K, cols] */) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int row_in_block = static_cast<int>(threadIdx.x) / lanes;
  const int rows_per_block = kBlock / lanes;
  const int64_t tile = static_cast<int64_t>(lanes) * N;

  for (int64_t first_col = blockIdx.y * tile; first_col < cols; first_col += gridDim.y * tile) {
    const int64_t col = first_col + lane * N;
    Values<A, N> sums[K] = {};
    if (col < cols) {
      const int64_t step = static_cast<int64_t>(gridDim.x) * rows_per_block;
#pragma unroll 4
      for (int64_t row = static_cast<int64_t>(blockIdx.x) * rows_per_block + row_in_block; row < rows; row += step) {
        f.template operator()<N>(row * cols + col, col, sums);
      }
    }
    __shared__ A shared[kBlock * N];
    for (size_t k = 0; k < K; ++k) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        shared[n * kBlock + threadIdx.x] = sums[k][n];
      }
      for (int half = rows_per_block / 2; half > 0; half /= 2) {
        __syncthreads();
        if (row_in_block < half) {
#pragma unroll
          for (int n = 0; n < N; ++n) {
            shared[n * kBlock + threadIdx.x] += shared[n * kBlock + threadIdx.x + half * lanes];
          }
        }
      }
      if (row_in_block == 0 && col < cols) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          partials[(static_cast<int64_t>(blockIdx.x) * K + k) * cols + col + n] = shared[n * kBlock + lane];
        }
      }
      __syncthreads();
    }
  }
}

template <class A, class Out>
__global__ void __launch_bounds__(kBlock) add_partials_kernel(
    int64_t parts, int64_t stride, int64_t cols, const A* __restrict__ partials /* [parts, stride] */,
    Out* __restrict__ output /* [cols] */) {
  __shared__ A shared[kBlock];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part_in_block = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kPartsPerBlock = kBlock / kWarp;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  A sum = 0;
  if (col < cols) {
    for (int64_t part = part_in_block; part < parts; part += kPartsPerBlock) {
      sum += partials[part * stride + col];
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
    output[col] = static_cast<Out>(shared[lane]);
  }
}

}  // namespace detail

// outputs[k][col] = sum over rows of what f adds to sums[k].
//
// f.operator()<N>(i, col, sums) handles elements i ... i + N - 1, which are columns col ... col + N - 1 of one row, and
// adds to the accumulators Values<acc_t<T>, N> sums[K]. `aligned`: the pointers that f reads and writes are 16-byte
// aligned. `like` gives device, stream and allocator.
template <class T, size_t K, class F, class Out>
void launch_column_sums(
    const Tensor& like, const F& f, int64_t rows, int64_t cols, bool aligned, std::array<Out*, K> outputs) {
  using A = acc_t<T>;
  if (cols == 0) {
    return;
  }
  const cudaStream_t stream = current_stream(like);
  const auto launch = [&](auto vector) {
    constexpr int N = decltype(vector)::value;
    int lanes = 1;
    while (lanes < kWarp && static_cast<int64_t>(lanes) * N < cols) {
      lanes *= 2;
    }
    const int64_t tiles = std::min(ceil_div(cols, int64_t{lanes} * N), kMaxGridY);
    // Enough blocks to fill the GPU several times over, yet several rows for every thread.
    const int64_t blocks_wanted = ceil_div(int64_t{8} * multiprocessors(), tiles);
    const int64_t blocks_useful = ceil_div(rows, int64_t{4} * (kBlock / lanes));
    const int64_t parts = std::min(blocks_wanted, blocks_useful);
    const Tensor partials = new_empty(
        like, {parts, static_cast<int64_t>(K), cols},
        std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float);
    A* const data = partials.template mutable_data_ptr<A>();
    if (parts > 0) {
      const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(tiles));
      detail::column_sums_kernel<N, K, A><<<grid, kBlock, 0, stream>>>(f, rows, cols, lanes, data);
      CUDA_LAUNCH_CHECK();
    }
    for (size_t k = 0; k < K; ++k) {
      const auto blocks = static_cast<unsigned>(ceil_div(cols, kWarp));
      detail::add_partials_kernel<<<blocks, kBlock, 0, stream>>>(parts, K * cols, cols, data + k * cols, outputs[k]);
      CUDA_LAUNCH_CHECK();
    }
  };
  if (aligned && cols % kVector<T> == 0) {
    launch(std::integral_constant<int, kVector<T>>{});
  } else {
    launch(std::integral_constant<int, 1>{});
  }
}

}  // namespace extension_cpp::cuda
