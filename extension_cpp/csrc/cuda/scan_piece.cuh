// What steps in a row make of a state: a factor times the state, plus a term; and so is what two such pieces make of
// it, one after the other. That shares a channel's steps out between threads, which scan the pieces and then go through
// their own steps. Where a piece is not finite, because a value is not or by an overflow that no state need have
// seen, the state goes from thread to thread instead.
#pragma once

#include "launch.cuh"
#include "scan_arrays.h"

#include <algorithm>

namespace extension_cpp::cuda {

namespace detail {

using extension_cpp::detail::kArraysOf;
using extension_cpp::detail::scan_factor;
using extension_cpp::detail::scan_next;
using extension_cpp::detail::scan_results;
using extension_cpp::detail::ScanElements;

constexpr unsigned kAllLanes = 0xffffffffu;

template <class A>
struct Piece {
  A factor;
  A term;

  // Of no steps.
  __device__ static Piece none() { return {A(1), A(0)}; }

  __device__ A operator()(A state) const { return factor * state + term; }

  // Whether that is what the steps make of the state one by one, but for rounding: an infinity that is among them, or
  // among the products of their factors, makes the piece infinite. (A state that overflows by a few of the steps and
  // is no longer too large after the others passes for finite.) NaN stays NaN.
  __device__ bool holds_for(A state) const {
    return isnan(state) || (isfinite(state) && isfinite(factor) && isfinite(term));
  }

  template <class F, size_t K>
  __device__ void append(const F& f, const ScanElements<A, K>& elements) {
    constexpr std::make_index_sequence<K> kInputs;
    term = scan_next(f, term, elements, kInputs);
    factor *= scan_factor(f, elements, kInputs);
  }
};

template <class A>
__device__ Piece<A> chain(const Piece<A>& first, const Piece<A>& second) {
  return {first.factor * second.factor, second.factor * first.term + second.term};
}

// Of each of the first `Lanes`, the pieces up to its own.
template <int Lanes = kWarp, class A>
__device__ Piece<A> scan_warp(Piece<A> piece, int lane) {
#pragma unroll
  for (int distance = 1; distance < Lanes; distance *= 2) {
    const Piece<A> before{
        __shfl_up_sync(kAllLanes, piece.factor, distance), __shfl_up_sync(kAllLanes, piece.term, distance)};
    if (lane >= distance) {
      piece = chain(before, piece);
    }
  }
  return piece;
}

template <class A>
__device__ Piece<A> from_lane(const Piece<A>& piece, int lane) {
  return {__shfl_sync(kAllLanes, piece.factor, lane), __shfl_sync(kAllLanes, piece.term, lane)};
}

// What neighbouring channels have in array k, the lagged one being the last.
template <class A, size_t K, int C>
__device__ void set_elements(ScanElements<A, K> (&elements)[C], size_t k, const Values<A, C>& values) {
#pragma unroll
  for (int c = 0; c < C; ++c) {
    (k < K ? elements[c].inputs[k < K ? k : 0] : elements[c].lagged) = values[c];
  }
}

// One step of neighbouring channels: what it makes of their states, and what it writes.
template <class F, class States, class A, size_t K, int C, size_t R>
__device__ void take_step(
    const F& f, States& states, const ScanElements<A, K> (&elements)[C], Values<A, C> (&written)[R]) {
  constexpr std::make_index_sequence<K> kInputs;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const A after = scan_next(f, states[c], elements[c], kInputs);
    const auto results = scan_results(f, states[c], after, elements[c], kInputs);
#pragma unroll
    for (size_t r = 0; r < R; ++r) {
      written[r][c] = results[static_cast<int>(r)];
    }
    states[c] = after;
  }
}

// Whether all arrays of all steps begin so many bytes after a multiple of `boundary`.
template <class T, size_t K, size_t R>
bool begin_after(int64_t bytes, int64_t boundary, const ScanArrays<T, K, R>& arrays) {
  const auto begins = [=](const T* data) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) % boundary == bytes;
  };
  return (arrays.lagged == nullptr || begins(arrays.lagged)) && std::all_of(arrays.inputs, arrays.inputs + K, begins) &&
         std::all_of(arrays.outputs, arrays.outputs + R, begins);
}

// Whether they begin at a multiple of so many bytes.
template <class T, size_t K, size_t R>
bool begin_at(int64_t bytes, const ScanArrays<T, K, R>& arrays) {
  return begin_after(0, bytes, arrays);
}

// Whether neighbouring channels lie in one aligned word of so many bytes.
template <class T, size_t K, size_t R>
bool channels_in_words(const ScanArrays<T, K, R>& arrays, int64_t inner, int64_t bytes) {
  const auto is_whole = [=](const T* data) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) % bytes == 0;
  };
  return inner % (bytes / static_cast<int64_t>(sizeof(T))) == 0 && begin_at(bytes, arrays) &&
         is_whole(arrays.before_lagged) && is_whole(arrays.initial) && is_whole(arrays.last);
}

}  // namespace detail

}  // namespace extension_cpp::cuda
