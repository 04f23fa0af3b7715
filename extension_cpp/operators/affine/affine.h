// What valid inputs of affine are, and what it computes, for both backends; ops.py says the former to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

template <class A>
struct Affine {
  HOST_DEVICE A operator()(A a, A x, A b) const { return a * x + b; }
};

// Returns the shape of the output.
inline std::vector<int64_t> check_affine(const Tensor& a, const Tensor& x, const Tensor& b) {
  check_floating("affine", "a", a);
  check_same_dtype("affine", "x", x, "a", a);
  check_same_dtype("affine", "b", b, "a", a);
  check_same_device("affine", "x", x, "a", a);
  check_same_device("affine", "b", b, "a", a);
  const std::vector<int64_t> product = check_broadcast("affine", "x", x, "a", a.sizes());
  return check_broadcast("affine", "b", b, "a * x", product);
}

// The layer: x of shape (..., features) with a and b of shape (features,).
inline void check_affine_backward(const Tensor& grad_output, const Tensor& a, const Tensor& x) {
  check_floating("affine_backward", "grad_output", grad_output);
  check_same_dtype("affine_backward", "a", a, "grad_output", grad_output);
  check_same_dtype("affine_backward", "x", x, "grad_output", grad_output);
  check_same_device("affine_backward", "a", a, "grad_output", grad_output);
  check_same_device("affine_backward", "x", x, "grad_output", grad_output);
  check_min_dim("affine_backward", "grad_output", grad_output, 1);
  check_shape("affine_backward", "a", a, {grad_output.size(grad_output.dim() - 1)});
  check_shape("affine_backward", "x", x, grad_output.sizes());
}

}  // namespace extension_cpp
