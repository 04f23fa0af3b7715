// Layer normalisation of the last dimension.
#include "layer_norm.h"

namespace extension_cpp::fused_layer_norm {

const Operator kFusedLayerNorm{
    "fused_layer_norm(Tensor input, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> (Tensor, Tensor, "
    "Tensor)",
    "*rows n, n:wide, n:wide -> *rows n, *rows:sum, *rows:sum"};
const Operator kFusedLayerNormBackward{
    "fused_layer_norm_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None, "
    "Tensor? bias=None) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n, *rows:sum, *rows:sum, n:wide, n:wide -> *rows n, n:weight, n:bias"};
// Where the parameters have no gradient.
const Operator kFusedLayerNormInputBackward{
    "fused_layer_norm_input_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None) "
    "-> Tensor",
    "*rows n, *rows n, *rows:sum, *rows:sum, n:wide -> *rows n"};

std::tuple<Tensor, Tensor, Tensor> fused_layer_norm(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps) {
  const CheckedInputs checked = kFusedLayerNorm.check(input, weight, bias);
  check_not_negative(kFusedLayerNorm.name(), "eps", eps);
  return norm<LayerNorm>(checked, weight, bias, eps, input);
}

std::tuple<Tensor, Tensor, Tensor> fused_layer_norm_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias) {
  const CheckedInputs checked = kFusedLayerNormBackward.check(grad_output, input, mean, rstd, weight, bias);
  return norm_backward<LayerNorm>(checked, {mean, rstd}, {weight, bias}, grad_output, input);
}

Tensor fused_layer_norm_input_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight) {
  const CheckedInputs checked = kFusedLayerNormInputBackward.check(grad_output, input, mean, rstd, weight);
  return norm_input_backward<LayerNorm>(checked, {mean, rstd}, weight, grad_output, input);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kFusedLayerNorm.schema());
  m.def(kFusedLayerNormBackward.schema());
  m.def(kFusedLayerNormInputBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("fused_layer_norm", TORCH_BOX(&fused_layer_norm));
  m.impl("fused_layer_norm_backward", TORCH_BOX(&fused_layer_norm_backward));
  m.impl("fused_layer_norm_input_backward", TORCH_BOX(&fused_layer_norm_input_backward));
}

}  // namespace extension_cpp::fused_layer_norm
