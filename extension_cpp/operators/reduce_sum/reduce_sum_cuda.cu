#include "reduce_sum.h"

#include "cuda/columns.cuh"
#include "cuda/rows.cuh"

namespace extension_cpp {
namespace {

// In is T or acc_t<T>, and so is what the output holds.
template <class In, class T>
struct SumRow {
  static constexpr bool kKeep = false;

  cuda::SumOutput<T> output;  // [rows, segments]

  template <class Row>
  __device__ void operator()(Row& row) const {
    const auto total = row.sum([](acc_t<In> x) { return x; });
    if (row.leader()) {
      output.store(row.segment_index(), total);
    }
  }
};

template <class T>
struct SumColumns {
  const T* __restrict__ input;  // [batch, rows, cols]

  template <int N>
  __device__ void operator()(int64_t i, int64_t /*row*/, int64_t /*col*/, cuda::Values<acc_t<T>, N> (&sums)[1]) const {
    const auto values = cuda::load<N>(input + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sums[0][k] += values[k];
    }
  }
};

template <class T, class In>
void reduce_sum_step(
    const Tensor& like,
    const In* input,            // [outer, size, inner]
    cuda::SumOutput<T> output,  // [outer, inner]
    const SumStep& step) {
  using A = acc_t<T>;
  if (step.inner != 1) {
    cuda::launch_column_sums<In>(
        like, SumColumns<In>{input}, step.outer, step.size, step.inner, cuda::is_aligned(input), std::array{output});
    return;
  }
  // Few long rows fill the GPU only when several blocks share each.
  const cuda::Split split = cuda::Split::even(step.size);
  if (split.segments == 1 || step.outer >= int64_t{4} * cuda::multiprocessors()) {
    cuda::launch_rows(like, SumRow<In, T>{output}, std::array{input}, step.outer, step.size);
    return;
  }
  Tensor partials =
      new_empty(like, {step.outer, split.segments}, std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float);
  A* const sums = partials.mutable_data_ptr<A>();
  cuda::launch_rows(like, SumRow<In, T>{cuda::SumOutput<T>(sums)}, std::array{input}, step.outer, step.size, split);
  cuda::launch_rows(like, SumRow<A, T>{output}, std::array{static_cast<const A*>(sums)}, step.outer, split.segments);
}

Tensor reduce_sum_cuda(const Tensor& input, OptionalIntArrayRef dim, bool keepdim) {
  check_reduce_sum(input, dim);
  const DeviceGuard guard(input);
  const Tensor x = as_contiguous(input);
  const ReduceSumPlan plan = plan_reduce_sum(x.sizes(), dim, keepdim);
  Tensor output = new_empty(x, plan.output_sizes);
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_step<T>(plan, x, output, [&](auto* from, auto* to, const SumStep& step) {
      reduce_sum_step<T>(x, from, cuda::SumOutput<T>(to), step);
    });
  });
  return output;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) { m.impl("reduce_sum", TORCH_BOX(&extension_cpp::reduce_sum_cuda)); }
