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

// Results of f for every element of matrices, written or summed as their places say.
template <class T, class F, size_t K, size_t M>
void compute_matrices(
    const F& f, const Tensor& like, const MatrixShape& shape, const std::array<Tensor, K>& inputs,
    SummedResults<M>& results, const MatrixPlace* places /* [K + M] */) {
  using A = acc_t<T>;
  std::array<PlacedInput<T>, K> from;
  for (size_t k = 0; k < K; ++k) {
    from[k] = {inputs[k].template const_data_ptr<T>(), places[k]};
  }
  std::array<PlacedResult<T>, M> to;
  std::array<std::optional<Tensor>, M> columns;  // of what becomes one number
  for (size_t m = 0; m < M; ++m) {
    const MatrixPlace& place = places[K + m];
    Tensor& result = results.tensors[m];
    if (!results.wanted[m]) {
      continue;
    }
    if (place.is_number()) {
      columns[m] = new_empty(like, {shape.cols}, kDtypeOf<A>);
      to[m].columns = SumOutput<T>(columns[m]->template mutable_data_ptr<A>());
    } else if (place.is_row()) {
      to[m].columns = SumOutput<T>::of(result);
    } else if (place.is_column()) {
      to[m].rows = &result;
    } else {
      to[m].whole = result.template mutable_data_ptr<T>();
    }
  }
  backend::elementwise_with_sums<T>(f, like, shape.rows, shape.cols, from, to);
  for (size_t m = 0; m < M; ++m) {
    if (columns[m].has_value()) {
      backend::sum_dims(*columns[m], columns[m]->sizes(), {true}, results.tensors[m]);
    }
  }
}

// `layout`: strides of what is whole.
template <size_t K, size_t M>
MatrixShape view_as_matrices(
    const Tensor& like, const std::vector<int64_t>& layout, const std::array<Tensor, K>& inputs,
    const SummedResults<M>& results, MatrixPlace* places /* [K + M] */) {
  const Geometry whole{like.dim(), like.sizes().data(), layout.data()};
  Geometry operands[1 + K + M] = {whole};
  std::transform(inputs.begin(), inputs.end(), operands + 1, [](const Tensor& input) { return geometry(input); });
  for (size_t m = 0; m < M; ++m) {
    operands[1 + K + m] = results.wanted[m] ? geometry(results.tensors[m]) : whole;
  }
  MatrixPlace all[1 + K + M];
  const MatrixShape shape = extension_cpp::view_as_matrices(operands, 1 + K + M, backend::kMatrixCols, all);
  std::copy_n(all + 1, K + M, places);
  return shape;
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
  const MatrixShape shape = as_matrix(like.numel(), backend::kMatrixCols);
  MatrixPlace places[K + M];
  std::fill_n(places, K + M, MatrixPlace{shape.cols, 1});
  compute_matrices<A>(f, wide[0], shape, wide, to, places);
  for (size_t m = 0; m < M; ++m) {
    Tensor& result = results.tensors[m];
    if (results.has_shape_of(like, m)) {
      copy_into(result, terms[m]);
    } else if (results.wanted[m]) {
      backend::sum_dims(terms[m], like.sizes(), summed_dims(like.sizes(), result.sizes()), result);
    }
  }
}

// Matrices that follow one another along a dimension, and how far, for each of N operands: 0 of what is one for all.
template <size_t N>
struct Slices {
  int64_t count = 0;  // 0: there are none
  MatrixShape shape;
  MatrixPlace places[N];
  std::array<int64_t, N> steps;
};

// The slices of a dimension, if they are matrices of which no result has a number for each row.
template <size_t K, size_t M>
Slices<K + M> slices_of(
    const Tensor& like, const std::vector<int64_t>& layout, const std::array<Tensor, K>& inputs,
    const SummedResults<M>& results, int64_t dim) {
  constexpr size_t N = 1 + K + M;
  std::array<std::vector<int64_t>, N> sizes;
  Geometry operands[N];
  std::array<int64_t, N> steps{};
  const auto take = [&](size_t n, const Geometry& whole) {
    const int64_t own = dim - (like.dim() - whole.dim);
    sizes[n].assign(whole.sizes, whole.sizes + whole.dim);
    if (own >= 0 && sizes[n][own] != 1) {
      steps[n] = whole.strides[own];
      sizes[n][own] = 1;
    }
    operands[n] = {whole.dim, sizes[n].data(), whole.strides};
  };
  const Geometry whole{like.dim(), like.sizes().data(), layout.data()};
  take(0, whole);
  for (size_t k = 0; k < K; ++k) {
    take(1 + k, geometry(inputs[k]));
  }
  for (size_t m = 0; m < M; ++m) {
    take(1 + K + m, results.wanted[m] ? geometry(results.tensors[m]) : whole);
  }
  Slices<K + M> slices;
  MatrixPlace places[N];
  slices.shape = extension_cpp::view_as_matrices(operands, N, backend::kMatrixCols, places);
  bool are = slices.shape.rows > 0;
  for (size_t m = 0; m < M && are; ++m) {
    const MatrixPlace& place = places[1 + K + m];
    // What is summed over slices alone would be whole in each, and rounded there.
    const bool is_rounded = place.is_whole(slices.shape.cols) && steps[1 + K + m] == 0;
    are = !results.wanted[m] || !(place.is_column() || is_rounded);
  }
  slices.count = are ? like.size(dim) : 0;
  std::copy_n(places + 1, K + M, slices.places);
  std::copy_n(steps.begin() + 1, K + M, slices.steps.begin());
  return slices;
}

// The fewest slices that are large enough for a call each.
template <size_t K, size_t M>
Slices<K + M> find_slices(
    const Tensor& like, const std::vector<int64_t>& layout, const std::array<Tensor, K>& inputs,
    const SummedResults<M>& results) {
  Slices<K + M> best;
  for (int64_t dim = 0; dim < like.dim(); ++dim) {
    const int64_t size = like.size(dim);
    const bool is_better = best.count == 0 || size < best.count;
    if (size > 1 && is_better && like.numel() / size >= backend::kSliceElements) {
      const auto slices = slices_of(like, layout, inputs, results, dim);
      best = slices.count > 0 ? slices : best;
    }
  }
  return best;
}

// compute_matrices() of one slice after the other.
template <class T, class F, size_t K, size_t M>
void compute_slices(
    const F& f, const Tensor& like, const Slices<K + M>& slices, const std::array<Tensor, K>& inputs,
    SummedResults<M>& results) {
  using A = acc_t<T>;
  const int64_t cols = slices.shape.cols;
  std::array<std::optional<Tensor>, M> columns;  // [slices, cols], of what is summed to one number or over slices
  for (size_t m = 0; m < M; ++m) {
    const MatrixPlace& place = slices.places[K + m];
    if (results.wanted[m] && (place.is_number() || (place.is_row() && slices.steps[K + m] == 0))) {
      columns[m] = new_empty(like, {slices.count, cols}, kDtypeOf<A>);
    }
  }
  backend::for_each_slice(slices.count, [&](int64_t i) {
    std::array<PlacedInput<T>, K> from;
    for (size_t k = 0; k < K; ++k) {
      from[k] = {inputs[k].template const_data_ptr<T>() + i * slices.steps[k], slices.places[k]};
    }
    std::array<PlacedResult<T>, M> to;
    for (size_t m = 0; m < M; ++m) {
      const int64_t offset = i * slices.steps[K + m];
      if (columns[m].has_value()) {
        to[m].columns = SumOutput<T>(columns[m]->template mutable_data_ptr<A>() + i * cols);
      } else if (results.wanted[m] && slices.places[K + m].is_row()) {
        to[m].columns = SumOutput<T>::of(results.tensors[m]).from(offset);
      } else if (results.wanted[m]) {
        to[m].whole = results.tensors[m].template mutable_data_ptr<T>() + offset;
      }
    }
    backend::elementwise_with_sums<T>(f, like, slices.shape.rows, cols, from, to);
  });
  for (size_t m = 0; m < M; ++m) {
    if (columns[m].has_value()) {
      const std::vector<bool> summed{slices.steps[K + m] == 0, slices.places[K + m].is_number()};
      backend::sum_dims(*columns[m], columns[m]->sizes(), summed, results.tensors[m]);
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
  MatrixPlace places[K + M];
  MatrixShape shape = view_as_matrices(like, layout, inputs, results, places);
  if (shape.rows == 0) {
    const Tensor whole = empty_with_strides(like, like.sizes(), layout);
    for (Tensor& input : inputs) {
      const bool is_whole = equal_sizes(input.sizes(), like.sizes());
      input = is_whole ? with_layout_of(whole, input) : as_contiguous(input);
    }
    shape = view_as_matrices(like, layout, inputs, results, places);
  }
  if (shape.rows > 0) {
    compute_matrices<T>(f, like, shape, inputs, results, places);
  } else if (const auto slices = find_slices(like, layout, inputs, results); slices.count > 0) {
    compute_slices<T>(f, like, slices, inputs, results);
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
