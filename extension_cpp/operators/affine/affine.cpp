// a * x + b
#include "columns.h"
#include "elementwise.h"

namespace extension_cpp {
namespace {

const Operator kAffine{"affine(Tensor a, Tensor x, Tensor b) -> Tensor", "..., ..., ... -> ..."};
// The layer: x of shape (..., features) with a and b of shape (features,).
const Operator kAffineBackward{
    "affine_backward(Tensor grad_output, Tensor a, Tensor x) -> (Tensor, Tensor, Tensor)",
    "*rows n, n, *rows n -> n, *rows n, n"};

template <class A>
struct Affine {
  HOST_DEVICE A operator()(A a, A x, A b) const { return a * x + b; }
};

// The gradient of x, and what is summed to those of a and b.
template <class A>
struct AffineBackward {
  HOST_DEVICE WithSums<A, 1, 2> operator()(A grad_output, A a, A x) const {
    return {{grad_output * a}, {grad_output * x, grad_output}};
  }
};

Tensor affine(const Tensor& a, const Tensor& x, const Tensor& b) { return elementwise<Affine>(kAffine, a, x, b); }

std::tuple<Tensor, Tensor, Tensor> affine_backward(const Tensor& grad_output, const Tensor& a, const Tensor& x) {
  auto [grad_x, grad_a, grad_b] = elementwise_with_column_sums<AffineBackward>(kAffineBackward, grad_output, a, x);
  return {std::move(grad_a), std::move(grad_x), std::move(grad_b)};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(extension_cpp::kAffine.schema());
  m.def(extension_cpp::kAffineBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("affine", TORCH_BOX(&extension_cpp::affine));
  m.impl("affine_backward", TORCH_BOX(&extension_cpp::affine_backward));
}
