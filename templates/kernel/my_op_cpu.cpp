#include "my_op.h"

#include "arguments.h"
#include "cpu/elementwise.h"
#include "dispatch.h"

namespace extension_cpp::my_op {

// EDIT: the kernel. This one adds each element of a row to its neighbours, zeros beyond the ends. It is symmetric: of
// gradients, and without the other tensors, it is its own derivative.
template <class T>
void my_op_kernel(
    const T* __restrict__ input,  // [rows, cols]
    const T* __restrict__ other,  // [rows, cols], or null
    T* __restrict__ output,       // [rows, cols]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  cpu::for_each_element(rows, cols, [=](int64_t i, int64_t col) {
    const A left = col == 0 ? A(0) : static_cast<A>(input[i - 1]);
    const A right = col == cols - 1 ? A(0) : static_cast<A>(input[i + 1]);
    A result = (left + static_cast<A>(input[i]) + right) * (A(1) + alpha);
    if (other != nullptr) {
      result += static_cast<A>(other[i]);
    }
    output[i] = static_cast<T>(result);
  });
}

// EDIT: what the kernel is called with.
void launch_my_op(const Tensor& input, const std::optional<Tensor>& other, Tensor& output, double alpha) {
  const Tensor contiguous_input = as_contiguous(input);
  const auto contiguous_other = as_contiguous(other);
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = cols == 0 ? 0 : input.numel() / cols;
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    my_op_kernel<T>(
        contiguous_input.const_data_ptr<T>(), data_of<T>(contiguous_other), output.mutable_data_ptr<T>(), rows, cols,
        alpha);
  });
}

Tensor my_op_cpu(const Tensor& input, const Tensor& other, double alpha) {
  Tensor output = kMyOp.check(input, other).new_output();
  launch_my_op(input, other, output, alpha);
  return output;
}

Tensor my_op_backward_cpu(const Tensor& grad_output, double alpha) {
  Tensor grad_input = kMyOpBackward.check(grad_output).new_output();
  launch_my_op(grad_output, {}, grad_input, alpha);
  return grad_input;
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kMyOp.schema());
  m.def(kMyOpBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl("my_op", TORCH_BOX(&my_op_cpu));
  m.impl("my_op_backward", TORCH_BOX(&my_op_backward_cpu));
}

}  // namespace extension_cpp::my_op
