#include "my_op.h"

#include "cpu/elementwise.h"
#include "cpu/rows.h"
#include "dispatch.h"

namespace extension_cpp {
namespace {

// EDIT: what is summed over each row. This one sums the squares.
template <class T>
void my_op_kernel(
    const T* input,  // [rows, cols]
    const T* other,  // [rows, cols]
    T* output,       // [rows]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  cpu::row_sums<A, 1>(
      rows, cols,
      [=](int64_t i, int64_t, int64_t, A(&sums)[1]) {
        const A value = static_cast<A>(input[i]);
        A result = value * value * (A(1) + alpha);
        result += static_cast<A>(other[i]);
        sums[0] += result;
      },
      [=](int64_t row, const std::array<A, 1>& sums) { output[row] = static_cast<T>(sums[0]); });
}

// EDIT: the derivative.
template <class T>
void my_op_backward_kernel(
    const T* grad_output,  // [rows]
    const T* input,        // [rows, cols]
    T* grad_input,         // [rows, cols]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  cpu::for_each_element(rows, cols, [=](int64_t i, int64_t col) {
    const A grad = static_cast<A>(grad_output[(i - col) / cols]);
    grad_input[i] = static_cast<T>(grad * A(2) * static_cast<A>(input[i]) * (A(1) + alpha));
  });
}

Tensor my_op_cpu(const Tensor& input, const Tensor& other, double alpha) {
  check_my_op(input, other);
  const Tensor contiguous_input = as_contiguous(input);
  const Tensor contiguous_other = as_contiguous(other);
  Tensor output = new_empty(input, input.sizes().slice(0, input.dim() - 1));
  const int64_t rows = output.numel();
  const int64_t cols = input.size(input.dim() - 1);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    my_op_kernel<T>(
        contiguous_input.const_data_ptr<T>(), contiguous_other.const_data_ptr<T>(), output.mutable_data_ptr<T>(), rows,
        cols, static_cast<A>(alpha));
  });
  return output;
}

Tensor my_op_backward_cpu(const Tensor& grad_output, const Tensor& input, double alpha) {
  check_my_op_backward(grad_output, input);
  const Tensor contiguous_grad_output = as_contiguous(grad_output);
  const Tensor contiguous_input = as_contiguous(input);
  Tensor grad_input = new_empty(input, input.sizes());
  const int64_t rows = grad_output.numel();
  const int64_t cols = input.size(input.dim() - 1);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    my_op_backward_kernel<T>(
        contiguous_grad_output.const_data_ptr<T>(), contiguous_input.const_data_ptr<T>(),
        grad_input.mutable_data_ptr<T>(), rows, cols, static_cast<A>(alpha));
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl("my_op", TORCH_BOX(&extension_cpp::my_op_cpu));
  m.impl("my_op_backward", TORCH_BOX(&extension_cpp::my_op_backward_cpu));
}
