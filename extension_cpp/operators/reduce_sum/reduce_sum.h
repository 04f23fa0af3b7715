// What reduce_sum computes, in terms that both backends share.
#pragma once

#include "checks.h"
#include "dispatch.h"

namespace extension_cpp {

inline void check_reduce_sum(const Tensor& input, const OptionalIntArrayRef& dim) {
  check_floating("reduce_sum", "input", input);
  if (dim.has_value()) {
    check_dims("reduce_sum", "dim", *dim, input.dim());
  }
}

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

inline ReduceSumPlan plan_reduce_sum(IntArrayRef sizes, const OptionalIntArrayRef& dim, bool keepdim) {
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

// Calls step(const In*, Out*, SumStep) for each step of the plan: from `input`, of type T, to `output`, by way of
// tensors in the type of the arithmetic.
template <class T, class F>
void for_each_step(const ReduceSumPlan& plan, const Tensor& input, Tensor& output, F step) {
  using A = acc_t<T>;
  const ScalarType dtype = std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float;
  Tensor from = input;
  for (size_t k = 0; k < plan.steps.size(); ++k) {
    const SumStep& s = plan.steps[k];
    const bool first = k == 0;
    const bool last = k + 1 == plan.steps.size();
    Tensor to = last ? output : new_empty(input, {s.outer * s.inner}, dtype);
    if (first && last) {
      step(from.const_data_ptr<T>(), to.mutable_data_ptr<T>(), s);
    } else if (first) {
      step(from.const_data_ptr<T>(), to.mutable_data_ptr<A>(), s);
    } else if (last) {
      step(from.const_data_ptr<A>(), to.mutable_data_ptr<T>(), s);
    } else {
      step(from.const_data_ptr<A>(), to.mutable_data_ptr<A>(), s);
    }
    from = to;
  }
}

}  // namespace extension_cpp
