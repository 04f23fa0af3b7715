#include "my_op.h"

#include "cuda/elementwise.cuh"

namespace extension_cpp {
namespace {

void my_op_cuda(Tensor& input, const Tensor& other, double alpha) {
  check_my_op(input, other);
  const DeviceGuard guard(input);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOp<A> f{static_cast<A>(alpha)};
    cuda::elementwise<T>(f, input, input, other);
  });
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) { m.impl("my_op", TORCH_BOX(&extension_cpp::my_op_cuda)); }
