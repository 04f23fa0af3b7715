// a * x + b
#include "checks.h"
#include "columns.h"
#include "elementwise.h"

namespace extension_cpp {
namespace {

struct AffineOperator {
  static std::vector<int64_t> check(const Tensor& a, const Tensor& x, const Tensor& b) {
    check_floating("affine", "a", a);
    check_same_dtype("affine", "x", x, "a", a);
    check_same_dtype("affine", "b", b, "a", a);
    check_same_device("affine", "x", x, "a", a);
    check_same_device("affine", "b", b, "a", a);
    const std::vector<int64_t> product = check_broadcast("affine", "x", x, "a", a.sizes());
    return check_broadcast("affine", "b", b, "a * x", product);
  }
  static bool elementwise() { return true; }
};

// The layer: x of shape (..., features) with a and b of shape (features,).
struct AffineBackwardOperator {
  static void check(const Tensor& grad_output, const Tensor& a, const Tensor& x) {
    check_floating("affine_backward", "grad_output", grad_output);
    check_same_dtype("affine_backward", "a", a, "grad_output", grad_output);
    check_same_dtype("affine_backward", "x", x, "grad_output", grad_output);
    check_same_device("affine_backward", "a", a, "grad_output", grad_output);
    check_same_device("affine_backward", "x", x, "grad_output", grad_output);
    check_min_dim("affine_backward", "grad_output", grad_output, 1);
    check_shape("affine_backward", "a", a, {grad_output.size(grad_output.dim() - 1)});
    check_shape("affine_backward", "x", x, grad_output.sizes());
  }
};

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

Tensor affine(const Tensor& a, const Tensor& x, const Tensor& b) {
  return elementwise<Affine>(AffineOperator(), a, x, b);
}

std::tuple<Tensor, Tensor, Tensor> affine_backward(const Tensor& grad_output, const Tensor& a, const Tensor& x) {
  auto [grad_x, grad_a, grad_b] =
      elementwise_with_column_sums<AffineBackward>(AffineBackwardOperator(), grad_output, a, x);
  return {std::move(grad_a), std::move(grad_x), std::move(grad_b)};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("affine", TORCH_BOX(&extension_cpp::affine));
  m.impl("affine_backward", TORCH_BOX(&extension_cpp::affine_backward));
}
