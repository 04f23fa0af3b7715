// Elements of any type, as they are in memory.
#pragma once

#include "vector.cuh"

#include <algorithm>

namespace extension_cpp::cuda::detail {

template <class U, int N>
struct Elements {
  static constexpr int kBytes = N * static_cast<int>(sizeof(U));
  // Bytes of an access.
  static constexpr int kAccess = kBytes < kAccessBytes ? kBytes : kAccessBytes;
  using Access = typename Word<kAccess>::type;

  U at[N];

  // Whether they may be read or written there in whole accesses.
  HOST_DEVICE static bool lie_at(const void* address) { return reinterpret_cast<uintptr_t>(address) % kAccess == 0; }
};

// The same as they are loaded. Of elements compilers would take the word apart where it is asked for, and wait for it.
template <class U, int N>
struct ElementWords {
  using Of = Elements<U, N>;

  typename Of::Access words[Of::kBytes / Of::kAccess];

  __device__ Of elements() const {
    Of result;
    memcpy(result.at, words, Of::kBytes);
    return result;
  }
};

// N elements from an address on at which they lie in whole accesses.
template <int N, class U>
__device__ ElementWords<U, N> load_element_words(const U* address) {
  using Here = ElementWords<U, N>;
  Here result;
#pragma unroll
  for (int k = 0; k < Here::Of::kBytes / Here::Of::kAccess; ++k) {
    result.words[k] = __ldg(reinterpret_cast<const typename Here::Of::Access*>(address) + k);
  }
  return result;
}

template <int N, class U>
__device__ Elements<U, N> load_whole_elements(const U* address) {
  return load_element_words<N>(address).elements();
}

// Elements `address`[0], `address`[stride], ...: in whole accesses where they lie so.
template <int N, class U>
__device__ Elements<U, N> load_elements(const U* address, int64_t stride = 1) {
  if (stride == 1 && Elements<U, N>::lie_at(address)) {
    return load_whole_elements<N>(address);
  }
  Elements<U, N> result;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const auto word = __ldg(reinterpret_cast<const typename Word<sizeof(U)>::type*>(address + n * stride));
    memcpy(&result.at[n], &word, sizeof(U));
  }
  return result;
}

template <int N, class U>
__device__ void store_whole_elements(U* address, const Elements<U, N>& elements) {
  using Here = Elements<U, N>;
#pragma unroll
  for (int from = 0; from < Here::kBytes; from += Here::kAccess) {
    typename Here::Access word;
    memcpy(&word, reinterpret_cast<const char*>(elements.at) + from, Here::kAccess);
    __stwb(reinterpret_cast<typename Here::Access*>(address) + from / Here::kAccess, word);
  }
}

template <int N, class U>
__device__ void store_elements(U* address, const Elements<U, N>& elements, int64_t stride = 1) {
  if (stride == 1 && Elements<U, N>::lie_at(address)) {
    store_whole_elements(address, elements);
    return;
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    address[n * stride] = elements.at[n];
  }
}

}  // namespace extension_cpp::cuda::detail

namespace extension_cpp::cuda {

// Elements of so many bytes beside rows of so many columns, of row_bytes each: those of each row shall begin at
// a multiple of this. Where accesses to rows are whole (rows.cuh), those beside them are.
inline int64_t boundary_beside_rows(int64_t cols, int64_t row_bytes, int64_t bytes) {
  const int64_t count = kAccessBytes / row_bytes;
  const bool whole = row_bytes < static_cast<int64_t>(sizeof(double)) && cols % count == 0;
  return whole ? std::min<int64_t>(kAccessBytes, count * bytes) : bytes;
}

}  // namespace extension_cpp::cuda
