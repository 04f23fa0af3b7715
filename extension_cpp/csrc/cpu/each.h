// What cuda/each.cuh is for CUDA.
#pragma once

#include "cpu/clones.h"
#include "torch_abi.h"

namespace extension_cpp::cpu {

// f(i) for 0 ... count - 1, in any order.
template <class F>
void for_each_index(const Tensor& /*like*/, int64_t count, const F& f) {
  const F* const each = &f;
  parallel_for(0, count, kGrain, [=](int64_t begin, int64_t end) CPU_CLONES CPU_FLATTEN {
    for (int64_t i = begin; i < end; ++i) {
      (*each)(i);
    }
  });
}

}  // namespace extension_cpp::cpu
