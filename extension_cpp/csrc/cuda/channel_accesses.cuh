// Formulas of channels (channels.h) that sum nothing, where the elements of nearly every access are of neighbouring
// channels, or of one: rows of all channels, and planes that are no shorter than an access.
#pragma once

#include "channel_numbers.cuh"
#include "operands.cuh"
#include "turns.cuh"

#include <utility>

namespace extension_cpp::cuda::detail {

// The first `count` of N elements from `output` on, which is aligned; numbers_at(n): those of element n's channel.
template <class T, class F, class Numbers, bool Aligned, size_t K>
__device__ void write_access(
    const F& f, const Numbers& numbers_at, const RequestedOf<Aligned> (&requested)[K], T* output, int count) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  Values<A, N> values[K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    values[k] = unpack<T>(requested[k].template received<sizeof(T)>());
  }
  Values<A, N> results;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    results[n] = call_of_channel(f, numbers_at(n), values, n, std::make_index_sequence<K>());
  }
  store_some(output, results, 0, count);
}

// Rows of all channels: a thread has the same channels in several rows. All loads are sent before the first is waited
// for. Inputs are aligned, and rows a multiple of the period apart are, too. `Whole`: accesses are.
template <bool Whole, int Rows, class Channels, class F, class T, size_t K>
__global__ void __launch_bounds__(kBlock, Whole ? 4 : 3)
    channel_rows_kernel(Channels of, F f, Turns<Rows> turns, PointerArray<const T, K> inputs, T* __restrict__ output) {
  wait_for_previous();
  constexpr int N = kVector<T>;
  int row = 0;
  int col = 0;
  if (!turns.template find<N>(own_block() * kBlock + static_cast<int>(threadIdx.x), row, col)) {
    return;
  }
  const int period = turns.period();
  const int last = turns.rows - 1;
  const int in_row = Whole ? N : turns.cols - col;
  RequestedOf<true> requested[Rows][K];
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    const int own = row + r * period < last ? row + r * period : last;  // one that is there: no branch
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      requested[r][k].ask(inputs.data[k] + own * turns.cols + col, true);
    }
  }
  const NumbersOf<Channels, N> numbers = [&] {
    if constexpr (Whole) {
      return of.template numbers<N>(WholeColumn{col});
    } else {
      return in_row >= N ? of.template numbers<N>(int64_t{col}) : numbers_of<N>(of, col, 1, 1, turns.cols);
    }
  }();
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    const int own = row + r * period;
    if (own <= last) {
      write_access<T>(
          f, [&](int n) { return numbers[n]; }, requested[r], output + own * turns.cols + col,
          own == last ? in_row : N);
    }
  }
}

// Planes of one channel each, of no fewer elements than an access has. `Aligned`: inputs are. `Whole`: accesses are.
template <bool Aligned, bool Whole, class Channels, class F, class T, size_t K>
__global__ void __launch_bounds__(kBlock) channel_planes_kernel(
    Channels of, F f, int numel, Divider by_plane, Divider by_channels, PointerArray<const T, K> inputs,
    T* __restrict__ output) {
  wait_for_previous();
  constexpr int N = kVector<T>;
  const int at = (static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x)) * N;
  if (at >= numel) {
    return;
  }
  const int count = Whole || numel - at > N ? N : numel - at;
  RequestedOf<Aligned> requested[K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    requested[k].ask(inputs.data[k] + at, true, count * static_cast<int>(sizeof(T)));
  }
  const int plane = by_plane.divide_small(at);
  const auto channels = static_cast<int>(by_channels.divisor());
  const int c = plane - by_channels.divide_small(plane) * channels;
  const auto numbers = of.template numbers<1>(c)[0];
  const int left = Whole ? N : (plane + 1) * static_cast<int>(by_plane.divisor()) - at;
  if (left >= N) {
    write_access<T>(f, [&](int /*n*/) { return numbers; }, requested, output + at, count);
  } else {
    const auto next = of.template numbers<1>(c + 1 == channels ? 0 : c + 1)[0];
    write_access<T>(f, [&](int n) { return n < left ? numbers : next; }, requested, output + at, count);
  }
}

// Rows of a thread are at least so far apart: neighbouring ones, of short rows, took up to 1.03 times as long.
constexpr int64_t kBytesApart = 16384;

// Whether one of the kernels above serves, which is launched then. Half types whose rows are not whole accesses mostly
// take longer: each thread shifts the numbers of several parameters.
template <class T, class Channels, class F, size_t K>
bool launch_channel_accesses(
    const Channels& of, const F& f, const Images& images, bool aligned, const PointerArray<const T, K>& inputs,
    T* output, cudaStream_t stream) {
  constexpr int N = kVector<T>;
  constexpr int kRows = K == 1 ? 4 : 2;
  const auto [channels, inner, outer] = images;
  const int64_t numel = images.numel();
  if (numel > kMost) {
    return false;
  }
  if (inner >= N) {
    auto* const ragged = aligned ? channel_planes_kernel<true, false, Channels, F, T, K>
                                 : channel_planes_kernel<false, false, Channels, F, T, K>;
    launch_overlapped(
        aligned && inner % N == 0 ? channel_planes_kernel<true, true, Channels, F, T, K> : ragged,
        static_cast<unsigned>(ceil_div(ceil_div(numel, N), kBlock)), kBlock, 0, stream, of, f, static_cast<int>(numel),
        Divider(inner), Divider(channels), inputs, output);
    return true;
  }
  const bool whole = channels % N == 0;
  if (!aligned || inner > 1 || channels < 2 * N || (sizeof(T) == 2 && !whole)) {
    return false;
  }
  Turns<kRows> turns(outer, channels, N);
  if (outer < kRows * turns.period()) {
    return false;
  }
  turns.move_apart(kBytesApart / sizeof(T));
  auto* const kernel = [&] {
    if constexpr (sizeof(T) == 2) {
      return channel_rows_kernel<true, kRows, Channels, F, T, K>;
    } else {
      return whole ? channel_rows_kernel<true, kRows, Channels, F, T, K>
                   : channel_rows_kernel<false, kRows, Channels, F, T, K>;
    }
  }();
  const int64_t row_bytes = channels * static_cast<int64_t>((1 + K) * sizeof(T));
  launch_overlapped(
      kernel, in_order(ceil_div(turns.threads(), kBlock), turns.count(), true, row_bytes), kBlock, 0, stream, of, f,
      turns, inputs, output);
  return true;
}

}  // namespace extension_cpp::cuda::detail
