// Blocks that share a row, or columns: those of a cluster, which write to each other's shared memory. Of compute
// capability 9.0 and up; for others nothing of this is launched.
#pragma once

#include "vector.cuh"

namespace extension_cpp::cuda::detail {

// More are not portable.
constexpr int kMaxClusterBlocks = 8;

// The cluster of the block that asks, along x.
struct Cluster {
  int blocks = 1;
  int rank = 0;

  __device__ static Cluster here() {
    Cluster cluster;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(cluster.blocks));
    asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(cluster.rank));
#endif
    return cluster;
  }

  // In two steps, of whole warps: all threads of the cluster have arrived when one has waited.
  __device__ static void arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  }

  __device__ static void wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
};

// In shared memory: how a block knows that all has come that others write to it. It serves again and again: what is
// expected at a time is a phase.
class Mailbox {
 public:
  // One thread, before the cluster's blocks have waited for each other.
  __device__ void open() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier_)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }

  // One thread, in each phase: so many bytes are to come. (Some may have come before.)
  __device__ void expect(int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier_)), "r"(bytes)
                 : "memory");
#endif
  }

  // Writes to what the block of this rank has where this one has `place`, and tells its mailbox.
  template <class R>
  __device__ void send(int rank, R* place, const R& value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    static_assert(sizeof(R) % sizeof(unsigned) == 0);
    unsigned words[sizeof(R) / sizeof(unsigned)];
    memcpy(words, &value, sizeof(words));
    const unsigned there = address_in(rank, place);
    const unsigned barrier = address_in(rank, &barrier_);
#pragma unroll
    for (unsigned k = 0; k < sizeof(R) / sizeof(unsigned); ++k) {
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
                       there + k * static_cast<unsigned>(sizeof(unsigned))),
                   "r"(words[k]), "r"(barrier)
                   : "memory");
    }
#endif
  }

  // Until all of the phase has come: phases have parity 0 and 1 in turn.
  __device__ void wait(int parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        "  .reg .pred done;\n"
        "again_%=:\n"
        "  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "  @!done bra again_%=;\n"
        "}" ::"r"(shared_address(&barrier_)),
        "r"(parity)
        : "memory");
#endif
  }

 private:
  // Of the same in another block.
  __device__ static unsigned address_in(int rank, const void* shared) {
    unsigned address = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(shared)), "r"(rank));
#endif
    return address;
  }

  uint64_t barrier_;
};

}  // namespace extension_cpp::cuda::detail
