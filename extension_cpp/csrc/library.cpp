// Every schema of the package, one line each. Implementations are registered beside their kernels, in operators/*/.
#include "torch_abi.h"

TORCH_LIBRARY(extension_cpp, m) {
  m.def("vector_add(Tensor a, Tensor b) -> Tensor");
  m.def("relu(Tensor input) -> Tensor");
  m.def("relu_backward(Tensor grad_output, Tensor output) -> Tensor");
  m.def("square(Tensor input) -> Tensor");
  m.def("square_backward(Tensor grad_output, Tensor input) -> Tensor");
  m.def("mymuladd(Tensor a, Tensor b, float c) -> Tensor");
  m.def("mymul(Tensor a, Tensor b) -> Tensor");
  m.def("myadd_out(Tensor a, Tensor b, Tensor(a!) out) -> ()");
  m.def("affine(Tensor a, Tensor x, Tensor b) -> Tensor");
  m.def("affine_backward(Tensor grad_output, Tensor a, Tensor x) -> (Tensor, Tensor, Tensor)");
  m.def("fused_op(Tensor input, Tensor bias, float scale=1.0) -> Tensor");
  m.def("fused_op_backward(Tensor grad_output, Tensor output, float scale=1.0) -> (Tensor, Tensor)");
  m.def("reduce_sum(Tensor input, int[]? dim=None, bool keepdim=False) -> Tensor");
  m.def(
      "fused_layer_norm(Tensor input, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> (Tensor, Tensor, "
      "Tensor)");
  m.def(
      "fused_layer_norm_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None, "
      "Tensor? bias=None) -> (Tensor, Tensor, Tensor)");
}
