#include "relu.h"

#include "cpu/elementwise.h"

namespace extension_cpp {
namespace {

Tensor relu_cpu(const Tensor& input) {
  check_relu(input);
  Tensor output = new_elementwise(input.sizes(), input);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::elementwise<T>(Relu<acc_t<T>>{}, output, input);
  });
  return output;
}

Tensor relu_backward_cpu(const Tensor& grad_output, const Tensor& output) {
  check_relu_backward(grad_output, output);
  Tensor grad_input = new_elementwise(output.sizes(), grad_output, output);
  dispatch_floating(output.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::elementwise<T>(ReluBackward<acc_t<T>>{}, grad_input, grad_output, output);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl("relu", TORCH_BOX(&extension_cpp::relu_cpu));
  m.impl("relu_backward", TORCH_BOX(&extension_cpp::relu_backward_cpu));
}
