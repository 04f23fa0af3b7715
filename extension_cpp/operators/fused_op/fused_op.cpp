// relu(input * scale + bias)
#include "checks.h"
#include "columns.h"
#include "elementwise.h"

namespace extension_cpp {
namespace {

struct FusedOpOperator {
  static void check(const Tensor& input, const Tensor& bias) {
    check_floating("fused_op", "input", input);
    check_same_dtype("fused_op", "bias", bias, "input", input);
    check_same_device("fused_op", "bias", bias, "input", input);
    check_min_dim("fused_op", "input", input, 1);
    check_shape("fused_op", "bias", bias, {input.size(input.dim() - 1)});
  }
  static bool elementwise() { return false; }
};

struct FusedOpBackwardOperator {
  static void check(const Tensor& grad_output, const Tensor& output) {
    check_floating("fused_op_backward", "grad_output", grad_output);
    check_same_dtype("fused_op_backward", "output", output, "grad_output", grad_output);
    check_same_device("fused_op_backward", "output", output, "grad_output", grad_output);
    check_min_dim("fused_op_backward", "grad_output", grad_output, 1);
    check_shape("fused_op_backward", "output", output, grad_output.sizes());
  }
};

template <class A>
struct FusedOp {
  A scale;

  HOST_DEVICE A operator()(A input, A bias) const {
    const A x = input * scale + bias;
    return x < A(0) ? A(0) : x;  // in this order NaN stays NaN
  }
};

// The gradient of the input, and what is summed to that of the bias.
template <class A>
struct FusedOpBackward {
  A scale;

  HOST_DEVICE WithSums<A, 1, 1> operator()(A grad_output, A output) const {
    const A grad = output <= A(0) ? A(0) : grad_output;
    return {{grad * scale}, {grad}};
  }
};

Tensor fused_op(const Tensor& input, const Tensor& bias, double scale) {
  return elementwise<FusedOp>(FusedOpOperator(), input, bias, scale);
}

std::tuple<Tensor, Tensor> fused_op_backward(const Tensor& grad_output, const Tensor& output, double scale) {
  return elementwise_with_column_sums<FusedOpBackward>(FusedOpBackwardOperator(), grad_output, output, scale);
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("fused_op", TORCH_BOX(&extension_cpp::fused_op));
  m.impl("fused_op_backward", TORCH_BOX(&extension_cpp::fused_op_backward));
}
