// What a formula returns where it is more than one number.
//
//   template <class A>
//   struct MyMul {
//     HOST_DEVICE Values<A, 2> backward(A grad_output, A a, A b) const { return {grad_output * b, grad_output * a}; }
//   };
#pragma once

#include "host_device.h"

#include <type_traits>

namespace extension_cpp {

template <class A, int N>
struct Values {
  A values[N];

  HOST_DEVICE A& operator[](int k) { return values[k]; }
  HOST_DEVICE const A& operator[](int k) const { return values[k]; }
};

// N results for an element, and what it adds to C sums over its column: {{results...}, {terms...}}.
template <class A, int N, int C>
struct WithSums {
  Values<A, N> results;
  Values<A, C> terms;
};

// Whatever a formula returns, as one type for each kind.
template <class A>
HOST_DEVICE constexpr Values<A, 1> as_values(const A& result) {
  return {{result}};
}

template <class A, int N>
HOST_DEVICE constexpr const Values<A, N>& as_values(const Values<A, N>& results) {
  return results;
}

// What is made of whatever it returns, where numbers of any type count as A.
template <class R, class A>
using as_result_t = std::conditional_t<std::is_arithmetic_v<R>, A, R>;

// How many results and terms a formula returns.
template <class R>
struct ResultCounts {
  static constexpr int results = 1;
  static constexpr int terms = 0;
};

template <class A, int N>
struct ResultCounts<Values<A, N>> {
  static constexpr int results = N;
  static constexpr int terms = 0;
};

template <class A, int N, int C>
struct ResultCounts<WithSums<A, N, C>> {
  static constexpr int results = N;
  static constexpr int terms = C;
};

}  // namespace extension_cpp
