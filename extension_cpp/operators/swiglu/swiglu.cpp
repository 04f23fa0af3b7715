// silu(gate) * up
#include "elementwise.h"
#include "sums.h"

namespace extension_cpp::swiglu {

const Operator kSwiglu{"swiglu(Tensor gate, Tensor up) -> Tensor", "..., ... -> ..."};
const Operator kSwigluBackward{
    "swiglu_backward(Tensor grad_output, Tensor gate, Tensor up) -> (Tensor, Tensor)", "..., ..., ... -> =gate, =up"};

template <class A>
struct Swiglu {
  HOST_DEVICE A operator()(A gate, A up) const { return gate * math::sigmoid(gate) * up; }

  // The gradients of gate and up.
  HOST_DEVICE Values<A, 2> backward(A grad_output, A gate, A up) const {
    const A sigmoid = math::sigmoid(gate);
    return {grad_output * up * sigmoid * (A(1) + gate * (A(1) - sigmoid)), grad_output * (gate * sigmoid)};
  }
};

std::tuple<Tensor, Tensor> swiglu_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up) {
  return elementwise_with_sums<Backward<Swiglu>::Formula, 2>(kSwigluBackward, grad_output, gate, up);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kSwiglu.schema());
  m.def(kSwigluBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("swiglu", TORCH_BOX((elementwise_kernel<kSwiglu, Swiglu>)));
  m.impl("swiglu_backward", TORCH_BOX(&swiglu_backward));
}

}  // namespace extension_cpp::swiglu
