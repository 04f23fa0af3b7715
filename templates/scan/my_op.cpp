// EDIT: my_op, in one line.
#include "scan.h"

namespace extension_cpp::my_op {

// EDIT: the shapes; csrc/notation.h explains the lines.
const Operator kMyOp{"my_op(Tensor input, Tensor other, float alpha=1.0) -> Tensor", "*rows n, *rows n -> *rows n"};
const Operator kMyOpBackward{
    "my_op_backward(Tensor grad_output, Tensor input, float alpha) -> Tensor", "*rows n, *rows n -> *rows n"};

// EDIT: what a step makes of the state, in next(), which is linear in it; the factor there; and what is written.
// scan.h says what else there is: a decay for each step, a state to begin with, any dimension for time.
template <class A>
struct MyOp {
  A alpha;

  HOST_DEVICE A factor(A input, A other) const { return A(1); }
  HOST_DEVICE A next(A state, A input, A other) const { return state + (input * input * (A(1) + alpha) + other); }
  HOST_DEVICE A results(A before, A after, A input, A other) const { return after; }
};

// EDIT: the derivative. Its state is the gradient with respect to that of the forward, from the last step on.
template <class A>
struct MyOpBackward {
  static constexpr bool kReverse = true;

  A alpha;

  HOST_DEVICE A factor(A grad, A input) const { return A(1); }
  HOST_DEVICE A next(A state, A grad, A input) const { return state + grad; }
  HOST_DEVICE A results(A before, A after, A grad, A input) const { return after * A(2) * input * (A(1) + alpha); }
};

Tensor my_op(const Tensor& input, const Tensor& other, double alpha) {
  return scanned<MyOp>(kMyOp, input, other, alpha);
}

Tensor my_op_backward(const Tensor& grad_output, const Tensor& input, double alpha) {
  return scanned<MyOpBackward>(kMyOpBackward, grad_output, input, alpha);
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
