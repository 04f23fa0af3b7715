// The backend that a file is compiled for. In an operator's folder `x.cpp` is compiled for both: what it says of
// BACKEND and backend:: holds for the CPU in one library, and for CUDA in the other.
//
//   TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) { m.impl("square", TORCH_BOX(&square)); }
#pragma once

#include "torch_abi.h"

#ifdef __CUDACC__
#define BACKEND CUDA
#else
#define BACKEND CPU
#endif

namespace extension_cpp {

namespace cpu {}
namespace cuda {}

#ifdef __CUDACC__
namespace backend = cuda;
#else
namespace backend = cpu;

// As for CUDA, where it makes the tensor's device the current one.
struct DeviceGuard {
  explicit DeviceGuard(const Tensor& /*tensor*/) {}
};
#endif

}  // namespace extension_cpp
