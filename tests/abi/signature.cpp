// The schema says float, the C++ function takes an integer.
#include "torch_abi.h"

namespace {

extension_cpp::Tensor scaled(const extension_cpp::Tensor& input, int64_t /*scale*/) { return input; }

}  // namespace

TORCH_LIBRARY(extension_cpp_signature, m) { m.def("scaled(Tensor input, float scale) -> Tensor"); }

TORCH_LIBRARY_IMPL(extension_cpp_signature, CPU, m) { m.impl("scaled", TORCH_BOX(&scaled)); }
