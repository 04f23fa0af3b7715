// A thread for each index.
#pragma once

#include "launch.cuh"

namespace extension_cpp::cuda {

namespace detail {

template <class F>
__global__ void __launch_bounds__(kBlock) each_kernel(F f, int64_t count) {
  may_begin_next();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < count) {
    f(i);
  }
}

}  // namespace detail

// f(i) for 0 ... count - 1, in any order. `like` gives device and stream.
template <class F>
void for_each_index(const Tensor& like, int64_t count, const F& f) {
  if (count > 0) {
    const auto blocks = static_cast<unsigned>(ceil_div(count, kBlock));
    launch_overlapped(detail::each_kernel<F>, blocks, kBlock, 0, current_stream(like), f, count);
  }
}

}  // namespace extension_cpp::cuda
