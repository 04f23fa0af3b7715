// What both backends know of a scan (scan.h).
#pragma once

#include "dispatch.h"
#include "host_device.h"
#include "values.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace extension_cpp {

// Of contiguous tensors: time is the dimension in the middle.
struct ScanExtent {
  int64_t outer;
  int64_t steps;
  int64_t inner;
};

template <class T, size_t K, size_t R>
struct ScanArrays {
  const T* inputs[K];                // [outer, steps, inner]
  T* outputs[R];                     // [outer, steps, inner]
  const T* initial = nullptr;        // [outer, inner], the state that the scan begins with; 0 where null
  T* last = nullptr;                 // [outer, inner], the state that it ends with; null where nobody wants it
  const T* lagged = nullptr;         // [outer, steps, inner], of which step t gets the entry of step t - 1
  const T* before_lagged = nullptr;  // [outer, inner], what the first step gets; 0 where null
};

// What a functor need not say: which way time runs, and whether results() gets what is lagged.
template <class F, class = void>
constexpr bool kReverseOf = false;
template <class F>
constexpr bool kReverseOf<F, std::enable_if_t<F::kReverse>> = true;
template <class F, class = void>
constexpr bool kLaggedOf = false;
template <class F>
constexpr bool kLaggedOf<F, std::enable_if_t<F::kLagged>> = true;

namespace detail {

// Of a functor of K inputs, those that are read: what is lagged, too.
template <class F, size_t K>
constexpr size_t kArraysOf = K + (kLaggedOf<F> ? 1 : 0);

// What a functor is given for one step of one channel.
template <class A, size_t K>
struct ScanElements {
  A inputs[K];
  A lagged = 0;
};

template <class F, class A, size_t... K>
HOST_DEVICE A scan_factor(const F& f, const ScanElements<A, sizeof...(K)>& x, std::index_sequence<K...> /*inputs*/) {
  return f.factor(x.inputs[K]...);
}

template <class F, class A, size_t... K>
HOST_DEVICE A
scan_next(const F& f, A state, const ScanElements<A, sizeof...(K)>& x, std::index_sequence<K...> /*inputs*/) {
  return f.next(state, x.inputs[K]...);
}

template <class F, class A, size_t... K>
HOST_DEVICE auto scan_results(
    const F& f, A before, A after, const ScanElements<A, sizeof...(K)>& x, std::index_sequence<K...> /*inputs*/) {
  if constexpr (kLaggedOf<F>) {
    return as_values(f.results(before, after, x.inputs[K]..., x.lagged));
  } else {
    return as_values(f.results(before, after, x.inputs[K]...));
  }
}

}  // namespace detail

}  // namespace extension_cpp
