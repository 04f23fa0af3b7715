// a * b
#include "elementwise.h"
#include "sums.h"

namespace extension_cpp::mymul {

const Operator kMyMul{"mymul(Tensor a, Tensor b) -> Tensor", "..., ... -> ..."};
const Operator kMyMulBackward{
    "mymul_backward(Tensor grad_output, Tensor a, Tensor b) -> (Tensor, Tensor)", "..., ..., ... -> =a, =b"};

template <class A>
struct MyMul {
  HOST_DEVICE A operator()(A a, A b) const { return a * b; }
  HOST_DEVICE Values<A, 2> backward(A grad_output, A a, A b) const { return {grad_output * b, grad_output * a}; }
};

std::tuple<Tensor, Tensor> mymul_backward(const Tensor& grad_output, const Tensor& a, const Tensor& b) {
  return elementwise_with_sums<Backward<MyMul>::Formula, 2>(kMyMulBackward, grad_output, a, b);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kMyMul.schema());
  m.def(kMyMulBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("mymul", TORCH_BOX((elementwise_kernel<kMyMul, MyMul>)));
  m.impl("mymul_backward", TORCH_BOX(&mymul_backward));
}

}  // namespace extension_cpp::mymul
