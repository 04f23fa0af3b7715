#include "mymuladd.h"

#include "cpu/elementwise.h"

namespace extension_cpp {
namespace {

Tensor mymuladd_cpu(const Tensor& a, const Tensor& b, double c) {
  check_mymuladd(a, b);
  Tensor output = new_elementwise(a.sizes(), a, b);
  dispatch_floating(a.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    cpu::elementwise<T>(MyMulAdd<A>{static_cast<A>(c)}, output, a, b);
  });
  return output;
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) { m.impl("mymuladd", TORCH_BOX(&extension_cpp::mymuladd_cpu)); }
