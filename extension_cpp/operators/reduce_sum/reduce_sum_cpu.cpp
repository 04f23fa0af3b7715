#include "reduce_sum.h"

#include "cpu/columns.h"
#include "cpu/rows.h"

namespace extension_cpp {
namespace {

template <class In, class Out>
void reduce_sum_kernel(
    const In* input,  // [outer, size, inner]
    Out* output,      // [outer, inner]
    const SumStep& step) {
  using A = acc_t<In>;
  if (step.inner == 1) {
    cpu::row_sums<A, 1>(
        step.outer, step.size, [=](int64_t i, int64_t, int64_t, A(&sums)[1]) { sums[0] += static_cast<A>(input[i]); },
        [=](int64_t row, const std::array<A, 1>& sums) { output[row] = static_cast<Out>(sums[0]); });
  } else {
    cpu::column_sums<A>(
        step.outer, step.size, step.inner,
        [=](int64_t i, int64_t, int64_t, A(&sums)[1]) { sums[0] += static_cast<A>(input[i]); }, std::array{output});
  }
}

Tensor reduce_sum_cpu(const Tensor& input, OptionalIntArrayRef dim, bool keepdim) {
  check_reduce_sum(input, dim);
  const Tensor x = as_contiguous(input);
  const ReduceSumPlan plan = plan_reduce_sum(x.sizes(), dim, keepdim);
  Tensor output = new_empty(x, plan.output_sizes);
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_step<T>(
        plan, x, output, [](auto* from, auto* to, const SumStep& step) { reduce_sum_kernel(from, to, step); });
  });
  return output;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) { m.impl("reduce_sum", TORCH_BOX(&extension_cpp::reduce_sum_cpu)); }
