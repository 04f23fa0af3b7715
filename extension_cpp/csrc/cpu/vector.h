// What cuda/vector.cuh is for CUDA, for functors that both backends compile. The compiler makes the vectors here.
#pragma once

#include "cpu/clones.h"
#include "dispatch.h"
#include "values.h"

namespace extension_cpp::cpu {

inline bool is_aligned(const void* /*pointer*/) { return true; }

inline int64_t boundary_beside_rows(int64_t /*cols*/, int64_t /*row_bytes*/, int64_t bytes) { return bytes; }

// N neighbouring elements in the type of the arithmetic.
template <int N, class T>
CPU_INLINE Values<acc_t<T>, N> load(const T* address) {
  Values<acc_t<T>, N> values;
  for (int k = 0; k < N; ++k) {
    values[k] = static_cast<acc_t<T>>(address[k]);
  }
  return values;
}

template <class T, int N>
CPU_INLINE void store(T* address, const Values<acc_t<T>, N>& values) {
  for (int k = 0; k < N; ++k) {
    address[k] = static_cast<T>(values[k]);
  }
}

}  // namespace extension_cpp::cpu
