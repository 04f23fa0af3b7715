// The namespace. Schemas stand below, one line each, or beside an operator's kernels in operators/*/, where a line that
// says the shapes goes with them (operator.h); tests/test_schemas.py shows all of them as one list.
#include "torch_abi.h"

TORCH_LIBRARY(extension_cpp, m) {
  m.def("reduce_sum(Tensor input, int[]? dim=None, bool keepdim=False) -> Tensor");
  m.def(
      "fused_layer_norm(Tensor input, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> (Tensor, Tensor, "
      "Tensor)");
  m.def(
      "fused_layer_norm_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None, "
      "Tensor? bias=None) -> (Tensor, Tensor, Tensor)");
}
