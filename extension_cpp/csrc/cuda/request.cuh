// Loads of 16 bytes from any address, in two steps: a kernel asks for all that it needs before it waits for any of it.
#pragma once

#include "vector.cuh"

namespace extension_cpp::cuda::detail {

// N elements as they are in memory. In words, not elements: compilers would keep each element in a register of its own.
struct Packed {
  unsigned words[4];
};

// The two aligned pieces of 16 bytes in which 16 bytes from any address on lie.
struct Requested {
  unsigned words[8];
  unsigned misaligned;  // the address, from the first word on
};

// Asks for the piece that holds the address, and for the next; what is not asked for is undefined. In assembly, for
// compilers move a load to its use, behind the wait for another operand.
inline __device__ Requested request(const char* address, bool low, bool high) {
  Requested requested;
  unsigned (&w)[8] = requested.words;
  requested.misaligned = misalignment(address);
  asm volatile(
      "{\n"
      "  .reg .pred low, high;\n"
      "  setp.ne.s32 low, %9, 0;\n"
      "  setp.ne.s32 high, %10, 0;\n"
      "  @low ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%8];\n"
      "  @high ld.global.nc.v4.u32 {%4, %5, %6, %7}, [%8 + 16];\n"
      "}"
      : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]), "=r"(w[4]), "=r"(w[5]), "=r"(w[6]), "=r"(w[7])
      : "l"(reinterpret_cast<uintptr_t>(address) & ~uintptr_t{kAccessBytes - 1}), "r"(static_cast<int>(low)),
        "r"(static_cast<int>(high)));
  return requested;
}

// Asks for 16 bytes from any address on, if they are there.
inline __device__ Requested request_access(const void* address, bool is) {
  return request(static_cast<const char*>(address), is, is && !is_aligned(address));
}

// The element of `Size` bytes that begins at byte `at`, in the place of all.
template <int Size>
__device__ Packed repeated(const Packed& packed, unsigned at) {
  const unsigned (&w)[4] = packed.words;
  if constexpr (Size == 8) {
    const unsigned low = at & 8 ? w[2] : w[0];
    const unsigned high = at & 8 ? w[3] : w[1];
    return {{low, high, low, high}};
  } else {
    const unsigned low = at & 4 ? w[1] : w[0];
    const unsigned high = at & 4 ? w[3] : w[2];
    unsigned word = at & 8 ? high : low;
    if constexpr (Size == 2) {
      word = __byte_perm(word, 0, at & 2 ? 0x3232 : 0x1010);
    }
    return {{word, word, word, word}};
  }
}

// The 16 bytes from byte `at` of one piece on, which end in the next; of elements of `Size` bytes. At 0 there need not
// be another.
template <int Size>
__device__ Packed across(const Packed& piece, const Packed& next, unsigned at) {
  if (at == 0) {
    return piece;
  }
  const unsigned (&low)[4] = piece.words;
  const unsigned (&high)[4] = next.words;
  const uint4 taken = taken_from<Size>({low[0], low[1], low[2], low[3]}, {high[0], high[1], high[2], high[3]}, at);
  return {{taken.x, taken.y, taken.z, taken.w}};
}

// What was asked for, `Size` being the bytes of an element; or its first element in the place of all.
template <int Size>
__device__ Packed receive(const Requested& requested, bool repeat_first) {
  const unsigned (&w)[8] = requested.words;
  const Packed packed = across<Size>({{w[0], w[1], w[2], w[3]}}, {{w[4], w[5], w[6], w[7]}}, requested.misaligned);
  return repeat_first ? repeated<Size>(packed, 0) : packed;
}

// N elements that were asked for.
template <class T, int N>
__device__ Chunk<T, N> receive_chunk(const Requested& requested) {
  const Packed packed = receive<sizeof(T)>(requested, false);
  Chunk<T, N> chunk;
  memcpy(&chunk, &packed, sizeof(packed));
  return chunk;
}

// Asks for the piece of 16 bytes that holds the address. In assembly, as above.
inline __device__ Packed request_piece(const char* address) {
  Packed piece;
  unsigned (&w)[4] = piece.words;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(reinterpret_cast<uintptr_t>(address) & ~uintptr_t{kAccessBytes - 1}));
  return piece;
}

}  // namespace extension_cpp::cuda::detail
