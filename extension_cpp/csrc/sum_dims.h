// Sums over dimensions of a tensor, in any number of passes: compiled once for all operators.
#pragma once

#include "sum_output.h"
#include "torch_abi.h"

#include <array>
#include <optional>
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

// What rows add up to, from sums of their parts, [rows, parts], of those results that have any.
template <class T, size_t M>
void sum_parts_of_rows(
    const std::array<std::optional<Tensor>, M>& parts, const std::array<PlacedResult<T>, M>& results) {
  for (size_t m = 0; m < M; ++m) {
    if (parts[m].has_value()) {
      SummedSizes rows = results[m].rows.rows;
      rows.add(parts[m]->size(1), true);
      sum_dims(*parts[m], rows.sizes, rows.summed, *results[m].rows.tensor);
    }
  }
}

}  // namespace cpu or cuda

}  // namespace extension_cpp
