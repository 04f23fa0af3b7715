// What valid inputs of relu are, and what it computes, for both backends; ops.py says the former to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

template <class A>
struct Relu {
  HOST_DEVICE A operator()(A input) const {
    return input < A(0) ? A(0) : input;  // in this order NaN stays NaN
  }
};

template <class A>
struct ReluBackward {
  HOST_DEVICE A operator()(A grad_output, A output) const { return output <= A(0) ? A(0) : grad_output; }
};

inline void check_relu(const Tensor& input) { check_floating("relu", "input", input); }

inline void check_relu_backward(const Tensor& grad_output, const Tensor& output) {
  check_floating("relu_backward", "grad_output", grad_output);
  check_same_dtype("relu_backward", "output", output, "grad_output", grad_output);
  check_same_device("relu_backward", "output", output, "grad_output", grad_output);
  check_shape("relu_backward", "output", output, grad_output.sizes());
}

}  // namespace extension_cpp
