// Formulas of tensors of several dtypes, for tests/test_mixed_dtypes.py: in a library of their own, and in a package.
#include "elementwise.h"
#include "sums.h"

namespace extension_cpp::mixed {

const Operator kMasked{"masked(Tensor x, Tensor mask, float value) -> Tensor", "..., ...:bool -> ..."};
const Operator kCodes{
    "codes(Tensor x, Tensor scale, Tensor offset) -> (Tensor, Tensor, Tensor)",
    "..., ...:float32, ...:int16 -> ...:int8, ..., ...:bool"};
const Operator kStep{
    "step(Tensor(a!) param, Tensor grad, Tensor(b!) moment, float rate, float decay) -> ()", "*s, *s, *s:sum ->"};
const Operator kPlaces{"places(Tensor index, Tensor offset) -> Tensor", "...:int64, ...:int32 -> ...:int64"};
const Operator kLess{"less(Tensor a, Tensor b) -> Tensor", "..., ... -> ...:bool"};
const Operator kWide{
    "wide(Tensor a, Tensor b, Tensor c) -> (Tensor, Tensor)", "...:uint8, ..., ...:float64 -> ...:float64, ...:sum"};
const Operator kCounted{"counted(Tensor x, Tensor mask) -> Tensor", "..., ...:bool -> ..."};
const Operator kTwice{"twice(Tensor x) -> (Tensor, Tensor)", "... -> ..., ..."};
const Operator kGated{
    "gated(Tensor grad, Tensor x, Tensor mask, Tensor weight, Tensor count, Tensor? bias) -> (Tensor, Tensor, Tensor)",
    "..., ..., ...:bool, ..., ...:int64, ... -> =x, =weight, =bias"};
// The same with a count that every dtype holds.
const Operator kShaded{
    "shaded(Tensor grad, Tensor x, Tensor mask, Tensor weight, Tensor count, Tensor? bias) -> (Tensor, Tensor, Tensor)",
    "..., ..., ...:bool, ..., ...:int8, ... -> =x, =weight, =bias"};
const Operator kSmall{
    "small(Tensor x, Tensor four, Tensor five, Tensor half) -> (Tensor, Tensor, Tensor, Tensor)",
    "..., ...:float8_e4m3fn, ...:float8_e5m2, ...:bfloat16 -> ...:float8_e4m3fn, ...:float8_e5m2, ...:float16, ..."};
const Operator kUnfit{"unfit(Tensor x, Tensor mask) -> Tensor", "..., ...:any -> ..."};

template <class A>
struct Masked {
  A value;

  HOST_DEVICE A operator()(A x, bool mask) const { return mask ? value : x; }
};

template <class A>
struct Chosen {
  HOST_DEVICE A operator()(A x, bool mask) const { return mask ? x : A(0); }
};

template <class A>
struct Codes {
  HOST_DEVICE Results<int8_t, A, bool> operator()(A x, float scale, int16_t offset) const {
    const A scaled = x * A(scale);
    return {static_cast<int8_t>(scaled + A(offset)), scaled, scaled > A(offset)};
  }
};

template <class A>
struct Step {
  A rate;
  A decay;

  HOST_DEVICE Results<A, SumType<A>> operator()(A param, A grad, SumType<A> moment) const {
    const A next = moment * decay + grad;
    return {param - rate * next, next};
  }
};

// Of no floating dtype.
template <class A>
struct Places {
  HOST_DEVICE int64_t operator()(int64_t index, int32_t offset) const { return index * 3 + offset; }
};

template <class A>
struct Less {
  HOST_DEVICE bool operator()(A a, A b) const noexcept { return a < b; }
};

template <class A>
struct Wide {
  HOST_DEVICE Results<double, SumType<A>> operator()(uint8_t a, A b, double c) const {
    return {static_cast<double>(a) + c, static_cast<A>(a) * b};
  }
};

template <class A>
struct Counted {
  HOST_DEVICE A operator()(A x, bool mask) const { return x + static_cast<A>(mask); }
};

template <class A>
struct Twice {
  HOST_DEVICE Results<A, A> operator()(A x) const { return {x, x + x}; }
};

// x in float8, and the sums of it and of what the others have. (Of two float8 torch would compute in float8.)
template <class A>
struct Small {
  HOST_DEVICE Results<Float8_e4m3fn, Float8_e5m2, Half, A> operator()(
      A x, Float8_e4m3fn four, Float8_e5m2 five, BFloat16 half) const {
    const auto as_float = static_cast<float>(x);
    return {Float8_e4m3fn(as_float), Float8_e5m2(as_float), Half(as_float + float(half)), x + four + five};
  }
};

// The gradients of (mask ? x * weight : 0) * count + bias.
template <class A, class Count>
struct Counts {
  HOST_DEVICE Values<A, 3> operator()(A grad, A x, bool mask, A weight, Count count) const {
    const A given = (mask ? grad : A(0)) * static_cast<A>(count);
    return {given * weight, given * x, grad};
  }
};
template <class A>
using Gated = Counts<A, int64_t>;
template <class A>
using Shaded = Counts<A, int8_t>;

template <const Operator& op, template <class> class F>
std::tuple<Tensor, Tensor, Tensor> counted(
    const Tensor& grad, const Tensor& x, const Tensor& mask, const Tensor& weight, const Tensor& count,
    const std::optional<Tensor>& bias) {
  return elementwise_with_sums<F, 2>(op, grad, x, mask, weight, count, unread(bias));
}

void step(Tensor& param, const Tensor& grad, Tensor& moment, double rate, double decay) {
  kStep.check(param, grad, moment);
  std::array<Tensor, 2> outputs{param, moment};
  elementwise_into<Step>(outputs, param, grad, moment, rate, decay);
}

}  // namespace extension_cpp::mixed

TORCH_LIBRARY_FRAGMENT(NAMESPACE, m) {
  using namespace extension_cpp::mixed;
  for (const extension_cpp::Operator* op :
       {&kMasked, &kCodes, &kStep, &kPlaces, &kLess, &kWide, &kCounted, &kTwice, &kGated, &kShaded, &kSmall, &kUnfit}) {
    m.def(op->schema());
  }
}

TORCH_LIBRARY_IMPL(NAMESPACE, BACKEND, m) {
  using namespace extension_cpp::mixed;
  using extension_cpp::elementwise_kernel;
  m.impl("masked", TORCH_BOX((elementwise_kernel<kMasked, Masked, double>)));
  m.impl("codes", TORCH_BOX((elementwise_kernel<kCodes, Codes>)));
  m.impl("step", TORCH_BOX(&step));
  m.impl("places", TORCH_BOX((elementwise_kernel<kPlaces, Places>)));
  m.impl("less", TORCH_BOX((elementwise_kernel<kLess, Less>)));
  m.impl("wide", TORCH_BOX((elementwise_kernel<kWide, Wide>)));
  m.impl("counted", TORCH_BOX((elementwise_kernel<kCounted, Counted>)));
  m.impl("twice", TORCH_BOX((elementwise_kernel<kTwice, Twice>)));
  m.impl("gated", TORCH_BOX((&counted<kGated, Gated>)));
  m.impl("shaded", TORCH_BOX((&counted<kShaded, Shaded>)));
  m.impl("small", TORCH_BOX((elementwise_kernel<kSmall, Small>)));
  m.impl("unfit", TORCH_BOX((elementwise_kernel<kUnfit, Chosen>)));
}
