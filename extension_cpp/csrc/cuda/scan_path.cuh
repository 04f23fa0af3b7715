// Which steps of a scan a thread goes through, where channels lie inside.
#pragma once

#include "scan_arrays.h"

#include <cuda_runtime.h>

namespace extension_cpp::cuda {

namespace detail {

template <class F>
struct ScanPath {
  int64_t channel;  // the first of neighbouring ones, of [outer, inner]
  int64_t first;    // in the order of the scan
  int64_t count;
  int64_t stride;  // from step to step
  int64_t offset;  // of the first step, in [outer, steps, inner]

  // Of `steps`, as many as there are.
  __device__ ScanPath(const ScanExtent& extent, int64_t first_channel, int64_t first_step, int64_t steps)
      : channel(first_channel),
        first(first_step),
        count(max(min(steps, extent.steps - first_step), int64_t{0})),
        stride(kReverseOf<F> ? -extent.inner : extent.inner) {
    const int64_t outer = channel / extent.inner;
    const int64_t t = kReverseOf<F> ? extent.steps - 1 - first : first;
    offset = (outer * extent.steps + t) * extent.inner + (channel - outer * extent.inner);
  }

  // Whether the last step is among them, or, where there is none, the first would be.
  __device__ bool ends(const ScanExtent& extent) const {
    return first + count == extent.steps && (count > 0 || first == 0);
  }
};

}  // namespace detail

}  // namespace extension_cpp::cuda
