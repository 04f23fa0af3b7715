// What elementwise kernels do with the N elements of a thread, which are 16 bytes: loads in two steps, so that a kernel
// asks for all that it needs before it waits for any of it; the formula; stores.
#pragma once

#include "launch.cuh"
#include "vector.cuh"

#include <utility>

namespace extension_cpp::cuda::detail {

// Kernels count so many elements in 32 bits, with room for those of a block that are not there.
constexpr int64_t kMost = int64_t{1} << 30;

// Elements from the 16-byte boundary below an output to its first.
template <class T>
int elements_before(const T* output) {
  return static_cast<int>(misalignment(output) / sizeof(T));
}

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

// What was asked for, `Size` being the bytes of an element; or its first element in the place of all.
template <int Size>
__device__ Packed receive(const Requested& requested, bool repeat_first) {
  unsigned w[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    w[j] = requested.words[j];
  }
  if (requested.misaligned != 0) {
#pragma unroll
    for (int j = 0; j < 6; ++j) {
      w[j] = requested.misaligned & 8 ? w[j + 2] : w[j];
    }
    if constexpr (Size < 8) {
#pragma unroll
      for (int j = 0; j < 5; ++j) {
        w[j] = requested.misaligned & 4 ? w[j + 1] : w[j];
      }
    }
    if constexpr (Size < 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        w[j] = __funnelshift_r(w[j], w[j + 1], requested.misaligned * 8);
      }
    }
  }
  const Packed packed{{w[0], w[1], w[2], w[3]}};
  return repeat_first ? repeated<Size>(packed, 0) : packed;
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

// What element(n) returns for each n of an access, packed.
template <class T, class Element>
__device__ Packed pack_elements(const Element& element) {
  Packed packed;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned short pair[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const T value = element(2 * j + n);
        memcpy(&pair[n], &value, 2);
      }
      packed.words[j] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
    }
  } else {
    constexpr int kWords = sizeof(T) / 4;
#pragma unroll
    for (int n = 0; n < kVector<T>; ++n) {
      const T value = element(n);
      memcpy(packed.words + n * kWords, &value, sizeof(T));
    }
  }
  return packed;
}

template <class T>
__device__ Values<acc_t<T>, kVector<T>> unpack(const Packed& packed) {
  Chunk<T, kVector<T>> chunk;
  memcpy(&chunk.word, packed.words, sizeof(chunk.word));
  return to_values(chunk);
}

// results[m] = result m of f(inputs[0], ...), for N elements.
template <class F, class A, int N, size_t M, size_t K, size_t... I>
__device__ void apply_formula(
    const F& f, const Values<A, N> (&inputs)[K], Values<A, N> (&results)[M], std::index_sequence<I...> /*all inputs*/) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const auto values = as_values(f(inputs[I][n]...));
#pragma unroll
    for (size_t m = 0; m < M; ++m) {
      results[m][n] = values[m];
    }
  }
}

// The results for elements `begin` to `end` - 1 of the N from i on, which is aligned in all outputs.
template <class F, class T, size_t M, size_t K>
__device__ void store_results(
    const F& f, const Packed (&inputs)[K], const PointerArray<T, M>& outputs, int64_t i, int begin, int end) {
  constexpr int N = kVector<T>;
  Values<acc_t<T>, N> values[K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    values[k] = unpack<T>(inputs[k]);
  }
  Values<acc_t<T>, N> results[M];
  apply_formula(f, values, results, std::make_index_sequence<K>());
#pragma unroll
  for (size_t m = 0; m < M; ++m) {
    T* const output = outputs.data[m] + i;
    if (begin <= 0 && end >= N) {
      store(output, results[m]);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (n >= begin && n < end) {
          output[n] = static_cast<T>(results[m][n]);
        }
      }
    }
  }
}

}  // namespace extension_cpp::cuda::detail
