// The second half of sums that several threads share, on the CPU: their partial sums added up.
#pragma once

#include "cpu/sum_target.h"

namespace extension_cpp::cpu::detail {

// sums[k][first + col] = the sum of partials[part, k, col] over the parts, for every k below num_sums; in float64,
// which costs nothing here and keeps the rounding error of long columns as small as that of short ones.
template <class A>
void add_partials(
    int64_t parts, int64_t cols, const A* partials /* [parts, num_sums, cols] */, const SumTarget<A>* sums,
    size_t num_sums, int64_t first = 0);

extern template void add_partials(int64_t, int64_t, const float*, const SumTarget<float>*, size_t, int64_t);
extern template void add_partials(int64_t, int64_t, const double*, const SumTarget<double>*, size_t, int64_t);

}  // namespace extension_cpp::cpu::detail
