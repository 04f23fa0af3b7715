// a * b
#include "elementwise.h"
#include "sums.h"

namespace extension_cpp::mymul {

const Operator kMyMul{"mymul(Tensor a, Tensor b) -> Tensor", "..., ... -> ..."};
const Operator kMyMulBackward{
    "mymul_backward(Tensor grad_output, Tensor a, Tensor b) -> (Tensor, Tensor)", "..., ..., ... -> =a, =b"};
// The gradient of one factor, which is there for its shape.
const Operator kMyMulFactorBackward{
    "mymul_factor_backward(Tensor grad_output, Tensor other, Tensor factor) -> Tensor", "..., ..., ... -> =factor"};

template <class A>
struct MyMul {
  HOST_DEVICE A operator()(A a, A b) const { return a * b; }
  HOST_DEVICE Values<A, 2> backward(A grad_output, A a, A b) const { return {grad_output * b, grad_output * a}; }
};

std::tuple<Tensor, Tensor> mymul_backward(const Tensor& grad_output, const Tensor& a, const Tensor& b) {
  return elementwise_with_sums<Backward<MyMul>::Formula, 2>(kMyMulBackward, grad_output, a, b);
}

Tensor mymul_factor_backward(const Tensor& grad_output, const Tensor& other, const Tensor& factor) {
  return elementwise_with_sums<MyMul, 1>(kMyMulFactorBackward, grad_output, other, unread(factor));
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kMyMul.schema());
  m.def(kMyMulBackward.schema());
  m.def(kMyMulFactorBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("mymul", TORCH_BOX((elementwise_kernel<kMyMul, MyMul>)));
  m.impl("mymul_backward", TORCH_BOX(&mymul_backward));
  m.impl("mymul_factor_backward", TORCH_BOX(&mymul_factor_backward));
}

}  // namespace extension_cpp::mymul
