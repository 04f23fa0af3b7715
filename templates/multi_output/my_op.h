// What valid inputs of my_op are, for both backends; ops.py says the same to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

// EDIT: statistics keep the precision of the arithmetic.
inline ScalarType my_op_statistics(const Tensor& input) {
  return input.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// EDIT: dtypes, devices and shapes. checks.h holds the checks that there are, checks.py their twins for ops.py.
inline void check_my_op(const Tensor& input, const Tensor& other) {
  check_floating("my_op", "input", input);
  check_min_dim("my_op", "input", input, 1);
  check_same_dtype("my_op", "other", other, "input", input);
  check_same_device("my_op", "other", other, "input", input);
  check_shape("my_op", "other", other, input.sizes());
}

inline void check_my_op_backward(const Tensor& grad_output, const Tensor& input, const Tensor& mean) {
  check_floating("my_op_backward", "input", input);
  check_min_dim("my_op_backward", "input", input, 1);
  check_same_dtype("my_op_backward", "grad_output", grad_output, "input", input);
  check_same_device("my_op_backward", "grad_output", grad_output, "input", input);
  check_shape("my_op_backward", "grad_output", grad_output, input.sizes());
  check_dtype("my_op_backward", "mean", mean, my_op_statistics(input));
  check_same_device("my_op_backward", "mean", mean, "input", input);
  check_shape("my_op_backward", "mean", mean, input.sizes().slice(0, input.dim() - 1));
}

}  // namespace extension_cpp
