// What valid inputs of fused_op are, for both backends; ops.py says the same to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

inline void check_fused_op(const Tensor& input, const Tensor& bias) {
  check_floating("fused_op", "input", input);
  check_same_dtype("fused_op", "bias", bias, "input", input);
  check_same_device("fused_op", "bias", bias, "input", input);
  check_min_dim("fused_op", "input", input, 1);
  check_shape("fused_op", "bias", bias, {input.size(input.dim() - 1)});
}

inline void check_fused_op_backward(const Tensor& grad_output, const Tensor& output) {
  check_floating("fused_op_backward", "grad_output", grad_output);
  check_same_dtype("fused_op_backward", "output", output, "grad_output", grad_output);
  check_same_device("fused_op_backward", "output", output, "grad_output", grad_output);
  check_min_dim("fused_op_backward", "grad_output", grad_output, 1);
  check_shape("fused_op_backward", "output", output, grad_output.sizes());
}

}  // namespace extension_cpp
