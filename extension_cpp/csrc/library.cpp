// Every schema of the package, one line each. Implementations are registered beside their kernels, in operators/*/.
#include "torch_abi.h"

TORCH_LIBRARY(extension_cpp, m) {
  m.def("fused_op(Tensor input, Tensor bias, float scale=1.0) -> Tensor");
  m.def("fused_op_backward(Tensor grad_output, Tensor output, float scale=1.0) -> (Tensor, Tensor)");
}
