// What formulas of elements add up to over whole tensors, for both backends: losses, norms and means of everything.
//
//   const Operator kRmse{"rmse(Tensor x, Tensor target) -> Tensor", "*all, *all -> ()"};
//
//   template <class A>
//   struct SquaredDifference {
//     HOST_DEVICE A operator()(A x, A target) const { return (x - target) * (x - target); }
//   };
//
//   template <class A>
//   struct RootOfMean {
//     Divisor<A> numel;
//
//     HOST_DEVICE A operator()(SumType<A> total) const { return std::sqrt(A(total) / numel); }
//   };
//
//   Tensor rmse(const Tensor& x, const Tensor& target) {
//     const CheckedInputs inputs = kRmse.check(x, target);
//     Tensor output = inputs.new_output();
//     std::array<Tensor, 1> sums{new_sum(x)};
//     totals_into<SquaredDifference>(sums, x, target);
//     elementwise_into<RootOfMean>(output, sums[0], double(x.numel()));
//     return output;
//   }
//
// Sums have a fixed order, and are rounded once. What is found stays where it is: a formula of elements takes it as a
// number in memory, in_memory(sums[0]) for a member InMemory<A>, and a formula of numbers as a tensor, as above.
#pragma once

#include "dispatch.h"
#include "elementwise.h"
#include "sum_output.h"
#include "torch_abi.h"

#ifdef __CUDACC__
#include "cuda/totals.cuh"
#else
#include "cpu/totals.h"
#endif

#include <algorithm>
#include <array>

namespace extension_cpp {

// One number, in the type of the arithmetic for a tensor.
inline Tensor new_sum(const Tensor& like) { return new_empty(like, {}, sum_dtype(dtype_of(like))); }

// A view of a tensor's first element, where it has one.
inline Tensor first_element(const Tensor& tensor) {
  return tensor.numel() > 0 ? view_of(tensor, {}, {}, 0) : new_empty(tensor, {});
}

namespace detail {

template <template <class> class F, class... E, size_t M, class... Inputs, class... Arguments>
void compute_totals(
    Types<E...> elements, std::array<Tensor, M>& sums, std::tuple<const Inputs&...> tensors,
    const Arguments&... arguments) {
  std::apply(
      [&](const Tensor& first, const auto&... others) {
        constexpr const char* kName = "totals_into";
        // Where no tensor has the operator's dtype, a sum may; else that of the arithmetic does.
        ScalarType own = dtype_of(*std::min_element(sums.begin(), sums.end(), [](const Tensor& a, const Tensor& b) {
          return a.element_size() < b.element_size();
        }));
        const auto look = [&](auto element, const Tensor& tensor) {
          own = std::is_same_v<decltype(element), Own> ? dtype_of(tensor) : own;
        };
        std::apply([&](const auto&... all) { (look(E(), all), ...); }, tensors);
        std::apply([&](const auto&... all) { check_inputs(kName, elements, own, first.sizes(), all...); }, tensors);
        (check_fits(kName, first.sizes(), others.sizes(), false), ...);
        const DeviceGuard guard(first);
        dispatch_floating(own, [&](auto tag) {
          using T = typename decltype(tag)::type;
          const auto f = make_formula<acc_t<T>, F>(arguments...);
          std::array<SumOutput<T>, M> to;
          std::transform(sums.begin(), sums.end(), to.begin(), [](Tensor& sum) { return SumOutput<T>::of(sum); });
          backend::totals<T>(f, elements, to, first, others...);
        });
      },
      tensors);
}

}  // namespace detail

// sums[m] = the sum of result m of F<A>{numbers...} over all elements of the tensors, which have one shape: tensors of
// one number, of the operator's dtype or that of the arithmetic. F gives A, or Values<A, M>; what it takes may be of
// several dtypes (element_types.h). The operator has checked its arguments.
template <template <class> class F, size_t M, class... Arguments>
void totals_into(std::array<Tensor, M>& sums, const Arguments&... arguments) {
  static_assert(detail::counts_of<F, Arguments...>::results == M, "a sum for each result of the formula");
  const auto tensors = detail::tensors_in(arguments...);
  constexpr size_t kInputs = std::tuple_size_v<decltype(tensors)>;
  static_assert(kInputs > 0, "a formula of elements");
  detail::compute_totals<F>(detail::elements_of<F, kInputs>(), sums, tensors, arguments...);
}

}  // namespace extension_cpp
