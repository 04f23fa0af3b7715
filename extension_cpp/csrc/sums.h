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
    const auto all = as_values(f(inputs...));
    Values<A, static_cast<int>(N)> first;
    for (int n = 0; n < static_cast<int>(N); ++n) {
      first[n] = all[n];
    }
    return first;
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

// What N operands are together: a matrix, or several that follow one another along a dimension.
template <size_t N>
struct Matrices {
  int64_t count = 0;  // 0: they are none
  MatrixShape shape;
  MatrixPlace places[N];
  int64_t steps[N] = {};  // elements from each matrix to the next; 0 of what is one for all
};

// Of the whole, or of the slices of a dimension. `layout`: strides of what is whole.
template <size_t K, size_t M>
Matrices<K + M> view_as_matrices(
    const Tensor& like, const std::vector<int64_t>& layout, const std::array<Tensor, K>& inputs,
    const SummedResults<M>& results, std::optional<int64_t> dim = std::nullopt) {
  constexpr size_t N = 1 + K + M;
  const Geometry whole{like.dim(), like.sizes().data(), layout.data()};
  Geometry operands[N] = {whole};
  std::transform(inputs.begin(), inputs.end(), operands + 1, [](const Tensor& input) { return geometry(input); });
  for (size_t m = 0; m < M; ++m) {
    operands[1 + K + m] = results.wanted[m] ? geometry(results.tensors[m]) : whole;
  }
  std::vector<int64_t> sizes[N];  // of slices
  int64_t steps[N] = {};
  for (size_t n = 0; n < N && dim.has_value(); ++n) {
    Geometry& operand = operands[n];
    const int64_t own = *dim - (like.dim() - operand.dim);
    if (own >= 0 && operand.sizes[own] != 1) {
      sizes[n].assign(operand.sizes, operand.sizes + operand.dim);
      sizes[n][own] = 1;
      steps[n] = operand.strides[own];
      operand.sizes = sizes[n].data();
    }
  }
  MatrixPlace places[N];
  Matrices<K + M> matrices;
  matrices.shape = extension_cpp::view_as_matrices(operands, N, backend::kMatrixCols, places);
  std::copy_n(places + 1, K + M, matrices.places);
  std::copy_n(steps + 1, K + M, matrices.steps);
  bool are = matrices.shape.rows > 0;
  for (size_t m = 0; m < M && are && dim.has_value(); ++m) {
    // Of slices no result has a number for each row. What is summed over slices alone would be whole in each, and
    // rounded there.
    const MatrixPlace& place = matrices.places[K + m];
    const bool is_rounded = place.is_whole(matrices.shape.cols) && matrices.steps[K + m] == 0;
    are = !results.wanted[m] || !(place.is_column() || is_rounded);
  }
  matrices.count = !are ? 0 : dim.has_value() ? like.size(*dim) : 1;
  return matrices;
}

// The fewest slices that are matrices and large enough for a call each.
template <size_t K, size_t M>
Matrices<K + M> find_slices(
    const Tensor& like, const std::vector<int64_t>& layout, const std::array<Tensor, K>& inputs,
    const SummedResults<M>& results) {
  Matrices<K + M> best;
  for (int64_t dim = 0; dim < like.dim(); ++dim) {
    const int64_t size = like.size(dim);
    const bool is_better = best.count == 0 || size < best.count;
    if (size > 1 && is_better && like.numel() / size >= backend::kSliceElements) {
      const auto slices = view_as_matrices(like, layout, inputs, results, dim);
      best = slices.count > 0 ? slices : best;
    }
  }
  return best;
}

// Results of f for every element of matrices, written or summed as their places say.
template <class T, class F, size_t K, size_t M>
void compute_matrices(
    const F& f, const Tensor& like, const Matrices<K + M>& matrices, const std::array<Tensor, K>& inputs,
    SummedResults<M>& results) {
  using A = acc_t<T>;
  const int64_t cols = matrices.shape.cols;
  std::array<PlacedInput<T>, K> from;
  for (size_t k = 0; k < K; ++k) {
    from[k] = {inputs[k].template const_data_ptr<T>(), matrices.places[k]};
  }
  std::array<PlacedResult<T>, M> to;
  std::array<int64_t, M> steps;
  std::array<std::optional<Tensor>, M> columns;  // [matrices, cols], of what becomes one number, or is one for all
  for (size_t m = 0; m < M; ++m) {
    const MatrixPlace& place = matrices.places[K + m];
    steps[m] = matrices.steps[K + m];
    Tensor& result = results.tensors[m];
    if (!results.wanted[m]) {
      continue;
    }
    if (place.is_number() || (place.is_row() && matrices.count > 1 && steps[m] == 0)) {
      columns[m] = new_empty(like, {matrices.count, cols}, kDtypeOf<A>);
      to[m].columns = SumOutput<T>(columns[m]->template mutable_data_ptr<A>());
      steps[m] = cols;
    } else if (place.is_row()) {
      to[m].columns = SumOutput<T>::of(result);
    } else if (place.is_column()) {
      to[m].rows = &result;
    } else {
      to[m].whole = result.template mutable_data_ptr<T>();
    }
  }
  backend::for_each_matrix(matrices.count, [&](int64_t i) {
    auto from_here = from;
    for (size_t k = 0; k < K; ++k) {
      from_here[k].data += i * matrices.steps[k];
    }
    auto to_here = to;
    for (size_t m = 0; m < M; ++m) {
      to_here[m] = to[m].from(i * steps[m]);
    }
    backend::elementwise_with_sums<T>(f, like, matrices.shape.rows, cols, from_here, to_here);
  });
  for (size_t m = 0; m < M; ++m) {
    if (columns[m].has_value()) {
      const std::vector<bool> summed{matrices.steps[K + m] == 0, matrices.places[K + m].is_number()};
      backend::sum_dims(*columns[m], columns[m]->sizes(), summed, results.tensors[m]);
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
  Matrices<K + M> whole;
  whole.count = 1;
  whole.shape = as_matrix(like.numel(), backend::kMatrixCols);
  std::fill_n(whole.places, K + M, MatrixPlace{whole.shape.cols, 1});
  compute_matrices<A>(f, wide[0], whole, wide, to);
  for (size_t m = 0; m < M; ++m) {
    Tensor& result = results.tensors[m];
    if (results.has_shape_of(like, m)) {
      copy_into(result, terms[m]);
    } else if (results.wanted[m]) {
      backend::sum_dims(terms[m], like.sizes(), summed_dims(like.sizes(), result.sizes()), result);
    }
  }
}

template <class T, class F, size_t K, size_t M>
void compute_with_sums(const F& f, const Tensor& like, std::array<Tensor, K> inputs, SummedResults<M>& results) {
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
  auto matrices = view_as_matrices(like, layout, inputs, results);
  if (matrices.count == 0) {
    const Tensor whole = empty_with_strides(like, like.sizes(), layout);
    for (Tensor& input : inputs) {
      const bool is_whole = equal_sizes(input.sizes(), like.sizes());
      input = is_whole ? with_layout_of(whole, input) : as_contiguous(input);
    }
    matrices = view_as_matrices(like, layout, inputs, results);
  }
  if (matrices.count == 0) {
    matrices = find_slices(like, layout, inputs, results);
  }
  if (matrices.count > 0) {
    compute_matrices<T>(f, like, matrices, inputs, results);
  } else {
    compute_and_sum<T>(f, like, inputs, results);
  }
}

}  // namespace detail

// For elementwise_with_sums(): a tensor, or None, that is there for its shape: that of a result.
inline detail::Unread unread(const std::optional<Tensor>& tensor) { return {tensor}; }

// F<A>{numbers...} for every element of the tensors, which broadcast to the shape of the first: a tuple of as many
// tensors as F has results, each in the shape that the operator says, to which what was broadcast is summed in a fixed
// order. A result of the shape of an argument that is None is not computed; such are the results after the first
// kAlways, whose arguments are unread().
//
// One pass over memory where in some order of the dimensions everything is a matrix, a row of it, a column or a number;
// on the CPU also where all is so for each index of one dimension.
template <template <class> class F, size_t kAlways, class... Arguments>
auto elementwise_with_sums(const Operator& op, const Arguments&... arguments) {
  constexpr size_t M = detail::counts_of<F, Arguments...>::results;
  static_assert(0 < kAlways && kAlways <= M, "of the results of the formula");
  const CheckedInputs checked = std::apply(
      [&](const auto&... tensors) { return op.check(tensors...); },
      std::tuple_cat(detail::checked_argument(arguments)...));
  return std::apply(
      [&](const Tensor& first, const auto&... others) {
        const DeviceGuard guard(first);
        auto outputs = detail::make_tensors<M>([&](size_t m) { return checked.new_output(m); });
        detail::SummedResults<M> results{outputs, {}};
        bool all_whole = true;
        for (size_t m = 0; m < M; ++m) {
          results.wanted[m] = checked.has_output(m);
          all_whole = all_whole && (m < kAlways ? results.has_shape_of(first, m) : !results.wanted[m]);
        }
        dispatch_floating(first.scalar_type(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          using A = acc_t<T>;
          const auto f = detail::make_formula<A, F>(arguments...);
          if (all_whole) {
            auto to = detail::make_tensors<kAlways>([&](size_t m) { return outputs[m]; });
            backend::elementwise<T>(detail::FirstResults<A, kAlways, F<A>>{f}, to, first, others...);
          } else {
            const detail::FirstResults<A, M, F<A>> all{f};
            detail::compute_with_sums<T>(all, first, std::array{first, others...}, results);
          }
        });
        return detail::as_result(outputs);
      },
      detail::tensors_in(arguments...));
}

}  // namespace extension_cpp
