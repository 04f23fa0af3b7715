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

// EDIT: its derivative.
template <class A>
struct MyOpBackward {
  A alpha;

  HOST_DEVICE A operator()(A grad_output, A input) const { return grad_output * A(2) * input * (A(1) + alpha); }
};

// EDIT: dtypes, devices and shapes. checks.h holds the checks that there are, checks.py their twins for ops.py.
inline void check_my_op(const Tensor& input, const Tensor& other) {
  check_floating("my_op", "input", input);
  check_same_dtype("my_op", "other", other, "input", input);
  check_same_device("my_op", "other", other, "input", input);
  check_shape("my_op", "other", other, input.sizes());
}

inline void check_my_op_backward(const Tensor& grad_output, const Tensor& input) {
  check_floating("my_op_backward", "grad_output", grad_output);
  check_same_dtype("my_op_backward", "input", input, "grad_output", grad_output);
  check_same_device("my_op_backward", "input", input, "grad_output", grad_output);
  check_shape("my_op_backward", "input", input, grad_output.sizes());
}

}  // namespace extension_cpp
