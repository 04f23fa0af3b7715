// EDIT: my_op, in one line.
#include "rows.h"

namespace extension_cpp::my_op {

// EDIT: the shapes; csrc/notation.h explains the lines.
const Operator kMyOp{"my_op(Tensor input, Tensor other, float alpha=1.0) -> Tensor", "*rows n, *rows n -> *rows n"};
const Operator kMyOpBackward{"my_op_backward(Tensor grad_output, float alpha) -> Tensor", "*rows n -> *rows n"};

// EDIT: a sum over each row, then a result for each element; rows.h says what a row can do. Every lambda takes an
// element of each tensor.
template <class T>
struct MyOp {
  using A = acc_t<T>;

  T* output;  // [rows, cols]
  A alpha;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A mean = row.sum([](A input, A other) { return input; }) / static_cast<A>(row.cols());
    row.write(output, [*this, mean](A input, A other) { return (input - mean) * (A(1) + alpha) + other; });
  }
};

// EDIT: the same for the gradient.
template <class T>
struct MyOpBackward {
  using A = acc_t<T>;

  T* grad_input;  // [rows, cols]
  A alpha;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A mean = row.sum([](A grad_output) { return grad_output; }) / static_cast<A>(row.cols());
    row.write(grad_input, [*this, mean](A grad_output) { return (grad_output - mean) * (A(1) + alpha); });
  }
};

Tensor my_op(const Tensor& input, const Tensor& other, double alpha) {
  return rowwise<MyOp>(kMyOp, input, other, alpha);
}

Tensor my_op_backward(const Tensor& grad_output, double alpha) {
  return rowwise<MyOpBackward>(kMyOpBackward, grad_output, alpha);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kMyOp.schema());
  m.def(kMyOpBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("my_op", TORCH_BOX(&my_op));
  m.impl("my_op_backward", TORCH_BOX(&my_op_backward));
}

}  // namespace extension_cpp::my_op
