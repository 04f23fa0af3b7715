// Scans of rows on the CPU: four go through time together, each a lane of a vector. Four steps of each are loaded and
// transposed in registers, and so are the results. The functors are those of scan.h.
#pragma once

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "cpu/lines.h"
#include "cpu/scan_step.h"
#include "scan_arrays.h"
#include "torch_abi.h"

#include <algorithm>

namespace extension_cpp::cpu::detail {

// Rows that go together, and steps of each that are loaded at a time.
constexpr int64_t kScanLanes = 4;

template <class A>
using ScanTile = A[kScanLanes][kScanLanes];

template <class A>
CPU_INLINE void transpose(Scalar /*isa*/, const ScanTile<A>& from, ScanTile<A>& to) {
  for (int64_t row = 0; row < kScanLanes; ++row) {
    for (int64_t col = 0; col < kScanLanes; ++col) {
      to[col][row] = from[row][col];
    }
  }
}

#if HAS_BLOCKS

// Pairs of neighbours first, then pairs of those: of registers of 16 bytes, and of 32, which are two halves, each step
// is an instruction.
template <class A>
CPU_AVX2 inline void transpose(Avx2 /*isa*/, const ScanTile<A>& from, ScanTile<A>& to) {
  using V = Vector<A, kScanLanes>;
  V a;
  V b;
  V c;
  V d;
  read_vector(a, from[0]);
  read_vector(b, from[1]);
  read_vector(c, from[2]);
  read_vector(d, from[3]);
  if constexpr (sizeof(V) == 16) {
    const V low_ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const V high_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const V low_cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const V high_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(low_ab, low_cd, 0, 1, 4, 5);
    b = __builtin_shufflevector(low_ab, low_cd, 2, 3, 6, 7);
    c = __builtin_shufflevector(high_ab, high_cd, 0, 1, 4, 5);
    d = __builtin_shufflevector(high_ab, high_cd, 2, 3, 6, 7);
  } else {
    const V even_ab = __builtin_shufflevector(a, b, 0, 4, 2, 6);
    const V odd_ab = __builtin_shufflevector(a, b, 1, 5, 3, 7);
    const V even_cd = __builtin_shufflevector(c, d, 0, 4, 2, 6);
    const V odd_cd = __builtin_shufflevector(c, d, 1, 5, 3, 7);
    a = __builtin_shufflevector(even_ab, even_cd, 0, 1, 4, 5);
    b = __builtin_shufflevector(odd_ab, odd_cd, 0, 1, 4, 5);
    c = __builtin_shufflevector(even_ab, even_cd, 2, 3, 6, 7);
    d = __builtin_shufflevector(odd_ab, odd_cd, 2, 3, 6, 7);
  }
  write_vector(a, to[0]);
  write_vector(b, to[1]);
  write_vector(c, to[2]);
  write_vector(d, to[3]);
}

#endif

// Isa converts: Avx2 (blocks.h) or Scalar.
template <class Isa, class T, class F, size_t K, size_t R>
class RowScan {
 public:
  using A = acc_t<T>;

  CPU_INLINE RowScan(const F& f, int64_t steps, const ScanArrays<T, K, R>& arrays)
      : f_(f), arrays_(arrays), steps_(steps), apart_(steps_apart(steps)) {}

  // Row `row`.
  CPU_INLINE void scan_one(int64_t row) const {
    A state = initial(row);
    scan_steps<1>(&state, row, 0, steps_);
    finish(row, state);
  }

  // As many rows as there are lanes, from that one on.
  CPU_INLINE void scan_lanes(int64_t row) const {
    // The step that nothing comes before in memory is taken by itself.
    constexpr int64_t kFirst = kLaggedOf<F> && !kReverseOf<F> ? 1 : 0;
    constexpr int64_t kLast = kLaggedOf<F> && kReverseOf<F> ? 1 : 0;
    const int64_t begin = kFirst + (kScanLanes - 1) * apart_;  // step of the first row, more than there are of none
    const int64_t tiles = std::max<int64_t>(0, steps_ - kLast - begin) / kScanLanes;
    A states[kScanLanes];
    for (int64_t l = 0; l < kScanLanes; ++l) {
      states[l] = initial(row + l);
    }
    const int64_t end = begin + tiles * kScanLanes;
    scan_around(states, row, {0, 0}, {std::min(begin, steps_), apart_});
    scan_tiles(states, row, begin, tiles);
    scan_around(states, row, {end, apart_}, {steps_, 0});
    for (int64_t l = 0; l < kScanLanes; ++l) {
      finish(row + l, states[l]);
    }
  }

 private:
  // How many steps a row is behind the one before it. Rows that lie a multiple of 4 KiB apart would have what they load
  // in the same few places of the L1 cache, and drive each other out of it.
  CPU_INLINE static int64_t steps_apart(int64_t steps) {
    constexpr int64_t kSize = sizeof(T);
    return steps * kSize % 4096 == 0 ? kLineBytes / kSize : 0;
  }

  CPU_INLINE A initial(int64_t row) const {
    return arrays_.initial == nullptr ? A(0) : static_cast<A>(arrays_.initial[row]);
  }

  CPU_INLINE void finish(int64_t row, A state) const {
    if (arrays_.last != nullptr) {
      arrays_.last[row] = static_cast<T>(state);
    }
  }

  // Of row l, counted from the first one: step - l * apart.
  struct Place {
    int64_t step;
    int64_t apart;
  };

  // Steps that tiles leave.
  CPU_INLINE void scan_around(A (&states)[kScanLanes], int64_t row, const Place& begin, const Place& end) const {
    if (apart_ == 0) {
      scan_steps<kScanLanes>(states, row, begin.step, end.step);
      return;
    }
    for (int64_t l = 0; l < kScanLanes; ++l) {
      scan_steps<1>(states + l, row + l, begin.step - l * begin.apart, end.step - l * end.apart);
    }
  }

  // L rows, from one step to another, counted in time's direction.
  template <int64_t L>
  CPU_INLINE void scan_steps(A* states, int64_t row, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = kReverseOf<F> ? steps_ - 1 - i : i;
      for (int64_t l = 0; l < L; ++l) {
        const int64_t offset = (row + l) * steps_ + t;
        ScanElements<A, K> elements;
        for (size_t k = 0; k < K; ++k) {
          elements.inputs[k] = Isa::load_one(arrays_.inputs[k] + offset);
        }
        if constexpr (kLaggedOf<F>) {
          if (t > 0) {
            elements.lagged = Isa::load_one(arrays_.lagged + offset - 1);
          } else if (arrays_.before_lagged != nullptr) {
            elements.lagged = Isa::load_one(arrays_.before_lagged + row + l);
          }
        }
        const auto results = scan_step(f_, states[l], elements);
        for (size_t r = 0; r < R; ++r) {
          Isa::store_one(results[static_cast<int>(r)], arrays_.outputs[r] + offset);
        }
      }
    }
  }

  // Tiles of all rows, that of the first row from the step called `begin` on.
  CPU_INLINE void scan_tiles(A (&states)[kScanLanes], int64_t row, int64_t begin, int64_t tiles) const {
    // From the tile of a row to that of the next one, which is behind.
    const int64_t distance = kReverseOf<F> ? steps_ + apart_ : steps_ - apart_;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = begin + tile * kScanLanes;
      const int64_t offset = row * steps_ + (kReverseOf<F> ? steps_ - kScanLanes - i : i);
      ScanTile<A> inputs[K];
      ScanTile<A> lagged = {};
      ScanTile<A> outputs[R];
      for (size_t k = 0; k < K; ++k) {
        load(arrays_.inputs[k] + offset, distance, inputs[k]);
      }
      if constexpr (kLaggedOf<F>) {
        load(arrays_.lagged + offset - 1, distance, lagged);
      }
      for (int64_t step = 0; step < kScanLanes; ++step) {
        const int64_t t = kReverseOf<F> ? kScanLanes - 1 - step : step;
        CPU_INDEPENDENT_LOOP
        CPU_ROLLED_LOOP
        for (int64_t l = 0; l < kScanLanes; ++l) {
          ScanElements<A, K> elements;
          for (size_t k = 0; k < K; ++k) {
            elements.inputs[k] = inputs[k][t][l];
          }
          elements.lagged = lagged[t][l];
          const auto results = scan_step(f_, states[l], elements);
          for (size_t r = 0; r < R; ++r) {
            outputs[r][t][l] = results[static_cast<int>(r)];
          }
        }
      }
      for (size_t r = 0; r < R; ++r) {
        store(outputs[r], arrays_.outputs[r] + offset, distance);
      }
    }
  }

  // Four steps of each row become those of all rows, step by step.
  CPU_INLINE static void load(const T* from, int64_t distance, ScanTile<A>& to) {
    ScanTile<A> rows;
    for (int64_t l = 0; l < kScanLanes; ++l) {
      Isa::load_four(from + l * distance, rows[l]);
    }
    transpose(Isa(), rows, to);
  }

  CPU_INLINE static void store(const ScanTile<A>& from, T* to, int64_t distance) {
    ScanTile<A> rows;
    transpose(Isa(), from, rows);
    for (int64_t l = 0; l < kScanLanes; ++l) {
      Isa::store_four(rows[l], to + l * distance);
    }
  }

  const F& f_;
  const ScanArrays<T, K, R> arrays_;
  const int64_t steps_;
  const int64_t apart_;
};

// Groups of rows: of as many as there are lanes, and of what is left one each.
template <class Scan>
CPU_INLINE void scan_groups(const Scan& scan, int64_t rows, int64_t begin, int64_t end) {
  const int64_t whole = rows / kScanLanes;
  for (int64_t group = begin; group < end; ++group) {
    if (group < whole) {
      scan.scan_lanes(group * kScanLanes);
    } else {
      scan.scan_one(whole * kScanLanes + group - whole);
    }
  }
}

#if HAS_BLOCKS

template <class T, class F, size_t K, size_t R>
CPU_AVX2 CPU_FLATTEN void scan_groups_of(
    Avx2 /*isa*/, const F& f, int64_t rows, int64_t steps, const ScanArrays<T, K, R>& arrays, int64_t begin,
    int64_t end) {
  scan_groups(RowScan<Avx2, T, F, K, R>(f, steps, arrays), rows, begin, end);
}

// Four lanes are no more than Avx2 has registers for.
template <class T, class F, size_t K, size_t R>
void scan_groups_of(
    Avx512 /*isa*/, const F& f, int64_t rows, int64_t steps, const ScanArrays<T, K, R>& arrays, int64_t begin,
    int64_t end) {
  scan_groups_of(Avx2(), f, rows, steps, arrays, begin, end);
}

#endif

template <class T, class F, size_t K, size_t R>
CPU_FLATTEN void scan_groups_of(
    Scalar /*isa*/, const F& f, int64_t rows, int64_t steps, const ScanArrays<T, K, R>& arrays, int64_t begin,
    int64_t end) {
  scan_groups(RowScan<Scalar, T, F, K, R>(f, steps, arrays), rows, begin, end);
}

// Which rows go together depends on their number alone: equal bits with any number of threads.
template <class T, class F, size_t K, size_t R>
void scan_rows(const F& f, int64_t rows, int64_t steps, const ScanArrays<T, K, R>& arrays) {
  const int64_t groups = rows / kScanLanes + rows % kScanLanes;
  const int64_t grain = std::max<int64_t>(1, kGrain / (kScanLanes * (steps + 1)));
  const F* const each = &f;
  parallel_for(0, groups, grain, [=](int64_t begin, int64_t end) {
    const auto scan = [&](auto isa) { scan_groups_of(isa, *each, rows, steps, arrays, begin, end); };
    with_blocks(scan, [&] { scan(Scalar()); });
  });
}

}  // namespace extension_cpp::cpu::detail
