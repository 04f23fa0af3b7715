#include "myadd_out.h"

#include "cpu/elementwise.h"

namespace extension_cpp {
namespace {

void myadd_out_cpu(const Tensor& a, const Tensor& b, Tensor& out) {
  check_myadd_out(a, b, out);
  dispatch_floating(out.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::elementwise<T>(MyAddOut<acc_t<T>>{}, out, a, b);
  });
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) { m.impl("myadd_out", TORCH_BOX(&extension_cpp::myadd_out_cpu)); }
