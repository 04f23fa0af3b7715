// The inputs of row operators on the CPU, as values of the arithmetic.
#pragma once

#include "cpu/convert.h"
#include "cpu/lines.h"
#include "cpu/row_sums.h"
#include "dispatch.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace extension_cpp::cpu::detail {

// K contiguous inputs, read where they lie. Only of Half, which is slow to convert one by one, a thread holds copies in
// the type of the arithmetic, which the passes over a row share: as much of it as is a segment, or several short rows.
// There are none before somebody asks: rows that are loaded by blocks (row_blocks.h) do not.
template <class T, size_t K>
class WideRows {
 public:
  static constexpr bool kCopies = std::is_same_v<T, Half>;
  using Wide = acc_t<T>;
  // What loops read.
  using Element = std::conditional_t<kCopies, Wide, T>;

  // For rows of `cols` elements, of which those before `end` may be copied ahead.
  WideRows(const std::array<const T*, K>& inputs, int64_t cols, int64_t end) : inputs_(inputs), end_(end) {
    if constexpr (kCopies) {
      constexpr int64_t kAhead = 2048;
      capacity_ = std::min(kSegment, cols < kAhead ? kAhead / std::max<int64_t>(1, cols) * cols : cols);
      stride_ = whole_lines<Wide>(capacity_);
    }
  }

  // The same for another thread, which takes segments.
  WideRows for_segments() const { return WideRows(inputs_, kSegment, 0); }

  // Input k where it lies.
  const T* in_memory(size_t k) const { return inputs_[k]; }

  // Elements begin ... begin + count - 1 of all rows; count is at most that of a row, and kSegment.
  CPU_INLINE std::array<const Element*, K> at(int64_t begin, int64_t count) {
    std::array<const Element*, K> values;
    if constexpr (kCopies) {
      if (begin < held_begin_ || begin + count > held_end_) {
        hold(begin, count);
      }
      for (size_t k = 0; k < K; ++k) {
        values[k] = copy(k) + (begin - held_begin_);
      }
    } else {
      for (size_t k = 0; k < K; ++k) {
        values[k] = inputs_[k] + begin;
      }
    }
    return values;
  }

  // The k-th of the places where a thread puts what it computes of a row, which has `count` elements.
  Wide* place(size_t k, int64_t count) {
    if (k == places_.size()) {
      places_.emplace_back();
    }
    if (count > places_[k].count) {
      places_[k] = {new_lines<Wide>(count), count};
    }
    return places_[k].values.get();
  }

 private:
  struct Place {
    Lines<Wide> values;
    int64_t count = 0;
  };

  Wide* copy(size_t k) { return copies_.get() + static_cast<int64_t>(k) * stride_; }

  void hold(int64_t begin, int64_t count) {
    if (copies_ == nullptr) {
      copies_ = new_lines<Wide>(static_cast<int64_t>(K) * stride_);
    }
    held_begin_ = begin;
    held_end_ = std::max(begin + count, std::min(begin + capacity_, end_));
    for (size_t k = 0; k < K; ++k) {
      widen(inputs_[k] + begin, copy(k), held_end_ - begin);
    }
  }

  std::array<const T*, K> inputs_;
  int64_t end_;
  int64_t capacity_ = 0;
  int64_t held_begin_ = 0;
  int64_t held_end_ = 0;
  int64_t stride_ = 0;
  Lines<Wide> copies_;  // [K, stride]
  std::vector<Place> places_;
};

}  // namespace extension_cpp::cpu::detail
