// What kernels for formulas that need numbers of each channel (channels.h) have in common.
#pragma once

#include "indexing.h"
#include "launch.cuh"
#include "request.cuh"
#include "team.cuh"
#include "vector.cuh"

#include <utility>

namespace extension_cpp::cuda::detail {

template <class Channels, int N>
using NumbersOf = decltype(std::declval<const Channels&>().template numbers<N>(int64_t{}));

// The numbers of the channels of N elements, the first of which has channel c and `left` elements of it, and each
// following channel `inner` of them.
template <int N, class Channels>
__device__ NumbersOf<Channels, N> numbers_of(
    const Channels& of, int64_t c, int64_t left, int64_t inner, int64_t channels) {
  NumbersOf<Channels, N> result;
#pragma unroll 1
  for (int64_t begin = 0; begin < N; begin += left, left = inner, c = c + 1 == channels ? 0 : c + 1) {
    const auto now = of.template numbers<1>(c)[0];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      result[n] = n >= begin ? now : result[n];
    }
  }
  return result;
}

template <class F, class Numbers, class A, int N, size_t K, size_t... I>
__device__ auto call_of_channel(
    const F& f, const Numbers& numbers, const Values<A, N> (&values)[K], int n,
    std::index_sequence<I...> /*all inputs*/) {
  return f(numbers, values[I][n]...);
}

// 16 bytes of an input, on their way: of any address, or of one that is aligned, which takes half of the registers.
template <bool Aligned>
struct RequestedOf {
  Requested requested;

  // The first `bytes` of them, at least, if they are there.
  __device__ void ask(const void* address, bool is, int bytes = kAccessBytes) {
    const auto misaligned = static_cast<int>(misalignment(address));
    requested = request(static_cast<const char*>(address), is, is && misaligned + bytes > kAccessBytes);
  }

  template <int Size>
  __device__ Packed received() const {
    return receive<Size>(requested, false);
  }
};

template <>
struct RequestedOf<true> {
  Packed piece;

  __device__ void ask(const void* address, bool is, int /*bytes*/ = kAccessBytes) {
    if (is) {
      piece = request_piece(static_cast<const char*>(address));
    }
  }

  template <int Size>
  __device__ Packed received() const {
    return piece;
  }
};

}  // namespace extension_cpp::cuda::detail
