// Elementwise operators that need numbers of each channel (channels.h).
//
// To accesses of 16 bytes, channels come in the same order again after a period: of channels-last images a few rows of
// channels, of channels-first ones an image. A thread takes every access that is a whole number of periods from its
// first, and so meets the same channels in all of them: their numbers, and sums, are in its registers, whatever the
// number of channels and the size of a plane. Loads go out several at a time. (Where nothing is summed, most images
// have a kernel of channel_accesses.cuh.)
//
// For sums each block leaves what it has of a channel, and a second kernel adds that up in a fixed order.
#pragma once

#include "channel_accesses.cuh"
#include "channel_numbers.cuh"
#include "launch.cuh"
#include "operands.cuh"
#include "parameter.cuh"
#include "partials.cuh"
#include "team.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

// Accesses to each of K inputs that a thread sends for at a time. Those that are not aligned take twice the registers.
template <bool Aligned, size_t K>
constexpr int kBatch = K == 1 ? (Aligned ? 3 : 2) : (Aligned ? 2 : 1);

constexpr int kChannelThreads = 256;

// Blocks of so many threads that the compiler shall let run at once: numbers and C sums of a channel for each element
// of an access take most of the registers.
template <bool Aligned, size_t C>
constexpr int kChannelBlocks = (C == 0 ? 4 : 3) - (Aligned ? 0 : 1);

// Batches of a thread where nothing is summed and rows of channels are not whole accesses: their numbers are shifted,
// and where a row ends asked for one after the other. Else one: short blocks are faster, as new ones begin whenever one
// ends.
constexpr int64_t kBatches = 4;

// Accesses that a thread shall have in turn, for which planes of few images are cut. (Where nothing is summed, of such
// as are too large for channel_accesses.cuh.)
template <size_t C>
constexpr int64_t kWantedTurns = C == 0 ? 16 : 64;

// Which accesses the threads of a grid take. Those of a group are the first of the threads in its tiles. A block has
// one tile of some groups, of so many that follow one another at a time: all blocks together, chunks of them for each
// tile, go through memory from its beginning to its end. To that end blocks have the tiles of a chunk one after the
// other, or, where what is taken in turn are pieces of a plane, the chunks of a tile.
struct ChannelGrid {
  int64_t whole;  // accesses to N elements
  int rest;       // elements after the last of them
  int64_t group;  // accesses, after which channels come in the same order
  int64_t step;   // accesses from a thread's first to its next: a group, or a piece of a plane
  int64_t skip;   // accesses that are no thread's first, after each plane
  int groups;
  int chunks;
  int64_t cols;      // elements of a group, of whole planes
  int tiles;         // of a group
  Divider by_near;   // by the number of blocks beside each other: the tiles of a chunk, or the chunks of a tile
  int tile;          // accesses of a tile, at most
  Divider by_inner;  // elements of a plane that are some thread's first
  Divider by_channels;
};

// How the sums of a tile are brought together. A group has planes of all channels, as often as there are rounds. Where
// a tile is a whole group, all of a channel are added up; else each by itself, in as many pieces as there are tiles
// that it may lie in.
struct ChannelSums {
  int lanes;   // threads for a sum of the tile: a power of two up to a warp
  int rounds;  // of the group that remain in the partial sums
  int pieces;
};

// The numbers of the channels of the N elements from column `col` of a group on.
template <int N, class Channels>
__device__ NumbersOf<Channels, N> numbers_at(const Channels& of, const ChannelGrid& grid, int64_t col) {
  const int64_t inner = grid.by_inner.divisor();
  const int64_t channels = grid.by_channels.divisor();
  const int64_t plane = grid.by_inner.divide(col);
  const int64_t c = plane - grid.by_channels.divide(plane) * channels;
  if (inner == 1 && c + N <= channels) {
    return of.template numbers<N>(c);
  }
  return numbers_of<N>(of, c, inner - (col - plane * inner), inner, channels);
}

// Terms that a formula of K inputs has for sums.
template <class Channels, class F, class T, size_t K, size_t... I>
constexpr size_t count_terms(std::index_sequence<I...> /*all inputs*/) {
  using A = acc_t<T>;
  using Numbers = std::decay_t<decltype(std::declval<NumbersOf<Channels, 1>>()[0])>;
  using R = decltype(std::declval<const F&>()(std::declval<const Numbers&>(), (static_cast<void>(I), A())...));
  return ResultCounts<std::decay_t<R>>::terms;
}

template <class Channels, class F, class T, size_t K>
constexpr size_t kTermsOf = count_terms<Channels, F, T, K>(std::make_index_sequence<K>());

// What a formula returns for an element: what is written.
template <class A>
__device__ A written_of(const A& result) {
  return result;
}
template <class A, int C>
__device__ A written_of(const WithSums<A, 1, C>& result) {
  return result.results[0];
}

// C sums for each element of an access.
template <class A, size_t C, int N>
struct ChannelSumsOf {
  Values<A, N> terms[C > 0 ? C : 1] = {};

  template <class R>
  __device__ void add(const R& result, int n) {
    if constexpr (C > 0) {
#pragma unroll
      for (size_t k = 0; k < C; ++k) {
        terms[k][n] += result.terms[static_cast<int>(k)];
      }
    }
  }
};

// Adds up what the threads of a tile have of each of its channels, for the partial sums.
template <class Channels, class A, size_t C, int N>
__device__ void add_up_tile(
    const Channels& of, const ChannelGrid& grid, const ChannelSums& places, int chunk, int tile,
    const ChannelSumsOf<A, C, N>& sums, A* __restrict__ partials) {
  __shared__ A of_cols[C][kChannelThreads * N];
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (size_t k = 0; k < C; ++k) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      of_cols[k][thread * N + n] = sums.terms[k][n];
    }
  }
  __syncthreads();
  const int64_t inner = grid.by_inner.divisor();
  const int64_t channels = grid.by_channels.divisor();
  const int64_t tile_cols = int64_t{grid.tile} * N;
  const int64_t first_col = tile * tile_cols;
  const int64_t end_col = first_col + tile_cols < grid.cols ? first_col + tile_cols : grid.cols;
  const bool is_group = grid.tiles == 1;
  const int64_t first_plane = grid.by_inner.divide(first_col);
  const int64_t end_plane = is_group ? channels : grid.by_inner.divide(end_col - 1) + 1;
  const int rounds = is_group ? static_cast<int>(grid.cols / (channels * inner)) : 1;
  const int lane = thread % places.lanes;
  const auto teams = static_cast<int>(blockDim.x) / places.lanes;
  for (int64_t plane = first_plane; plane < end_plane; plane += teams) {
    const int64_t own = plane + thread / places.lanes;
    const int64_t begin = own * inner;
    const auto from = static_cast<int>(begin > first_col ? begin - first_col : 0);
    const auto to = static_cast<int>((begin + inner < end_col ? begin + inner : end_col) - first_col);
    const int count = own < end_plane ? (to - from) * rounds : 0;
    Values<A, static_cast<int>(C)> total{};
    for (int i = lane; i < count; i += places.lanes) {
      const int round = rounds == 1 ? 0 : grid.by_inner.divide_small(i);
      const int col = from + i + round * static_cast<int>((channels - 1) * inner);
#pragma unroll
      for (size_t k = 0; k < C; ++k) {
        total[static_cast<int>(k)] += of_cols[k][col];
      }
    }
    for (int mask = places.lanes / 2; mask > 0; mask /= 2) {
      total = plus(total, shuffle_xor(total, mask));
    }
    if (lane == 0 && own < end_plane) {
      const int64_t round = grid.by_channels.divide(own);
      const int64_t c = own - round * channels;
      const auto factors = of.sum_factors(c);
      // The tiles of a plane count its pieces; who has the last leaves nothing in those that are not there.
      int piece = places.pieces == 1 ? 0 : tile - static_cast<int>(begin / tile_cols);
      const int last = begin + inner <= end_col ? places.pieces : piece + 1;
      for (; piece < last; ++piece) {
        const int64_t part = (int64_t{chunk} * places.rounds + round) * places.pieces + piece;
#pragma unroll
        for (size_t k = 0; k < C; ++k) {
          partials[partial_sum_at<C>(part, k, channels, c)] = total[static_cast<int>(k)] * factors[static_cast<int>(k)];
          total[static_cast<int>(k)] = 0;
        }
      }
    }
  }
}

// Images, element by element: accesses to N at a time.
template <bool Aligned, class Channels, class F, class T, size_t K>
__global__ void __launch_bounds__(kChannelThreads, kChannelBlocks<Aligned, kTermsOf<Channels, F, T, K>>)
    channels_kernel(
        Channels channels, F f, ChannelGrid grid, ChannelSums places, PointerArray<const T, K> inputs,
        T* __restrict__ output, acc_t<T>* __restrict__ partials /* [parts, C, channels] */) {
  may_begin_next();
  wait_for_previous();
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  constexpr int U = kBatch<Aligned, K>;
  constexpr size_t C = kTermsOf<Channels, F, T, K>;
  const bool cut = grid.skip > 0;
  const int far = grid.by_near.divide_small(static_cast<int>(blockIdx.x));
  const int near = static_cast<int>(blockIdx.x) - far * static_cast<int>(grid.by_near.divisor());
  const int chunk = cut ? near : far;
  const int tile = cut ? far : near;
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t in_group = int64_t{tile} * grid.tile + thread;
  int64_t first = in_group;
  if (cut) {
    first += grid.by_inner.divide(in_group * N) * grid.skip;
  }
  // Groups in which this thread has a whole access, and whether the elements after the last of all are its next.
  const bool is = thread < grid.tile && in_group < grid.group;
  const bool ends = is && first + (grid.groups - 1) * grid.step >= grid.whole;
  const int groups = is ? grid.groups - (ends ? 1 : 0) : 0;
  const bool rest =
      ends && grid.rest > 0 && first + groups * grid.step == grid.whole && groups / U % grid.chunks == chunk;

  ChannelSumsOf<A, C, N> sums;
  int group = chunk * U;
  if (group < groups || rest) {
    const int64_t step = grid.step * N;
    const int ahead = grid.chunks * U;
    int64_t at = first * N + group * step;
    RequestedOf<Aligned> requested[U][K];
    const auto send = [&](int u, int of_group, int64_t from) {
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        requested[u][k].ask(inputs.data[k] + from + u * step, of_group + u < groups);
      }
    };
#pragma unroll
    for (int u = 0; u < U; ++u) {
      send(u, group, at);
    }
    const auto numbers = numbers_at<N>(channels, grid, in_group * N);
    const auto element = [&](const Values<A, N>(&values)[K], int n) {
      return call_of_channel(f, numbers[n], values, n, std::make_index_sequence<K>());
    };
    for (; group < groups; group += ahead) {
      const int64_t next = at + ahead * step;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        if (group + u < groups) {
          Values<A, N> values[K];
#pragma unroll
          for (size_t k = 0; k < K; ++k) {
            values[k] = unpack<T>(requested[u][k].template received<sizeof(T)>());
          }
          Values<A, N> results;
#pragma unroll
          for (int n = 0; n < N; ++n) {
            const auto result = element(values, n);
            results[n] = written_of(result);
            sums.add(result, n);
          }
          store(output + at + u * step, results);
        }
        send(u, group + ahead, next);
      }
      at = next;
    }
    if (rest) {
      at = grid.whole * N;
      Values<A, N> values[K];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (n < grid.rest) {
#pragma unroll
          for (size_t k = 0; k < K; ++k) {
            values[k][n] = load<1>(inputs.data[k] + at + n)[0];
          }
          const auto result = element(values, n);
          output[at + n] = static_cast<T>(written_of(result));
          sums.add(result, n);
        }
      }
    }
  }
  if constexpr (C > 0) {
    add_up_tile(channels, grid, places, chunk, tile, sums, partials);
  }
}

// The least multiple of a warp that is not less.
inline int whole_warps(int64_t threads) { return static_cast<int>(ceil_div(threads, kWarp) * kWarp); }

template <class Channels, class F, class T, size_t K>
constexpr auto choose_channels_kernel(bool aligned) {
  return aligned ? channels_kernel<true, Channels, F, T, K> : channels_kernel<false, Channels, F, T, K>;
}

// Without outputs for sums as many blocks as there is work for, else as many as run at once.
template <class T, class Channels, class F, size_t K, class Out, size_t C>
void launch_channels(
    const Tensor& like, const Channels& of, const F& f, const Images& images, const std::array<const T*, K>& inputs,
    T* output, const std::array<Out, C>& outputs) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  static_assert(C == kTermsOf<Channels, F, T, K>, "an output for each term of the formula");
  const int64_t numel = images.numel();
  const int64_t channels = images.channels;
  if (numel == 0) {
    if constexpr (C > 0) {
      if (channels > 0) {
        launch_add_partials<A>(like, 0, channels, static_cast<const A*>(nullptr), outputs);
      }
    }
    return;
  }
  PointerArray<const T, K> from;
  std::copy(inputs.begin(), inputs.end(), from.data);
  const bool aligned = std::all_of(inputs.begin(), inputs.end(), [](const T* input) { return is_aligned(input); });
  if constexpr (C == 0) {
    if (launch_channel_accesses<T>(of, f, images, aligned, from, output, current_stream(like))) {
      return;
    }
  }
  // Images of one channel are one channel of so many.
  int64_t inner = channels == 1 ? 1 : images.inner;
  ChannelGrid grid;
  grid.whole = numel / N;
  grid.rest = static_cast<int>(numel % N);
  // Few images: pieces of a plane are what others have of several, if they are whole accesses.
  int64_t pieces = kWantedTurns<C>;
  while (pieces > 1 && inner % (pieces * N) != 0) {
    pieces /= 2;
  }
  const bool cut = pieces > images.outer && inner > 1;
  grid.skip = 0;
  if (cut) {
    grid.skip = (inner - inner / pieces) / N;
    inner /= pieces;
  }
  const int64_t period = channels * inner;
  const int64_t period_accesses = period / std::gcd(period, int64_t{N});
  const int64_t accesses = cut ? grid.whole / pieces : ceil_div(numel, N);
  if (cut) {
    grid.group = accesses;
  } else if (period_accesses > kChannelThreads) {
    grid.group = std::min(period_accesses, accesses);
  } else {
    grid.group = period_accesses * (kChannelThreads / period_accesses);
  }
  grid.cols = grid.group % period_accesses == 0 ? grid.group * N : numel;
  grid.step = cut ? inner / N : grid.group;
  grid.groups = static_cast<int>(cut ? pieces : ceil_div(accesses, grid.group));
  grid.tile = static_cast<int>(
      std::min<int64_t>(grid.group, whole_warps(ceil_div(grid.group, ceil_div(grid.group, kChannelThreads)))));
  const int64_t tiles = ceil_div(grid.group, grid.tile);
  grid.tiles = static_cast<int>(tiles);
  grid.by_inner = Divider(inner);
  grid.by_channels = Divider(channels);

  const auto kernel = choose_channels_kernel<Channels, F, T, K>(aligned);
  const int block = whole_warps(grid.tile);
  const int64_t at_once = int64_t{aligned ? kChannelBlocks<true, C> : kChannelBlocks<false, C>} * multiprocessors();
  const int64_t batches = ceil_div(grid.groups, kBatch<true, K>);
  int64_t wanted = std::max<int64_t>(1, at_once / tiles);
  if (C == 0) {
    const bool one_by_one = inner == 1 && channels % N != 0;
    wanted = one_by_one ? std::max(wanted, ceil_div(batches, kBatches)) : batches;
  }
  grid.chunks = static_cast<int>(std::min(batches, wanted));
  grid.by_near = Divider(cut ? grid.chunks : tiles);

  ChannelSums places{};
  const int64_t span = std::min(inner, int64_t{grid.tile} * N);
  const int64_t terms = tiles == 1 ? grid.cols / channels : span;
  places.lanes = 1;
  while (places.lanes < kWarp && 8 * places.lanes <= terms) {
    places.lanes *= 2;
  }
  places.rounds = static_cast<int>(tiles == 1 ? 1 : grid.cols / period);
  places.pieces = static_cast<int>(tiles == 1 || inner == 1 ? 1 : (inner - 2) / (int64_t{grid.tile} * N) + 2);
  std::optional<Tensor> partials;
  A* data = nullptr;
  const int64_t parts = int64_t{grid.chunks} * places.rounds * places.pieces;
  if constexpr (C > 0) {
    partials = new_empty(like, {parts, static_cast<int64_t>(C), channels}, kDtypeOf<A>);
    data = partials->template mutable_data_ptr<A>();
  }
  launch_overlapped(
      kernel, static_cast<unsigned>(grid.chunks * tiles), block, 0, current_stream(like), of, f, grid, places, from,
      output, data);
  if constexpr (C > 0) {
    launch_add_partials<A>(like, parts, channels, data, outputs);
  }
}

}  // namespace detail

template <class T, class Channels, class F, size_t K>
void for_channels(
    const Tensor& like, const Channels& of, const F& f, const Images& images, const std::array<const T*, K>& inputs,
    T* output) {
  detail::launch_channels(like, of, f, images, inputs, output, std::array<T*, 0>{});
}

template <class T, class Channels, class F, size_t K, class Out, size_t C>
void for_channels_with_sums(
    const Tensor& like, const Channels& of, const F& f, const Images& images, const std::array<const T*, K>& inputs,
    T* output, const std::array<Out, C>& sums) {
  detail::launch_channels(like, of, f, images, inputs, output, sums);
}

}  // namespace extension_cpp::cuda
