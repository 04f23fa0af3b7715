// What valid inputs of fused_layer_norm are, for both backends; ops.py says the same to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

// Mean and rstd keep the precision of the arithmetic.
inline ScalarType statistics_dtype(const Tensor& input) {
  return input.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline void check_layer_norm_parameter(
    const char* op, const char* name, const std::optional<Tensor>& parameter, const Tensor& input) {
  if (parameter.has_value()) {
    check_parameter_dtype(op, name, *parameter, "input", input);
    check_same_device(op, name, *parameter, "input", input);
    check_shape(op, name, *parameter, {input.size(input.dim() - 1)});
  }
}

inline void check_fused_layer_norm(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps) {
  check_floating("fused_layer_norm", "input", input);
  check_min_dim("fused_layer_norm", "input", input, 1);
  check_layer_norm_parameter("fused_layer_norm", "weight", weight, input);
  check_layer_norm_parameter("fused_layer_norm", "bias", bias, input);
  check_not_negative("fused_layer_norm", "eps", eps);
}

inline void check_fused_layer_norm_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias) {
  constexpr const char* op = "fused_layer_norm_backward";
  check_floating(op, "input", input);
  check_min_dim(op, "input", input, 1);
  check_same_dtype(op, "grad_output", grad_output, "input", input);
  check_same_device(op, "grad_output", grad_output, "input", input);
  check_shape(op, "grad_output", grad_output, input.sizes());
  const std::vector<int64_t> rows(input.sizes().begin(), input.sizes().end() - 1);
  check_dtype(op, "mean", mean, statistics_dtype(input));
  check_same_device(op, "mean", mean, "input", input);
  check_shape(op, "mean", mean, rows);
  check_dtype(op, "rstd", rstd, statistics_dtype(input));
  check_same_device(op, "rstd", rstd, "input", input);
  check_shape(op, "rstd", rstd, rows);
  check_layer_norm_parameter(op, "weight", weight, input);
  check_layer_norm_parameter(op, "bias", bias, input);
}

// The gradient of a parameter; of none where there is no parameter.
inline Tensor new_parameter_grad(const Tensor& input, const std::optional<Tensor>& parameter) {
  return parameter.has_value() ? new_empty(*parameter, parameter->sizes()) : new_empty(input, {0});
}

}  // namespace extension_cpp
