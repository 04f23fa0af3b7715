// a * b + c
#include "elementwise.h"

namespace extension_cpp {
namespace {

const Operator kMyMulAdd{"mymuladd(Tensor a, Tensor b, float c) -> Tensor", "*shape, *shape -> *shape"};

template <class A>
struct MyMulAdd {
  A c;

  HOST_DEVICE A operator()(A a, A b) const { return a * b + c; }
};

Tensor mymuladd(const Tensor& a, const Tensor& b, double c) { return elementwise<MyMulAdd>(kMyMulAdd, a, b, c); }

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) { m.def(extension_cpp::kMyMulAdd.schema()); }

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) { m.impl("mymuladd", TORCH_BOX(&extension_cpp::mymuladd)); }
