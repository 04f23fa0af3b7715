// Elementwise operators some of whose results are sums, for both backends, in one pass over memory: the backward of
// operands that broadcast.
//
//   const Operator kAffineBackward{
//       "affine_backward(Tensor grad_output, Tensor a, Tensor x, Tensor? b) -> (Tensor, Tensor, Tensor)",
//       "..., ..., ..., ... -> =a, =x, =b"};
//
//   template <class A>
//   struct Affine {
//     HOST_DEVICE Values<A, 3> backward(A grad_output, A a, A x) const {
//       return {grad_output * x, grad_output * a, grad_output};
//     }
//   };
//
//   auto [grad_a, grad_x, grad_b] =
//       elementwise_with_sums<Backward<Affine>::Formula, 2>(kAffineBackward, grad_output, a, x, unread(b));
//
// What it takes may be of several dtypes (element_types.h); what it gives is of the operator's own, or of that of the
// arithmetic, Results<A, SumType<A>>.
#pragma once

#include "backend.h"
#include "dispatch.h"
#include "elementwise.h"
#include "formula.h"
#include "matrix_view.h"
#include "operator.h"
#include "sum_dims.h"
#include "sum_output.h"

#ifdef __CUDACC__
#include "cuda/columns.cuh"
#else
#include "cpu/columns.h"
#endif

#include <limits>
#include <tuple>
#include <type_traits>

namespace extension_cpp {

namespace detail {

// An argument that is there for its shape.
struct Unread {
  std::optional<Tensor> tensor;
};

inline std::tuple<> number_in(const Unread& /*argument*/) { return {}; }

template <class Argument>
auto checked_argument(const Argument& argument) {
  return tensor_in(argument);
}
inline auto checked_argument(const Unread& argument) {
  return std::tuple<const std::optional<Tensor>&>(argument.tensor);
}

// The first N results of a formula.
template <class A, size_t N, class F>
struct FirstResults {
  static constexpr int kWork = kWorkOf<F>;

  F f;

  template <class... Inputs>
  HOST_DEVICE Values<A, static_cast<int>(N)> operator()(const Inputs&... inputs) const {
    return first(f(inputs...), std::make_index_sequence<N>());
  }

 private:
  template <class R, size_t... K>
  HOST_DEVICE static Values<A, static_cast<int>(N)> first(const R& all, std::index_sequence<K...>) {
    return {static_cast<A>(result_at<K>(all))...};
  }
};

// Which dimensions of a shape are summed for a result of another, to which it broadcasts.
inline std::vector<bool> summed_dims(IntArrayRef sizes, IntArrayRef result) {
  std::vector<bool> summed(sizes.size(), true);
  const size_t before = sizes.size() - result.size();
  for (size_t d = 0; d < result.size(); ++d) {
    summed[before + d] = result[d] != sizes[before + d];
  }
  return summed;
}

// The results, of which some are there to be summed and some not wanted.
template <size_t M>
struct SummedResults {
  std::array<Tensor, M>& tensors;
  std::array<bool, M> wanted;

  // Whether a result is there and has the shape of a tensor.
  bool has_shape_of(const Tensor& like, size_t m) const {
    return wanted[m] && equal_sizes(tensors[m].sizes(), like.sizes());
  }
};

// Results of f for every element, written or summed: in one pass where everything has a place in matrices. False, and
// nothing done, where a result has none, or matrices are too small.
template <class T, class F, size_t K, size_t M>
bool compute_matrices(
    const F& f, const Tensor& like, IntArrayRef layout, const std::array<Tensor, K>& inputs,
    SummedResults<M>& results) {
  using A = acc_t<T>;
  const Geometry whole{like.dim(), like.sizes().data(), layout.data()};
  Geometry operands[K + M];
  std::transform(inputs.begin(), inputs.end(), operands, [](const Tensor& input) { return geometry(input); });
  for (size_t m = 0; m < M; ++m) {
    operands[K + m] = results.wanted[m] ? geometry(results.tensors[m]) : whole;
  }
  const auto has_places = [](const MatrixView& view) {
    const Matrices& matrices = view.matrices();
    bool has = matrices.count == 1 || matrices.rows * matrices.cols >= backend::kLeastMatrix;
    for (size_t k = K; k < K + M; ++k) {
      // What is whole in some axes would be summed over the others, of numbers that are rounded.
      has = has && view.is_in_order(k) && !view.is_whole_in_some(view.axes_of(k));
    }
    return has;
  };
  // Where a result has no place, for the inputs say where axes end, too, results alone say it.
  MatrixView view(whole, operands, K + M, 0, backend::kMatrixCols);
  if (!has_places(view)) {
    view = MatrixView(whole, operands, K + M, K, backend::kMatrixCols);
    if (!has_places(view)) {
      return false;
    }
  }
  const Matrices& matrices = view.matrices();

  std::array<Tensor, K> in_place = inputs;
  std::array<PlacedInput<T>, K> from;
  for (size_t k = 0; k < K; ++k) {
    const AxisSet axes = view.axes_in_place(k, backend::kOneMatrixForAll);
    if (!view.is_in_order(k) || axes != view.axes_of(k)) {
      const auto [sizes, strides] = view.layout_of(axes);
      in_place[k] = empty_with_strides(like, sizes, strides);
      copy_into(in_place[k], inputs[k]);
    }
    from[k] = {in_place[k].template const_data_ptr<T>(), view.place(axes)};
  }
  std::array<PlacedResult<T>, M> to;
  std::array<std::optional<Tensor>, M> columns;  // of matrices, of what is summed on
  for (size_t m = 0; m < M; ++m) {
    Tensor& result = results.tensors[m];
    const AxisSet axes = view.axes_of(K + m);
    if (!results.wanted[m]) {
      continue;
    }
    if (view.is_whole(axes)) {
      to[m].whole = result.template mutable_data_ptr<T>();
    } else if (view.is_row(axes) && (axes & view.matrix_axes()) == view.matrix_axes()) {
      to[m].columns = SumOutput<T>::of(result);
    } else if (view.is_row(axes) || (axes & view.row_axes()) == 0) {
      columns[m] = new_empty(like, {matrices.count, matrices.cols}, kDtypeOf<A>);
      to[m].columns = SumOutput<T>(columns[m]->template mutable_data_ptr<A>());
    } else {
      const AxisSet rows = view.matrix_axes() | view.row_axes();
      to[m].rows = {&result, view.summed(rows, axes)};
    }
  }
  backend::elementwise_with_sums<T>(f, like, matrices, from, to);
  for (size_t m = 0; m < M; ++m) {
    if (columns[m].has_value()) {
      const AxisSet axes = view.axes_of(K + m);
      SummedSizes dims = view.summed(view.matrix_axes(), axes);
      dims.add(matrices.cols, !view.is_row(axes));
      backend::sum_dims(*columns[m], dims.sizes, dims.summed, results.tensors[m]);
    }
  }
  return true;
}

// Whole results in the type of the arithmetic, rounded or summed.
template <size_t M>
void write_terms(const std::array<Tensor, M>& terms, const Tensor& like, SummedResults<M>& results) {
  for (size_t m = 0; m < M; ++m) {
    Tensor& result = results.tensors[m];
    if (results.has_shape_of(like, m)) {
      copy_into(result, terms[m]);
    } else if (results.wanted[m]) {
      backend::sum_dims(terms[m], like.sizes(), summed_dims(like.sizes(), result.sizes()), result);
    }
  }
}

// By way of whole results in the type of the arithmetic, which are summed then.
template <class T, class F, size_t K, size_t M>
void compute_and_sum(const F& f, const Tensor& like, const std::array<Tensor, K>& inputs, SummedResults<M>& results) {
  using A = acc_t<T>;
  const auto wide = make_tensors<K>([&](size_t k) {
    Tensor copy = new_empty(like, like.sizes(), kDtypeOf<A>);
    copy_into(copy, inputs[k]);
    return copy;
  });
  auto terms = make_tensors<M>([&](size_t) { return new_empty(wide[0], like.sizes()); });
  SummedResults<M> to{terms, results.wanted};
  compute_matrices<A>(f, wide[0], wide[0].strides(), wide, to);
  write_terms(terms, like, results);
}

template <class T, class F, size_t K, size_t M>
void compute_with_sums(const F& f, const Tensor& like, const std::array<Tensor, K>& inputs, SummedResults<M>& results) {
  if (like.numel() == 0) {
    for (size_t m = 0; m < M; ++m) {
      if (results.wanted[m]) {
        Tensor& result = results.tensors[m];
        backend::sum_dims(as_contiguous(like), like.sizes(), summed_dims(like.sizes(), result.sizes()), result);
      }
    }
    return;
  }
  std::vector<int64_t> layout;
  for (size_t m = 0; m < M && layout.empty(); ++m) {
    if (results.has_shape_of(like, m)) {
      const IntArrayRef strides = results.tensors[m].strides();
      layout.assign(strides.begin(), strides.end());
    }
  }
  if (layout.empty()) {
    Geometry operands[K];
    std::transform(inputs.begin(), inputs.end(), operands, [](const Tensor& input) { return geometry(input); });
    layout = elementwise_strides(like.dim(), like.sizes().data(), operands, K);
  }
  if (!compute_matrices<T>(f, like, layout, inputs, results)) {
    compute_and_sum<T>(f, like, inputs, results);
  }
}

// Binary digits that a type holds.
template <class T>
constexpr int kDigits = std::numeric_limits<T>::digits;
template <>
constexpr int kDigits<Half> = 11;
template <>
constexpr int kDigits<BFloat16> = 8;

// Whether every element of a tensor is one of T, too.
template <class T, class Element>
constexpr bool holds = std::is_same_v<stored_as<T, Element>, T> ||
                       (std::is_integral_v<stored_as<T, Element>> && kDigits<stored_as<T, Element>> <= kDigits<T>);

// A formula of elements that have become the operator's own dtype.
template <class A, class F, class... E>
struct OfConverted {
  static constexpr int kWork = kWorkOf<F>;

  F f;

  template <class... Inputs>
  HOST_DEVICE auto operator()(const Inputs&... inputs) const {
    return f(as_they_were<E>(inputs)...);
  }

 private:
  template <class Element>
  HOST_DEVICE static auto as_they_were(A value) {
    if constexpr (std::is_same_v<Element, Own>) {
      return value;
    } else if constexpr (std::is_same_v<Element, OwnSum>) {
      return SumType<A>(value);
    } else if constexpr (std::is_same_v<Element, bool>) {
      return value != A(0);
    } else {
      return static_cast<Element>(value);
    }
  }
};

template <class A, class Element>
struct AsOwn {
  HOST_DEVICE A operator()(Element element) const { return static_cast<A>(element); }
};

// A tensor as one of T, in its layout where it is dense. (PyTorch's own copy takes longer than the sums, of bytes.)
template <class T, class Element>
Tensor converted(const Tensor& tensor, ScalarType own) {
  if constexpr (std::is_same_v<stored_as<T, Element>, T>) {
    return tensor;
  } else {
    const Geometry from = geometry(tensor);
    const std::vector<int64_t> strides = elementwise_strides(from.dim, from.sizes, &from, 1);
    std::array<Tensor, 1> to{empty_with_strides(tensor, tensor.sizes(), strides, own)};
    backend::mixed_elementwise<T>(AsOwn<acc_t<T>, Element>{}, Types<Own>(), Types<Element>(), to, tensor);
    return to[0];
  }
}

template <class T, class... E, class... Inputs>
auto all_converted(Types<E...> /*elements*/, ScalarType own, const Inputs&... inputs) {
  return std::array{converted<T, E>(inputs, own)...};
}

template <class... R, size_t... K>
Types<std::tuple_element_t<K, std::tuple<R...>>...> first_of(Types<R...>, std::index_sequence<K...>);

// Of tensors of several dtypes: of one, where it holds what they do; else by way of whole results in the type of the
// arithmetic, too.
template <class T, size_t kAlways, class F, class... R, class... E, size_t M, class... Inputs>
void compute_mixed_with_sums(
    const F& f, Types<R...> types, Types<E...> elements, bool all_whole, ScalarType own, SummedResults<M>& results,
    const Tensor& like, const Inputs&... others) {
  using A = acc_t<T>;
  if (all_whole) {
    auto to = make_tensors<kAlways>([&](size_t m) { return results.tensors[m]; });
    const FirstResults<A, kAlways, F> first{f};
    const auto written = decltype(first_of(types, std::make_index_sequence<kAlways>()))();
    backend::mixed_elementwise<T>(first, written, elements, to, like, others...);
  } else if constexpr ((holds<T, E> && ...) && (holds<T, R> && ...)) {
    using Converted = OfConverted<A, F, E...>;
    const FirstResults<A, M, Converted> all{Converted{f}};
    const auto inputs = all_converted<T>(elements, own, like, others...);
    compute_with_sums<T>(all, inputs[0], inputs, results);
  } else {
    auto terms = make_tensors<M>([&](size_t) { return new_empty(like, like.sizes(), kDtypeOf<A>); });
    const FirstResults<A, M, F> all{f};
    const auto sums = decltype(repeated<OwnSum>(std::make_index_sequence<M>()))();
    backend::mixed_elementwise<T>(all, sums, elements, terms, like, others...);
    write_terms(terms, like, results);
  }
}

template <class... R>
constexpr bool are_of_arithmetic(Types<R...> /*results*/) {
  return ((std::is_same_v<R, Own> || std::is_same_v<R, OwnSum>) && ...);
}

template <class... Arguments>
const Tensor& first_tensor(const Arguments&... arguments) {
  return std::get<0>(tensors_in(arguments...));
}

// Of tensors of which the operator says that they broadcast to the first. Results that are whole have one layout.
template <template <class> class F, size_t kAlways, size_t M, class... Arguments>
void compute_summed(const char* op, SummedResults<M>& results, const Arguments&... arguments) {
  static_assert(0 < kAlways && kAlways <= M, "of the results of the formula");
  static_assert(counts_of<F, Arguments...>::results == M, "a tensor for each result of the formula");
  constexpr auto kTypes = results_of<F, M>();
  static_assert(are_of_arithmetic(kTypes), "what is summed is A, or SumType<A>");
  std::apply(
      [&](const Tensor& first, const auto&... others) {
        constexpr auto kElements = elements_of<F, 1 + sizeof...(others)>();
        const ScalarType own = own_dtype(op, kTypes, kElements, results.tensors, first, others...);
        check_inputs(op, kElements, own, first.sizes(), first, others...);
        bool all_whole = true;
        for (size_t m = 0; m < M; ++m) {
          if (results.wanted[m]) {
            check_fits(op, first.sizes(), results.tensors[m].sizes(), true);
          }
          all_whole = all_whole && (m < kAlways ? results.has_shape_of(first, m) : !results.wanted[m]);
        }
        dispatch_floating(own, [&](auto tag) {
          using T = typename decltype(tag)::type;
          using A = acc_t<T>;
          const auto f = make_formula<A, F>(arguments...);
          if constexpr (is_mixed<F>) {
            compute_mixed_with_sums<T, kAlways>(f, kTypes, kElements, all_whole, own, results, first, others...);
          } else if (all_whole) {
            auto to = make_tensors<kAlways>([&](size_t m) { return results.tensors[m]; });
            backend::elementwise<T>(FirstResults<A, kAlways, F<A>>{f}, to, first, others...);
          } else {
            const FirstResults<A, M, F<A>> all{f};
            compute_with_sums<T>(all, first, std::array{first, others...}, results);
          }
        });
      },
      tensors_in(arguments...));
}

}  // namespace detail

// For elementwise_with_sums(): a tensor, or None, that is there for its shape: that of a result.
inline detail::Unread unread(const std::optional<Tensor>& tensor) { return {tensor}; }

// F<A>{numbers...} for every element of the tensors, which broadcast to the shape of the first: a tuple of as many
// tensors as F has results, each in the shape that the operator says, to which what was broadcast is summed in a fixed
// order. A result of the shape of an argument that is None is not computed; such are the results after the first
// kAlways, whose arguments are unread().
//
// One pass over memory, for which an input that lacks some dimensions may be copied first; but for results that lack an
// outer dimension and have inner ones of which another result lacks some, or that lie in another order than what is
// whole, and, on the CPU, of many matrices that are very small. Tensors of another dtype are copied to the own one
// first, where that holds what they do: bools always, bytes; others take more passes.
template <template <class> class F, size_t kAlways, class... Arguments>
auto elementwise_with_sums(const Operator& op, const Arguments&... arguments) {
  constexpr size_t M = detail::counts_of<F, Arguments...>::results;
  const CheckedInputs checked = std::apply(
      [&](const auto&... tensors) { return op.check(tensors...); },
      std::tuple_cat(detail::checked_argument(arguments)...));
  const DeviceGuard guard(detail::first_tensor(arguments...));
  auto outputs = detail::make_tensors<M>([&](size_t m) { return checked.new_output(m); });
  op.check_broadcasts(true);
  detail::SummedResults<M> results{outputs, {}};
  for (size_t m = 0; m < M; ++m) {
    results.wanted[m] = checked.has_output(m);
  }
  detail::compute_summed<F, kAlways>(op.name(), results, arguments...);
  return detail::as_result(outputs);
}

// The same into tensors that are there already, of any layout, as parts of others are (packed.h). All are computed; of
// arguments that the operator has checked. Where some are summed, others that are not contiguous are copied to.
template <template <class> class F, size_t M, class... Arguments>
void elementwise_with_sums_into(const Operator& op, std::array<Tensor, M>& results, const Arguments&... arguments) {
  const DeviceGuard guard(results[0]);
  const Tensor& first = detail::first_tensor(arguments...);
  if (std::all_of(results.begin(), results.end(), [&](const Tensor& result) {
        return equal_sizes(result.sizes(), first.sizes());
      })) {
    elementwise_into<F>(results, arguments...);
    return;
  }
  auto made = detail::make_tensors<M>([&](size_t m) {
    return results[m].is_contiguous() ? results[m] : Tensor(new_empty(results[m], results[m].sizes()));
  });
  detail::SummedResults<M> to{made, {}};
  to.wanted.fill(true);
  detail::compute_summed<F, M>(op.name(), to, arguments...);
  for (size_t m = 0; m < M; ++m) {
    if (!results[m].is_contiguous()) {
      copy_into(results[m], made[m]);
    }
  }
}

}  // namespace extension_cpp
