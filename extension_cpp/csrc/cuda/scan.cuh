// Scans on CUDA. The functors are those of scan.h.
#pragma once

#include "scan_column_tiles.cuh"
#include "scan_columns.cuh"
#include "scan_rows.cuh"

namespace extension_cpp::cuda {

// The scan of f along time. `like` gives device, stream and allocator.
template <class T, class F, size_t K, size_t R>
void launch_scan(const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  // Short rows are gone through by a thread each, or by two of float64.
  constexpr int64_t kShort = 16;
  if (extent.inner == 1 && extent.steps > kShort) {
    detail::launch_scan_rows<T, F, K, R>(like, f, extent.outer, extent.steps, arrays);
  } else if (!detail::launch_scan_columns<T, F, K, R>(like, f, extent, arrays)) {
    detail::launch_scan_column_tiles<T, F, K, R>(like, f, extent, arrays);
  }
}

}  // namespace extension_cpp::cuda
