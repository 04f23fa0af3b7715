// Scans, for both backends: a state for each channel that goes through time, linear in the state before it.
//
//   template <class A>
//   struct LinearScan {
//     HOST_DEVICE A factor(A decay, A input) const { return decay; }
//     HOST_DEVICE A next(A state, A decay, A input) const { return decay * state + input; }
//     HOST_DEVICE A results(A before, A after, A decay, A input) const { return after; }
//   };
//
// next() is what a step makes of the state, results() what it writes: a number, or Values. factor() is the factor of
// the state in next(), which has to be linear in it: backends that cut time into pieces compute next(0) and the product
// of the factors of each piece, and put these together. (Where they are not finite, they go step by step, so that
// infinities and NaN in the inputs spread as in a loop.) With `static constexpr bool kReverse = true;`, time runs
// backwards. With kLagged, results() gets one more argument: of a tensor, the entry of the step before in memory.
//
// The arithmetic is in A, float32 for half types, the state too. What is added to what depends on the shape, on
// where in memory tensors begin, and on the device.
#pragma once

#include "backend.h"
#include "formula.h"
#include "operator.h"
#include "scan_arrays.h"

#ifdef __CUDACC__
#include "cuda/scan.cuh"
#else
#include "cpu/scan.h"
#endif

#include <array>
#include <optional>
#include <tuple>

namespace extension_cpp {

// The tensors of a scan beside its inputs and outputs, all of them contiguous. See ScanArrays.
struct ScanEnds {
  std::optional<Tensor> initial;
  std::optional<Tensor> last;  // written
  std::optional<Tensor> lagged;
  std::optional<Tensor> before_lagged;
};

// The scan of F<A>{numbers...} along one dimension of contiguous tensors of one shape.
template <template <class> class F, size_t K, size_t R, class... Numbers>
void scan(
    const std::array<Tensor, K>& inputs, const std::array<Tensor, R>& outputs, int64_t dim, const ScanEnds& ends = {},
    const Numbers&... numbers) {
  const IntArrayRef sizes = inputs[0].sizes();
  ScanExtent extent{1, sizes[dim], 1};
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    if (d != dim) {
      (d < dim ? extent.outer : extent.inner) *= sizes[d];
    }
  }
  if (extent.outer * extent.inner == 0 || (extent.steps == 0 && !ends.last.has_value())) {
    return;
  }
  dispatch_floating(inputs[0].scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ScanArrays<T, K, R> arrays;
    for (size_t k = 0; k < K; ++k) {
      arrays.inputs[k] = inputs[k].template const_data_ptr<T>();
    }
    for (size_t r = 0; r < R; ++r) {
      arrays.outputs[r] = outputs[r].template mutable_data_ptr<T>();
    }
    const auto data = [](const std::optional<Tensor>& tensor) {
      return tensor.has_value() ? tensor->template const_data_ptr<T>() : nullptr;
    };
    arrays.initial = data(ends.initial);
    arrays.lagged = data(ends.lagged);
    arrays.before_lagged = data(ends.before_lagged);
    arrays.last = ends.last.has_value() ? ends.last->template mutable_data_ptr<T>() : nullptr;
    backend::launch_scan(inputs[0], detail::make_formula<acc_t<T>, F>(numbers...), extent, arrays);
  });
}

// For an operator whose line of shapes is "*rows n, *rows n, ... -> *rows n": the scan along the last dimension, from a
// state of 0 on. `arguments` are its tensors, and the numbers that are F's members, in their order.
template <template <class> class F, class... Arguments>
Tensor scanned(const Operator& op, const Arguments&... arguments) {
  return std::apply(
      [&](const Tensor& first, const auto&... rest) {
        const CheckedInputs checked = op.check(first, rest...);
        const DeviceGuard guard(first);
        Tensor output = checked.new_output();
        const std::array inputs{as_contiguous(first), as_contiguous(rest)...};
        scan<F>(inputs, std::array{output}, first.dim() - 1, {}, arguments...);
        return output;
      },
      detail::tensors_in(arguments...));
}

}  // namespace extension_cpp
