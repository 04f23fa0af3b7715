// What valid inputs of square are, and what it computes, for both backends; ops.py says the former to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

template <class A>
struct Square {
  HOST_DEVICE A operator()(A input) const { return input * input; }
};

template <class A>
struct SquareBackward {
  HOST_DEVICE A operator()(A grad_output, A input) const { return A(2) * input * grad_output; }
};

inline void check_square(const Tensor& input) { check_floating("square", "input", input); }

inline void check_square_backward(const Tensor& grad_output, const Tensor& input) {
  check_floating("square_backward", "grad_output", grad_output);
  check_same_dtype("square_backward", "input", input, "grad_output", grad_output);
  check_same_device("square_backward", "input", input, "grad_output", grad_output);
  check_shape("square_backward", "input", input, grad_output.sizes());
}

}  // namespace extension_cpp
