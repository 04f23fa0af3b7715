#include "my_op.h"

#include "cuda/elementwise.cuh"

namespace extension_cpp {
namespace {

Tensor my_op_cuda(const Tensor& input, const Tensor& other, double alpha) {
  check_my_op(input, other);
  const DeviceGuard guard(input);
  Tensor output = new_elementwise(input.sizes(), input, other);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOp<A> f{static_cast<A>(alpha)};
    cuda::elementwise<T>(f, output, input, other);
  });
  return output;
}

Tensor my_op_backward_cuda(const Tensor& grad_output, const Tensor& input, double alpha) {
  check_my_op_backward(grad_output, input);
  const DeviceGuard guard(input);
  Tensor grad_input = new_elementwise(input.sizes(), grad_output, input);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOpBackward<A> f{static_cast<A>(alpha)};
    cuda::elementwise<T>(f, grad_input, grad_output, input);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl("my_op", TORCH_BOX(&extension_cpp::my_op_cuda));
  m.impl("my_op_backward", TORCH_BOX(&extension_cpp::my_op_backward_cuda));
}
