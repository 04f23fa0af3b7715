// Scans on the CPU: every channel goes through its steps one after the other. The functors are those of scan.h.
#pragma once

#include "cpu/clones.h"
#include "cpu/convert.h"
#include "cpu/lines.h"
#include "scan_arrays.h"
#include "torch_abi.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

namespace extension_cpp::cpu {

namespace detail {

using extension_cpp::detail::scan_next;
using extension_cpp::detail::scan_results;
using extension_cpp::detail::ScanElements;

// Channels that take a step together, of a row of memory: their states stay in the cache.
constexpr int64_t kScanColumns = 1024;

// Rows that take a step together: the processor works on some while it waits for the results of others.
constexpr int64_t kScanRows = 8;

// Steps of a row that are copied at a time. Memory is read in long pieces, and copies of all rows fit the L2 cache.
template <class A>
constexpr int64_t kScanSteps = 2048 / sizeof(A);

// From one copy to the next: see share_cache().
template <class A>
constexpr int64_t kScanStride = kScanSteps<A> + kLineBytes / sizeof(A);

// `count` elements in the type of the arithmetic: where they are, or in the buffer.
template <class T>
CPU_INLINE const acc_t<T>* widened(const T* from, acc_t<T>* buffer, int64_t count) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    return from;
  } else {
    widen(from, buffer, count);
    return buffer;
  }
}

// Where to put them: where they go, or in the buffer, which narrow_from() then takes them from.
template <class T>
CPU_INLINE acc_t<T>* room_for(T* to, acc_t<T>* buffer) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    return to;
  } else {
    return buffer;
  }
}

template <class T>
CPU_INLINE void narrow_from(const acc_t<T>* buffer, T* to, int64_t count) {
  if constexpr (!std::is_same_v<T, acc_t<T>>) {
    narrow(buffer, to, count);
  }
}

// Whether rows so far apart would lie in the same few places of the L1 cache, and drive each other out of it.
inline bool share_cache(int64_t stride_bytes) { return stride_bytes % 512 == 0; }

// A line of the cache at a time: of a plain loop the compiler makes an instruction for strings, which is slow to start.
template <class A>
CPU_INLINE void convert_steps(const A* from, A* to, int64_t count) {
  constexpr int64_t kLine = kLineBytes / sizeof(A);
  int64_t j = 0;
  for (; j + kLine <= count; j += kLine) {
    std::memcpy(to + j, from + j, kLineBytes);
  }
  for (; j < count; ++j) {
    to[j] = from[j];
  }
}

template <class T, std::enable_if_t<!std::is_same_v<T, acc_t<T>>, int> = 0>
CPU_INLINE void convert_steps(const T* from, acc_t<T>* to, int64_t count) {
  widen(from, to, count);
}

template <class T, std::enable_if_t<!std::is_same_v<T, acc_t<T>>, int> = 0>
CPU_INLINE void convert_steps(const acc_t<T>* from, T* to, int64_t count) {
  narrow(from, to, count);
}

// Asks for the line of an element, which need not exist: its address is a number, and nothing is read.
template <class T>
CPU_INLINE void prefetch(const T* array, int64_t index) {
#if defined(__GNUC__)
  const uintptr_t address = reinterpret_cast<uintptr_t>(array) + static_cast<uintptr_t>(index) * sizeof(T);
  __builtin_prefetch(reinterpret_cast<const void*>(address));
#endif
}

// Arrays of so many elements, each for one of several purposes.
template <class A>
class ScanBuffers {
 public:
  ScanBuffers(size_t count, int64_t size) : size_(size), data_(new A[count * size]) {}

  A* operator[](size_t k) const { return data_.get() + static_cast<int64_t>(k) * size_; }

 private:
  int64_t size_;
  std::unique_ptr<A[]> data_;
};

template <class F, class A, size_t K, size_t R>
CPU_INLINE void scan_step(
    const F& f, A& state, const ScanElements<A, K>& elements, A* const (&outputs)[R], int64_t offset) {
  constexpr std::make_index_sequence<K> kInputs;
  const A before = state;
  state = scan_next(f, before, elements, kInputs);
  const auto results = scan_results(f, before, state, elements, kInputs);
  for (size_t r = 0; r < R; ++r) {
    outputs[r][offset] = results[static_cast<int>(r)];
  }
}

// A step of neighbouring channels.
template <class F, class A, size_t K, size_t R>
CPU_INLINE void scan_channels(
    const F& f, A* states, const A* const (&inputs)[K], const A* lagged, A* const (&outputs)[R], int64_t count) {
  CPU_INDEPENDENT_LOOP
  for (int64_t c = 0; c < count; ++c) {
    ScanElements<A, K> elements;
    for (size_t k = 0; k < K; ++k) {
      elements.inputs[k] = inputs[k][c];
    }
    if constexpr (kLaggedOf<F>) {
      elements.lagged = lagged[c];
    }
    scan_step(f, states[c], elements, outputs, c);
  }
}

template <class T, class F, size_t K, size_t R>
void scan_columns(const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  using A = acc_t<T>;
  const auto [outer, steps, inner] = extent;
  // Fewer of few channels, for every thread to have some.
  const int64_t threads = get_num_threads();
  const int64_t width = std::clamp<int64_t>((outer * inner + threads - 1) / threads, 128, kScanColumns);
  const int64_t blocks = (inner + width - 1) / width;
  const int64_t grain = std::max<int64_t>(1, kGrain / (width * (steps + 1)));
  const F* const each = &f;
  parallel_for(0, outer * blocks, grain, [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN {
    const ScanBuffers<A> buffers(K + R + 3, width);
    A* const states = buffers[K + R];
    A* const zeros = buffers[K + R + 2];
    std::fill_n(zeros, width, A(0));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block % blocks * width;
      const int64_t channel = block / blocks * inner + first;
      const int64_t count = std::min(width, inner - first);
      for (int64_t c = 0; c < count; ++c) {
        states[c] = arrays.initial == nullptr ? A(0) : static_cast<A>(arrays.initial[channel + c]);
      }
      for (int64_t i = 0; i < steps; ++i) {
        const int64_t t = kReverseOf<F> ? steps - 1 - i : i;
        const int64_t offset = (block / blocks * steps + t) * inner + first;
        const A* inputs[K];
        for (size_t k = 0; k < K; ++k) {
          inputs[k] = widened(arrays.inputs[k] + offset, buffers[k], count);
        }
        const A* lagged = zeros;
        if constexpr (kLaggedOf<F>) {
          if (t > 0) {
            lagged = widened(arrays.lagged + offset - inner, buffers[K + R + 1], count);
          } else if (arrays.before_lagged != nullptr) {
            lagged = widened(arrays.before_lagged + channel, buffers[K + R + 1], count);
          }
        }
        A* outputs[R];
        for (size_t r = 0; r < R; ++r) {
          outputs[r] = room_for(arrays.outputs[r] + offset, buffers[K + r]);
        }
        scan_channels(*each, states, inputs, lagged, outputs, count);
        for (size_t r = 0; r < R; ++r) {
          narrow_from(outputs[r], arrays.outputs[r] + offset, count);
        }
      }
      if (arrays.last != nullptr) {
        for (int64_t c = 0; c < count; ++c) {
          arrays.last[channel + c] = static_cast<T>(states[c]);
        }
      }
    }
  });
}

// `count` steps of L rows, from the step called `first` on; of each array a row lies a stride behind the one before.
template <int64_t L, class F, class A, size_t K, size_t R>
CPU_INLINE void scan_steps(
    const F& f, A (&states)[L], const A* const (&inputs)[K], const A* lagged, A* const (&outputs)[R], int64_t stride,
    int64_t lagged_stride, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = first + (kReverseOf<F> ? count - 1 - i : i);
    for (int64_t l = 0; l < L; ++l) {
      ScanElements<A, K> elements;
      for (size_t k = 0; k < K; ++k) {
        elements.inputs[k] = inputs[k][l * stride + t];
      }
      if constexpr (kLaggedOf<F>) {
        elements.lagged = lagged[l * lagged_stride + t];
      }
      scan_step(f, states[l], elements, outputs, l * stride + t);
    }
  }
}

// L rows from the one called `row` on: where they are, or where that is not the type of the arithmetic, or they would
// get in each other's way, by copies, while the next steps are sent for.
template <int64_t L, bool kDirect, class T, class F, size_t K, size_t R>
CPU_INLINE void scan_few_rows(
    const F& f, int64_t row, int64_t steps, const ScanArrays<T, K, R>& arrays, const ScanBuffers<acc_t<T>>& buffers) {
  using A = acc_t<T>;
  constexpr int64_t kSteps = kScanSteps<A>;
  constexpr int64_t kStride = kScanStride<A>;
  constexpr int64_t kLine = kDirect ? kSteps : kLineBytes / sizeof(T);
  const int64_t stride = kDirect ? steps : kStride;
  A states[L];
  for (int64_t l = 0; l < L; ++l) {
    states[l] = arrays.initial == nullptr ? A(0) : static_cast<A>(arrays.initial[row + l]);
  }
  const int64_t blocks = (steps + kSteps - 1) / kSteps;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = (kReverseOf<F> ? blocks - 1 - i : i) * kSteps;
    const int64_t count = std::min(kSteps, steps - begin);
    const int64_t offset = row * steps + begin;
    const A* inputs[K];
    for (size_t k = 0; k < K; ++k) {
      if constexpr (kDirect) {
        inputs[k] = arrays.inputs[k] + offset;
      } else {
        inputs[k] = buffers[k];
        for (int64_t l = 0; l < L; ++l) {
          convert_steps(arrays.inputs[k] + offset + l * steps, buffers[k] + l * kStride, count);
        }
      }
    }
    const A* lagged = buffers[K + R];
    int64_t lagged_stride = kStride;
    if constexpr (kLaggedOf<F>) {
      if (kDirect && begin > 0) {
        lagged = widened(arrays.lagged + offset - 1, buffers[K + R], 0);
        lagged_stride = steps;
      } else {
        const int64_t missing = begin > 0 ? 0 : 1;
        for (int64_t l = 0; l < L; ++l) {
          A* const to = buffers[K + R] + l * kStride;
          if (begin == 0) {
            to[0] = arrays.before_lagged == nullptr ? A(0) : static_cast<A>(arrays.before_lagged[row + l]);
          }
          convert_steps(arrays.lagged + offset + l * steps + missing - 1, to + missing, count - missing);
        }
      }
    }
    A* outputs[R];
    for (size_t r = 0; r < R; ++r) {
      if constexpr (kDirect) {
        outputs[r] = arrays.outputs[r] + offset;
      } else {
        outputs[r] = buffers[K + r];
      }
    }
    // Where the next steps are: of these rows, or of those that come after.
    const int64_t next = i + 1 < blocks ? offset + (kReverseOf<F> ? -kSteps : kSteps)
                                        : (row + L) * steps + (kReverseOf<F> ? (blocks - 1) * kSteps : 0);
    const int64_t lines = (count + kLine - 1) / kLine;
    for (int64_t j = 0; j < lines; ++j) {
      const int64_t first = (kReverseOf<F> ? lines - 1 - j : j) * kLine;
      for (int64_t l = 0; !kDirect && l < L; ++l) {
        const int64_t ahead = next + l * steps + first;
        for (size_t k = 0; k < K; ++k) {
          prefetch(arrays.inputs[k], ahead);
        }
        if constexpr (kLaggedOf<F>) {
          prefetch(arrays.lagged, ahead);
        }
      }
      scan_steps<L>(f, states, inputs, lagged, outputs, stride, lagged_stride, first, std::min(kLine, count - first));
    }
    for (size_t r = 0; r < R; ++r) {
      for (int64_t l = 0; !kDirect && l < L; ++l) {
        convert_steps(buffers[K + r] + l * kStride, arrays.outputs[r] + offset + l * steps, count);
      }
    }
  }
  if (arrays.last != nullptr) {
    for (int64_t l = 0; l < L; ++l) {
      arrays.last[row + l] = static_cast<T>(states[l]);
    }
  }
}

// Which rows go together depends on their number alone: equal bits with any number of threads.
template <class T, class F, size_t K, size_t R>
void scan_rows(const F& f, int64_t rows, int64_t steps, const ScanArrays<T, K, R>& arrays) {
  constexpr bool kCanBeDirect = std::is_same_v<T, acc_t<T>>;
  const int64_t groups = rows / kScanRows + rows % kScanRows;
  const int64_t grain = std::max<int64_t>(1, kGrain / (kScanRows * (steps + 1)));
  const bool copied = share_cache(steps * static_cast<int64_t>(sizeof(T)));
  const F* const each = &f;
  parallel_for(0, groups, grain, [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN {
    const ScanBuffers<acc_t<T>> buffers(K + R + 1, kScanRows * kScanStride<acc_t<T>>);
    for (int64_t group = begin; group < end; ++group) {
      if (group >= rows / kScanRows) {
        scan_few_rows<1, kCanBeDirect>(*each, rows - groups + group, steps, arrays, buffers);
      } else if (copied || !kCanBeDirect) {
        scan_few_rows<kScanRows, false>(*each, group * kScanRows, steps, arrays, buffers);
      } else {
        scan_few_rows<kScanRows, kCanBeDirect>(*each, group * kScanRows, steps, arrays, buffers);
      }
    }
  });
}

}  // namespace detail

// The scan of f along time. `like` gives device, stream and allocator.
template <class T, class F, size_t K, size_t R>
void launch_scan(const Tensor& /*like*/, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  if (extent.inner == 1) {
    detail::scan_rows(f, extent.outer, extent.steps, arrays);
  } else {
    detail::scan_columns(f, extent, arrays);
  }
}

}  // namespace extension_cpp::cpu
