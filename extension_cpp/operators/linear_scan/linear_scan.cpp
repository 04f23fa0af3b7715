// h[t] = decay[t] * h[t - 1] + input[t]
#include "arguments.h"
#include "checks.h"
#include "operator.h"
#include "scan.h"

namespace extension_cpp::linear_scan {

const Operator kLinearScan{"linear_scan(Tensor decay, Tensor input, Tensor? initial=None, int dim=-1) -> Tensor"};
const Operator kLinearScanBackward{
    "linear_scan_backward(Tensor grad_output, Tensor decay, Tensor output, Tensor? initial=None, int dim=-1) "
    "-> (Tensor, Tensor, Tensor)"};

template <class A>
struct LinearScan {
  HOST_DEVICE A factor(A decay, A /*input*/) const { return decay; }
  HOST_DEVICE A next(A state, A decay, A input) const { return decay * state + input; }
  HOST_DEVICE A results(A /*before*/, A after, A /*decay*/, A /*input*/) const { return after; }
};

// The state is the gradient that a step hands to the one before it.
template <class A>
struct LinearScanBackward {
  static constexpr bool kReverse = true;
  static constexpr bool kLagged = true;

  HOST_DEVICE A factor(A decay, A /*grad_output*/) const { return decay; }
  HOST_DEVICE A next(A state, A decay, A grad_output) const { return decay * (grad_output + state); }
  // Of decay and of input.
  HOST_DEVICE Values<A, 2> results(A before, A /*after*/, A /*decay*/, A grad_output, A output_before) const {
    const A grad = grad_output + before;
    return {grad * output_before, grad};
  }
};

std::vector<int64_t> without(IntArrayRef sizes, int64_t dim) {
  std::vector<int64_t> rest(sizes.begin(), sizes.end());
  rest.erase(rest.begin() + dim);
  return rest;
}

// The tensors of the shape of the first, then the optional one without its dimension `dim`; and which that is.
// extension_cpp/operators/linear_scan/ops.py checks the same.
template <size_t N>
int64_t check_scan(
    const char* op, const std::array<const char*, N>& names, const std::array<const Tensor*, N>& tensors,
    const std::optional<Tensor>& initial, int64_t dim) {
  const Tensor& first = *tensors[0];
  check_floating(op, names[0], first);
  for (size_t k = 1; k < N; ++k) {
    check_same_dtype(op, names[k], *tensors[k], names[0], first);
    check_same_device(op, names[k], *tensors[k], names[0], first);
  }
  if (initial.has_value()) {
    check_same_dtype(op, "initial", *initial, names[0], first);
    check_same_device(op, "initial", *initial, names[0], first);
  }
  check_min_dim(op, names[0], first, 1);
  check_dims(op, "dim", {&dim, 1}, first.dim());
  for (size_t k = 1; k < N; ++k) {
    check_shape(op, names[k], *tensors[k], first.sizes());
  }
  const int64_t positive = dim < 0 ? dim + first.dim() : dim;
  if (initial.has_value()) {
    check_shape(op, "initial", *initial, without(first.sizes(), positive));
  }
  return positive;
}

Tensor linear_scan(const Tensor& decay, const Tensor& input, const std::optional<Tensor>& initial, int64_t dim) {
  dim = check_scan<2>(kLinearScan.name(), {"decay", "input"}, {&decay, &input}, initial, dim);
  const DeviceGuard guard(decay);
  Tensor output = new_empty(decay, decay.sizes());
  ScanEnds ends;
  ends.initial = as_contiguous(initial);
  scan<LinearScan>(std::array{as_contiguous(decay), as_contiguous(input)}, std::array{output}, dim, ends);
  return output;
}

std::tuple<Tensor, Tensor, Tensor> linear_scan_backward(
    const Tensor& grad_output, const Tensor& decay, const Tensor& output, const std::optional<Tensor>& initial,
    int64_t dim) {
  dim = check_scan<3>(
      kLinearScanBackward.name(), {"grad_output", "decay", "output"}, {&grad_output, &decay, &output}, initial, dim);
  const DeviceGuard guard(decay);
  Tensor grad_decay = new_empty(decay, decay.sizes());
  Tensor grad_input = new_empty(decay, decay.sizes());
  Tensor grad_initial =
      initial.has_value() ? new_empty(decay, initial->sizes()) : new_empty(decay, std::vector<int64_t>{0});
  ScanEnds ends;
  ends.lagged = as_contiguous(output);
  ends.before_lagged = as_contiguous(initial);
  if (initial.has_value()) {
    ends.last = grad_initial;
  }
  scan<LinearScanBackward>(
      std::array{as_contiguous(decay), as_contiguous(grad_output)}, std::array{grad_decay, grad_input}, dim, ends);
  return {std::move(grad_decay), std::move(grad_input), std::move(grad_initial)};
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kLinearScan.schema());
  m.def(kLinearScanBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("linear_scan", TORCH_BOX(&linear_scan));
  m.impl("linear_scan_backward", TORCH_BOX(&linear_scan_backward));
}

}  // namespace extension_cpp::linear_scan
