// Sums over the rows of large matrices, of elements as they are.
//
// A block has so few columns that there are enough blocks for the GPU. Where there are not, several share the columns,
// each of which takes rows in turn: those of a cluster bring together what they have in shared memory, others leave
// partial sums for a second kernel. Both add in the order of the blocks: equal bits from run to run.
#pragma once

#include "cluster.cuh"
#include "launch.cuh"
#include "partials.cuh"
#include "sum_output.cuh"
#include "team.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>
#include <optional>

namespace extension_cpp::cuda {

namespace detail {

constexpr int kSumThreads = 512;
constexpr int kSumBlocks = 2048 / kSumThreads;  // that a multiprocessor runs at once
constexpr int kSumAccesses = 2;                 // of a thread on their way

// Columns of a block whose threads read rows by so many together.
template <class T, int Lanes>
constexpr int kSumCols = Lanes * kVector<T>;

// Blocks that share columns are neighbours in blockIdx.x and a cluster, or have another blockIdx.y and partials.
template <int Lanes, class T, class Out>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks) sum_columns_kernel(
    const T* __restrict__ input,  // [batch, rows, tiles * kSumCols]
    int64_t rows, unsigned tiles, Out output /* [batch, tiles * kSumCols] */,
    acc_t<T>* __restrict__ partials /* [gridDim.y, batch, tiles * kSumCols] */) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  constexpr int kCols = kSumCols<T, Lanes>;
  constexpr int kTeams = kSumThreads / Lanes;
  __shared__ A of_warps[kSumThreads / kWarp][kCols];
  __shared__ A of_blocks[kMaxClusterBlocks][kCols];
  __shared__ Mailbox mailbox;
  may_begin_next();
  wait_for_previous();
  const Cluster cluster = Cluster::here();
  const bool shares = cluster.blocks > 1;
  const auto thread = static_cast<int>(threadIdx.x);
  if (shares) {
    if (thread == 0) {
      mailbox.open();
    }
    Cluster::arrive();
  }
  const unsigned index = blockIdx.x / static_cast<unsigned>(cluster.blocks);
  const unsigned batch = index / tiles;
  const int64_t cols = int64_t{tiles} * kCols;
  const int64_t first_col = int64_t{index - batch * tiles} * kCols;
  const int lane = thread % Lanes;
  const int64_t parts = int64_t{gridDim.y} * cluster.blocks;
  const int64_t first_row = (int64_t{blockIdx.y} * cluster.blocks + cluster.rank) * kTeams + thread / Lanes;
  const int64_t row_step = kTeams * parts;
  const int64_t step = row_step * cols;
  const T* address = input + (batch * rows + first_row) * cols + first_col + lane * N;
  int64_t left = rows - first_row;
  Values<A, N> sum{};
  for (; left > (kSumAccesses - 1) * row_step; left -= kSumAccesses * row_step, address += kSumAccesses * step) {
    Chunk<T, N> chunks[kSumAccesses];
#pragma unroll
    for (int k = 0; k < kSumAccesses; ++k) {
      chunks[k] = load_chunk<N>(address + k * step);
    }
#pragma unroll
    for (int k = 0; k < kSumAccesses; ++k) {
      sum = plus(sum, to_values(chunks[k]));
    }
  }
  for (; left > 0; left -= row_step, address += step) {
    sum = plus(sum, load<N>(address));
  }

#pragma unroll
  for (int mask = Lanes; mask < kWarp; mask *= 2) {
    sum = plus(sum, shuffle_xor(sum, mask));
  }
  if (thread % kWarp < Lanes) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      of_warps[thread / kWarp][lane * N + n] = sum[n];
    }
  }
  __syncthreads();
  if (shares) {
    Cluster::wait();
  }
  if (thread >= kCols) {
    return;
  }
  A total{};
#pragma unroll
  for (int warp = 0; warp < kSumThreads / kWarp; ++warp) {
    total += of_warps[warp][thread];
  }
  const int64_t at = batch * cols + first_col + thread;
  if (gridDim.y > 1) {
    partials[int64_t{blockIdx.y} * (gridDim.x / tiles) * cols + at] = total;
    return;
  }
  if (shares) {
    mailbox.send(0, &of_blocks[cluster.rank][thread], total);
    if (cluster.rank > 0) {
      return;
    }
    if (thread == 0) {
      mailbox.expect(cluster.blocks * kCols * static_cast<int>(sizeof(A)));
    }
    mailbox.wait(0);
    total = A{};
    for (int block = 0; block < cluster.blocks; ++block) {
      total += of_blocks[block][thread];
    }
  }
  store_sum(output, at, total);
}

// The most blocks of a cluster, of which `clusters` shall run at once; `most` is at most kMaxClusterBlocks.
template <class T, class Out>
int64_t blocks_of_cluster(int64_t clusters, int64_t most) {
  const auto kernel = sum_columns_kernel<8, T, Out>;
  while (most > 1 && resident_clusters(kernel, static_cast<int>(most), kSumThreads, 0) < clusters) {
    --most;
  }
  return most;
}

}  // namespace detail

// output[b, col] = the sum over the rows of [batch, rows, cols]. False, and nothing done, of small matrices, and of
// rows that are not whole tiles of aligned accesses.
template <class T, class Out>
bool sum_large_columns(
    const Tensor& like, const T* input, int64_t batch, int64_t rows, int64_t cols, const Out& output) {
  constexpr int64_t kLeastBytes = int64_t{4} << 20;
  constexpr int64_t kSmallBytes = int64_t{16} << 20;
  // A row of 128 bytes for each block, or 512 where there are blocks enough.
  constexpr int kNarrow = 8;
  constexpr int kWide = 32;
  constexpr int64_t kTeams = detail::kSumThreads / kNarrow;
  const int64_t tiles = batch * (cols / detail::kSumCols<T, kNarrow>);
  const int64_t bytes = batch * rows * cols * static_cast<int64_t>(sizeof(T));
  if (cols % detail::kSumCols<T, kNarrow> != 0 || !is_aligned(input) || bytes < kLeastBytes ||
      rows < kTeams * detail::kSumAccesses || tiles > kMaxGridX / detail::kMaxClusterBlocks) {
    return false;
  }
  const int64_t all = int64_t{multiprocessors()};
  const auto launch = [&](auto lanes, int64_t cluster, int64_t parts, acc_t<T>* partials) {
    constexpr int kLanes = decltype(lanes)::value;
    const int64_t each = cols / detail::kSumCols<T, kLanes>;
    const dim3 grid(static_cast<unsigned>(batch * each * cluster), static_cast<unsigned>(parts));
    launch_clusters(
        detail::sum_columns_kernel<kLanes, T, Out>, static_cast<int>(cluster), grid, detail::kSumThreads, 0,
        current_stream(like), input, rows, static_cast<unsigned>(each), output, partials);
  };
  constexpr std::integral_constant<int, kNarrow> narrow;
  if (cols % detail::kSumCols<T, kWide> == 0 && tiles * kNarrow / kWide >= 3 * all) {
    launch(std::integral_constant<int, kWide>(), 1, 1, nullptr);
    return true;
  }
  const int64_t wanted = std::min(detail::kSumBlocks * all / tiles, rows / (kTeams * detail::kSumAccesses));
  const int64_t cluster =
      detail::blocks_of_cluster<T, Out>(tiles, std::clamp<int64_t>(wanted, 1, detail::kMaxClusterBlocks));
  if (wanted <= 1 || tiles * cluster >= (bytes <= kSmallBytes ? all * 9 / 10 : 2 * all)) {
    launch(narrow, cluster, 1, nullptr);
    return true;
  }
  Tensor partials = new_empty(like, {wanted, batch * cols}, kDtypeOf<acc_t<T>>);
  auto* const data = partials.template mutable_data_ptr<acc_t<T>>();
  launch(narrow, 1, wanted, data);
  launch_add_partials<acc_t<T>>(like, wanted, batch * cols, data, std::array{output});
  return true;
}

}  // namespace extension_cpp::cuda
