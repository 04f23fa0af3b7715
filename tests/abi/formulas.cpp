// Formulas whose tensors are not what their loops take, and what writes several results to tensors that are there;
// tests/test_several_results.py calls them.
#include "cpu/convert.cpp"
#include "cpu/elementwise.cpp"
#include "elementwise.h"
#include "notation.cpp"
#include "operator.cpp"

namespace {

using extension_cpp::elementwise_kernel;
using extension_cpp::Operator;
using extension_cpp::Tensor;
using extension_cpp::Values;

const Operator kMask{"mask(Tensor x) -> (Tensor, Tensor)", "*shape -> *shape, *shape:bool"};
const Operator kFirst{"first(Tensor x) -> (Tensor, Tensor)", "*rows n -> *rows n, n"};
const Operator kMasked{"masked(Tensor x, Tensor mask) -> Tensor", "*shape, *shape:bool -> *shape"};
const Operator kScaleRows{"scale_rows(Tensor x, Tensor scale) -> Tensor", "*rows n, *rows -> *rows n"};
const Operator kConjugate{"conjugate(Tensor x) -> Tensor", "*shape:complex64 -> *shape:complex64"};
const Operator kMove{"move(Tensor x, Tensor(a!) to, Tensor(b!) from) -> ()", "..., ..., ... ->"};

template <class A>
struct Mask {
  Values<A, 2> operator()(A x) const { return {x > A(0) ? x : A(0), x > A(0) ? A(1) : A(0)}; }
};

template <class A>
struct Product {
  A operator()(A x, A y) const { return x * y; }
};

template <class A>
struct Same {
  A operator()(A x) const { return x; }
};

template <class A>
struct Move {
  Values<A, 2> operator()(A x, A to, A from) const { return {to + x, from - x}; }
};

void move(const Tensor& x, Tensor& to, Tensor& from) {
  kMove.check(x, to, from);
  std::array<Tensor, 2> outputs{to, from};
  extension_cpp::elementwise_into<Move>(outputs, x, to, from);
}

}  // namespace

TORCH_LIBRARY(extension_cpp_formulas, m) {
  for (const Operator* op : {&kMask, &kFirst, &kMasked, &kScaleRows, &kConjugate, &kMove}) {
    m.def(op->schema());
  }
}

TORCH_LIBRARY_IMPL(extension_cpp_formulas, CPU, m) {
  m.impl("mask", TORCH_BOX((elementwise_kernel<kMask, Mask>)));
  m.impl("first", TORCH_BOX((elementwise_kernel<kFirst, Mask>)));
  m.impl("masked", TORCH_BOX((elementwise_kernel<kMasked, Product>)));
  m.impl("scale_rows", TORCH_BOX((elementwise_kernel<kScaleRows, Product>)));
  m.impl("conjugate", TORCH_BOX((elementwise_kernel<kConjugate, Same>)));
  m.impl("move", TORCH_BOX(&move));
}
