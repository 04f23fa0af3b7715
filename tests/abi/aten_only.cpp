// What the aten switch is for: an operator that calls an ATen function which the stable ABI has no name for.
#include "torch_abi.h"

#if !EXTENSION_CPP_STABLE_ABI
#include <ATen/ops/pinverse.h>
#endif

namespace {

extension_cpp::Tensor least_squares(const extension_cpp::Tensor& matrix, const extension_cpp::Tensor& rhs) {
  return at::pinverse(matrix).matmul(rhs);
}

}  // namespace

TORCH_LIBRARY(extension_cpp_aten_only, m) { m.def("least_squares(Tensor matrix, Tensor rhs) -> Tensor"); }

TORCH_LIBRARY_IMPL(extension_cpp_aten_only, CPU, m) { m.impl("least_squares", TORCH_BOX(&least_squares)); }
