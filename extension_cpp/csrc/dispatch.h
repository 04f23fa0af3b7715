// From a run-time dtype to a C++ type.
#pragma once

#include "torch_abi.h"

#include <stdexcept>
#include <type_traits>

namespace extension_cpp {

// The type in which values of T are computed and summed.
template <class T>
using acc_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The same of dtypes.
inline ScalarType sum_dtype(ScalarType dtype) {
  return dtype == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

template <class A>
constexpr ScalarType kDtypeOf = std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float;

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the T of `dtype`; check_floating comes first, and has the message for users.
//
//   dispatch_floating(input.scalar_type(), [&](auto tag) {
//     using T = typename decltype(tag)::type;
//     ...
//   });
template <class F>
void dispatch_floating(ScalarType dtype, F&& f) {
  switch (dtype) {
    case ScalarType::Double: return f(Type<double>{});
    case ScalarType::Float: return f(Type<float>{});
    case ScalarType::Half: return f(Type<Half>{});
    case ScalarType::BFloat16: return f(Type<BFloat16>{});
    default: throw std::runtime_error("dispatch_floating: unchecked dtype");
  }
}

}  // namespace extension_cpp
