// What blocks that come later will read, sent for while the memory has nothing else to do.
#pragma once

#include "launch.cuh"

#include <algorithm>

namespace extension_cpp::cuda::detail {

// What lies so far ahead comes to the L2 cache just before it is asked for. (Twice as much drives out what has come and
// was not read yet.)
constexpr int64_t kAheadBytes = 7 << 19;

// For inputs of fewer bytes the kernel begins later than it gains. Rows that are not whole accesses gain sooner.
constexpr int64_t kLeastSentForAhead = 128 << 20;
constexpr int64_t kLeastOfRaggedRows = 60 << 20;

// How many blocks ahead of itself each of `blocks`, which reads `bytes_of_block`, sends for what will be read: so many
// that it lies `bytes` ahead. 0: none, where all together read fewer than `least`.
inline int blocks_ahead(int64_t blocks, int64_t bytes_of_block, int64_t least, int64_t bytes = kAheadBytes) {
  const bool worth_it = blocks * bytes_of_block >= least;
  return worth_it ? static_cast<int>(std::max<int64_t>(1, bytes / bytes_of_block)) : 0;
}

// Sends for elements first ... first + count - 1 to the L2 cache: for the 16-byte pieces that lie among them whole. One
// thread calls.
template <class T>
__device__ void send_for(const T* first, int64_t count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr uintptr_t kPiece = 16;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(first) + kPiece - 1) & ~(kPiece - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(first + count) & ~(kPiece - 1);
  if (begin < end) {
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
            __cvta_generic_to_global(reinterpret_cast<const void*>(begin))),
        "r"(static_cast<unsigned>(end - begin)));
  }
#endif
}

}  // namespace extension_cpp::cuda::detail
