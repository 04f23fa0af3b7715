// EDIT: my_op, in one line.
#include "dispatch.h"
#include "operator.h"
#include "rows.h"

namespace extension_cpp {
namespace {

// EDIT: the shapes; csrc/notation.h explains the lines.
const Operator kMyOp{"my_op(Tensor input, Tensor other, float alpha=1.0) -> Tensor", "*rows n, *rows n -> *rows n"};
const Operator kMyOpBackward{"my_op_backward(Tensor grad_output, float alpha) -> Tensor", "*rows n -> *rows n"};

// EDIT: a sum over each row, then a result for each element; rows.h says what a row can do. Every lambda takes an
// element of each tensor.
template <class T>
struct MyOp {
  using A = acc_t<T>;
  static constexpr bool kKeep = true;  // it passes over the row more than once

  T* output;  // [rows, cols]
  A alpha;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A mean = row.sum([](A input, A other) { return input; }) / static_cast<A>(row.cols());
    row.write(output, [*this, mean](A input, A other) {
      A result = (input - mean) * (A(1) + alpha);
      result += other;
      return result;
    });
  }
};

// EDIT: the same for the gradient.
template <class T>
struct MyOpBackward {
  using A = acc_t<T>;
  static constexpr bool kKeep = true;

  T* grad_input;  // [rows, cols]
  A alpha;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A mean = row.sum([](A grad_output) { return grad_output; }) / static_cast<A>(row.cols());
    row.write(grad_input, [*this, mean](A grad_output) { return (grad_output - mean) * (A(1) + alpha); });
  }
};

Tensor my_op(const Tensor& input, const Tensor& other, double alpha) {
  Tensor output = kMyOp.check(input, other).new_output();
  const DeviceGuard guard(input);
  const Tensor contiguous_input = as_contiguous(input);
  const Tensor contiguous_other = as_contiguous(other);
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = cols == 0 ? 0 : input.numel() / cols;
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOp<T> f{output.mutable_data_ptr<T>(), static_cast<A>(alpha)};
    const std::array inputs{contiguous_input.const_data_ptr<T>(), contiguous_other.const_data_ptr<T>()};
    backend::launch_rows(input, f, inputs, rows, cols);
  });
  return output;
}

Tensor my_op_backward(const Tensor& grad_output, double alpha) {
  Tensor grad_input = kMyOpBackward.check(grad_output).new_output();
  const DeviceGuard guard(grad_output);
  const Tensor contiguous_grad_output = as_contiguous(grad_output);
  const int64_t cols = grad_output.size(grad_output.dim() - 1);
  const int64_t rows = cols == 0 ? 0 : grad_output.numel() / cols;
  dispatch_floating(grad_output.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOpBackward<T> f{grad_input.mutable_data_ptr<T>(), static_cast<A>(alpha)};
    const std::array inputs{contiguous_grad_output.const_data_ptr<T>()};
    backend::launch_rows(grad_output, f, inputs, rows, cols);
  });
  return grad_input;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(extension_cpp::kMyOp.schema());
  m.def(extension_cpp::kMyOpBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("my_op", TORCH_BOX(&extension_cpp::my_op));
  m.impl("my_op_backward", TORCH_BOX(&extension_cpp::my_op_backward));
}
