// Adds a residual, then layer normalisation of the last dimension.
#include "layer_norm.h"

namespace extension_cpp::add_layer_norm {

const Operator kAddLayerNorm{
    "add_layer_norm(Tensor input, Tensor residual, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    "*rows n, *rows n, n:wide, n:wide -> *rows n, *rows n, *rows:sum, *rows:sum"};
const Operator kAddLayerNormBackward{
    "add_layer_norm_backward(Tensor grad_output, Tensor grad_sum, Tensor sum, Tensor mean, Tensor rstd, Tensor? "
    "weight=None, Tensor? bias=None) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n, *rows n, *rows:sum, *rows:sum, n:wide, n:wide -> *rows n, n:weight, n:bias"};
// Where the parameters have no gradient.
const Operator kAddLayerNormInputBackward{
    "add_layer_norm_input_backward(Tensor grad_output, Tensor grad_sum, Tensor sum, Tensor mean, Tensor rstd, Tensor? "
    "weight=None) -> Tensor",
    "*rows n, *rows n, *rows n, *rows:sum, *rows:sum, n:wide -> *rows n"};

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm(
    const Tensor& input, const Tensor& residual, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    double eps) {
  const CheckedInputs checked = kAddLayerNorm.check(input, residual, weight, bias);
  check_not_negative(kAddLayerNorm.name(), "eps", eps);
  return norm<LayerNorm>(checked, weight, bias, eps, input, residual);
}

// The gradient of input, and of residual alike, then those of weight and bias.
std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(
    const Tensor& grad_output, const Tensor& grad_sum, const Tensor& sum, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias) {
  const CheckedInputs checked = kAddLayerNormBackward.check(grad_output, grad_sum, sum, mean, rstd, weight, bias);
  return norm_backward<LayerNorm>(checked, {mean, rstd}, {weight, bias}, grad_output, sum, grad_sum);
}

Tensor add_layer_norm_input_backward(
    const Tensor& grad_output, const Tensor& grad_sum, const Tensor& sum, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight) {
  const CheckedInputs checked = kAddLayerNormInputBackward.check(grad_output, grad_sum, sum, mean, rstd, weight);
  return norm_input_backward<LayerNorm>(checked, {mean, rstd}, weight, grad_output, sum, grad_sum);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kAddLayerNorm.schema());
  m.def(kAddLayerNormBackward.schema());
  m.def(kAddLayerNormInputBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("add_layer_norm", TORCH_BOX(&add_layer_norm));
  m.impl("add_layer_norm_backward", TORCH_BOX(&add_layer_norm_backward));
  m.impl("add_layer_norm_input_backward", TORCH_BOX(&add_layer_norm_input_backward));
}

}  // namespace extension_cpp::add_layer_norm
