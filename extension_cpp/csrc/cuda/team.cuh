// The threads that share a row, and what they work out together.
#pragma once

#include "launch.cuh"
#include "vector.cuh"

namespace extension_cpp::cuda::detail {

// A reduction along a row has at most this many results.
constexpr int kMaxResults = 4;

template <class A>
__device__ A plus(A a, A b) {
  return a + b;
}

template <class A, int K>
__device__ Values<A, K> plus(const Values<A, K>& a, const Values<A, K>& b) {
  Values<A, K> result;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    result[k] = a[k] + b[k];
  }
  return result;
}

struct Plus {
  template <class R>
  __device__ R operator()(const R& a, const R& b) const {
    return plus(a, b);
  }
};

struct Larger {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a > b || a != a ? a : b;  // NaN wins
  }
};

template <class A>
__device__ A shuffle_xor(A value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

template <class A, int K>
__device__ Values<A, K> shuffle_xor(const Values<A, K>& value, int mask) {
  Values<A, K> result;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    result[k] = __shfl_xor_sync(0xffffffffu, value[k], mask);
  }
  return result;
}

// The threads that share a row: a power of two up to a warp, or all warps of a block. Every thread of the block makes
// the same calls: shuffles name the whole warp, barriers wait for the whole block.
template <class A>
class Team {
 public:
  struct Shared {
    A results[2][kWarp * kMaxResults];
  };

  __device__ Team(int lanes, Shared& shared)
      : lanes_(lanes),
        lane_(static_cast<int>(threadIdx.x) % lanes),
        group_(lanes <= kWarp ? lanes : 1),
        shared_(shared) {
    while (lanes > kWarp && group_ * kWarp < lanes) {
      group_ *= 2;
    }
    own_ = lane_ % group_;
  }

  __device__ int lanes() const { return lanes_; }
  __device__ int lane() const { return lane_; }

  // The same bits for every thread: both sides of a pair add the same two numbers.
  template <class R, class Op>
  __device__ R all_reduce(R value, R identity, Op op) {
    static_assert(sizeof(R) <= kMaxResults * sizeof(A));
    if (lanes_ >= kWarp) {
#pragma unroll
      for (int mask = kWarp / 2; mask > 0; mask /= 2) {
        value = op(value, shuffle_xor(value, mask));
      }
      if (lanes_ == kWarp) {
        return value;
      }
      R* const results = reinterpret_cast<R*>(shared_.results[turn_]);
      // Two buffers in turn: a thread that is ahead writes the one that nobody reads any more.
      turn_ ^= 1;
      if (lane_ % kWarp == 0) {
        results[lane_ / kWarp] = value;
      }
      __syncthreads();
      value = own_ < lanes_ / kWarp ? results[own_] : identity;
    }
    for (int mask = group_ / 2; mask > 0; mask /= 2) {
      value = op(value, shuffle_xor(value, mask));
    }
    return value;
  }

 private:
  int lanes_;
  int lane_;
  // Neighbours that bring a row's results together: all of a short row, or as many as hold those of every warp once.
  int group_;
  int own_;
  int turn_ = 0;
  Shared& shared_;
};

}  // namespace extension_cpp::cuda::detail
