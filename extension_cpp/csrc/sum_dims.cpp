#include "sum_dims.h"

#include "columns.h"
#include "rows.h"

#ifdef __CUDACC__
#include "cuda/sum_columns.cuh"
#endif

namespace extension_cpp {
namespace {

// The sum over the middle dimension of a contiguous [outer, size, inner] tensor.
struct SumStep {
  int64_t outer, size, inner;
};

// One after the other, the last dimensions first. Neighbouring dimensions are summed as one: a single step, unless
// dimensions that stay separate those that go.
std::vector<SumStep> plan_steps(IntArrayRef sizes, const std::vector<bool>& reduced) {
  struct Group {
    int64_t size;
    bool reduced;
  };
  std::vector<Group> groups;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) {
      continue;
    }
    if (groups.empty() || groups.back().reduced != reduced[d]) {
      groups.push_back({1, reduced[d]});
    }
    groups.back().size *= sizes[d];
  }

  std::vector<SumStep> steps;
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
      steps.push_back({outer, size / side_by_side, side_by_side * inner});
      size = side_by_side;
    }
    steps.push_back({outer, size, inner});
  }
  if (steps.empty()) {  // a copy
    steps.push_back({inner, 1, 1});
  }
  return steps;
}

// In is T or acc_t<T>, and so is what the output holds.
template <class In, class T>
struct SumRow {
  static constexpr bool kWritesRows = false;
  static constexpr bool kSumsElements = true;

  SumOutput<T> output;  // [rows, segments]

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto total = row.sum();
    if (row.leader()) {
      output.store(row.segment_index(), total);
    }
  }
};

#ifdef __CUDACC__
struct SumColumns {
  static constexpr bool kWritesRows = false;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    row.add_to_columns();
  }
};
#endif

template <class T, class In>
void sum_step(
    const Tensor& like,
    const In* input,      // [outer, size, inner]
    SumOutput<T> output,  // [outer, inner]
    const SumStep& step) {
  using A = acc_t<T>;
  if (step.inner != 1) {
#ifdef __CUDACC__
    if (!cuda::sum_columns(like, input, step.outer, step.size, step.inner, output)) {
      cuda::launch_column_sums(
          like, SumColumns(), std::array{input}, step.outer, step.size, step.inner, std::array{output});
    }
#else
    cpu::sum_columns(input, step.outer, step.size, step.inner, output);
#endif
    return;
  }
#ifndef __CUDACC__
  if (cpu::sum_rows(input, step.outer, step.size, output)) {
    return;
  }
#endif
  const backend::Split split = backend::split_for_sums(step.outer, step.size, sizeof(In));
  if (split.segments == 1) {
    backend::launch_rows(like, SumRow<In, T>{output}, std::array{input}, step.outer, step.size);
    return;
  }
  Tensor partials = new_empty(like, {step.outer, split.segments}, kDtypeOf<A>);
  A* const sums = partials.mutable_data_ptr<A>();
  backend::launch_segments(like, SumRow<In, T>{SumOutput<T>(sums)}, std::array{input}, step.outer, step.size, split);
  backend::launch_rows(like, SumRow<A, T>{output}, std::array{static_cast<const A*>(sums)}, step.outer, split.segments);
}

}  // namespace

void backend::sum_dims(const Tensor& input, IntArrayRef sizes, const std::vector<bool>& reduced, Tensor& output) {
  const std::vector<SumStep> steps = plan_steps(sizes, reduced);
  dispatch_floating(output.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    Tensor from = input;
    for (const SumStep& step : steps) {
      Tensor to = &step == &steps.back() ? output : new_empty(input, {step.outer * step.inner}, kDtypeOf<A>);
      const auto sums = SumOutput<T>::of(to);
      if (from.element_size() == sizeof(A)) {
        sum_step<T>(input, from.const_data_ptr<A>(), sums, step);
      } else {
        sum_step<T>(input, from.const_data_ptr<T>(), sums, step);
      }
      from = to;
    }
  });
}

}  // namespace extension_cpp
