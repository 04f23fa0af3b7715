#include "my_op.h"

#include "cpu/elementwise.h"

namespace extension_cpp {
namespace {

void my_op_cpu(Tensor& input, const Tensor& other, double alpha) {
  check_my_op(input, other);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const MyOp<A> f{static_cast<A>(alpha)};
    cpu::elementwise<T>(f, input, input, other);
  });
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) { m.impl("my_op", TORCH_BOX(&extension_cpp::my_op_cpu)); }
