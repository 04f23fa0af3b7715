// Sums over the rows of large matrices, of elements as they are or of what a formula makes of several, which may write
// results as well.
//
// A block has so few columns that there are enough blocks for the GPU. Where there are not, several share the columns,
// each of which takes rows in turn: those of a cluster bring together what they have in shared memory, others leave
// partial sums for a second kernel. Both add in the order of the blocks: equal bits from run to run, on one device, for
// how many blocks a cluster has depends on how many clusters it has room for.
#pragma once

#include "cluster.cuh"
#include "launch.cuh"
#include "partials.cuh"
#include "sum_output.cuh"
#include "team.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

constexpr int kStripThreads = 512;

// Threads that read a row together: 128 bytes of it, or 512 where there are blocks enough.
constexpr int kNarrowStrip = 8;
constexpr int kWideStrip = 32;

// Accesses to each input that a thread has on their way, of K.
template <size_t K>
constexpr int kStripAccesses = K == 1 ? 2 : 1;

// Blocks that a multiprocessor of so many threads shall run at once, of kernels with K inputs, R results and C sums of
// a formula F.
template <class F, size_t K, size_t R, size_t C>
constexpr int strip_blocks(int threads) {
  const bool few_registers = K + R + C <= 4 && extension_cpp::detail::kWorkOf<F> == 0;
  return std::min(threads, K + R == 1 ? 2048 : few_registers ? 1536 : 1024) / kStripThreads;
}

template <class T, int Lanes>
constexpr int kStripCols = Lanes * kVector<T>;

// What a formula makes of an element of each input: terms alone, or WithSums.
template <class A, int C>
__device__ const Values<A, C>& terms_in(const Values<A, C>& terms) {
  return terms;
}
template <class A, int R, int C>
__device__ const Values<A, C>& terms_in(const WithSums<A, R, C>& values) {
  return values.terms;
}

template <class F, class A, int N, size_t K, size_t... I>
__device__ auto call_at(const F& f, const Values<A, N> (&values)[K], int n, std::index_sequence<I...>) {
  return f(values[I][n]...);
}

// std::array has no device functions, and there is no array of nothing.
template <class T, size_t R>
using ResultPointers = PointerArray<T, (R > 0 ? R : 1)>;

// Blocks that share columns are neighbours in blockIdx.x and a cluster, or have another blockIdx.y and partials.
template <int Lanes, class T, class F, size_t K, size_t R, class Out, size_t C>
__global__ void __launch_bounds__(kStripThreads, (strip_blocks<F, K, R, C>(kMostThreads))) column_strips_kernel(
    F f, PointerArray<const T, K> inputs,  // [batch, rows, strips * kStripCols]
    int64_t rows, unsigned strips, ResultPointers<T, R> results /* as the inputs */,
    SumOutputs<Out, C> outputs /* [batch, strips * kStripCols] */,
    acc_t<T>* __restrict__ partials /* [gridDim.y, C, batch, strips * kStripCols] */) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  constexpr int kCols = kStripCols<T, Lanes>;
  constexpr int kTeams = kStripThreads / Lanes;
  constexpr int kAccesses = kStripAccesses<K>;
  __shared__ A of_warps[C][kStripThreads / kWarp][kCols];
  __shared__ A of_blocks[C][Lanes == kNarrowStrip ? kMaxClusterBlocks : 1][kCols];
  __shared__ Mailbox mailbox;
  may_begin_next();
  wait_for_previous();
  const Cluster cluster = Cluster::here();
  const bool shares = Lanes == kNarrowStrip && cluster.blocks > 1;
  const auto thread = static_cast<int>(threadIdx.x);
  if (shares) {
    if (thread == 0) {
      mailbox.open();
    }
    Cluster::arrive();
  }
  const unsigned index = blockIdx.x / static_cast<unsigned>(cluster.blocks);
  const unsigned batch = index / strips;
  const int64_t cols = int64_t{strips} * kCols;
  const int64_t first_col = int64_t{index - batch * strips} * kCols;
  const int lane = thread % Lanes;
  const int64_t parts = int64_t{gridDim.y} * cluster.blocks;
  const int64_t first_row = (int64_t{blockIdx.y} * cluster.blocks + cluster.rank) * kTeams + thread / Lanes;
  const int64_t row_step = kTeams * parts;
  const int64_t step = row_step * cols;
  int64_t at = (batch * rows + first_row) * cols + first_col + lane * N;
  int64_t left = rows - first_row;
  Values<A, N> sums[C] = {};
  const auto add = [&](const Chunk<T, N>(&chunks)[K], int64_t where) {
    Values<A, N> values[K];
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      values[k] = to_values(chunks[k]);
    }
    Values<A, N> written[R > 0 ? R : 1];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const auto made = call_at(f, values, n, std::make_index_sequence<K>{});
      if constexpr (R > 0) {
#pragma unroll
        for (size_t r = 0; r < R; ++r) {
          written[r][n] = made.results[static_cast<int>(r)];
        }
      }
#pragma unroll
      for (size_t c = 0; c < C; ++c) {
        sums[c][n] += terms_in(made)[static_cast<int>(c)];
      }
    }
    if constexpr (R > 0) {
#pragma unroll
      for (size_t r = 0; r < R; ++r) {
        store(results.data[r] + where, written[r]);
      }
    }
  };
  for (; left > (kAccesses - 1) * row_step; left -= kAccesses * row_step, at += kAccesses * step) {
    Chunk<T, N> chunks[kAccesses][K];
#pragma unroll
    for (int a = 0; a < kAccesses; ++a) {
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        chunks[a][k] = load_chunk<N>(inputs.data[k] + at + a * step);
      }
    }
#pragma unroll
    for (int a = 0; a < kAccesses; ++a) {
      add(chunks[a], at + a * step);
    }
  }
  for (; left > 0; left -= row_step, at += step) {
    Chunk<T, N> chunks[K];
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      chunks[k] = load_chunk<N>(inputs.data[k] + at);
    }
    add(chunks, at);
  }

#pragma unroll
  for (size_t c = 0; c < C; ++c) {
#pragma unroll
    for (int mask = Lanes; mask < kWarp; mask *= 2) {
      sums[c] = plus(sums[c], shuffle_xor(sums[c], mask));
    }
    if (thread % kWarp < Lanes) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        of_warps[c][thread / kWarp][lane * N + n] = sums[c][n];
      }
    }
  }
  __syncthreads();
  if (shares) {
    Cluster::wait();
  }
  if (thread >= kCols) {
    return;
  }
  const int64_t col = batch * cols + first_col + thread;
  const int64_t size = gridDim.x / strips * cols;  // of partial sums there are no clusters
#pragma unroll
  for (size_t c = 0; c < C; ++c) {
    A total{};
#pragma unroll
    for (int warp = 0; warp < kStripThreads / kWarp; ++warp) {
      total += of_warps[c][warp][thread];
    }
    if (gridDim.y > 1) {
      partials[partial_sum_at<C>(blockIdx.y, c, size, col)] = total;
    } else if (shares) {
      mailbox.send(0, &of_blocks[c][cluster.rank][thread], total);
    } else {
      outputs.store(c, col, total);
    }
  }
  if (!shares || cluster.rank > 0) {
    return;
  }
  if (thread == 0) {
    mailbox.expect(cluster.blocks * static_cast<int>(sizeof(A) * C) * kCols);
  }
  mailbox.wait(0);
#pragma unroll
  for (size_t c = 0; c < C; ++c) {
    A total{};
    for (int block = 0; block < cluster.blocks; ++block) {
      total += of_blocks[c][block][thread];
    }
    outputs.store(c, col, total);
  }
}

// Clusters of so many blocks that the current device runs at once. It is asked once for each, which takes longer than
// to launch the kernel.
template <class T, class F, size_t K, size_t R, class Out, size_t C>
int resident_strips(int cluster) {
  static OncePerDevice known[kMaxClusterBlocks + 1];
  return known[cluster].answer([&] {
    const auto kernel = column_strips_kernel<kNarrowStrip, T, F, K, R, Out, C>;
    return static_cast<int>(resident_clusters(kernel, cluster, kStripThreads, 0));
  });
}

}  // namespace detail

// For each matrix of a [batch, rows, cols] tensor: results[r] of f(inputs...) for every element, and outputs[c] = the
// sums over the rows of its term c; f returns WithSums, or, where there are no results, Values. An output is a pointer
// or a SumOutput. False, and nothing done, of small matrices and very large ones, and of rows that are not whole strips
// of aligned accesses.
template <class T, class F, size_t K, size_t R, class Out, size_t C>
bool launch_column_strips(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t batch, int64_t rows, int64_t cols,
    const std::array<T*, R>& results, const std::array<Out, C>& outputs) {
  using detail::kNarrowStrip, detail::kWideStrip;
  constexpr int64_t kAccesses = detail::kStripAccesses<K>;
  constexpr int64_t kLeastBytes = int64_t{4} << 20;
  constexpr int64_t kSmallBytes = int64_t{16} << 20;
  // Of so many rows, and bytes of a tensor, it takes up to a twentieth longer than the other kernel.
  constexpr int64_t kManyRows = 32768;
  constexpr int64_t kLargeBytes = int64_t{256} << 20;
  constexpr int64_t kTeams = detail::kStripThreads / kNarrowStrip;
  constexpr int64_t kCols = detail::kStripCols<T, kNarrowStrip>;
  const int64_t strips = batch * (cols / kCols);
  const int64_t bytes = batch * rows * cols * static_cast<int64_t>(sizeof(T) * (K + R));
  const auto aligned = [](const T* data) { return is_aligned(data); };
  if (cols % kCols != 0 || bytes < kLeastBytes || rows < 4 * kTeams || strips > kMaxGridX / detail::kMaxClusterBlocks ||
      !std::all_of(inputs.begin(), inputs.end(), aligned) || !std::all_of(results.begin(), results.end(), aligned)) {
    return false;
  }
  PointerArray<const T, K> from;
  std::copy_n(inputs.begin(), K, from.data);
  detail::ResultPointers<T, R> to{};
  std::copy_n(results.begin(), R, to.data);
  const auto launch = [&](auto lanes, int64_t cluster, int64_t parts, acc_t<T>* partials) {
    constexpr int kLanes = decltype(lanes)::value;
    const int64_t each = cols / detail::kStripCols<T, kLanes>;
    const dim3 grid(static_cast<unsigned>(batch * each * cluster), static_cast<unsigned>(parts));
    launch_clusters(
        detail::column_strips_kernel<kLanes, T, F, K, R, Out, C>, static_cast<int>(cluster), grid,
        detail::kStripThreads, 0, current_stream(like), f, from, rows, static_cast<unsigned>(each), to,
        detail::sum_outputs(outputs, std::make_index_sequence<C>{}), partials);
  };
  const int64_t all = int64_t{multiprocessors()};
  constexpr std::integral_constant<int, kNarrowStrip> narrow;
  if constexpr (K == 1 && C == 1) {
    if (cols % detail::kStripCols<T, kWideStrip> == 0 && strips * kNarrowStrip / kWideStrip >= 3 * all) {
      launch(std::integral_constant<int, kWideStrip>(), 1, 1, nullptr);
      return true;
    }
  }
  // As many blocks as run at once, yet some rows for each team.
  const int threads = device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  const int64_t blocks = all * detail::strip_blocks<F, K, R, C>(threads);
  const int64_t wanted = std::min(blocks / strips, rows / (kTeams * kAccesses));
  auto cluster = static_cast<int>(std::clamp<int64_t>(wanted, 1, detail::kMaxClusterBlocks));
  while (cluster > 1 && detail::resident_strips<T, F, K, R, Out, C>(cluster) < strips) {
    --cluster;
  }
  const int64_t busy = bytes <= kSmallBytes ? all * 9 / 10 : blocks / 2;
  if (wanted <= 1 || strips * cluster >= busy) {
    // More blocks than run at once take turns, of which the last one shall not be of a few.
    const int64_t turns = ceil_div(strips * cluster, blocks);
    const bool few_last = turns > 1 && 5 * strips * cluster < 4 * turns * blocks;
    if (few_last || (rows >= kManyRows && bytes >= static_cast<int64_t>(K + R) * kLargeBytes)) {
      return false;
    }
    launch(narrow, cluster, 1, nullptr);
    return true;
  }
  const int64_t size = batch * cols;
  Tensor partials = new_empty(like, {wanted, static_cast<int64_t>(C), size}, kDtypeOf<acc_t<T>>);
  auto* const data = partials.template mutable_data_ptr<acc_t<T>>();
  launch(narrow, 1, wanted, data);
  launch_add_partials<acc_t<T>>(like, wanted, size, data, outputs);
  return true;
}

}  // namespace extension_cpp::cuda
