// Formulas whose tensors are not what their loops take, and what writes several results to tensors that are there;
// tests/test_several_results.py calls them.
#include "cpu/columns.cpp"
#include "cpu/convert.cpp"
#include "cpu/elements.cpp"
#include "cpu/elementwise.cpp"
#include "cpu/partials.cpp"
#include "elementwise.h"
#include "notation.cpp"
#include "operator.cpp"
#include "packed.h"
#include "sum_dims.cpp"
#include "sums.h"

namespace {

using extension_cpp::elementwise_kernel;
using extension_cpp::Operator;
using extension_cpp::Tensor;
using extension_cpp::Values;

const Operator kMask{"mask(Tensor x) -> (Tensor, Tensor)", "*shape -> *shape, *shape:bool"};
const Operator kFirst{"first(Tensor x) -> (Tensor, Tensor)", "*rows n -> *rows n, n"};
const Operator kMasked{"masked(Tensor x, Tensor mask) -> Tensor", "*shape, *shape:bool -> *shape"};
const Operator kScaleRows{"scale_rows(Tensor x, Tensor scale) -> Tensor", "*rows n, *rows -> *rows n"};
const Operator kOneWeight{"one_weight(Tensor x, Tensor weight) -> Tensor", "*shape, 1 -> *shape"};
const Operator kRowSums{
    "row_sums(Tensor x, Tensor y, Tensor scale) -> (Tensor, Tensor)", "*rows n, *rows n, *rows -> *rows n, *rows"};
const Operator kSums{"sums(Tensor x, Tensor y, Tensor scale) -> (Tensor, Tensor)", "..., ..., *_ -> =x, =scale"};
const Operator kTurned{"turned(Tensor x, Tensor weight) -> Tensor", "... 2n, ... n -> ... 2n"};
const Operator kTurnedSums{"turned_sums(Tensor x, Tensor weight) -> (Tensor, Tensor)", "... 2n, ... n -> =x, =weight"};
const Operator kThirds{"thirds(Tensor x) -> Tensor", "*_ -> ()"};
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
struct Products {
  Values<A, 2> operator()(A x, A y, A scale) const { return {x * scale, x * y}; }
};

template <class A>
struct Turned {
  Values<A, 2> operator()(A x1, A x2, A weight) const { return {x2 * weight, -x1 * weight}; }
};

template <class A>
struct TurnedSums {
  Values<A, 3> operator()(A x1, A x2, A weight) const { return {x2 * weight, -x1 * weight, x1 + x2}; }
};

Tensor turned(const Tensor& x, const Tensor& weight) {
  const extension_cpp::CheckedInputs inputs = kTurned.check(x, weight);
  const auto [x1, x2] = extension_cpp::parts<2>(x);
  Tensor output = inputs.new_output();
  auto results = extension_cpp::parts<2>(output);
  extension_cpp::elementwise_into<Turned>(results, x1, x2, weight);
  return output;
}

std::tuple<Tensor, Tensor> turned_sums(const Tensor& x, const Tensor& weight) {
  const extension_cpp::CheckedInputs inputs = kTurnedSums.check(x, weight);
  const auto [x1, x2] = extension_cpp::parts<2>(x);
  Tensor output = inputs.new_output(0);
  Tensor sums = inputs.new_output(1);
  auto results = extension_cpp::joined(extension_cpp::parts<2>(output), extension_cpp::parts<1>(sums));
  extension_cpp::elementwise_with_sums_into<TurnedSums>(kTurnedSums, results, x1, x2, weight);
  return {output, sums};
}

Tensor thirds(const Tensor& x) { return extension_cpp::parts<3>(x)[2]; }

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

std::tuple<Tensor, Tensor> row_sums(const Tensor& x, const Tensor& y, const Tensor& scale) {
  return extension_cpp::elementwise_with_sums<Products, 2>(kRowSums, x, y, scale);
}

std::tuple<Tensor, Tensor> sums(const Tensor& x, const Tensor& y, const Tensor& scale) {
  return extension_cpp::elementwise_with_sums<Products, 2>(kSums, x, y, scale);
}

}  // namespace

TORCH_LIBRARY(extension_cpp_formulas, m) {
  for (const Operator* op :
       {&kMask, &kFirst, &kMasked, &kOneWeight, &kRowSums, &kSums, &kScaleRows, &kConjugate, &kMove, &kTurned,
        &kTurnedSums, &kThirds}) {
    m.def(op->schema());
  }
}

TORCH_LIBRARY_IMPL(extension_cpp_formulas, CPU, m) {
  m.impl("mask", TORCH_BOX((elementwise_kernel<kMask, Mask>)));
  m.impl("first", TORCH_BOX((elementwise_kernel<kFirst, Mask>)));
  m.impl("masked", TORCH_BOX((elementwise_kernel<kMasked, Product>)));
  m.impl("scale_rows", TORCH_BOX((elementwise_kernel<kScaleRows, Product>)));
  m.impl("one_weight", TORCH_BOX((elementwise_kernel<kOneWeight, Product>)));
  m.impl("row_sums", TORCH_BOX(&row_sums));
  m.impl("sums", TORCH_BOX(&sums));
  m.impl("conjugate", TORCH_BOX((elementwise_kernel<kConjugate, Same>)));
  m.impl("move", TORCH_BOX(&move));
  m.impl("turned", TORCH_BOX(&turned));
  m.impl("turned_sums", TORCH_BOX(&turned_sums));
  m.impl("thirds", TORCH_BOX(&thirds));
}
