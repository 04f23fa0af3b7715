// Rows on their way.
#pragma once

#include "kept.cuh"
#include "launch.cuh"
#include "span.cuh"
#include "vector.cuh"

#include <cuda_pipeline_primitives.h>

namespace extension_cpp::cuda {

namespace detail {

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

// A row that has arrived, where each pass of a functor reads it. A thread reads what it has itself sent for.
template <class In, int N, int V>
struct KeptInShared {
  using T = typename In::Element;
  using Word = typename Word<static_cast<int>(sizeof(T)) * N>::type;

  unsigned first;  // the thread's first access
  unsigned step;   // from one to the next

  __device__ unsigned slot(size_t k, int v) const { return first + (static_cast<unsigned>(k) * V + v) * step; }

  __device__ Chunk<T, N> chunk(size_t k, int v) const {
    Chunk<T, N> chunk;
    load_shared(chunk.word, slot(k, v));
    return chunk;
  }
};

// Rows in shared memory: the one that is computed, and those on their way. Each thread has slots of its own, one for
// each access. Those of a warp lie together, so that the slots of a thread are constants apart and accesses meet no
// bank twice.
//
// Of an access that is not aligned a slot has the aligned word in which it begins; that in which it ends is the next
// thread's, or, of the last of a team that has one, in a slot besides. They are shifted when the row has arrived.
//
// An input that is one row for all is sent for, and shifted, only as often as there are places for a row, and stays in
// each.
template <class In, int N, int V, Fit Rows>
class Queue {
  using T = typename In::Element;
  using Kept = KeptInShared<In, N, V>;
  using Word = typename Kept::Word;

  static_assert(kRagged<Rows> || In::kAtBoundaries, "aligned");
  static constexpr bool kMayShift = kShifts<In, Rows>;
  // For a warp; teams of ragged rows have at least 2 N threads.
  static constexpr unsigned kSlots = kWarp + (kMayShift ? kWarp / (2 * N) : 0);
  static constexpr unsigned kStep = kSlots * sizeof(Word);

 public:
  // Of shared memory, for each row and warp.
  static constexpr size_t kWarpBytes = In::kCount * V * kSlots * sizeof(Word);

  // `rows`: in shared memory at a time, up to three; `lanes`: of a team.
  __device__ Queue(const void* shared, int rows, int lanes) : rows_(rows), lanes_(lanes) {
    const unsigned warp = threadIdx.x / kWarp;
    const unsigned lane = threadIdx.x % kWarp;
    begin_ =
        shared_address(shared) + warp * static_cast<unsigned>(kWarpBytes) + lane * static_cast<unsigned>(sizeof(Word));
    row_bytes_ = blockDim.x / kWarp * static_cast<unsigned>(kWarpBytes);
    end_ = begin_ + rows * row_bytes_;
    sent_ = begin_;
    taken_ = begin_;
    if constexpr (kMayShift) {
      const unsigned width = lanes < kWarp ? lanes : kWarp;
      ends_team_ = lane % width == width - 1;
      ending_ = (ends_team_ ? kWarp + lane / width - lane : 1) * static_cast<unsigned>(sizeof(Word));
    }
  }

  // Sends for a row, if it exists, in the place of the one that was taken last; the order of calls is that of take().
  // `is_new`: whether nothing was in that place before.
  __device__ void send(const In& inputs, const Span& span, int lane, bool is_new) {
    if (span.exists) {
      const Kept to{sent_, kStep};
      for_each_access<N, V, Rows>(
          inputs, span, lanes_, static_cast<unsigned>(lane), [&](size_t k, int v, const T* row, const auto& where) {
            if (where.exists() && (is_new || !inputs.is_one_row(k))) {
              send_access(to.slot(k, v), row + where.col, where.is_last(), may_shift(inputs, k));
            }
          });
    }
    __pipeline_commit();
    sent_ = after(sent_);
  }

  // The next row, of the `rows` that have been sent for. It lies at `span`. `is_new`: as it was sent for.
  __device__ Kept take(const In& inputs, const Span& span, bool is_new) {
    if (rows_ == 3) {
      __pipeline_wait_prior(2);
    } else if (rows_ == 2) {
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    const Kept kept{taken_, kStep};
    taken_ = after(taken_);
    if constexpr (kMayShift) {
      shift(inputs, span, kept, is_new);
    }
    return kept;
  }

 private:
  __device__ unsigned after(unsigned row) const {
    row += row_bytes_;
    return row == end_ ? begin_ : row;
  }

  __device__ static bool may_shift(const In& inputs, size_t k) {
    return kMayShift && (!In::kAtBoundaries || inputs.is_one_row(k));
  }

  __device__ void send_access(unsigned to, const T* address, bool is_last, bool may_shift) const {
    if (may_shift) {
      const unsigned misaligned = misalignment(address);
      const char* const low = reinterpret_cast<const char*>(address) - misaligned;
      copy_async<Word>(to, low);
      if (misaligned != 0 && (is_last || ends_team_)) {
        copy_async<Word>(to + ending_, low + sizeof(Word));
      }
    } else {
      copy_async<Word>(to, address);
    }
  }

  // Leaves each access in the thread's own slot.
  __device__ void shift(const In& inputs, const Span& span, const Kept& kept, bool is_new) const {
    if (In::kAtBoundaries && !is_new) {
      return;
    }
    __syncwarp();
#pragma unroll
    for (size_t k = 0; k < In::kCount; ++k) {
      if (!may_shift(inputs, k) || (!is_new && inputs.is_one_row(k))) {
        continue;
      }
      const unsigned misaligned = misalignment(inputs.row(k, span) + span.head);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const unsigned slot = kept.slot(k, v);
        Word low;
        Word high;
        load_shared(low, slot);
        load_shared(high, slot + ending_);
        __syncwarp();  // the thread before this one has read its second word
        store_shared(slot, misaligned != 0 ? taken_from<sizeof(T)>(low, high, misaligned) : low);
      }
    }
    __syncwarp();  // others send for words that lie in slots of this thread
  }

  int rows_;
  int lanes_;
  unsigned begin_;
  unsigned end_;
  unsigned row_bytes_;
  unsigned sent_;
  unsigned taken_;
  unsigned ending_;  // from the slot of an access to the word in which it ends, if it is not aligned
  bool ends_team_;
};

}  // namespace detail

}  // namespace extension_cpp::cuda
