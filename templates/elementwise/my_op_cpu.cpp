#include "my_op.h"

#include "cpu/elementwise.h"

namespace extension_cpp {
namespace {

Tensor my_op_cpu(const Tensor& input, const Tensor& other, double alpha) {
  check_my_op(input, other);
  Tensor output = new_elementwise(input.sizes(), input, other);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOp<A> f{static_cast<A>(alpha)};
    cpu::elementwise<T>(f, output, input, other);
  });
  return output;
}

Tensor my_op_backward_cpu(const Tensor& grad_output, const Tensor& input, double alpha) {
  check_my_op_backward(grad_output, input);
  Tensor grad_input = new_elementwise(input.sizes(), grad_output, input);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOpBackward<A> f{static_cast<A>(alpha)};
    cpu::elementwise<T>(f, grad_input, grad_output, input);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl("my_op", TORCH_BOX(&extension_cpp::my_op_cpu));
  m.impl("my_op_backward", TORCH_BOX(&extension_cpp::my_op_backward_cpu));
}
