// Scans on the CPU: every channel goes through its steps one after the other. The functors are those of scan.h.
#pragma once

#include "cpu/clones.h"
#include "cpu/convert.h"
#include "cpu/scan_rows.h"
#include "cpu/scan_step.h"
#include "scan_arrays.h"
#include "torch_abi.h"

#include <algorithm>
#include <memory>
#include <type_traits>

namespace extension_cpp::cpu {

namespace detail {

// Channels that take a step together, of a row of memory: their states stay in the cache.
constexpr int64_t kScanColumns = 1024;

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
    const auto results = scan_step(f, states[c], elements);
    for (size_t r = 0; r < R; ++r) {
      outputs[r][c] = results[static_cast<int>(r)];
    }
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
