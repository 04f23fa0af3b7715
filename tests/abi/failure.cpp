// A call into PyTorch that fails.
#include "torch_abi.h"

namespace {

using extension_cpp::Tensor;

Tensor allocate(const Tensor& like, int64_t size) { return extension_cpp::new_empty(like, {size}); }

}  // namespace

TORCH_LIBRARY(extension_cpp_failure, m) { m.def("allocate(Tensor like, int size) -> Tensor"); }

TORCH_LIBRARY_IMPL(extension_cpp_failure, CPU, m) { m.impl("allocate", TORCH_BOX(&allocate)); }
