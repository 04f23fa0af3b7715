// input * input
#include "checks.h"
#include "elementwise.h"

namespace extension_cpp {
namespace {

struct SquareOperator {
  static void check(const Tensor& input) { check_floating("square", "input", input); }
  static bool elementwise() { return true; }
};

struct SquareBackwardOperator {
  static void check(const Tensor& grad_output, const Tensor& input) {
    check_floating("square_backward", "grad_output", grad_output);
    check_same_dtype("square_backward", "input", input, "grad_output", grad_output);
    check_same_device("square_backward", "input", input, "grad_output", grad_output);
    check_shape("square_backward", "input", input, grad_output.sizes());
  }
  static bool elementwise() { return true; }
};

template <class A>
struct Square {
  HOST_DEVICE A operator()(A input) const { return input * input; }
};

template <class A>
struct SquareBackward {
  HOST_DEVICE A operator()(A grad_output, A input) const { return A(2) * input * grad_output; }
};

Tensor square(const Tensor& input) { return elementwise<Square>(SquareOperator(), input); }

Tensor square_backward(const Tensor& grad_output, const Tensor& input) {
  return elementwise<SquareBackward>(SquareBackwardOperator(), grad_output, input);
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("square", TORCH_BOX(&extension_cpp::square));
  m.impl("square_backward", TORCH_BOX(&extension_cpp::square_backward));
}
