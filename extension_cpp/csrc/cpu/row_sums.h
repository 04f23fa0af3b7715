// Sums along a row on the CPU, and what else its elements are reduced to.
#pragma once

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "values.h"

#include <algorithm>

namespace extension_cpp::cpu {

// Columns that are added up at a time: the sums of longer rows are made of those of their segments.
constexpr int64_t kSegment = 16384;

// Rows for one thread at least, where a thread takes whole rows: the grain of a parallel_for over rows.
inline int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols)); }

// f(row) for every row of a [rows, cols] matrix. A thread takes whole rows.
template <class F>
void for_each_row(int64_t rows, int64_t cols, F f) {
  parallel_for(0, rows, row_grain(cols), [=](int64_t begin, int64_t end) CPU_CLONES {
    for (int64_t row = begin; row < end; ++row) {
      f(row);
    }
  });
}

// What numbers are reduced by, one after the other or side by side, as vectors.

struct Add {
  template <class V>
  CPU_INLINE void operator()(V& sum, const V& term) const {
    sum += term;
  }
};

struct KeepLarger {
  template <class V>
  CPU_INLINE void operator()(V& largest, const V& other) const {
    largest = (largest > other) | (largest != largest) ? largest : other;  // NaN wins
  }
};

// lanes[0], ..., lanes[kLanes - 1] together, by halves, number by number: of lanes that are in registers, and would be
// stored to be read as vectors.
template <int kLanes, class A, class Combine>
CPU_INLINE A fold_numbers(A* lanes, const Combine& combine) {
  if constexpr (kLanes == 1) {
    return lanes[0];
  } else {
    for (int lane = 0; lane < kLanes / 2; ++lane) {
      combine(lanes[lane], lanes[lane + kLanes / 2]);
    }
    return fold_numbers<kLanes / 2>(lanes, combine);
  }
}

// The same of others.
template <int kLanes, class A, class Combine>
CPU_INLINE A fold(A* lanes, const Combine& combine) {
  if constexpr (kLanes == 1) {
    return lanes[0];
  } else {
#if HAS_BLOCKS
    // As vectors to the end: of single numbers compilers make branches, each of which goes either way, and so they do
    // of vectors that are no registers.
    constexpr int kLeastBytes = 16;
    constexpr int kMostBytes = 32;
    constexpr int kHalf = kLanes / 2;
    if constexpr (kLanes * sizeof(A) > kLeastBytes) {
      constexpr int kVector = std::min<int>(kHalf, kMostBytes / sizeof(A));
      for (int lane = 0; lane < kHalf; lane += kVector) {
        detail::Vector<A, kVector> some;
        detail::Vector<A, kVector> others;
        detail::read_vector(some, lanes + lane);
        detail::read_vector(others, lanes + lane + kHalf);
        combine(some, others);
        detail::write_vector(some, lanes + lane);
      }
      return fold<kHalf>(lanes, combine);
    } else if constexpr (kLanes * sizeof(A) == kLeastBytes) {
      detail::Vector<A, kLanes> all;
      detail::read_vector(all, lanes);
      if constexpr (kLanes == 4) {
        combine(all, __builtin_shufflevector(all, all, 2, 3, 0, 1));
        combine(all, __builtin_shufflevector(all, all, 1, 0, 3, 2));
      } else {
        combine(all, __builtin_shufflevector(all, all, 1, 0));
      }
      return all[0];
    }
#endif
    return fold_numbers<kLanes>(lanes, combine);
  }
}

// Columns of rows so short that they are worked on number by number: fewer than these.
constexpr int64_t kShortRow = 8;

// each(j) for columns 0 ... count - 1 of a short row. That there are few lets the compiler make one piece of it, where
// it would otherwise ask for vectors first.
template <class Each>
CPU_INLINE void for_short_row(int64_t count, const Each& each) {
  for (int64_t j = 0; j < kShortRow - 1; ++j) {
    if (j == count) {
      break;
    }
    each(j);
  }
}

// result[k] = f(j)[k] for the columns j of a short row together, by combine(a, b), which makes b of a where that is
// `start`.
template <class A, class Combine, class F>
CPU_INLINE auto reduce_short_row(int64_t count, A start, const Combine& combine, const F& f) {
  using Result = decltype(f(count));
  constexpr int K = ResultCounts<Result>::results;
  Result result;
  std::fill_n(result.values, K, start);
  for_short_row(count, [&](int64_t j) CPU_INLINE_LAMBDA {
    const Result terms = f(j);
    for (int k = 0; k < K; ++k) {
      combine(result[k], terms[k]);
    }
  });
  return result;
}

// The same of any row, for all j in [begin, end).
//
// Compilers keep the order in which floating-point numbers are added, unless the source says otherwise: hence many
// accumulators side by side, which become vector registers, and fewer for what they leave over. Inlined, so that it
// is compiled for the instruction set of its caller.
template <int kLanes = 32, class A, class Combine, class F>
CPU_INLINE auto reduce_over(int64_t begin, int64_t end, A start, const Combine& combine, const F& f) {
  using Result = decltype(f(begin));
  constexpr int K = ResultCounts<Result>::results;
  Result result;
  std::fill_n(result.values, K, start);
  int64_t j = begin;
  if (end - j >= kLanes) {
    A lanes[K][kLanes];
    for (int k = 0; k < K; ++k) {
      std::fill_n(lanes[k], kLanes, start);
    }
    for (; end - j >= kLanes; j += kLanes) {
      const auto add_lane = [&](int lane) CPU_INLINE_LAMBDA {
        const Result terms = f(j + lane);
        for (int k = 0; k < K; ++k) {
          combine(lanes[k][lane], terms[k]);
        }
      };
      if constexpr (kLanes > kShortRow) {
        CPU_INDEPENDENT_LOOP
        for (int lane = 0; lane < kLanes; ++lane) {
          add_lane(lane);
        }
      } else {
        CPU_INDEPENDENT_LOOP
        CPU_ROLLED_LOOP
        for (int lane = 0; lane < kLanes; ++lane) {
          add_lane(lane);
        }
      }
    }
    for (int k = 0; k < K; ++k) {
      result[k] = fold<kLanes>(lanes[k], combine);
    }
  }
  if (j < end) {
    Result rest;
    if constexpr (kLanes > kShortRow) {
      rest = reduce_over<kShortRow>(j, end, start, combine, f);
    } else {
      rest = reduce_short_row(end - j, start, combine, [&](int64_t k) CPU_INLINE_LAMBDA { return f(j + k); });
    }
    for (int k = 0; k < K; ++k) {
      combine(result[k], rest[k]);
    }
  }
  return result;
}

// The sum of f(col) over the columns of a row, as many sums side by side, which lose less to rounding than one.
template <class A, class F>
CPU_INLINE A row_sum(int64_t cols, const F& f) {
  const auto term = [&](int64_t col) CPU_INLINE_LAMBDA { return Values<A, 1>{{f(col)}}; };
  return reduce_over(int64_t{0}, cols, A(0), Add{}, term)[0];
}

}  // namespace extension_cpp::cpu
