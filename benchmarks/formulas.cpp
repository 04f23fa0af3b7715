// What people write with csrc/elementary.h, as templates/README.md says. Timed by formulas.py.
#include "elementwise.h"
#include "rows.h"

namespace extension_cpp {
namespace {

const Operator kSoftcap{"softcap_formula(Tensor x, float cap) -> Tensor", "*shape -> *shape"};
const Operator kTanhGelu{"tanh_gelu_formula(Tensor x) -> Tensor", "*shape -> *shape"};
const Operator kErfGelu{"erf_gelu_formula(Tensor x) -> Tensor", "*shape -> *shape"};
const Operator kMish{"mish_formula(Tensor x) -> Tensor", "*shape -> *shape"};
const Operator kSwiglu{"swiglu_formula(Tensor gate, Tensor up) -> Tensor", "*shape, *shape -> *shape"};
const Operator kSoftmax{"softmax_formula(Tensor x) -> Tensor", "rows n -> rows n"};

template <class A>
struct Softcap {
  Divisor<A> cap;

  HOST_DEVICE A operator()(A x) const { return cap * math::tanh(x / cap); }
};

template <class A>
struct TanhGelu {
  HOST_DEVICE A operator()(A x) const {
    return A(0.5) * x * (A(1) + math::tanh(A(0.7978845608028654) * (x + A(0.044715) * x * x * x)));
  }
};

template <class A>
struct ErfGelu {
  HOST_DEVICE A operator()(A x) const { return A(0.5) * x * (A(1) + math::erf(x * A(0.7071067811865476))); }
};

template <class A>
struct Mish {
  HOST_DEVICE A operator()(A x) const { return x * math::tanh(math::softplus(x)); }
};

template <class A>
struct Swiglu {
  HOST_DEVICE A operator()(A gate, A up) const { return gate * math::sigmoid(gate) * up; }
};

template <class T>
struct Softmax {
  T* output;  // [rows, cols]

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    using A = acc_t<T>;
    const A max = row.max();
    const auto powers = row.keep([=](A x) { return math::exp(x - max); });
    const Divisor<A> total = row.sum([](A /*x*/, A power) { return power; }, powers);
    row.write(output, [=](A /*x*/, A power) { return power / total; }, powers);
  }
};

Tensor softcap_formula(const Tensor& x, double cap) { return elementwise<Softcap>(kSoftcap, x, cap); }
Tensor tanh_gelu_formula(const Tensor& x) { return elementwise<TanhGelu>(kTanhGelu, x); }
Tensor erf_gelu_formula(const Tensor& x) { return elementwise<ErfGelu>(kErfGelu, x); }
Tensor mish_formula(const Tensor& x) { return elementwise<Mish>(kMish, x); }
Tensor swiglu_formula(const Tensor& gate, const Tensor& up) { return elementwise<Swiglu>(kSwiglu, gate, up); }

Tensor softmax_formula(const Tensor& x) { return rowwise<Softmax>(kSoftmax, x); }

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY(formulas, m) {
  m.def(extension_cpp::kSoftcap.schema());
  m.def(extension_cpp::kTanhGelu.schema());
  m.def(extension_cpp::kErfGelu.schema());
  m.def(extension_cpp::kMish.schema());
  m.def(extension_cpp::kSwiglu.schema());
  m.def(extension_cpp::kSoftmax.schema());
}

TORCH_LIBRARY_IMPL(formulas, BACKEND, m) {
  m.impl("softcap_formula", TORCH_BOX(&extension_cpp::softcap_formula));
  m.impl("tanh_gelu_formula", TORCH_BOX(&extension_cpp::tanh_gelu_formula));
  m.impl("erf_gelu_formula", TORCH_BOX(&extension_cpp::erf_gelu_formula));
  m.impl("mish_formula", TORCH_BOX(&extension_cpp::mish_formula));
  m.impl("swiglu_formula", TORCH_BOX(&extension_cpp::swiglu_formula));
  m.impl("softmax_formula", TORCH_BOX(&extension_cpp::softmax_formula));
}
