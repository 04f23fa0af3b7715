// Elementwise operators, for both backends: one result, or several, of one formula for every element.
//
//   m.impl("square", TORCH_BOX((elementwise_kernel<kSquare, Square>)));
//
// Where more is to be done than that, a host function calls what is under it:
//
//   Tensor square(const Tensor& input) { return elementwise<Square>(kSquare, input); }
//
// Tensors of any layout, which broadcast where the operator says so: rows and columns of numbers, and single ones, are
// read where they are.
#pragma once

#include "backend.h"
#include "dispatch.h"
#include "formula.h"
#include "operator.h"

#ifdef __CUDACC__
#include "cuda/elementwise.cuh"
#else
#include "cpu/elementwise.h"
#endif

namespace extension_cpp {

namespace detail {

template <template <class> class F, size_t M, class... Arguments>
void compute_elementwise(std::array<Tensor, M>& outputs, const Arguments&... arguments) {
  static_assert(counts_of<F, Arguments...>::results == M, "an output for each result of the formula");
  static_assert(counts_of<F, Arguments...>::terms == 0, "elementwise_with_column_sums, in columns.h");
  std::apply(
      [&](const auto&... tensors) {
        dispatch_floating(outputs[0].scalar_type(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          backend::elementwise<T>(make_formula<acc_t<T>, F>(arguments...), outputs, tensors...);
        });
      },
      tensors_in(arguments...));
}

}  // namespace detail

// F<A>{numbers...} for every element of the tensors: a tensor, or a tuple of as many as F has results.
template <template <class> class F, class... Arguments>
auto elementwise(const Operator& op, const Arguments&... arguments) {
  constexpr size_t kOutputs = detail::counts_of<F, Arguments...>::results;
  return std::apply(
      [&](const Tensor& first, const auto&... others) {
        const CheckedInputs inputs = op.check(first, others...);
        const DeviceGuard guard(first);
        auto outputs = detail::make_tensors<kOutputs>([&](size_t k) { return inputs.new_output(k); });
        detail::compute_elementwise<F>(outputs, arguments...);
        return detail::as_result(outputs);
      },
      detail::tensors_in(arguments...));
}

namespace detail {

template <const Operator& op, template <class> class F, class Call, class... Numbers>
struct ElementwiseKernel {
  static_assert(sizeof...(Numbers) < 0, "a formula whose operator() takes elements A and is const");
};

template <const Operator& op, template <class> class F, class Of, class Result, class... Elements, class... Numbers>
struct ElementwiseKernel<op, F, Result (Of::*)(Elements...) const, Numbers...> {
  template <class Element>
  using Given = const Tensor&;

  static auto call(Given<Elements>... tensors, Numbers... numbers) {
    return elementwise<F>(op, tensors..., numbers...);
  }
};

}  // namespace detail

// That as a kernel to register, for a schema of as many tensors as the formula takes elements, and then of its numbers,
// whose types in C++ follow: elementwise_kernel<kMyMulAdd, MyMulAdd, double>. In TORCH_BOX it has parentheses of its
// own, for the comma.
template <const Operator& op, template <class> class F, class... Numbers>
constexpr auto elementwise_kernel =
    &detail::ElementwiseKernel<op, F, decltype(&F<float>::operator()), Numbers...>::call;

// The same into tensors that are there already, and have been checked: each overlaps no other argument, unless it is
// exactly that.
template <template <class> class F, size_t M, class... Arguments>
void elementwise_into(std::array<Tensor, M>& outputs, const Arguments&... arguments) {
  const DeviceGuard guard(outputs[0]);
  detail::compute_elementwise<F>(outputs, arguments...);
}

// Into one.
template <template <class> class F, class... Arguments>
void elementwise_into(Tensor& output, const Arguments&... arguments) {
  std::array<Tensor, 1> outputs{output};
  elementwise_into<F>(outputs, arguments...);
}

}  // namespace extension_cpp
