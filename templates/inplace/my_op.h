// What valid inputs of my_op are, and what it computes, for both backends; ops.py says the former to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

// EDIT: the formula, in the type of the arithmetic: float for the half types.
template <class A>
struct MyOp {
  A alpha;

  HOST_DEVICE A operator()(A input, A other) const {
    A result = input * input * (A(1) + alpha);
    result += other;
    return result;
  }
};

// EDIT: dtypes, devices and shapes. checks.h holds the checks that there are, checks.py their twins for ops.py.
inline void check_my_op(const Tensor& input, const Tensor& other) {
  check_floating("my_op", "input", input);
  check_non_overlapping("my_op", "input", input);
  check_same_dtype("my_op", "other", other, "input", input);
  check_same_device("my_op", "other", other, "input", input);
  check_shape("my_op", "other", other, input.sizes());
}

}  // namespace extension_cpp
