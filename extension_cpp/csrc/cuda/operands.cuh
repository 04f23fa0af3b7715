// What elementwise kernels do with the N elements of a thread, which are 16 bytes, once they are there: the formula;
// stores.
#pragma once

#include "launch.cuh"
#include "request.cuh"
#include "vector.cuh"

#include <utility>

namespace extension_cpp::cuda::detail {

// Kernels count so many elements in 32 bits, with room for those of blocks that are not there.
constexpr int64_t kMost = int64_t{1} << 30;

// Elements from the 16-byte boundary below an output to its first.
template <class T>
int elements_before(const T* output) {
  return static_cast<int>(misalignment(output) / sizeof(T));
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

// Elements `begin` to `end` - 1 of N, which are aligned.
template <class T, int N>
__device__ void store_some(T* output, const Values<acc_t<T>, N>& values, int begin, int end) {
  if (begin <= 0 && end >= N) {
    store(output, values);
  } else {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (n >= begin && n < end) {
        output[n] = static_cast<T>(values[n]);
      }
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
    store_some(outputs.data[m] + i, results[m], begin, end);
  }
}

}  // namespace extension_cpp::cuda::detail
