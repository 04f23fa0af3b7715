// Rows on their way.
#pragma once

#include "kept.cuh"
#include "launch.cuh"
#include "span.cuh"
#include "vector.cuh"

#include <cuda_pipeline_primitives.h>

namespace extension_cpp::cuda {

namespace detail {

// Shared memory by its own addresses, of 32 bits.
__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <class Word>
__device__ void copy_async(unsigned to, const void* from) {
  static_assert(sizeof(Word) == 4 || sizeof(Word) == 8 || sizeof(Word) == kAccessBytes);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  // Older devices wait for it.
  *static_cast<Word*>(__cvta_shared_to_generic(to)) = *static_cast<const Word*>(from);
#else
  if constexpr (sizeof(Word) == kAccessBytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
  }
#endif
}

__device__ inline void store_shared(unsigned to, const uint4& word) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}

__device__ inline void store_shared(unsigned to, const uint2& word) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(word.x), "r"(word.y) : "memory");
}

__device__ inline void load_shared(uint4& word, unsigned from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "r"(from)
               : "memory");
}

__device__ inline void load_shared(uint2& word, unsigned from) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(word.x), "=r"(word.y) : "r"(from) : "memory");
}

// Accesses that are copied without waiting.
template <class In, int N>
constexpr bool kMayRunAhead = sizeof(typename In::Element) * N >= 8;

// Rows on their way to the registers, by way of shared memory, where each thread has slots of its own: two rows ahead,
// or one where there is no room for two. The slots of a warp lie together, so that those of a thread are constants
// apart and accesses meet no bank twice.
template <class In, int N, int V, bool Ragged>
class Queue {
  using T = typename In::Element;
  using Chunks = Kept<In, N, V, Ragged>;
  using Word = typename Word<static_cast<int>(sizeof(T)) * N>::type;

 public:
  // Of shared memory, for each row and thread.
  static constexpr size_t kBytes = In::kCount * V * sizeof(Word);

  __device__ Queue(const void* shared, int ahead) : ahead_(ahead) {
    const unsigned warp = threadIdx.x / kWarp;
    const unsigned lane = threadIdx.x % kWarp;
    slot_ = shared_address(shared) + warp * static_cast<unsigned>(kWarp * kBytes) +
            lane * static_cast<unsigned>(sizeof(Word));
    other_ = slot_ + (ahead == 2 ? blockDim.x * static_cast<unsigned>(kBytes) : 0);
  }

  // Sends for a row, if it exists; the order of calls is that of take().
  __device__ void send(const In& inputs, const Span& span, int lanes, int lane) {
    if (span.exists) {
      Chunks::for_each(
          inputs, span, lanes, static_cast<unsigned>(lane),
          [&](size_t k, int v, const T* address) { copy_async<Word>(word(k, v), address); },
          [&](size_t k, int v, const Chunk<T, N>& chunk) { store_shared(word(k, v), chunk.word); });
    }
    __pipeline_commit();
    const unsigned next = other_;
    other_ = slot_;
    slot_ = next;
  }

  // The row that was sent for `ahead` calls before. Its slot is free for the next.
  __device__ void take(Chunks& chunks) {
    if (ahead_ == 2) {
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
#pragma unroll
    for (size_t k = 0; k < In::kCount; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        load_shared(chunks.chunks[k][v].word, word(k, v));
      }
    }
  }

 private:
  __device__ unsigned word(size_t k, int v) const {
    return slot_ + (static_cast<unsigned>(k) * V + v) * static_cast<unsigned>(kWarp * sizeof(Word));
  }

  int ahead_;
  unsigned slot_;
  unsigned other_;
};

}  // namespace detail

}  // namespace extension_cpp::cuda
