// Adds a residual, then divides each row by its root mean square.
#include "norms.h"

namespace extension_cpp::add_rms_norm {

const Operator kAddRmsNorm{
    "add_rms_norm(Tensor input, Tensor residual, Tensor? weight=None, float eps=1e-06) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n, n:wide -> *rows n, *rows n, *rows:sum"};
const Operator kAddRmsNormBackward{
    "add_rms_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor sum, Tensor rstd, Tensor? weight=None) -> "
    "(Tensor, Tensor)",
    "*rows n, *rows n, *rows n, *rows:sum, n:wide -> *rows n, n:weight"};
// Where the weight has no gradient.
const Operator kAddRmsNormInputBackward{
    "add_rms_norm_input_backward(Tensor grad_output, Tensor? grad_sum, Tensor sum, Tensor rstd, Tensor? weight=None) "
    "-> Tensor",
    "*rows n, *rows n, *rows n, *rows:sum, n:wide -> *rows n"};

template <class A>
struct RmsNorm {
  static constexpr int kSaved = 1;
  static constexpr int kParts = 1;  // the sum of the squares
  static constexpr int kParameters = 1;

  A rstd;

  template <class Row>
  HOST_DEVICE static RmsNorm of(Row& row, A each, A eps) {
    return {math::rsqrt(parts_of(row)[0] * each + eps)};
  }

  template <class Row>
  HOST_DEVICE static Values<A, 1> parts_of(Row& row) {
    return {row.sum([](A x) { return x * x; })};
  }

  template <class Row>
  HOST_DEVICE static RmsNorm of_parts(Row& row, const SegmentSizes<A>& sizes, A eps) {
    return {math::rsqrt(average(row.sum([](A squares) { return squares; }), sizes.cols) + eps)};
  }

  HOST_DEVICE Values<A, 1> saved() const { return {rstd}; }
  HOST_DEVICE A normalize(A x) const { return x * rstd; }

  // With g = grad_output * weight:
  //   grad_input = rstd * g - sum * rstd^3 * average(g * sum) + grad_sum
  //   grad_weight = sum over rows of grad_output * rstd * sum
  struct Grad {
    static constexpr int kSums = 1;

    A rstd;
    A slope;  // rstd^3 * average(g * sum)

    HOST_DEVICE static Grad of(const Values<A, 1>& saved) { return {saved[0]}; }
    // Of squares whose sum is infinite, rstd is 0, and this sum may be infinite. (The slope is, where rstd^3 is.)
    HOST_DEVICE Grad with(const Values<A, 1>& sums, A each) const {
      return {rstd, rstd == A(0) ? A(0) : rstd * (rstd * (rstd * (sums[0] * each)))};
    }

    HOST_DEVICE Values<A, 1> terms(A grad, A x, A w) const { return {grad * w * x}; }
    HOST_DEVICE A grad_input(A grad, A x, A w) const { return grad * rstd * w - x * slope; }
    HOST_DEVICE Values<A, 1> parameter_grads(A grad, A x) const { return {grad * rstd * x}; }
  };
};

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(
    const Tensor& input, const Tensor& residual, const std::optional<Tensor>& weight, double eps) {
  const CheckedInputs checked = kAddRmsNorm.check(input, residual, weight);
  check_not_negative(kAddRmsNorm.name(), "eps", eps);
  return norm<RmsNorm>(checked, weight, std::nullopt, eps, input, residual);
}

// The gradient of input, and of residual alike, then that of weight.
std::tuple<Tensor, Tensor> add_rms_norm_backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_sum, const Tensor& sum, const Tensor& rstd,
    const std::optional<Tensor>& weight) {
  const CheckedInputs checked = kAddRmsNormBackward.check(grad_output, grad_sum, sum, rstd, weight);
  return grad_sum.has_value() ? norm_backward<RmsNorm>(checked, {rstd}, {weight}, grad_output, sum, *grad_sum)
                              : norm_backward<RmsNorm>(checked, {rstd}, {weight}, grad_output, sum);
}

Tensor add_rms_norm_input_backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_sum, const Tensor& sum, const Tensor& rstd,
    const std::optional<Tensor>& weight) {
  const CheckedInputs checked = kAddRmsNormInputBackward.check(grad_output, grad_sum, sum, rstd, weight);
  return grad_sum.has_value() ? norm_input_backward<RmsNorm>(checked, {rstd}, weight, grad_output, sum, *grad_sum)
                              : norm_input_backward<RmsNorm>(checked, {rstd}, weight, grad_output, sum);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kAddRmsNorm.schema());
  m.def(kAddRmsNormBackward.schema());
  m.def(kAddRmsNormInputBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
  m.impl("add_rms_norm_backward", TORCH_BOX(&add_rms_norm_backward));
  m.impl("add_rms_norm_input_backward", TORCH_BOX(&add_rms_norm_input_backward));
}

}  // namespace extension_cpp::add_rms_norm
