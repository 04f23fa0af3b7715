// Sums along the rows of a contiguous [rows, cols] matrix on the CPU.
#pragma once

#include "cpu/clones.h"
#include "torch_abi.h"

#include <algorithm>
#include <array>
#include <memory>

namespace extension_cpp::cpu {

// Columns that one thread adds up at a time: longer rows are split over threads.
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

// store(row, sums), where sums[k] is the sum over the columns of what f(i, row, col, acc) adds to acc[k], and
// i = row * cols + col.
//
// The order of the additions depends on the shape alone. The sums of segments are added in float64, which costs nothing
// and keeps the error of a long row as small as that of a short one.
template <class A, size_t K, class F, class Store>
void row_sums(int64_t rows, int64_t cols, F f, Store store) {
  if (cols <= kSegment) {
    parallel_for(0, rows, row_grain(cols), [=](int64_t begin, int64_t end) CPU_CLONES {
      for (int64_t row = begin; row < end; ++row) {
        store(row, sum_over<A, K>(cols, [=](int64_t j, A(&terms)[K]) { f(row * cols + j, row, j, terms); }));
      }
    });
    return;
  }
  const int64_t segments = (cols + kSegment - 1) / kSegment;
  const std::unique_ptr<std::array<A, K>[]> buffer(new std::array<A, K>[rows * segments]);
  std::array<A, K>* const partials = buffer.get();
  parallel_for(0, rows * segments, row_grain(kSegment), [=](int64_t begin, int64_t end) CPU_CLONES {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t row = job / segments;
      const int64_t first = job % segments * kSegment;
      partials[job] = sum_over<A, K>(std::min(kSegment, cols - first), [=](int64_t j, A(&terms)[K]) {
        f(row * cols + first + j, row, first + j, terms);
      });
    }
  });
  parallel_for(0, rows, row_grain(segments), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::array<A, K> sums;
      for (size_t k = 0; k < K; ++k) {
        double sum = 0;
        for (int64_t segment = 0; segment < segments; ++segment) {
          sum += static_cast<double>(partials[row * segments + segment][k]);
        }
        sums[k] = static_cast<A>(sum);
      }
      store(row, sums);
    }
  });
}

}  // namespace extension_cpp::cpu
