// EDIT: my_op, in one line.
#include "rows.h"

namespace extension_cpp::my_op {

// EDIT: the shapes; csrc/notation.h explains the lines. The mean has the type of the arithmetic.
const Operator kMyOp{
    "my_op(Tensor input, Tensor other, float alpha=1.0) -> (Tensor, Tensor)", "*rows n, *rows n -> *rows n, *rows:sum"};
const Operator kMyOpBackward{
    "my_op_backward(Tensor grad_output, Tensor input, Tensor mean, float alpha) -> Tensor",
    "*rows n, *rows n, *rows:sum -> *rows n"};

// EDIT: a result for each element, and statistics of the row; rows.h says what a row can do. Every lambda takes an
// element of each tensor.
template <class T>
struct MyOp {
  using A = acc_t<T>;

  T* output;  // [rows, cols]
  A* mean;    // [rows]
  A alpha;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A average = row.sum([](A input, A other) { return input; }) / static_cast<A>(row.cols());
    row.write(output, [*this, average](A input, A other) {
      const A centered = input - average;
      return centered * centered * (A(1) + alpha) + other;
    });
    write_per_row(row, mean, average);
  }
};

// EDIT: the derivative, from the saved mean.
template <class T>
struct MyOpBackward {
  using A = acc_t<T>;

  T* grad_input;  // [rows, cols]
  const A* mean;  // [rows]
  A alpha;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A center = mean[row.index()];
    const auto term = [center](A grad_output, A input) { return A(2) * (input - center) * grad_output; };
    const A average = row.sum(term) / static_cast<A>(row.cols());
    row.write(grad_input, [*this, term, average](A grad_output, A input) {
      return (term(grad_output, input) - average) * (A(1) + alpha);
    });
  }
};

std::tuple<Tensor, Tensor> my_op(const Tensor& input, const Tensor& other, double alpha) {
  return rowwise<MyOp, 2>(kMyOp, input, other, alpha);
}

Tensor my_op_backward(const Tensor& grad_output, const Tensor& input, const Tensor& mean, double alpha) {
  return rowwise<MyOpBackward>(kMyOpBackward, grad_output, input, per_row(mean), alpha);
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
