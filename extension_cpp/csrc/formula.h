// Formulas: functors F<A> on values of the accumulation type A, one for both backends.
//
//   template <class A>
//   struct FusedOp {
//     A scale;
//
//     HOST_DEVICE A operator()(A input, A bias) const { ... }
//   };
//
// The host functions that take a formula are given an operator's arguments as they come: tensors, whose elements are
// the arguments of the call, and numbers, which are the members of F in their order.
//
// A number may be one that a kernel before has found: a member InMemory<A>, which is given as in_memory(tensor).
//
// Its derivative may stand beside it, with the same numbers, as a member `backward` of its own arguments and results:
// Backward<FusedOp>::Formula is the formula that this is.
//
// Elementwise formulas may take and give tensors of other dtypes, too: element_types.h.
//
// A formula of many instructions, more than a tanh of half types, gains by saying so (a tanh has some 13, an exp 8):
//
//   static constexpr int kWork = 20;  // instructions for an element, of the derivative in the same functor, too
#pragma once

#include "divisor.h"
#include "elementary.h"
#include "torch_abi.h"
#include "values.h"

#include <array>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace extension_cpp {

// A number in memory, of the arithmetic: what kernels are given is where it is.
template <class A>
class InMemory {
 public:
  explicit InMemory(const A* at)
#ifdef __CUDACC__
      : at_(at){}
#else
      : value_(*at) {
  }
#endif

        HOST_DEVICE operator A() const {
#ifdef __CUDACC__
    return *at_;
#else
    return value_;
#endif
  }

 private:
#ifdef __CUDACC__
  const A* at_;
#else
  A value_;  // which loops over vectors need not look for again
#endif
};

namespace detail {

template <class F, class Call>
struct BackwardFormula {
  static_assert(sizeof(F) == 0, "a formula whose backward() takes elements A and is const");
};

template <class F, class Result, class... Elements>
struct BackwardFormula<F, Result (F::*)(Elements...) const> : F {
  template <class... Numbers>
  explicit BackwardFormula(Numbers... numbers) : F{numbers...} {}

  HOST_DEVICE Result operator()(Elements... elements) const { return this->backward(elements...); }
};

}  // namespace detail

template <template <class> class F>
struct Backward {
  template <class A>
  using Formula = detail::BackwardFormula<F<A>, decltype(&F<A>::backward)>;
};

namespace detail {

// The instructions that a formula says it takes for an element.
template <class F, class = void>
constexpr int kWorkOf = 0;
template <class F>
constexpr int kWorkOf<F, std::void_t<decltype(F::kWork)>> = F::kWork;

template <class Argument>
constexpr bool is_tensor = std::is_same_v<std::decay_t<Argument>, Tensor>;

// A number that becomes whatever a member of a formula is.
template <class N>
struct Number {
  static_assert(std::is_arithmetic_v<N>, "a formula takes tensors and numbers");
  N value;

  template <class To>
  operator To() const {
    return static_cast<To>(value);
  }
};

// One in memory, which becomes an InMemory<A>.
struct NumberInMemory {
  Tensor tensor;

  template <class A>
  operator InMemory<A>() const {
    return InMemory<A>(tensor.const_data_ptr<A>());
  }
};

template <class Argument>
auto tensor_in(const Argument& argument) {
  if constexpr (is_tensor<Argument>) {
    return std::tuple<const Tensor&>(argument);
  } else {
    return std::tuple<>();
  }
}

template <class Argument>
auto number_in(const Argument& argument) {
  if constexpr (is_tensor<Argument>) {
    return std::tuple<>();
  } else {
    return std::tuple(Number<Argument>{argument});
  }
}

inline auto number_in(const NumberInMemory& argument) { return std::tuple(argument); }

template <class... Arguments>
auto tensors_in(const Arguments&... arguments) {
  return std::tuple_cat(tensor_in(arguments)...);
}

template <class A, template <class> class F, class... Arguments>
F<A> make_formula(const Arguments&... arguments) {
  return std::apply([](auto... numbers) { return F<A>{numbers...}; }, std::tuple_cat(number_in(arguments)...));
}

template <class F, class A, size_t... K>
auto result_of(std::index_sequence<K...>) -> decltype(std::declval<const F&>()((static_cast<void>(K), A())...));

// How many results and terms F has for so many tensors.
template <template <class> class F, class... Arguments>
using counts_of = ResultCounts<std::decay_t<decltype(result_of<F<float>, float>(
    std::make_index_sequence<(size_t{0} + ... + (is_tensor<Arguments> ? 1 : 0))>()))>>;

template <class Make, size_t... M>
std::array<Tensor, sizeof...(M)> make_tensors(const Make& make, std::index_sequence<M...>) {
  return {make(M)...};
}

// {make(0), make(1), ...}
template <size_t N, class Make>
std::array<Tensor, N> make_tensors(const Make& make) {
  return make_tensors(make, std::make_index_sequence<N>());
}

// A tensor alone, several as a tuple.
template <size_t N>
auto as_result(std::array<Tensor, N>& tensors) {
  if constexpr (N == 1) {
    return std::move(tensors[0]);
  } else {
    return std::tuple_cat(std::move(tensors));
  }
}

}  // namespace detail

// For a member InMemory<A>: a tensor of one number in the type of the arithmetic, on the device of the others.
inline detail::NumberInMemory in_memory(const Tensor& tensor) { return {tensor}; }

}  // namespace extension_cpp
