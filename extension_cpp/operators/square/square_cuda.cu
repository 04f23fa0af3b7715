#include "square.h"

#include "cuda/elementwise.cuh"

namespace extension_cpp {
namespace {

Tensor square_cuda(const Tensor& input) {
  const CheckedInputs inputs = kSquare.check(input);
  const DeviceGuard guard(input);
  Tensor output = inputs.new_output();
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::elementwise<T>(Square<acc_t<T>>{}, output, input);
  });
  return output;
}

Tensor square_backward_cuda(const Tensor& grad_output, const Tensor& input) {
  const CheckedInputs inputs = kSquareBackward.check(grad_output, input);
  const DeviceGuard guard(grad_output);
  Tensor grad_input = inputs.new_output();
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::elementwise<T>(SquareBackward<acc_t<T>>{}, grad_input, grad_output, input);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl(extension_cpp::kSquare.name(), TORCH_BOX(&extension_cpp::square_cuda));
  m.impl(extension_cpp::kSquareBackward.name(), TORCH_BOX(&extension_cpp::square_backward_cuda));
}
