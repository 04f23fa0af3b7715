#include "square.h"

#include "cpu/loops.h"

namespace extension_cpp {
namespace {

Tensor square_cpu(const Tensor& input) {
  const CheckedInputs inputs = kSquare.check(input);
  Tensor output = inputs.new_output();
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::elementwise<T>(Square<acc_t<T>>{}, output, input);
  });
  return output;
}

Tensor square_backward_cpu(const Tensor& grad_output, const Tensor& input) {
  const CheckedInputs inputs = kSquareBackward.check(grad_output, input);
  Tensor grad_input = inputs.new_output();
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::elementwise<T>(SquareBackward<acc_t<T>>{}, grad_input, grad_output, input);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(extension_cpp::kSquare.schema());
  m.def(extension_cpp::kSquareBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl(extension_cpp::kSquare.name(), TORCH_BOX(&extension_cpp::square_cpu));
  m.impl(extension_cpp::kSquareBackward.name(), TORCH_BOX(&extension_cpp::square_backward_cpu));
}
