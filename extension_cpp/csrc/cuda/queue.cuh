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

// Rows on their way to the registers, by way of shared memory: two rows ahead, or one where there is no room for two.
// Each thread has slots of its own, one for each access. Those of a warp lie together, so that the slots of a thread
// are constants apart and accesses meet no bank twice.
//
// Of an access that is not aligned a slot has the aligned word in which it begins; that in which it ends is the next
// thread's, or, of the last of a team that has one, in a slot besides.
template <class In, int N, int V, bool Ragged>
class Queue {
  using T = typename In::Element;
  using Word = typename Word<static_cast<int>(sizeof(T)) * N>::type;

  static constexpr bool kShifts = Ragged && !In::kAtBoundaries;
  // For a warp; teams of ragged rows have at least 2 N threads.
  static constexpr unsigned kSlots = kWarp + (kShifts ? kWarp / (2 * N) : 0);

 public:
  // Of shared memory, for each row and warp.
  static constexpr size_t kWarpBytes = In::kCount * V * kSlots * sizeof(Word);

  // `lanes`: of a team.
  __device__ Queue(const void* shared, int ahead, int lanes) : ahead_(ahead), lanes_(lanes) {
    const unsigned warp = threadIdx.x / kWarp;
    const unsigned lane = threadIdx.x % kWarp;
    slot_ =
        shared_address(shared) + warp * static_cast<unsigned>(kWarpBytes) + lane * static_cast<unsigned>(sizeof(Word));
    other_ = slot_ + (ahead == 2 ? blockDim.x / kWarp * static_cast<unsigned>(kWarpBytes) : 0);
    if constexpr (kShifts) {
      const unsigned width = lanes < kWarp ? lanes : kWarp;
      ends_team_ = lane % width == width - 1;
      end_ = (ends_team_ ? kWarp + lane / width - lane : 1) * static_cast<unsigned>(sizeof(Word));
    }
  }

  // Sends for a row, if it exists; the order of calls is that of take().
  __device__ void send(const In& inputs, const Span& span, int lane) {
    if (span.exists) {
      for_each_access<N, V, Ragged>(
          inputs, span, lanes_, static_cast<unsigned>(lane), [&](size_t k, int v, const T* row, const auto& where) {
            if (where.exists()) {
              send_access(word(k, v), row + where.col, where.is_last());
            }
          });
    }
    __pipeline_commit();
    const unsigned next = other_;
    other_ = slot_;
    slot_ = next;
  }

  // The row that was sent for `ahead` calls before, which lies at `span`. Its slot is free for the next.
  __device__ void take(const In& inputs, const Span& span, Kept<In, N, V>& kept) {
    if (ahead_ == 2) {
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    if constexpr (kShifts) {
      __syncwarp();
    }
#pragma unroll
    for (size_t k = 0; k < In::kCount; ++k) {
      unsigned misaligned = 0;
      if constexpr (kShifts) {
        misaligned = misalignment(inputs.row(k, span) + span.head);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        load_shared(kept.chunks[k][v].word, word(k, v));
        if constexpr (kShifts) {
          if (misaligned != 0) {
            Word high;
            load_shared(high, word(k, v) + end_);
            kept.chunks[k][v].word = taken_from<sizeof(T)>(kept.chunks[k][v].word, high, misaligned);
          }
        }
      }
    }
    if constexpr (kShifts) {
      __syncwarp();  // others read the slots of this thread
    }
  }

 private:
  __device__ unsigned word(size_t k, int v) const {
    return slot_ + (static_cast<unsigned>(k) * V + v) * static_cast<unsigned>(kSlots * sizeof(Word));
  }

  __device__ void send_access(unsigned to, const T* address, bool is_last) const {
    if constexpr (kShifts) {
      const unsigned misaligned = misalignment(address);
      const char* const low = reinterpret_cast<const char*>(address) - misaligned;
      copy_async<Word>(to, low);
      if (misaligned != 0 && (is_last || ends_team_)) {
        copy_async<Word>(to + end_, low + sizeof(Word));
      }
    } else {
      copy_async<Word>(to, address);
    }
  }

  int ahead_;
  int lanes_;
  unsigned slot_;
  unsigned other_;
  unsigned end_;  // from the slot of an access to the word in which it ends, if it is not aligned
  bool ends_team_;
};

}  // namespace detail

}  // namespace extension_cpp::cuda
