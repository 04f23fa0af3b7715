// Sizes of grids.
#pragma once

#include "torch_abi.h"

#include <algorithm>

namespace extension_cpp::cuda {

constexpr int kWarp = 32;
constexpr int kBlock = 256;
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxGridY = 65535;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Multiprocessors of the current device. The runtime answers from a cache of its own.
inline int multiprocessors() {
  int device = 0;
  int count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace extension_cpp::cuda
