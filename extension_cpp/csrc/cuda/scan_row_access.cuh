// A warp's accesses to a row of a scan whose time is contiguous, which it has in registers while it scans.
#pragma once

#include "launch.cuh"
#include "scan_piece.cuh"
#include "vector.cuh"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

// Arrays that are read, as far as kernels are set for them: two, or three.
template <class F, size_t K>
constexpr size_t kArraysReadOf = std::clamp<size_t>(kArraysOf<F, K>, 2, 3);

// How a block has a row, or a part of it: accesses of a thread to each array, warps at most, and for how many such
// blocks at once registers suffice. Which are fastest was found by trying (benchmarks/NOTES.md).
struct ScanBlock {
  int accesses;
  int warps;
  int blocks;
};

// How accesses to rows lie: whole and aligned; else they begin at the boundaries of what is written, so that the first
// and the last of a row hold others' steps as well. Inputs lie alike, or apart: then each access takes its steps from
// two aligned words, of which the second is the first of the next thread in memory. Or what is written is whole and
// aligned, and inputs alone lie apart.
enum class RowsLie { kWhole, kAlike, kApart, kInputsApart };

// Whether all steps of an access are the row's.
constexpr bool is_whole(RowsLie lie) { return lie == RowsLie::kWhole || lie == RowsLie::kInputsApart; }

// Whether accesses to inputs are put together of two words.
constexpr bool is_apart(RowsLie lie) { return lie == RowsLie::kApart || lie == RowsLie::kInputsApart; }

// N neighbouring steps of a row as they are in memory. At its ends some are steps of others, or of nobody.
template <class T, size_t K, int N, bool Lagged, RowsLie Lie>
class ScanAccess {
  using A = acc_t<T>;
  static constexpr bool kWhole = is_whole(Lie);

 public:
  static constexpr size_t kArrays = K + (Lagged ? 1 : 0);

  // From column `start` on: a negative one where the first access begins before the row, which begins at `offset`.
  // Where arrays lie apart, all but their words, which read_words() has.
  template <size_t R, class Index>
  __device__ void read(const ScanArrays<T, K, R>& arrays, int64_t row, int64_t offset, Index cols, Index start) {
    begin_ = kWhole ? 0 : static_cast<int>(max(-start, Index{0}));
    end_ = static_cast<int>(min(cols - start, static_cast<Index>(N)));
    if constexpr (!is_apart(Lie)) {
#pragma unroll
      for (size_t k = 0; k < kArrays; ++k) {
        chunks_[k] = load_chunk<N>(array(arrays, k) + offset + start);  // which holds a step of the row at least
      }
    }
    if constexpr (Lagged) {
      const T* const before = start > 0                         ? arrays.lagged + offset + (start - 1)
                              : arrays.before_lagged == nullptr ? nullptr
                                                                : arrays.before_lagged + row;
      before_ = before == nullptr ? Chunk<T, 1>{} : load_chunk<1>(before);
    }
  }

  // The aligned words in which accesses begin that lie apart, or, `next`, those after them: where they hold a step of
  // the row. Lanes that have no access may have a word that others need.
  template <size_t R, class Index>
  __device__ void read_words(
      const ScanArrays<T, K, R>& arrays, int64_t offset, Index cols, Index start, bool next = false) {
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      const T* const row = array(arrays, k) + offset;
      const Index from = start - static_cast<Index>(misalignment(row + start) / sizeof(T)) + (next ? N : 0);
      chunks_[k] = from > -N && from < cols ? load_chunk<N>(row + from) : Chunk<T, N>{};
    }
  }

  // Both words of an access that is whole, the second in `after`: from `begin` on, where a row's steps are.
  template <size_t R>
  __device__ void read_both_words(const ScanArrays<T, K, R>& arrays, int64_t begin, ScanAccess& after) {
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      const T* const address = array(arrays, k) + begin;
      const unsigned misaligned = misalignment(address) / sizeof(T);
      const T* const word = address - misaligned;
      chunks_[k] = load_chunk<N>(word);
      after.chunks_[k] = load_chunk<N>(word + (misaligned == 0 ? 0 : N));  // what comes after may be nobody's
    }
  }

  // Makes steps of an access of its words and the next ones in memory, which are those of the next lane. Lanes are
  // first and last by memory. If the warp has more, the last lane gets what the first has in `after`, its next access;
  // else what it has itself there, which other lanes need not have.
  template <bool Reverse, size_t R>
  __device__ void shift(
      const ScanArrays<T, K, R>& arrays, int64_t offset, int lane, const ScanAccess& after, bool has_more) {
    constexpr int kFirst = Reverse ? kWarp - 1 : 0;
    constexpr int kLast = Reverse ? 0 : kWarp - 1;
    const int next_lane = (lane + (Reverse ? kWarp - 1 : 1)) % kWarp;
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      const uint4 own = chunks_[k].word;
      const uint4 ahead = after.chunks_[k].word;
      uint4 next = shuffle(pick(has_more && lane == kFirst, ahead, own), next_lane);
      next = pick(!has_more && lane == kLast, ahead, next);
      chunks_[k].word = taken_from<sizeof(T)>(own, next, misalignment(array(arrays, k) + offset));
    }
  }

  // Of its words and those that this lane has in `after`.
  template <size_t R>
  __device__ void shift(const ScanArrays<T, K, R>& arrays, int64_t offset, const ScanAccess& after) {
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      chunks_[k].word =
          taken_from<sizeof(T)>(chunks_[k].word, after.chunks_[k].word, misalignment(array(arrays, k) + offset));
    }
  }

  // visit(n, elements) for each of the steps, in the order of the scan; n is constant to the compiler. Whether a step
  // is the row's is asked of each, or, of accesses that are whole, of none: for those there is code of its own.
  template <bool Reverse, bool OfEach, class Visit>
  __device__ void for_each(const Visit& visit) const {
    Values<A, N> inputs[K];
    Values<A, N> lagged;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      inputs[k] = to_values(chunks_[k]);
    }
    if constexpr (Lagged) {
      lagged = to_values(chunks_[K]);
    }
    const auto visit_own = [&](int n, bool is_first) {
      ScanElements<A, K> elements;
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        elements.inputs[k] = inputs[k][n];
      }
      if constexpr (Lagged) {
        elements.lagged = is_first ? to_values(before_)[0] : lagged[n > 0 ? n - 1 : 0];
      }
      visit(n, elements);
    };
    if (kWhole || (!OfEach && end_ - begin_ == N)) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int n = Reverse ? N - 1 - i : i;
        visit_own(n, n == 0);
      }
      return;
    }
    if constexpr (!kWhole) {  // else nvcc warns of a loop that nothing comes to
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int n = Reverse ? N - 1 - i : i;
        if (n >= begin_ && n < end_) {
          visit_own(n, n == 0 || n == begin_);
        }
      }
    }
  }

  // What was made of the steps so far is not kept in registers for the next visit.
  __device__ void forget() {
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      uint4& word = chunks_[k].word;
      asm("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w));
    }
  }

  // To where the access begins in an output.
  __device__ void write(T* address, const Values<A, N>& values) const {
    if (kWhole || (end_ - begin_ == N && is_aligned(address))) {
      store(address, values);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (n >= begin_ && n < end_) {
          address[n] = static_cast<T>(values[n]);
        }
      }
    }
  }

 private:
  template <size_t R>
  __device__ static const T* array(const ScanArrays<T, K, R>& arrays, size_t k) {
    return k < K ? arrays.inputs[k < K ? k : 0] : arrays.lagged;
  }

  __device__ static uint4 pick(bool first, const uint4& a, const uint4& b) {
    return {first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w};
  }

  // Of a second word: of all types but the smallest the last bytes are never taken.
  __device__ static uint4 shuffle(const uint4& word, int lane) {
    return {
        __shfl_sync(kAllLanes, word.x, lane), __shfl_sync(kAllLanes, word.y, lane),
        __shfl_sync(kAllLanes, word.z, lane), sizeof(T) == 2 ? __shfl_sync(kAllLanes, word.w, lane) : 0};
  }

  Chunk<T, N> chunks_[kArrays];
  Chunk<T, 1> before_;
  int begin_ = 0;  // of the row's own steps
  int end_ = 0;
};

// Reads the accesses of a thread to a row that begins at `offset` and has so many, the first of them and every 32nd
// from there on. start_of(access) is the column where one begins.
template <bool Reverse, RowsLie Lie, int V, class Access, class Arrays, class Index, class StartOf>
__device__ void read_accesses(
    Access (&here)[V], const Arrays& arrays, int64_t row, int64_t offset, Index cols, Index first, Index accesses,
    const StartOf& start_of) {
  // A single access leaves registers for its second words, too, which are in the cache.
  constexpr bool kBothWords = is_apart(Lie) && is_whole(Lie) && V == 1;
  constexpr bool kWords = is_apart(Lie) && !kBothWords;
  if constexpr (kWords) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      here[v].read_words(arrays, offset, cols, start_of(first + v * kWarp));
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Index access = first + v * kWarp;
    if (access < accesses) {
      here[v].read(arrays, row, offset, cols, start_of(access));
      if constexpr (kBothWords) {
        Access after;
        here[v].read_both_words(arrays, offset + start_of(access), after);
        here[v].shift(arrays, offset + start_of(access), after);
      }
    }
  }
  if constexpr (kWords && V == 1) {
    Access after;
    after.read_words(arrays, offset, cols, start_of(first), true);
    here[0].shift(arrays, offset + start_of(first), after);
  } else if constexpr (kWords) {
    // The next words after the last access of the warp in memory, by its lane.
    constexpr int kLast = Reverse ? 0 : V - 1;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Access beyond;
    if (lane == (Reverse ? 0 : kWarp - 1)) {
      beyond.read_words(arrays, offset, cols, start_of(first + kLast * kWarp), true);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int v = Reverse ? V - 1 - i : i;  // those that hand words on are not shifted yet
      const int64_t begin = offset + start_of(first + v * kWarp);
      if (v == kLast) {
        here[v].template shift<Reverse>(arrays, begin, lane, beyond, false);
      } else {
        here[v].template shift<Reverse>(arrays, begin, lane, here[Reverse ? v - 1 : v + 1], true);
      }
    }
  }
}

// V accesses of each thread of a warp to a row, one behind the other for the warp.
template <class T, class F, size_t K, size_t R, int V, RowsLie Lie, class Index>
class WarpOfRow {
  using A = acc_t<T>;
  static constexpr int N = kVector<T>;
  static constexpr bool kReverse = kReverseOf<F>;
  static constexpr std::make_index_sequence<K> kInputs{};
  // Of rows of a warp each has some that are not whole, and goes both ways; with a lagged array that is slower, too.
  static constexpr bool kOfEach = V <= 2 || kLaggedOf<F>;
  // Where they lie apart, with both ways here, too, float32 has a hundred bytes put aside instead of fifty.
  static constexpr bool kOfEachInTurn = kOfEach || is_apart(Lie);

 public:
  // Reads them. `number`: which of the row's warps it is.
  __device__ WarpOfRow(const F& f, const ScanArrays<T, K, R>& arrays, int64_t row, int64_t cols, Index number)
      : f_(f),
        arrays_(arrays),
        row_(row),
        offset_(row * cols),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        head_(is_whole(Lie) ? 0 : static_cast<int>(misalignment(arrays.outputs[0] + offset_) / sizeof(T))),
        accesses_((head_ + static_cast<Index>(cols) + N - 1) / N),
        first_(number * (V * kWarp) + lane_) {
    read_accesses<kReverse, Lie>(
        here_, arrays, row, offset_, static_cast<Index>(cols), first_, accesses_,
        [&](Index access) { return start_of(access); });
  }

  // The state that the row begins with.
  __device__ A initial() const { return arrays_.initial == nullptr ? A(0) : static_cast<A>(arrays_.initial[row_]); }

  // What all steps make of a state, as one piece; from then on before() has those of the steps before each access.
  __device__ Piece<A> scan() {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      before_[v] = Piece<A>::none();
      if (has(v)) {
        here_[v].template for_each<kReverse, kOfEach>(
            [&](int, const auto& elements) { before_[v].append(f_, elements); });
        if constexpr (V > 1 || !is_whole(Lie)) {  // else there are registers
          here_[v].forget();
        }
      }
    }
    Piece<A> total = Piece<A>::none();
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const Piece<A> up_to = scan_warp(before_[v], lane_);
      const Piece<A> last = from_lane(up_to, kWarp - 1);
      Piece<A> previous = from_lane(up_to, lane_ == 0 ? 0 : lane_ - 1);
      if (lane_ == 0) {
        previous = Piece<A>::none();
      }
      before_[v] = v == 0 ? previous : chain(total, previous);
      total = v == 0 ? last : chain(total, last);
    }
    return total;
  }

  // Sets the states before each access, from that before all: by the pieces before them, or, where these do not hold,
  // or `holds` is not so for a lane, step by step.
  __device__ void set_states(A state, A (&states)[V], bool holds = true) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      states[v] = before_[v](state);
      holds = holds && (!has(v) || before_[v].holds_for(state));
    }
    if (__any_sync(kAllLanes, !holds)) {
      step_through(state, states);
    }
  }

  __device__ const Piece<A>& before(int v) const { return before_[v]; }
  __device__ bool has(int v) const { return first_ + v * kWarp < accesses_; }

  // From the state before all steps those before each access, one after the other, where pieces do not hold. Returns
  // the state after all.
  __device__ A step_through(A state, A (&states)[V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      for (int turn = 0; turn < kWarp; ++turn) {
        A after = state;
        if (turn == lane_) {
          states[v] = state;
          if (has(v)) {
            here_[v].template for_each<kReverse, kOfEachInTurn>(
                [&](int, const auto& elements) { after = scan_next(f_, after, elements, kInputs); });
          }
        }
        state = __shfl_sync(kAllLanes, after, turn);
      }
    }
    return state;
  }

  // The same by all warps of a block in turn, from the state before the first of them. `handed_on` is theirs.
  __device__ A step_through_block(A state, A (&states)[V], A& handed_on) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    for (int w = 0; w < warps; ++w) {
      if (w == warp) {
        state = step_through(state, states);
        if (lane_ == 0) {
          handed_on = state;
        }
      }
      __syncthreads();
      state = handed_on;
      __syncthreads();
    }
    return state;
  }

  // Of the states before each access, what the scan writes.
  __device__ void write(const A (&states)[V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (has(v)) {
        const Index access = first_ + v * kWarp;
        Values<A, N> outputs[R];
        A now = states[v];
        here_[v].template for_each<kReverse, kOfEach>([&](int n, const auto& elements) {
          const A after = scan_next(f_, now, elements, kInputs);
          const auto results = scan_results(f_, now, after, elements, kInputs);
#pragma unroll
          for (size_t r = 0; r < R; ++r) {
            outputs[r][n] = results[static_cast<int>(r)];
          }
          now = after;
        });
#pragma unroll
        for (size_t r = 0; r < R; ++r) {
          here_[v].write(arrays_.outputs[r] + offset_ + start_of(access), outputs[r]);
        }
        if (access == accesses_ - 1 && arrays_.last != nullptr) {
          arrays_.last[row_] = static_cast<T>(now);
        }
      }
    }
  }

 private:
  // The column where an access begins.
  __device__ Index start_of(Index access) const { return (kReverse ? accesses_ - 1 - access : access) * N - head_; }

  const F& f_;
  const ScanArrays<T, K, R>& arrays_;
  int64_t row_;
  int64_t offset_;
  int lane_;
  int head_;  // steps of the first access that are not the row's
  Index accesses_;
  Index first_;
  ScanAccess<T, K, N, kLaggedOf<F>, Lie> here_[V];
  Piece<A> before_[V];
};

}  // namespace detail

}  // namespace extension_cpp::cuda
