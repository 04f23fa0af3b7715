// input * input
#include "elementwise.h"

namespace extension_cpp::square {

const Operator kSquare{"square(Tensor input) -> Tensor", "*shape -> *shape"};
const Operator kSquareBackward{
    "square_backward(Tensor grad_output, Tensor input) -> Tensor", "*shape, *shape -> *shape"};

template <class A>
struct Square {
  HOST_DEVICE A operator()(A input) const { return input * input; }
  HOST_DEVICE A backward(A grad_output, A input) const { return A(2) * input * grad_output; }
};

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kSquare.schema());
  m.def(kSquareBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("square", TORCH_BOX((elementwise_kernel<kSquare, Square>)));
  m.impl("square_backward", TORCH_BOX((elementwise_kernel<kSquareBackward, Backward<Square>::Formula>)));
}

}  // namespace extension_cpp::square
