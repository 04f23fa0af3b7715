// What valid inputs of mymul are, and what it computes, for both backends; ops.py says the former to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

template <class A>
struct MyMul {
  HOST_DEVICE A operator()(A a, A b) const { return a * b; }
};

inline void check_mymul(const Tensor& a, const Tensor& b) {
  check_floating("mymul", "a", a);
  check_same_dtype("mymul", "b", b, "a", a);
  check_same_device("mymul", "b", b, "a", a);
  check_shape("mymul", "b", b, a.sizes());
}

}  // namespace extension_cpp
