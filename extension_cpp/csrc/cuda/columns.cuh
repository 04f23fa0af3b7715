// Sums over the rows of [rows, cols] matrices, in one pass over memory that may write an elementwise result as well.
//
// Blocks take tiles of columns and a share of the rows; each thread owns N neighbouring columns and keeps their sums in
// registers. A block adds up its threads in shared memory. Where several blocks share a column, each writes a row of
// partial sums, and a second kernel adds those in a fixed order. No atomics: equal bits from run to run.
#pragma once

#include "launch.cuh"
#include "partials.cuh"
#include "sum_output.cuh"
#include "vector.cuh"

#include <array>
#include <optional>
#include <type_traits>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

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

}  // namespace detail

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

// An input of [rows, cols], or of one row for all.
template <class T>
struct ColumnInput {
  const T* data;
  bool one_row;
};

namespace detail {

template <class T, class F, size_t K, size_t R, size_t C>
struct ElementwiseWithSums {
  F f;
  const T* inputs[K];  // [rows, cols], or [cols] where one_row
  bool one_row[K];
  T* results[R];  // [rows, cols]

  template <int N>
  __device__ void operator()(int64_t i, int64_t /*row*/, int64_t col, Values<acc_t<T>, N> (&sums)[C]) const {
    apply<N>(i, col, sums, std::make_index_sequence<K>());
  }

 private:
  template <int N, size_t... I>
  __device__ void apply(int64_t i, int64_t col, Values<acc_t<T>, N> (&sums)[C], std::index_sequence<I...>) const {
    const Values<acc_t<T>, N> in[] = {load<N>(inputs[I] + (one_row[I] ? col : i))...};
    Values<acc_t<T>, N> out[R];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const auto value = f(in[I][n]...);
#pragma unroll
      for (size_t r = 0; r < R; ++r) {
        out[r][n] = value.results[r];
      }
#pragma unroll
      for (size_t c = 0; c < C; ++c) {
        sums[c][n] += value.terms[c];
      }
    }
#pragma unroll
    for (size_t r = 0; r < R; ++r) {
      store(results[r] + i, out[r]);
    }
  }
};

}  // namespace detail

// results[m][row, col] = result m of f(inputs[row, col]...), and sums[c][col] = the sum over the rows of its term c.
// `like` gives device, stream and allocator.
template <class T, class F, size_t K, size_t R, size_t C>
void elementwise_with_column_sums(
    const F& f, const Tensor& like, int64_t rows, int64_t cols, const std::array<ColumnInput<T>, K>& inputs,
    const std::array<T*, R>& results, const std::array<T*, C>& sums) {
  detail::ElementwiseWithSums<T, F, K, R, C> g{f};
  bool aligned = true;
  for (size_t k = 0; k < K; ++k) {
    g.inputs[k] = inputs[k].data;
    g.one_row[k] = inputs[k].one_row;
    aligned = aligned && is_aligned(inputs[k].data);
  }
  for (size_t r = 0; r < R; ++r) {
    g.results[r] = results[r];
    aligned = aligned && is_aligned(results[r]);
  }
  launch_column_sums<T>(like, g, 1, rows, cols, aligned, sums);
}

}  // namespace extension_cpp::cuda
