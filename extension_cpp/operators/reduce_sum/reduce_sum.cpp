// The sum over any dimensions.
#include "columns.h"
#include "rows.h"

namespace extension_cpp {
namespace {

const Operator kReduceSum{"reduce_sum(Tensor input, int[]? dim=None, bool keepdim=False) -> Tensor"};

// The sum over the middle dimension of a contiguous [outer, size, inner] tensor.
struct SumStep {
  int64_t outer, size, inner;
};

struct ReduceSumPlan {
  std::vector<int64_t> output_sizes;
  // One after the other, the last dimensions first. Neighbouring dimensions are summed as one: a single step, unless
  // dimensions that stay separate those that go.
  std::vector<SumStep> steps;
};

ReduceSumPlan plan_reduce_sum(IntArrayRef sizes, const OptionalIntArrayRef& dim, bool keepdim) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  // As in PyTorch, no dimensions mean all of them.
  std::vector<bool> reduced(ndim, !dim.has_value() || dim->empty());
  if (dim.has_value() && ndim > 0) {
    for (size_t k = 0; k < dim->size(); ++k) {
      reduced[((*dim)[k] + ndim) % ndim] = true;
    }
  }

  ReduceSumPlan plan;
  struct Group {
    int64_t size;
    bool reduced;
  };
  std::vector<Group> groups;
  for (int64_t d = 0; d < ndim; ++d) {
    if (!reduced[d]) {
      plan.output_sizes.push_back(sizes[d]);
    } else if (keepdim) {
      plan.output_sizes.push_back(1);
    }
    if (sizes[d] == 1) {
      continue;
    }
    if (groups.empty() || groups.back().reduced != reduced[d]) {
      groups.push_back({1, reduced[d]});
    }
    groups.back().size *= sizes[d];
  }

  int64_t inner = 1;
  for (size_t g = groups.size(); g-- > 0;) {
    if (!groups[g].reduced) {
      inner *= groups[g].size;
      continue;
    }
    int64_t outer = 1;
    for (size_t before = 0; before < g; ++before) {
      outer *= groups[before].size;
    }
    int64_t size = groups[g].size;
    // Of few columns, several rows are summed side by side first, so that there is a vector's width to work on.
    int64_t side_by_side = 1;
    while (inner > 1 && side_by_side * inner < 128 && size % (2 * side_by_side) == 0 && size / side_by_side > 32) {
      side_by_side *= 2;
    }
    if (side_by_side > 1) {
      plan.steps.push_back({outer, size / side_by_side, side_by_side * inner});
      size = side_by_side;
    }
    plan.steps.push_back({outer, size, inner});
  }
  if (plan.steps.empty()) {  // a copy
    plan.steps.push_back({inner, 1, 1});
  }
  return plan;
}

// In is T or acc_t<T>, and so is what the output holds.
template <class In, class T>
struct SumRow {
  static constexpr bool kWritesRows = false;

  SumOutput<T> output;  // [rows, segments]

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto total = row.sum([](acc_t<In> x) { return x; });
    if (row.leader()) {
      output.store(row.segment_index(), total);
    }
  }
};

struct SumColumns {
  static constexpr bool kWritesRows = false;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    using A = typename Row::A;
    row.add_to_columns([](A x) { return Values<A, 1>{x}; });
  }
};

template <class T, class In>
void sum_step(
    const Tensor& like,
    const In* input,      // [outer, size, inner]
    SumOutput<T> output,  // [outer, inner]
    const SumStep& step) {
  using A = acc_t<T>;
  if (step.inner != 1) {
    backend::launch_column_sums(
        like, SumColumns(), std::array{input}, step.outer, step.size, step.inner, std::array{output});
    return;
  }
  const backend::Split split = backend::split_few_rows(step.outer, step.size, 4);
  if (split.segments == 1) {
    backend::launch_rows(like, SumRow<In, T>{output}, std::array{input}, step.outer, step.size);
    return;
  }
  Tensor partials =
      new_empty(like, {step.outer, split.segments}, std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float);
  A* const sums = partials.mutable_data_ptr<A>();
  backend::launch_segments(like, SumRow<In, T>{SumOutput<T>(sums)}, std::array{input}, step.outer, step.size, split);
  backend::launch_rows(like, SumRow<A, T>{output}, std::array{static_cast<const A*>(sums)}, step.outer, split.segments);
}

Tensor reduce_sum(const Tensor& input, OptionalIntArrayRef dim, bool keepdim) {
  check_floating(kReduceSum.name(), "input", input);
  if (dim.has_value()) {
    check_dims(kReduceSum.name(), "dim", *dim, input.dim());
  }
  const DeviceGuard guard(input);
  const Tensor x = as_contiguous(input);
  const ReduceSumPlan plan = plan_reduce_sum(x.sizes(), dim, keepdim);
  Tensor output = new_empty(x, plan.output_sizes);
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    // By way of tensors in the type of the arithmetic.
    const ScalarType dtype = std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float;
    Tensor from = x;
    for (const SumStep& step : plan.steps) {
      Tensor to = &step == &plan.steps.back() ? output : new_empty(x, {step.outer * step.inner}, dtype);
      const auto sums = SumOutput<T>::of(to);
      if (&step == &plan.steps.front()) {
        sum_step<T>(x, from.const_data_ptr<T>(), sums, step);
      } else {
        sum_step<T>(x, from.const_data_ptr<A>(), sums, step);
      }
      from = to;
    }
  });
  return output;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) { m.def(extension_cpp::kReduceSum.schema()); }

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) { m.impl("reduce_sum", TORCH_BOX(&extension_cpp::reduce_sum)); }
