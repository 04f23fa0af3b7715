// Sums over dimensions of a tensor, in any number of passes: compiled once for all operators.
#pragma once

#include "sum_output.h"
#include "torch_abi.h"

#include <vector>

namespace extension_cpp {

#ifdef __CUDACC__
namespace cuda {
#else
namespace cpu {
#endif

// output = the sum of `input`, seen as contiguous with these sizes, over those of its dimensions that are `reduced`; 0
// where they are empty. `output` is contiguous; `input` has its dtype, or that of the arithmetic for it. Both are
// floating. What lies between is kept in the type of the arithmetic. The tensor's device is the current one.
void sum_dims(const Tensor& input, IntArrayRef sizes, const std::vector<bool>& reduced, Tensor& output);

// What rows add up to, from sums of their parts, [rows, parts].
inline void sum_parts_of_rows(const Tensor& parts, const RowsOutput& output) {
  std::vector<int64_t> sizes = output.sizes;
  std::vector<bool> summed = output.summed;
  sizes.push_back(parts.size(1));
  summed.push_back(true);
  sum_dims(parts, sizes, summed, *output.tensor);
}

}  // namespace cpu or cuda

}  // namespace extension_cpp
