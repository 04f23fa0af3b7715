#include "my_op.h"

#include "cpu/elementwise.h"
#include "cpu/rows.h"
#include "dispatch.h"

namespace extension_cpp {
namespace {

// EDIT: a result for each element, and statistics of the row. This one squares the distance from the mean.
template <class T>
void my_op_kernel(
    const T* input,  // [rows, cols]
    const T* other,  // [rows, cols]
    T* output,       // [rows, cols]
    acc_t<T>* mean,  // [rows]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  cpu::row_sums<A, 1>(
      rows, cols, [=](int64_t i, int64_t, int64_t, A(&sums)[1]) { sums[0] += static_cast<A>(input[i]); },
      [=](int64_t row, const std::array<A, 1>& sums) { mean[row] = sums[0] / static_cast<A>(cols); });
  cpu::for_each_element(rows, cols, [=](int64_t i, int64_t col) {
    const A centered = static_cast<A>(input[i]) - mean[(i - col) / cols];
    A result = centered * centered * (A(1) + alpha);
    result += static_cast<A>(other[i]);
    output[i] = static_cast<T>(result);
  });
}

// EDIT: the derivative, from the saved mean.
template <class T>
void my_op_backward_kernel(
    const T* grad_output,  // [rows, cols]
    const T* input,        // [rows, cols]
    const acc_t<T>* mean,  // [rows]
    T* grad_input,         // [rows, cols]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  std::vector<A> averages(rows);
  A* const average = averages.data();
  cpu::row_sums<A, 1>(
      rows, cols,
      [=](int64_t i, int64_t row, int64_t, A(&sums)[1]) {
        sums[0] += A(2) * (static_cast<A>(input[i]) - mean[row]) * static_cast<A>(grad_output[i]);
      },
      [=](int64_t row, const std::array<A, 1>& sums) { average[row] = sums[0] / static_cast<A>(cols); });
  cpu::for_each_element(rows, cols, [=](int64_t i, int64_t col) {
    const int64_t row = (i - col) / cols;
    const A grad = A(2) * (static_cast<A>(input[i]) - mean[row]) * static_cast<A>(grad_output[i]);
    grad_input[i] = static_cast<T>((grad - average[row]) * (A(1) + alpha));
  });
}

std::tuple<Tensor, Tensor> my_op_cpu(const Tensor& input, const Tensor& other, double alpha) {
  check_my_op(input, other);
  const Tensor contiguous_input = as_contiguous(input);
  const Tensor contiguous_other = as_contiguous(other);
  Tensor output = new_empty(input, input.sizes());
  Tensor mean = new_empty(input, input.sizes().slice(0, input.dim() - 1), my_op_statistics(input));
  const int64_t rows = mean.numel();
  const int64_t cols = input.size(input.dim() - 1);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    my_op_kernel<T>(
        contiguous_input.const_data_ptr<T>(), contiguous_other.const_data_ptr<T>(), output.mutable_data_ptr<T>(),
        mean.mutable_data_ptr<A>(), rows, cols, static_cast<A>(alpha));
  });
  return {output, mean};
}

Tensor my_op_backward_cpu(const Tensor& grad_output, const Tensor& input, const Tensor& mean, double alpha) {
  check_my_op_backward(grad_output, input, mean);
  const Tensor contiguous_grad_output = as_contiguous(grad_output);
  const Tensor contiguous_input = as_contiguous(input);
  const Tensor contiguous_mean = as_contiguous(mean);
  Tensor grad_input = new_empty(input, input.sizes());
  const int64_t rows = mean.numel();
  const int64_t cols = input.size(input.dim() - 1);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    my_op_backward_kernel<T>(
        contiguous_grad_output.const_data_ptr<T>(), contiguous_input.const_data_ptr<T>(),
        contiguous_mean.const_data_ptr<A>(), grad_input.mutable_data_ptr<T>(), rows, cols, static_cast<A>(alpha));
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl("my_op", TORCH_BOX(&extension_cpp::my_op_cpu));
  m.impl("my_op_backward", TORCH_BOX(&extension_cpp::my_op_backward_cpu));
}
