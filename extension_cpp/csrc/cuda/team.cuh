// The threads that share a row, and what they work out together.
#pragma once

#include "cluster.cuh"
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

// Teams in a block that are larger than a warp.
constexpr int kMaxTeams = 4;

// Warps of all blocks that share a row.
constexpr int kMaxSharedWarps = kMaxClusterBlocks * 16;

// Shared memory of a block's teams; two of each in turn: a thread that is ahead writes what nobody reads any more.
template <class A, bool Shares, int Most>
struct TeamMemory {
  A results[2][kWarp * kMaxResults];
};
template <class A>
struct TeamMemory<A, false, kWarp> {};
template <class A, int Most>
struct TeamMemory<A, true, Most> {
  A results[2][kMaxSharedWarps * kMaxResults];
  Mailbox mailboxes[2];
};

// The threads that share a row: a power of two up to a warp, or several warps. Every thread of a team makes the same
// calls, and of a warp: shuffles name the whole warp, barriers wait for the team. Shares: whole blocks, which share the
// row with the other blocks of a cluster. Most: threads of a team. Teams: of a block, if they are larger than a warp.
template <class A, bool Shares = false, int Most = 1024, int Teams = kMaxTeams>
class Team {
 public:
  using Shared = TeamMemory<A, Shares, Most>;
  static constexpr bool kInWarp = !Shares && Most == kWarp;

  // The `number`th of the block.
  __device__ Team(int lanes, int lane, int number, Shared& shared)
      : lanes_(lanes),
        lane_(lane),
        group_(lanes <= kWarp ? lanes : power_of_two(lanes / kWarp)),
        number_(number),
        shared_(shared) {
    if constexpr (Shares) {
      cluster_ = Cluster::here();
      if (lane == 0) {
        shared.mailboxes[0].open();
        shared.mailboxes[1].open();
      }
      Cluster::arrive();
    }
  }

  // Before the first reduction. (What is sent for before is on its way meanwhile.)
  __device__ void wait_for_others() const {
    if constexpr (Shares) {
      Cluster::wait();
    }
  }

  __device__ int lanes() const { return lanes_; }
  __device__ int lane() const { return lane_; }
  // True for one thread of those that share the row.
  __device__ bool leads() const { return lane_ == 0 && cluster_.rank == 0; }

  // The same bits for every thread: both sides of a pair add the same two numbers.
  template <class R, class Op>
  __device__ R all_reduce(R value, R identity, Op op) {
    static_assert(sizeof(R) <= kMaxResults * sizeof(A));
    if constexpr (Shares) {
      return reduce_over_blocks(value, identity, op);
    } else if constexpr (kInWarp) {
      return reduce_within_warp(value, op);
    } else {
      return reduce_in_block(value, identity, op);
    }
  }

 private:
  template <class R, class Op>
  __device__ R reduce_in_block(R value, R identity, Op op) {
    if (lanes_ >= kWarp) {
      value = reduce_in_warp(value, op);
      if (lanes_ == kWarp) {
        return value;
      }
      // Teams do not wait for each other: each keeps to its own part, whatever its results are.
      static_assert(kWarp % kMaxResults == 0);
      R* const results = reinterpret_cast<R*>(shared_.results[turn_] + (number_ * lanes_ / (kWarp / kMaxResults)));
      turn_ ^= 1;
      if (lane_ % kWarp == 0) {
        results[lane_ / kWarp] = value;
      }
      barrier();
      const int warps = lanes_ / kWarp;
      if (warps == 4) {
        return op(op(results[0], results[1]), op(results[2], results[3]));
      }
      if (warps == 8) {
        const R low = op(op(results[0], results[1]), op(results[2], results[3]));
        return op(low, op(op(results[4], results[5]), op(results[6], results[7])));
      }
      const int own = lane_ & (group_ - 1);
      value = own < warps ? results[own] : identity;
    }
    for (int mask = group_ / 2; mask > 0; mask /= 2) {
      value = op(value, shuffle_xor(value, mask));
    }
    return value;
  }

  // Each warp tells every block what it has, and every warp adds up what all have. Two places and mailboxes in turn are
  // enough: nobody gets past a reduction before all warps of all blocks have sent for it, who have read what was sent
  // for the one before.
  template <class R, class Op>
  __device__ R reduce_over_blocks(R value, R identity, Op op) {
    value = reduce_in_warp(value, op);
    R* const results = reinterpret_cast<R*>(shared_.results[turn_ & 1]);
    Mailbox& mailbox = shared_.mailboxes[turn_ & 1];
    const int parity = turn_ >> 1 & 1;  // of the mailbox's phase: it has every second turn
    ++turn_;
    const int warps = lanes_ / kWarp;
    const int all = warps * cluster_.blocks;
    if (lane_ == 0) {
      mailbox.expect(all * static_cast<int>(sizeof(R)));
    }
    const int lane = lane_ & (kWarp - 1);
    if (lane < cluster_.blocks) {
      mailbox.send(lane, results + cluster_.rank * warps + lane_ / kWarp, value);
    }
    mailbox.wait(parity);
    value = identity;
    for (int k = lane; k < all; k += kWarp) {
      value = op(value, results[k]);
    }
    return reduce_in_warp(value, op);
  }

  // Of teams of up to a warp.
  template <class R, class Op>
  __device__ R reduce_within_warp(R value, Op op) const {
    if (lanes_ == kWarp) {
      return reduce_in_warp(value, op);
    }
#pragma unroll
    for (int mask = kWarp / 4; mask > 0; mask /= 2) {
      if (mask < lanes_) {
        value = op(value, shuffle_xor(value, mask));
      }
    }
    return value;
  }

  template <class R, class Op>
  __device__ static R reduce_in_warp(R value, Op op) {
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      value = op(value, shuffle_xor(value, mask));
    }
    return value;
  }

  // That is not less than n, which is at most kWarp.
  __device__ static int power_of_two(int n) {
    int bits = n - 1;
    bits |= bits >> 1;
    bits |= bits >> 2;
    bits |= bits >> 4;
    return bits + 1;
  }

  // Of this team, from the one with this number on. (A kernel that computes the number of a barrier has all sixteen, of
  // which a multiprocessor has 64.)
  template <int Number = 0>
  __device__ void barrier() const {
    if constexpr (Number + 1 < Teams) {
      if (number_ != Number) {
        barrier<Number + 1>();
        return;
      }
    }
    __syncwarp();
    wait_at<Number + 1>();
  }

  // __syncthreads() has number 0.
  template <int Barrier>
  __device__ void wait_at() const {
    asm volatile("bar.sync %0, %1;" ::"n"(Barrier), "r"(lanes_) : "memory");
  }

  int lanes_;
  int lane_;
  // Neighbours that bring a row's results together: all of a short row, or as many as hold those of every warp once. A
  // power of two.
  int group_;
  int number_;
  int turn_ = 0;
  Shared& shared_;
  Cluster cluster_;
};

}  // namespace extension_cpp::cuda::detail
