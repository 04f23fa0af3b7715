// a * b
#include "elementwise.h"

namespace extension_cpp::mymul {

const Operator kMyMul{"mymul(Tensor a, Tensor b) -> Tensor", "*shape, *shape -> *shape"};
const Operator kMyMulBackward{
    "mymul_backward(Tensor grad_output, Tensor a, Tensor b) -> (Tensor, Tensor)",
    "*shape, *shape, *shape -> *shape, *shape"};

template <class A>
struct MyMul {
  HOST_DEVICE A operator()(A a, A b) const { return a * b; }
  HOST_DEVICE Values<A, 2> backward(A grad_output, A a, A b) const { return {grad_output * b, grad_output * a}; }
};

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kMyMul.schema());
  m.def(kMyMulBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("mymul", TORCH_BOX((elementwise_kernel<kMyMul, MyMul>)));
  m.impl("mymul_backward", TORCH_BOX((elementwise_kernel<kMyMulBackward, Backward<MyMul>::Formula>)));
}

}  // namespace extension_cpp::mymul
