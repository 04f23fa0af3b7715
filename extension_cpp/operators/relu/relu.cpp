// max(input, 0)
#include "elementwise.h"

namespace extension_cpp::relu {

const Operator kRelu{"relu(Tensor input) -> Tensor", "*shape -> *shape"};
const Operator kReluBackward{"relu_backward(Tensor grad_output, Tensor output) -> Tensor", "*shape, *shape -> *shape"};

template <class A>
struct Relu {
  HOST_DEVICE A operator()(A input) const {
    return input < A(0) ? A(0) : input;  // in this order NaN stays NaN
  }

  HOST_DEVICE A backward(A grad_output, A output) const { return output <= A(0) ? A(0) : grad_output; }
};

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kRelu.schema());
  m.def(kReluBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("relu", TORCH_BOX((elementwise_kernel<kRelu, Relu>)));
  m.impl("relu_backward", TORCH_BOX((elementwise_kernel<kReluBackward, Backward<Relu>::Formula>)));
}

}  // namespace extension_cpp::relu
