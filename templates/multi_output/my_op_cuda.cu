#include "my_op.h"

#include "cuda/rows.cuh"
#include "dispatch.h"

namespace extension_cpp {
namespace {

// EDIT: a result for each element, and statistics of the row; rows.cuh says what a row can do. Every lambda takes an
// element of each tensor.
template <class T>
struct MyOp {
  using A = acc_t<T>;
  static constexpr bool kKeep = true;  // it passes over the row more than once

  T* __restrict__ output;  // [rows, cols]
  A* __restrict__ mean;    // [rows]
  A alpha;

  template <class Row>
  __device__ void operator()(Row& row) const {
    const A average = row.sum([](A input, A other) { return input; }) / static_cast<A>(row.cols());
    row.write(output, [*this, average](A input, A other) {
      const A centered = input - average;
      A result = centered * centered * (A(1) + alpha);
      result += other;
      return result;
    });
    if (row.leader()) {
      mean[row.index()] = average;
    }
  }
};

// EDIT: the derivative, from the saved mean.
template <class T>
struct MyOpBackward {
  using A = acc_t<T>;
  static constexpr bool kKeep = true;

  const A* __restrict__ mean;  // [rows]
  T* __restrict__ grad_input;  // [rows, cols]
  A alpha;

  template <class Row>
  __device__ void operator()(Row& row) const {
    const A center = mean[row.index()];
    const auto term = [center](A grad_output, A input) { return A(2) * (input - center) * grad_output; };
    const A average = row.sum(term) / static_cast<A>(row.cols());
    row.write(grad_input, [*this, term, average](A grad_output, A input) {
      return (term(grad_output, input) - average) * (A(1) + alpha);
    });
  }
};

std::tuple<Tensor, Tensor> my_op_cuda(const Tensor& input, const Tensor& other, double alpha) {
  check_my_op(input, other);
  const DeviceGuard guard(input);
  const Tensor contiguous_input = as_contiguous(input);
  const Tensor contiguous_other = as_contiguous(other);
  Tensor output = new_empty(input, input.sizes());
  Tensor mean = new_empty(input, input.sizes().slice(0, input.dim() - 1), my_op_statistics(input));
  const int64_t rows = mean.numel();
  const int64_t cols = input.size(input.dim() - 1);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOp<T> f{output.mutable_data_ptr<T>(), mean.mutable_data_ptr<A>(), static_cast<A>(alpha)};
    const std::array inputs{contiguous_input.const_data_ptr<T>(), contiguous_other.const_data_ptr<T>()};
    cuda::launch_rows(input, f, inputs, rows, cols);
  });
  return {output, mean};
}

Tensor my_op_backward_cuda(const Tensor& grad_output, const Tensor& input, const Tensor& mean, double alpha) {
  check_my_op_backward(grad_output, input, mean);
  const DeviceGuard guard(input);
  const Tensor contiguous_grad_output = as_contiguous(grad_output);
  const Tensor contiguous_input = as_contiguous(input);
  const Tensor contiguous_mean = as_contiguous(mean);
  Tensor grad_input = new_empty(input, input.sizes());
  const int64_t rows = mean.numel();
  const int64_t cols = input.size(input.dim() - 1);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOpBackward<T> f{
        contiguous_mean.const_data_ptr<A>(), grad_input.mutable_data_ptr<T>(), static_cast<A>(alpha)};
    const std::array inputs{contiguous_grad_output.const_data_ptr<T>(), contiguous_input.const_data_ptr<T>()};
    cuda::launch_rows(input, f, inputs, rows, cols);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl("my_op", TORCH_BOX(&extension_cpp::my_op_cuda));
  m.impl("my_op_backward", TORCH_BOX(&extension_cpp::my_op_backward_cuda));
}
