// The second half of sums that several threads share, on the CPU: their partial sums added up.
#pragma once

#include "cpu/clones.h"
#include "cpu/sum_output.h"
#include "torch_abi.h"

#include <algorithm>
#include <array>

namespace extension_cpp::cpu {

// sums[k][first + col] = the sum of partials[part, k, col] over the parts, where an output is a pointer or a SumOutput;
// in float64, which costs nothing here and keeps the rounding error of long columns as small as that of short ones.
template <class A, size_t K, class Out>
void add_partials(
    int64_t parts, int64_t cols, const A* partials /* [parts, K, cols] */, const std::array<Out, K>& sums,
    int64_t first = 0) {
  constexpr int64_t kTile = 256;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, parts));
  parallel_for(0, cols, grain, [=](int64_t begin, int64_t end) CPU_CLONES {
    for (size_t k = 0; k < K; ++k) {
      for (int64_t first_col = begin; first_col < end; first_col += kTile) {
        const int64_t width = std::min(kTile, end - first_col);
        double acc[kTile] = {};
        for (int64_t part = 0; part < parts; ++part) {
          const A* const in = partials + (part * K + k) * cols + first_col;
          for (int64_t j = 0; j < width; ++j) {
            acc[j] += static_cast<double>(in[j]);
          }
        }
        A rounded[kTile];
        for (int64_t j = 0; j < width; ++j) {
          rounded[j] = static_cast<A>(acc[j]);
        }
        detail::store_sums(sums[k], first + first_col, rounded, width);
      }
    }
  });
}

}  // namespace extension_cpp::cpu
