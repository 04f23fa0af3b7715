// Elementwise operators, for both backends: one result, or several, of one formula for every element.
//
//   m.impl("square", TORCH_BOX((elementwise_kernel<kSquare, Square>)));
//
// Where more is to be done than that, a host function calls what is under it:
//
//   Tensor square(const Tensor& input) { return elementwise<Square>(kSquare, input); }
//
// Tensors of any layout, which broadcast where the operator says so: rows and columns of numbers, and single ones, are
// read where they are. Of one dtype, or of those that the types of the formula say: element_types.h.
#pragma once

#include "backend.h"
#include "dispatch.h"
#include "element_types.h"
#include "formula.h"
#include "operator.h"

#ifdef __CUDACC__
#include "cuda/elementwise.cuh"
#include "cuda/mixed.cuh"
#else
#include "cpu/elementwise.h"
#endif

#include <algorithm>
#include <array>

namespace extension_cpp {

namespace detail {

// Loops go by one shape, which others have or broadcast to: by any other they would read and write what is not there.
inline void check_fits(const char* op, IntArrayRef whole, IntArrayRef sizes, bool broadcasts) {
  bool fits = broadcasts || sizes.size() == whole.size();
  for (size_t d = 1; fits && d <= sizes.size(); ++d) {  // from the last dimension
    const int64_t size = sizes[sizes.size() - d];
    fits = (d <= whole.size() && size == whole[whole.size() - d]) || (broadcasts && size == 1);
  }
  check(
      fits, op, ": a formula ", broadcasts ? "takes tensors that broadcast to " : "gives results of one shape, ", whole,
      ", got ", sizes);
}

// And they take and give elements of one dtype, but where the types of a formula say another.
template <class Element>
void check_dtype_of(const char* op, Element /*element*/, ScalarType own, const Tensor& tensor) {
  const ScalarType dtype = dtype_of(tensor);
  if constexpr (std::is_same_v<Element, Own>) {
    check(dtype == own, op, ": a formula takes and gives one dtype, got ", own, " and ", dtype);
  } else {
    const ScalarType wanted = dtype_of_element<Element>(own);
    check(dtype == wanted, op, ": by its types a formula takes or gives ", wanted, " here, got ", dtype);
  }
}

// The dtype for which A stands: that of the first tensor that has it, results first. Where none has, it may be any.
template <class... R, class... E, size_t M, class... Inputs>
ScalarType own_dtype(
    const char* op, Types<R...> /*results*/, Types<E...> /*elements*/, const std::array<Tensor, M>& outputs,
    const Inputs&... inputs) {
  const Tensor* found = nullptr;
  const auto look = [&](bool is_own, const Tensor& tensor) { found = is_own && found == nullptr ? &tensor : found; };
  size_t m = 0;
  (look(std::is_same_v<R, Own>, outputs[m++]), ...);
  (look(std::is_same_v<E, Own>, inputs), ...);
  if (found == nullptr) {
    return ScalarType::Float;
  }
  check_floating(op, found == &outputs[0] ? "the result of a formula" : "what a formula takes", *found);
  return dtype_of(*found);
}

// What a formula takes, which broadcasts to `whole`.
template <class... E, class... Inputs>
void check_inputs(
    const char* op, Types<E...> /*elements*/, ScalarType own, IntArrayRef whole, const Inputs&... inputs) {
  (check_dtype_of(op, E(), own, inputs), ...);
  (check_fits(op, whole, inputs.sizes(), true), ...);
}

// Returns the dtype for which A stands.
template <class... R, class... E, size_t M, class... Inputs>
ScalarType check_operands(
    const char* op, Types<R...> results, Types<E...> elements, const std::array<Tensor, M>& outputs,
    const Inputs&... inputs) {
  static_assert(sizeof...(R) == M, "an output for each result of the formula");
  const ScalarType own = own_dtype(op, results, elements, outputs, inputs...);
  for (size_t m = 1; m < M; ++m) {
    check_fits(op, outputs[0].sizes(), outputs[m].sizes(), false);
  }
  size_t m = 0;
  (check_dtype_of(op, R(), own, outputs[m++]), ...);
  check_inputs(op, elements, own, outputs[0].sizes(), inputs...);
  return own;
}

// Of tensors that have been checked, and the dtype for which A stands.
template <template <class> class F, size_t M, class... Arguments>
void compute_elementwise(ScalarType own, std::array<Tensor, M>& outputs, const Arguments&... arguments) {
  static_assert(counts_of<F, Arguments...>::results == M, "an output for each result of the formula");
  static_assert(counts_of<F, Arguments...>::terms == 0, "elementwise_with_column_sums, in columns.h");
  std::apply(
      [&](const auto&... tensors) {
        dispatch_floating(own, [&](auto tag) {
          using T = typename decltype(tag)::type;
          const auto f = make_formula<acc_t<T>, F>(arguments...);
          if constexpr (is_mixed<F>) {
            backend::mixed_elementwise<T>(
                f, results_of<F, M>(), elements_of<F, sizeof...(tensors)>(), outputs, tensors...);
          } else {
            backend::elementwise<T>(f, outputs, tensors...);
          }
        });
      },
      tensors_in(arguments...));
}

// As check_operands, of a formula.
template <template <class> class F, size_t M, class... Inputs>
ScalarType check_operands_of(const char* op, const std::array<Tensor, M>& outputs, const Inputs&... inputs) {
  return check_operands(op, results_of<F, M>(), elements_of<F, sizeof...(Inputs)>(), outputs, inputs...);
}

}  // namespace detail

// F<A>{numbers...} for every element of the tensors: a tensor, or a tuple of as many as F has results.
template <template <class> class F, class... Arguments>
auto elementwise(const Operator& op, const Arguments&... arguments) {
  constexpr size_t kOutputs = detail::counts_of<F, Arguments...>::results;
  return std::apply(
      [&](const Tensor& first, const auto&... others) {
        const CheckedInputs inputs = op.check(first, others...);
        op.check_broadcasts();
        const DeviceGuard guard(first);
        auto outputs = detail::make_tensors<kOutputs>([&](size_t k) { return inputs.new_output(k); });
        const ScalarType own = detail::check_operands_of<F>(op.name(), outputs, first, others...);
        detail::compute_elementwise<F>(own, outputs, arguments...);
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
template <const Operator& op, template <class> class F, class Of, class Result, class... Elements, class... Numbers>
struct ElementwiseKernel<op, F, Result (Of::*)(Elements...) const noexcept, Numbers...>
    : ElementwiseKernel<op, F, Result (Of::*)(Elements...) const, Numbers...> {};

}  // namespace detail

// That as a kernel to register, for a schema of as many tensors as the formula takes elements, and then of its numbers,
// whose types in C++ follow: elementwise_kernel<kMyMulAdd, MyMulAdd, double>. In TORCH_BOX it has parentheses of its
// own, for the comma.
template <const Operator& op, template <class> class F, class... Numbers>
constexpr auto elementwise_kernel =
    &detail::ElementwiseKernel<op, F, decltype(&F<float>::operator()), Numbers...>::call;

namespace detail {

// The dtype for which A stands, where no tensor says it: that of numbers in memory, which are of the arithmetic.
inline void look_for_number(ScalarType& found, const NumberInMemory& number) { found = dtype_of(number.tensor); }
template <class Argument>
void look_for_number(ScalarType& /*found*/, const Argument& /*argument*/) {}

template <class... R, class... E>
constexpr bool has_own(Types<R...> /*results*/, Types<E...> /*elements*/) {
  return (std::is_same_v<R, Own> || ...) || (std::is_same_v<E, Own> || ...);
}

}  // namespace detail

// The same into tensors of any layout that are there already, and have been checked by the operator.
template <template <class> class F, size_t M, class... Arguments>
void elementwise_into(std::array<Tensor, M>& outputs, const Arguments&... arguments) {
  const auto tensors = detail::tensors_in(arguments...);
  ScalarType own = std::apply(
      [&](const auto&... inputs) { return detail::check_operands_of<F>("elementwise_into", outputs, inputs...); },
      tensors);
  constexpr size_t kInputs = std::tuple_size_v<decltype(tensors)>;
  if constexpr (!detail::has_own(detail::results_of<F, M>(), detail::elements_of<F, kInputs>())) {
    (detail::look_for_number(own, arguments), ...);
  }
  const DeviceGuard guard(outputs[0]);
  // Loops write to one layout.
  const bool alike = std::all_of(
      outputs.begin(), outputs.end(), [&](const Tensor& output) { return same_layout(output, outputs[0]); });
  std::array<Tensor, M> to = outputs;
  for (size_t m = 0; m < M && !alike; ++m) {
    to[m] = m == 0 ? new_elementwise(outputs[0].sizes(), outputs[0])
                   : empty_with_strides(outputs[m], to[0].sizes(), to[0].strides());
  }
  detail::compute_elementwise<F>(own, to, arguments...);
  for (size_t m = 0; m < M && !alike; ++m) {
    copy_into(outputs[m], to[m]);
  }
}

// Into one.
template <template <class> class F, class... Arguments>
void elementwise_into(Tensor& output, const Arguments&... arguments) {
  std::array<Tensor, 1> outputs{output};
  elementwise_into<F>(outputs, arguments...);
}

}  // namespace extension_cpp
