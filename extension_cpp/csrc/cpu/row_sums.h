// Sums along a row on the CPU.
#pragma once

#include "cpu/clones.h"

#include <algorithm>
#include <array>

namespace extension_cpp::cpu {

// Columns that are added up at a time: the sums of longer rows are made of those of their segments.
constexpr int64_t kSegment = 16384;

// Rows for one thread at least, where a thread takes whole rows: the grain of a parallel_for over rows.
inline int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols)); }

// result[k] = sum over j in [0, n) of what f(j, acc) adds to acc[k].
//
// Compilers keep the order in which floating-point numbers are added, unless the source says otherwise: hence many
// accumulators side by side, which become vector registers. Inlined, so that a caller marked CPU_CLONES compiles it for
// each instruction set.
template <class A, size_t K, class F>
CPU_INLINE std::array<A, K> sum_over(int64_t n, const F& f) {
  constexpr int kLanes = 32;
  if (n < kLanes) {
    A acc[K] = {};
    for (int64_t j = 0; j < n; ++j) {
      f(j, acc);
    }
    std::array<A, K> result;
    std::copy_n(acc, K, result.begin());
    return result;
  }
  A acc[K][kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    CPU_INDEPENDENT_LOOP
    for (int lane = 0; lane < kLanes; ++lane) {
      A terms[K] = {};
      f(j + lane, terms);
      for (size_t k = 0; k < K; ++k) {
        acc[k][lane] += terms[k];
      }
    }
  }
  for (int lane = 0; j < n; ++j, ++lane) {
    A terms[K] = {};
    f(j, terms);
    for (size_t k = 0; k < K; ++k) {
      acc[k][lane] += terms[k];
    }
  }
  std::array<A, K> result;
  for (size_t k = 0; k < K; ++k) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) {
        acc[k][lane] += acc[k][lane + half];
      }
    }
    result[k] = acc[k][0];
  }
  return result;
}

}  // namespace extension_cpp::cpu
