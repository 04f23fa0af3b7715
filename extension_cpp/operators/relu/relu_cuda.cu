#include "relu.h"

#include "cuda/elementwise.cuh"

namespace extension_cpp {
namespace {

Tensor relu_cuda(const Tensor& input) {
  check_relu(input);
  const DeviceGuard guard(input);
  Tensor output = new_elementwise(input.sizes(), input);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::elementwise<T>(Relu<acc_t<T>>{}, output, input);
  });
  return output;
}

Tensor relu_backward_cuda(const Tensor& grad_output, const Tensor& output) {
  check_relu_backward(grad_output, output);
  const DeviceGuard guard(grad_output);
  Tensor grad_input = new_elementwise(output.sizes(), grad_output, output);
  dispatch_floating(output.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::elementwise<T>(ReluBackward<acc_t<T>>{}, grad_input, grad_output, output);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl("relu", TORCH_BOX(&extension_cpp::relu_cuda));
  m.impl("relu_backward", TORCH_BOX(&extension_cpp::relu_backward_cuda));
}
