// 16-byte accesses, and the conversion between the type in memory and the type of the arithmetic.
#pragma once

#include "dispatch.h"
#include "host_device.h"
#include "values.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace extension_cpp::cuda {

constexpr int kAccessBytes = 16;

// Elements of T in one 16-byte access.
template <class T>
constexpr int kVector = kAccessBytes / static_cast<int>(sizeof(T));

// The bytes from the 16-byte boundary below an address to it.
HOST_DEVICE inline unsigned misalignment(const void* address) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) % kAccessBytes);
}

HOST_DEVICE inline bool is_aligned(const void* address) { return misalignment(address) == 0; }

// Rows of so many columns, one after the other, begin at the same place between two boundaries if they are a multiple
// of 2^bits apart. `boundary`: elements, a power of two.
inline int period_bits_of_rows(int64_t cols, int64_t boundary) {
  int bits = 0;
  while ((cols << bits) % boundary != 0) {
    ++bits;
  }
  return bits;
}

using extension_cpp::Values;

// Pointers among the parameters of a kernel: std::array has no device functions.
template <class T, size_t K>
struct PointerArray {
  T* data[K];
};

namespace detail {

// Shared memory by its own addresses, of 32 bits.
__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <int Bytes>
struct Word;
template <>
struct Word<1> {
  using type = unsigned char;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

// N elements as they are in memory. A word, for of elements compilers would keep each in a register of its own.
template <class T, int N>
struct Chunk {
  typename Word<static_cast<int>(sizeof(T)) * N>::type word;
};

}  // namespace detail

// N elements as they are in memory, in one access; the address is a multiple of N * sizeof(T). Through the read-only
// path, which lets the compiler move the load above earlier stores: a kernel writes nothing that it reads later, nor
// does the one before it, which it waits for (launch.cuh).
template <int N, class T>
__device__ detail::Chunk<T, N> load_chunk(const T* address) {
  return {__ldg(reinterpret_cast<const typename detail::Word<static_cast<int>(sizeof(T)) * N>::type*>(address))};
}

namespace detail {

// Two numbers of half a word each.
__device__ inline float2 unpack_pair(unsigned pair, Half /*type*/) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// The upper half of a float: an instruction each, where a conversion by elements takes two of every other.
__device__ inline float2 unpack_pair(unsigned pair, BFloat16 /*type*/) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

}  // namespace detail

template <class T, int N>
__device__ Values<acc_t<T>, N> to_values(const detail::Chunk<T, N>& chunk) {
  Values<acc_t<T>, N> result;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    unsigned pairs[N / 2];
    memcpy(pairs, &chunk.word, sizeof(pairs));
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      const float2 both = detail::unpack_pair(pairs[k], T());
      result[2 * k] = both.x;
      result[2 * k + 1] = both.y;
    }
  } else {
    T elements[N];
    memcpy(elements, &chunk.word, sizeof(elements));
#pragma unroll
    for (int k = 0; k < N; ++k) {
      result[k] = static_cast<acc_t<T>>(elements[k]);
    }
  }
  return result;
}

template <int N, class T>
__device__ Values<acc_t<T>, N> load(const T* address) {
  return to_values(load_chunk<N>(address));
}

namespace detail {

// The 16 bytes from byte `from` of `low` on, which end in `high`: of elements of Size bytes.
template <int Size>
__device__ uint4 taken_from(const uint4& low, const uint4& high, unsigned from) {
  unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int j = 0; j < 6; ++j) {
    w[j] = from & 8 ? w[j + 2] : w[j];
  }
  if constexpr (Size < 8) {
#pragma unroll
    for (int j = 0; j < 5; ++j) {
      w[j] = from & 4 ? w[j + 1] : w[j];
    }
  }
  if constexpr (Size < 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      w[j] = __funnelshift_r(w[j], w[j + 1], (from & 3) * 8);
    }
  }
  return {w[0], w[1], w[2], w[3]};
}

}  // namespace detail

// As load_chunk, from any address of a T: two aligned accesses, shifted together, where the address is not aligned.
// Each of the two words holds at least one of the elements, so that nothing outside the tensor's pages is touched, and
// the next thread finds its first word in the cache.
template <int N, class T>
__device__ detail::Chunk<T, N> load_chunk_unaligned(const T* address) {
  if constexpr (N == 1) {
    return load_chunk<1>(address);
  } else {
    static_assert(sizeof(T) * N == kAccessBytes);
    const unsigned misaligned = misalignment(address);
    if (misaligned == 0) {
      return load_chunk<N>(address);
    }
    const auto* const words =
        reinterpret_cast<const uint4*>(reinterpret_cast<uintptr_t>(address) - uintptr_t{misaligned});
    const uint4 low = __ldg(words);
    const uint4 high = __ldg(words + 1);
    // As if of bytes: told the size, compilers leave kernels that read wider columns, too, fewer registers.
    return {detail::taken_from<1>(low, high, misaligned)};
  }
}

template <int N, class T>
__device__ Values<acc_t<T>, N> load_unaligned(const T* address) {
  return to_values(load_chunk_unaligned<N>(address));
}

namespace detail {

// Two numbers of half a word each, rounded and packed by one instruction.
__device__ inline unsigned pack(float low, float high, Half /*type*/) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ inline unsigned pack(float low, float high, BFloat16 /*type*/) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

}  // namespace detail

// N elements in one access; the address is a multiple of N * sizeof(T).
template <class T, int N>
__device__ void store(T* address, const Values<acc_t<T>, N>& values) {
  using Word = typename detail::Word<static_cast<int>(sizeof(T)) * N>::type;
  Word word;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    unsigned pairs[N / 2];
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      pairs[k] = detail::pack(values[2 * k], values[2 * k + 1], T());
    }
    memcpy(&word, pairs, sizeof(word));
  } else {
    T elements[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      elements[k] = static_cast<T>(values[k]);
    }
    memcpy(&word, elements, sizeof(word));
  }
  // An assignment would become a store for each part of the word.
  __stwb(reinterpret_cast<Word*>(address), word);
}

}  // namespace extension_cpp::cuda
