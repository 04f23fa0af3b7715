// a * b
#include "elementwise.h"

namespace extension_cpp {
namespace {

const Operator kMyMul{"mymul(Tensor a, Tensor b) -> Tensor", "*shape, *shape -> *shape"};
const Operator kMyMulBackward{
    "mymul_backward(Tensor grad_output, Tensor a, Tensor b) -> (Tensor, Tensor)",
    "*shape, *shape, *shape -> *shape, *shape"};

template <class A>
struct MyMul {
  HOST_DEVICE A operator()(A a, A b) const { return a * b; }
};

template <class A>
struct MyMulBackward {
  HOST_DEVICE Values<A, 2> operator()(A grad_output, A a, A b) const { return {grad_output * b, grad_output * a}; }
};

Tensor mymul(const Tensor& a, const Tensor& b) { return elementwise<MyMul>(kMyMul, a, b); }

std::tuple<Tensor, Tensor> mymul_backward(const Tensor& grad_output, const Tensor& a, const Tensor& b) {
  return elementwise<MyMulBackward>(kMyMulBackward, grad_output, a, b);
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(extension_cpp::kMyMul.schema());
  m.def(extension_cpp::kMyMulBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("mymul", TORCH_BOX(&extension_cpp::mymul));
  m.impl("mymul_backward", TORCH_BOX(&extension_cpp::mymul_backward));
}
