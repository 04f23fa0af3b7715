// a * b
#include "elementwise.h"

namespace extension_cpp {
namespace {

const Operator kMyMul{"mymul(Tensor a, Tensor b) -> Tensor", "*shape, *shape -> *shape"};

template <class A>
struct MyMul {
  HOST_DEVICE A operator()(A a, A b) const { return a * b; }
};

Tensor mymul(const Tensor& a, const Tensor& b) { return elementwise<MyMul>(kMyMul, a, b); }

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) { m.def(extension_cpp::kMyMul.schema()); }

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) { m.impl("mymul", TORCH_BOX(&extension_cpp::mymul)); }
