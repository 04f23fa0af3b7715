#include "square.h"

#include "cpu/loops.h"

namespace extension_cpp {
namespace {

Tensor square_cpu(const Tensor& input) {
  check_square(input);
  Tensor output = new_elementwise(input.sizes(), input);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::elementwise<T>(Square<acc_t<T>>{}, output, input);
  });
  return output;
}

Tensor square_backward_cpu(const Tensor& grad_output, const Tensor& input) {
  check_square_backward(grad_output, input);
  Tensor grad_input = new_elementwise(input.sizes(), grad_output, input);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::elementwise<T>(SquareBackward<acc_t<T>>{}, grad_input, grad_output, input);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl("square", TORCH_BOX(&extension_cpp::square_cpu));
  m.impl("square_backward", TORCH_BOX(&extension_cpp::square_backward_cpu));
}
