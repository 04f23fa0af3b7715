// a * x + b
#include "elementwise.h"
#include "sums.h"

namespace extension_cpp::affine {

const Operator kAffine{"affine(Tensor a, Tensor x, Tensor b) -> Tensor", "..., ..., ... -> ..."};
// b is there for its shape; None where its gradient is grad_output.
const Operator kAffineBackward{
    "affine_backward(Tensor grad_output, Tensor a, Tensor x, Tensor? b=None) -> (Tensor, Tensor, Tensor)",
    "..., ..., ..., ... -> =a, =x, =b"};

template <class A>
struct Affine {
  HOST_DEVICE A operator()(A a, A x, A b) const { return a * x + b; }
  HOST_DEVICE Values<A, 3> backward(A grad_output, A a, A x) const {
    return {grad_output * x, grad_output * a, grad_output};
  }
};

std::tuple<Tensor, Tensor, Tensor> affine_backward(
    const Tensor& grad_output, const Tensor& a, const Tensor& x, const std::optional<Tensor>& b) {
  return elementwise_with_sums<Backward<Affine>::Formula, 2>(kAffineBackward, grad_output, a, x, unread(b));
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kAffine.schema());
  m.def(kAffineBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("affine", TORCH_BOX((elementwise_kernel<kAffine, Affine>)));
  m.impl("affine_backward", TORCH_BOX(&affine_backward));
}

}  // namespace extension_cpp::affine
