// Row kernels: reduce each row of a [rows, cols] matrix, then write one result per element.
//
// A functor says what happens to one row; the kernel lends it the row, read once and kept in registers:
//
//   template <class T>
//   struct Softmax {
//     static constexpr bool kKeep = true;  // passes over the row more than once
//     T* __restrict__ output;              // [rows, cols]
//
//     template <class Row>
//     __device__ void operator()(Row& row) const {
//       using A = acc_t<T>;
//       const A max = row.max([](A x) { return x; });
//       const A total = row.sum([=](A x) { return exp(x - max); });
//       row.write(output, [=](A x) { return exp(x - max) / total; });
//     }
//   };
//   cuda::launch_rows<T>(like, Softmax<T>{output}, std::array{input}, rows, cols);
//
// A short row is handled by part of a warp, a longer one by a block; one too long for the registers is read again for
// each pass. Without kKeep there is one pass to make, and rows of any length stream through. A functor may also be
// given segments of rows (Split), so that few long rows fill the GPU, and leave partial results for a second launch.
// The order of additions depends on the shape alone: equal bits from run to run.
#pragma once

#include "launch.cuh"
#include "parameter.cuh"
#include "partials.cuh"
#include "row.cuh"
#include "team.cuh"

#include <algorithm>
#include <array>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

// Of a block; with it the compiler may give a thread 128 registers.
constexpr int kMaxRowThreads = 512;
// Accesses of a row that a thread keeps in registers. Few threads with much of the row each wait less for one another:
// of 1, 2, 4 and 8 this was the fastest for the layer norm on an H100.
constexpr int kKeptAccesses = 8;
// Of kernels that also sum columns, whose accumulators take registers.
constexpr int kMaxRowColumnThreads = 512;
template <int N, int V, class T, size_t K, class F>
__global__ void __launch_bounds__(kMaxRowThreads)
    rows_kernel(F f, Inputs<T, K> inputs, int64_t rows, int64_t cols, Split split, int lanes) {
  __shared__ typename Team<acc_t<T>>::Shared shared;
  Team<acc_t<T>> team(lanes, shared);
  const int teams = static_cast<int>(blockDim.x) / lanes;
  const int team_in_block = static_cast<int>(threadIdx.x) / lanes;
  const int64_t end = rows * split.segments;
  const int64_t step = static_cast<int64_t>(gridDim.x) * teams;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * teams; first < end; first += step) {
    const Span span(first + team_in_block, end, cols, split);
    Kept<T, N, V, K> kept;
    kept.read(inputs, cols, span, lanes, team.lane());
    typename Row<T, N, V, K, 0>::Sums no_sums;
    Row<T, N, V, K, 0> row(inputs, cols, split, span, kept, team, no_sums);
    f(row);
  }
}

// Blocks stay for many neighbouring rows, each of which is read while the one before it is computed. A thread meets the
// same columns in every row, and keeps their sums.
template <int N, int V, size_t C, class T, size_t K, class F>
__global__ void __launch_bounds__(kMaxRowColumnThreads) rows_and_column_sums_kernel(
    F f, Inputs<T, K> inputs, int64_t rows, int64_t cols, int64_t rows_per_block, int lanes,
    acc_t<T>* __restrict__ partials /* [gridDim.x, C, cols] */) {
  using A = acc_t<T>;
  __shared__ typename Team<A>::Shared shared;
  Team<A> team(lanes, shared);
  const int teams = static_cast<int>(blockDim.x) / lanes;
  const int team_in_block = static_cast<int>(threadIdx.x) / lanes;
  const Split split{1, cols};
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;

  typename Row<T, N, V, K, C>::Sums sums = {};
  Kept<T, N, V, K> next;
  next.read(inputs, cols, Span(begin + team_in_block, end, cols, split), lanes, team.lane());
  for (int64_t first = begin; first < end; first += teams) {
    const Span span(first + team_in_block, end, cols, split);
    const Kept<T, N, V, K> kept = next;
    next.read(inputs, cols, Span(first + teams + team_in_block, end, cols, split), lanes, team.lane());
    Row<T, N, V, K, C> row(inputs, cols, split, span, kept, team, sums);
    f(row);
  }

  __shared__ A combined[kBlock * N];
#pragma unroll
  for (size_t c = 0; c < C; ++c) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      Values<A, N> sum = sums[c][v];
      if (lanes <= kWarp) {  // the block, of kBlock threads, has several teams
        for (int mask = lanes; mask < kWarp; mask *= 2) {
          sum = plus(sum, shuffle_xor(sum, mask));
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
          combined[n * kBlock + threadIdx.x] = sum[n];
        }
        for (int half = kBlock / 2; half >= kWarp; half /= 2) {
          __syncthreads();
          if (threadIdx.x < half) {
#pragma unroll
            for (int n = 0; n < N; ++n) {
              combined[n * kBlock + threadIdx.x] += combined[n * kBlock + threadIdx.x + half];
            }
          }
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
          sum[n] = combined[n * kBlock + threadIdx.x];
        }
        __syncthreads();  // before the next round writes what others have yet to read
      }
      const int64_t col = (int64_t{team.lane()} + int64_t{v} * lanes) * N;
      if (team_in_block == 0 && col < cols) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          partials[(static_cast<int64_t>(blockIdx.x) * C + c) * cols + col + n] = sum[n];
        }
      }
    }
  }
}

// Threads for a row of `chunks` accesses, `per_thread` of them each unless that takes more than max_lanes.
inline int row_lanes(int64_t chunks, int64_t per_thread, int max_lanes) {
  const int64_t wanted = std::max<int64_t>(1, ceil_div(chunks, per_thread));
  if (wanted > kWarp) {
    return static_cast<int>(std::min<int64_t>(ceil_div(wanted, kWarp) * kWarp, max_lanes));
  }
  int lanes = 1;
  while (lanes < wanted) {
    lanes *= 2;
  }
  return lanes;
}

// Calls launch with the width of the accesses. Of float64 single numbers will do: fewer kernels to compile.
template <class T, size_t K, class F>
auto with_access_width(const std::array<const T*, K>& inputs, int64_t cols, const F& launch) {
  if constexpr (!std::is_same_v<T, double>) {
    if (cols % kVector<T> == 0 && std::all_of(inputs.begin(), inputs.end(), [](const T* p) { return is_aligned(p); })) {
      return launch(std::integral_constant<int, kVector<T>>{});
    }
  }
  return launch(std::integral_constant<int, 1>{});
}

}  // namespace detail

// f(row) for every row of K inputs, [rows, cols] each, or for every segment. `like` gives device and stream.
template <class T, size_t K, class F>
void launch_rows(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const Split& split) {
  const int64_t count = rows * split.segments;
  if (count == 0) {
    return;
  }
  const auto launch = [&](auto vector, auto kept, int lanes) {
    const int block = lanes <= kWarp ? kBlock : lanes;
    const auto blocks = static_cast<unsigned>(std::min(ceil_div(count, block / lanes), kMaxGridX));
    detail::rows_kernel<decltype(vector)::value, decltype(kept)::value, T, K>
        <<<blocks, block, 0, current_stream(like)>>>(
            f, detail::make_inputs(inputs, std::make_index_sequence<K>{}), rows, cols, split, lanes);
    CUDA_LAUNCH_CHECK();
  };
  detail::with_access_width(inputs, cols, [&](auto vector) {
    constexpr int N = decltype(vector)::value;
    const int64_t chunks = ceil_div(split.segment_cols, N);
    if constexpr (F::kKeep) {
      constexpr int V = detail::kKeptAccesses;
      const int lanes = detail::row_lanes(chunks, V, detail::kMaxRowThreads);
      if (chunks <= int64_t{lanes} * V) {
        launch(vector, std::integral_constant<int, V>{}, lanes);
        return;
      }
    }
    const int lanes = detail::row_lanes(chunks, 4, F::kKeep ? detail::kMaxRowThreads : 2 * kBlock);
    launch(vector, std::integral_constant<int, 0>{}, lanes);
  });
}

template <class T, size_t K, class F>
void launch_rows(const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  launch_rows(like, f, inputs, rows, cols, Split::none(cols));
}

// The segments of few long rows, to fill the GPU: fewer than so many for each multiprocessor. Of others none.
inline Split split_few_rows(int64_t rows, int64_t cols, int64_t per_multiprocessor = 1) {
  return rows < per_multiprocessor * multiprocessors() ? Split::even(cols) : Split::none(cols);
}

// launch_rows for a functor that calls row.add_to_columns: outputs[c][col] = the sum over the rows. Returns false, and
// does nothing, where rows are too long for that. An output is a pointer or a SumOutput.
template <class T, size_t K, class F, class Out, size_t C>
bool launch_rows_and_column_sums(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const std::array<Out, C>& outputs) {
  using A = acc_t<T>;
  if (cols == 0) {
    return true;
  }
  if (rows == 0) {
    launch_add_partials<A>(like, 0, cols, static_cast<const A*>(nullptr), outputs);
    return true;
  }
  return detail::with_access_width(inputs, cols, [&](auto vector) {
    constexpr int N = decltype(vector)::value;
    // Inputs, the inputs that come next, and the sums share the registers.
    constexpr int V = std::is_same_v<T, double> ? 4 : N == 1 ? 8 : 16 / N;
    const int64_t chunks = ceil_div(cols, N);
    const int lanes = detail::row_lanes(chunks, V, detail::kMaxRowColumnThreads);
    if (chunks > int64_t{lanes} * V) {
      return false;
    }
    const auto kernel = detail::rows_and_column_sums_kernel<N, V, C, T, K, F>;
    const int block = lanes <= kWarp ? kBlock : lanes;
    int resident = 1;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, block, 0));
    // As many blocks as run at once, yet several rows for each.
    const int64_t teams = block / lanes;
    const int64_t blocks_wanted =
        std::min(int64_t{std::max(1, resident)} * multiprocessors(), ceil_div(rows, 4 * teams));
    const int64_t rows_per_block = ceil_div(ceil_div(rows, blocks_wanted), teams) * teams;
    const int64_t blocks = ceil_div(rows, rows_per_block);
    Tensor partials = new_empty(
        like, {blocks, static_cast<int64_t>(C), cols},
        std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float);
    A* const data = partials.template mutable_data_ptr<A>();
    kernel<<<static_cast<unsigned>(blocks), block, 0, current_stream(like)>>>(
        f, detail::make_inputs(inputs, std::make_index_sequence<K>{}), rows, cols, rows_per_block, lanes, data);
    CUDA_LAUNCH_CHECK();
    launch_add_partials<A>(like, blocks, cols, data, outputs);
    return true;
  });
}

}  // namespace extension_cpp::cuda
