// relu(input * scale + bias)
#include "columns.h"
#include "elementwise.h"

namespace extension_cpp::fused_op {

const Operator kFusedOp{"fused_op(Tensor input, Tensor bias, float scale=1.0) -> Tensor", "*rows n, n -> *rows n"};
const Operator kFusedOpBackward{
    "fused_op_backward(Tensor grad_output, Tensor output, float scale=1.0) -> (Tensor, Tensor)",
    "*rows n, *rows n -> *rows n, n"};

template <class A>
struct FusedOp {
  A scale;

  HOST_DEVICE A operator()(A input, A bias) const {
    const A x = input * scale + bias;
    return x < A(0) ? A(0) : x;  // in this order NaN stays NaN
  }

  // The gradient of the input, and what is summed to that of the bias.
  HOST_DEVICE WithSums<A, 1, 1> backward(A grad_output, A output) const {
    const A grad = output <= A(0) ? A(0) : grad_output;
    return {{grad * scale}, {grad}};
  }
};

std::tuple<Tensor, Tensor> fused_op_backward(const Tensor& grad_output, const Tensor& output, double scale) {
  return elementwise_with_column_sums<Backward<FusedOp>::Formula>(kFusedOpBackward, grad_output, output, scale);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kFusedOp.schema());
  m.def(kFusedOpBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("fused_op", TORCH_BOX((elementwise_kernel<kFusedOp, FusedOp, double>)));
  m.impl("fused_op_backward", TORCH_BOX(&fused_op_backward));
}

}  // namespace extension_cpp::fused_op
