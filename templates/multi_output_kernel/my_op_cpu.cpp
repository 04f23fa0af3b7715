#include "my_op.h"

#include "arguments.h"
#include "cpu/row_sums.h"
#include "dispatch.h"

namespace extension_cpp::my_op {

// EDIT: the kernel. This one squares the distance of each element from the mean of its row, and returns the mean, too.
// Rows are worked on side by side and in no order: what is written for one is nothing to another.
template <class T>
void my_op_kernel(
    const T* __restrict__ input,  // [rows, cols]
    const T* __restrict__ other,  // [rows, cols], or null
    T* __restrict__ output,       // [rows, cols]
    acc_t<T>* __restrict__ mean,  // [rows]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  cpu::for_each_row(rows, cols, [=](int64_t row) {
    const A sum = cpu::row_sum<A>(cols, [=](int64_t col) { return static_cast<A>(input[row * cols + col]); });
    const A average = sum / static_cast<A>(cols);
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t i = row * cols + col;
      const A centered = static_cast<A>(input[i]) - average;
      A result = centered * centered * (A(1) + alpha);
      if (other != nullptr) {
        result += static_cast<A>(other[i]);
      }
      output[i] = static_cast<T>(result);
    }
    mean[row] = average;
  });
}

// EDIT: the derivative, from the saved mean.
template <class T>
void my_op_backward_kernel(
    const T* __restrict__ grad_output,  // [rows, cols]
    const T* __restrict__ input,        // [rows, cols]
    const acc_t<T>* __restrict__ mean,  // [rows]
    T* __restrict__ grad_input,         // [rows, cols]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  cpu::for_each_row(rows, cols, [=](int64_t row) {
    const A center = mean[row];
    const auto term = [=](int64_t col) {
      const int64_t i = row * cols + col;
      return A(2) * (static_cast<A>(input[i]) - center) * static_cast<A>(grad_output[i]);
    };
    const A average = cpu::row_sum<A>(cols, term) / static_cast<A>(cols);
    for (int64_t col = 0; col < cols; ++col) {
      grad_input[row * cols + col] = static_cast<T>((term(col) - average) * (A(1) + alpha));
    }
  });
}

// EDIT: what the kernel is called with.
std::tuple<Tensor, Tensor> my_op_cpu(const Tensor& input, const Tensor& other, double alpha) {
  const CheckedInputs checked = kMyOp.check(input, other);
  Tensor output = checked.new_output();
  Tensor mean = checked.new_output(1);
  const Tensor contiguous_input = as_contiguous(input);
  const auto contiguous_other = as_contiguous(other);
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = mean.numel();  // a row without columns has a mean, too: NaN
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    my_op_kernel<T>(
        contiguous_input.const_data_ptr<T>(), data_of<T>(contiguous_other), output.mutable_data_ptr<T>(),
        mean.mutable_data_ptr<acc_t<T>>(), rows, cols, alpha);
  });
  return {output, mean};
}

// EDIT: what its derivative is called with.
Tensor my_op_backward_cpu(const Tensor& grad_output, const Tensor& input, const Tensor& mean, double alpha) {
  Tensor grad_input = kMyOpBackward.check(grad_output, input, mean).new_output();
  const Tensor contiguous_grad_output = as_contiguous(grad_output);
  const Tensor contiguous_input = as_contiguous(input);
  const Tensor contiguous_mean = as_contiguous(mean);
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = mean.numel();
  dispatch_floating(grad_output.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    my_op_backward_kernel<T>(
        contiguous_grad_output.const_data_ptr<T>(), contiguous_input.const_data_ptr<T>(),
        contiguous_mean.const_data_ptr<acc_t<T>>(), grad_input.mutable_data_ptr<T>(), rows, cols, alpha);
  });
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
