// Sums over the rows of [rows, cols] matrices, in one pass over memory that may write an elementwise result as well.
//
// Blocks take tiles of columns and a share of the rows; each thread owns N neighbouring columns and keeps their sums in
// registers. A block adds up its threads in shared memory. Where several blocks share a column, each writes a row of
// partial sums, and a second kernel adds those in a fixed order. No atomics: equal bits from run to run.
#pragma once

#include "launch.cuh"
#include "vector.cuh"

#include <array>
#include <optional>
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

// lanes: threads along a row; row_threads: threads along the rows; both powers of two. What is left of the block takes
// further tiles.
template <int N, size_t K, class A, class F, class Out>
__global__ void __launch_bounds__(kBlock) column_sums_kernel(
    F f, int64_t batch, int64_t rows, int64_t cols, int lanes, int row_threads, SumOutputs<Out, K> outputs,
    A* __restrict__ partials /* [gridDim.y, K, batch * cols] */) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int row_thread = static_cast<int>(threadIdx.x) / lanes % row_threads;
  const int tile_in_block = static_cast<int>(threadIdx.x) / (lanes * row_threads);
  const int tiles_per_block = kBlock / (lanes * row_threads);
  const int64_t tiles = (cols + int64_t{lanes} * N - 1) / (int64_t{lanes} * N);

  const int64_t tile = static_cast<int64_t>(blockIdx.x) * tiles_per_block + tile_in_block;
  const int64_t b = tile / tiles;
  const int64_t col = (tile % tiles * lanes + lane) * N;
  const bool active = b < batch && col < cols;

  Values<A, N> sums[K] = {};
  if (active) {
    const int64_t step = static_cast<int64_t>(gridDim.y) * row_threads;
    const int64_t first_row = static_cast<int64_t>(blockIdx.y) * row_threads + row_thread;
#pragma unroll 4
    for (int64_t row = b * rows + first_row; row < (b + 1) * rows; row += step) {
      f.template operator()<N>(row * cols + col, row, col, sums);
    }
  }
  __shared__ A shared[kBlock * N];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      shared[n * kBlock + threadIdx.x] = sums[k][n];
    }
    for (int half = row_threads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (row_thread < half) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          shared[n * kBlock + threadIdx.x] += shared[n * kBlock + threadIdx.x + half * lanes];
        }
      }
    }
    if (row_thread == 0 && active) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A sum = shared[n * kBlock + threadIdx.x];
        const int64_t i = b * cols + col + n;
        if (gridDim.y == 1) {
          outputs.store(k, i, sum);
        } else {
          partials[(static_cast<int64_t>(blockIdx.y) * K + k) * batch * cols + i] = sum;
        }
      }
    }
    __syncthreads();
  }
}

// blockIdx.y: which of the K outputs.
template <class A, size_t K, class Out>
__global__ void __launch_bounds__(kBlock) add_partials_kernel(
    int64_t parts, int64_t cols, const A* __restrict__ partials /* [parts, K, cols] */, SumOutputs<Out, K> outputs) {
  __shared__ A shared[kBlock];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part_in_block = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kPartsPerBlock = kBlock / kWarp;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  A sum = 0;
  if (col < cols) {
#pragma unroll 4
    for (int64_t part = part_in_block; part < parts; part += kPartsPerBlock) {
      sum += partials[(part * K + blockIdx.y) * cols + col];
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
  detail::add_partials_kernel<A, K><<<grid, kBlock, 0, current_stream(like)>>>(
      parts, cols, partials, detail::sum_outputs(outputs, std::make_index_sequence<K>{}));
  CUDA_LAUNCH_CHECK();
}

// For each matrix of a [batch, rows, cols] tensor: outputs[k][b * cols + col] = sum over its rows of what f adds to
// sums[k].
//
// f.operator()<N>(i, row, col, sums) handles elements i ... i + N - 1, which are columns col ... col + N - 1 of one row
// (row counts through the whole batch), and adds to the accumulators Values<acc_t<T>, N> sums[K]. `aligned`: the
// pointers that f reads and writes are 16-byte aligned. `like` gives device, stream and allocator. An output is a
// pointer or a SumOutput.
template <class T, size_t K, class F, class Out>
void launch_column_sums(
    const Tensor& like, const F& f, int64_t batch, int64_t rows, int64_t cols, bool aligned,
    std::array<Out, K> outputs) {
  using A = acc_t<T>;
  if (batch * cols == 0) {
    return;
  }
  const auto launch = [&](auto vector) {
    constexpr int N = decltype(vector)::value;
    int lanes = 1;
    while (lanes < kWarp && static_cast<int64_t>(lanes) * N < cols) {
      lanes *= 2;
    }
    int row_threads = 1;
    while (row_threads < kBlock / lanes && int64_t{8} * row_threads <= rows) {
      row_threads *= 2;
    }
    const int64_t tiles = batch * ceil_div(cols, int64_t{lanes} * N);
    const int64_t blocks = ceil_div(tiles, kBlock / (lanes * row_threads));
    // Enough blocks to fill the GPU several times over, yet several rows for every thread.
    const int64_t parts_wanted = ceil_div(int64_t{8} * multiprocessors(), blocks);
    const int64_t parts_useful = ceil_div(rows, int64_t{4} * row_threads);
    const int64_t parts = std::max<int64_t>(1, std::min({parts_wanted, parts_useful, kMaxGridY}));
    std::optional<Tensor> partials;
    A* data = nullptr;
    if (parts > 1) {
      partials = new_empty(
          like, {parts, static_cast<int64_t>(K), batch * cols},
          std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float);
      data = partials->template mutable_data_ptr<A>();
    }
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
    detail::column_sums_kernel<N, K, A><<<grid, kBlock, 0, current_stream(like)>>>(
        f, batch, rows, cols, lanes, row_threads, detail::sum_outputs(outputs, std::make_index_sequence<K>{}), data);
    CUDA_LAUNCH_CHECK();
    if (parts > 1) {
      launch_add_partials<A>(like, parts, batch * cols, data, outputs);
    }
  };
  // Of float64 single numbers will do: fewer kernels to compile.
  if constexpr (!std::is_same_v<T, double>) {
    if (aligned && cols % kVector<T> == 0) {
      launch(std::integral_constant<int, kVector<T>>{});
      return;
    }
  }
  launch(std::integral_constant<int, 1>{});
}

}  // namespace extension_cpp::cuda
