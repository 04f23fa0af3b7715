// Elementwise operators that also sum over the rows, for both backends, in one pass over memory: the backward of a
// layer that adds a bias or scales features.
//
//   template <class A>
//   struct FusedOp {
//     A scale;
//
//     HOST_DEVICE WithSums<A, 1, 1> backward(A grad_output, A output) const {
//       const A grad = output <= A(0) ? A(0) : grad_output;
//       return {{grad * scale}, {grad}};
//     }
//   };
//
//   elementwise_with_column_sums<Backward<FusedOp>::Formula>(kFusedOpBackward, grad_output, output, scale)
#pragma once

#include "backend.h"
#include "dispatch.h"
#include "element_types.h"
#include "formula.h"
#include "operator.h"

#ifdef __CUDACC__
#include "cuda/columns.cuh"
#else
#include "cpu/columns.h"
#endif

namespace extension_cpp {

namespace detail {

// How a tensor that broadcasts to [..., cols] is read: contiguous, as a matrix of that shape or as one row for all.
class MatrixOperand {
 public:
  MatrixOperand(const Tensor& operand, const Tensor& like) : given_(&operand) {
    const IntArrayRef sizes = operand.sizes();
    const IntArrayRef wanted = like.sizes();
    const bool whole = std::equal(sizes.begin(), sizes.end(), wanted.begin(), wanted.end());
    const int64_t cols = wanted[wanted.size() - 1];
    one_row_ = !whole && !sizes.empty() && sizes[sizes.size() - 1] == cols && operand.numel() == cols;
    if (!whole && !one_row_) {
      copy_ = new_empty(like, wanted);
      copy_into(*copy_, operand);
    } else if (!operand.is_contiguous()) {
      copy_ = as_contiguous(operand);
    }
  }

  bool one_row() const { return one_row_; }

  template <class T>
  const T* data() const {
    return (copy_.has_value() ? *copy_ : *given_).template const_data_ptr<T>();
  }

 private:
  const Tensor* given_;
  std::optional<Tensor> copy_;
  bool one_row_;
};

template <class T, size_t N>
std::array<T*, N> pointers_to(std::array<Tensor, N>& tensors) {
  std::array<T*, N> pointers;
  std::transform(tensors.begin(), tensors.end(), pointers.begin(), [](Tensor& tensor) {
    return tensor.template mutable_data_ptr<T>();
  });
  return pointers;
}

}  // namespace detail

// F<A>{numbers...} for every element of the tensors, which broadcast to the shape of the first, [..., cols]: a tuple of
// the results of F, contiguous in that shape, and of the sums over all rows of its terms, [cols].
template <template <class> class F, class... Arguments>
auto elementwise_with_column_sums(const Operator& op, const Arguments&... arguments) {
  using Counts = detail::counts_of<F, Arguments...>;
  static_assert(!detail::is_mixed<F>, "what is summed by columns is of one dtype");
  static_assert(Counts::terms > 0, "a formula that returns WithSums");
  return std::apply(
      [&](const Tensor& first, const auto&... others) {
        op.check(first, others...);
        const DeviceGuard guard(first);
        const int64_t cols = first.size(first.dim() - 1);
        const int64_t rows = cols == 0 ? 0 : first.numel() / cols;
        auto results = detail::make_tensors<Counts::results>([&](size_t) { return new_empty(first, first.sizes()); });
        auto sums = detail::make_tensors<Counts::terms>([&](size_t) { return new_empty(first, {cols}); });
        const std::array inputs{detail::MatrixOperand(first, first), detail::MatrixOperand(others, first)...};
        dispatch_floating(first.scalar_type(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          std::array<backend::ColumnInput<T>, 1 + sizeof...(others)> pointers;
          std::transform(inputs.begin(), inputs.end(), pointers.begin(), [](const detail::MatrixOperand& input) {
            return backend::ColumnInput<T>{input.template data<T>(), input.one_row()};
          });
          backend::elementwise_with_column_sums<T>(
              detail::make_formula<acc_t<T>, F>(arguments...), first, rows, cols, pointers,
              detail::pointers_to<T>(results), detail::pointers_to<T>(sums));
        });
        return std::tuple_cat(std::move(results), std::move(sums));
      },
      detail::tensors_in(arguments...));
}

}  // namespace extension_cpp
