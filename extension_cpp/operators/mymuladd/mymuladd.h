// What valid inputs of mymuladd are, and what it computes, for both backends; ops.py says the former to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

template <class A>
struct MyMulAdd {
  A c;

  HOST_DEVICE A operator()(A a, A b) const { return a * b + c; }
};

inline void check_mymuladd(const Tensor& a, const Tensor& b) {
  check_floating("mymuladd", "a", a);
  check_same_dtype("mymuladd", "b", b, "a", a);
  check_same_device("mymuladd", "b", b, "a", a);
  check_shape("mymuladd", "b", b, a.sizes());
}

}  // namespace extension_cpp
