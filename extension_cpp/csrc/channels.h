// Elementwise operators on images that need numbers of the element's channel, which are computed once for all of its
// elements; with sums over channels, as their backward has. In one pass over memory, of any dense layout.
//
//   template <class T>
//   struct Channels {
//     using A = acc_t<T>;
//
//     backend::Parameter<T> var;  // [channels]
//
//     // Of N channels from c on: 1 / sqrt(var).
//     template <int N, class Index>
//     HOST_DEVICE Values<Values<A, 1>, N> numbers(Index c) const {
//       const Values<A, N> vars = var.template at<N>(c);
//       Values<Values<A, 1>, N> result;
//       for (int n = 0; n < N; ++n) {
//         result[n][0] = math::rsqrt(vars[n]);
//       }
//       return result;
//     }
//   };
//
//   template <class A>
//   struct DividedByDeviation {
//     HOST_DEVICE A operator()(const Values<A, 1>& rstd, A x) const { return x * rstd[0]; }
//   };
//
// backend::for_channels(like, channels, f, images, inputs, output): output[i] = f(numbers of the channel of i,
// inputs[i]...).
//
// backend::for_channels_with_sums(like, channels, f, images, inputs, output, sums): f returns WithSums, whose terms are
// summed; sums[k][c] is that of term k times channels.sum_factors(c)[k], a number that f need not know at each element.
// The sums are deterministic.
//
// Inputs and output have their elements where `images` says, and the output is new. `like` gives device and stream.
#pragma once

#include "backend.h"
#include "dispatch.h"
#include "rows.h"
#include "values.h"

#include <algorithm>

namespace extension_cpp {

// A tensor whose elements lie densely in any order of its dimensions, [n, channels, ...], is [outer, channels, inner]
// in memory. Where inner is 1, as in channels-last, elements of all channels are neighbours.
struct Images {
  int64_t channels;
  int64_t inner;
  int64_t outer;

  explicit Images(const Tensor& dense)
      : channels(dense.size(1)),
        inner(channels == 1 ? std::max<int64_t>(1, dense.numel()) : dense.stride(1)),
        outer(dense.numel() / std::max<int64_t>(1, channels * inner)) {}

  int64_t numel() const { return outer * channels * inner; }
};

}  // namespace extension_cpp

#ifdef __CUDACC__
#include "cuda/channels.cuh"
#else
#include "cpu/channels.h"
#endif
