// Row operators, for both backends: what is done with each row of a [rows, cols] matrix (layer norm, softmax, ...).
//
//   template <class T>
//   struct Softmax {
//     using A = acc_t<T>;
//
//     T* output;  // [rows, cols]
//
//     template <class Row>
//     HOST_DEVICE void operator()(Row& row) const {
//       const A max = row.max([](A x) { return x; });
//       const A total = row.sum([=](A x) { return math::exp(x - max); });
//       row.write(output, [=](A x) { return math::exp(x - max) / total; });
//     }
//   };
//
//   Tensor softmax(const Tensor& input) { return rowwise<Softmax>(kSoftmax, input); }
//
// A functor says what happens to one row; each backend lends it the row in its own way. cuda/rows.cuh and cpu/rows.h
// say how; row.sum, row.max, row.write and row.add_to_columns are the same. Under rowwise() lies backend::launch_rows,
// for an operator that prepares more than tensors. It may also give a functor segments of rows (Split), so that few
// long rows keep all of the machine busy, and leave partial results for a second launch. What a functor reads
// besides its inputs is read ahead, or kept, if it says what that is (row_values.h). One that says
// `static constexpr bool kWritesRows = false;`, as a sum may, has its accesses aligned to what it reads.
#pragma once

#include "arguments.h"
#include "backend.h"
#include "dispatch.h"
#include "elementary.h"
#include "formula.h"
#include "operator.h"

#ifdef __CUDACC__
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"
#else
#include "cpu/rows.h"
#include "cpu/vector.h"
#endif

namespace extension_cpp {

// What a backend::Parameter is made of: contiguous, and on CUDA aligned for vector accesses.
inline std::optional<Tensor> as_parameter(const std::optional<Tensor>& tensor) {
  std::optional<Tensor> result = as_contiguous(tensor);
  if (result.has_value() && !backend::is_aligned(result->const_data_ptr())) {
    Tensor copy = new_empty(*result, result->sizes());
    copy_into(copy, *result);
    return copy;
  }
  return result;
}

namespace detail {

// Tensors that are members of a functor, and become whatever the member is.

struct Written {
  Tensor& tensor;

  template <class T>
  operator T*() const {
    return tensor.template mutable_data_ptr<T>();
  }
};

struct PerRow {
  Tensor tensor;

  template <class T>
  operator const T*() const {
    return tensor.template const_data_ptr<T>();
  }
};

struct PerColumn {
  std::optional<Tensor> tensor;
  double otherwise;
  int64_t cols = 0;

  template <class T>
  operator backend::Parameter<T>() const {
    return backend::Parameter<T>(tensor, static_cast<acc_t<T>>(otherwise), cols);
  }
};

// What the operator checks of an argument.
template <class Argument>
auto checked_in(const Argument& argument) {
  return tensor_in(argument);
}
inline auto checked_in(const PerRow& argument) { return std::tuple<const Tensor&>(argument.tensor); }
inline auto checked_in(const PerColumn& argument) { return std::tuple<const std::optional<Tensor>&>(argument.tensor); }

// What an argument is as a member of the functor.
template <class Argument>
auto member_in(const Argument& argument, int64_t /*cols*/) {
  return number_in(argument);
}
inline auto member_in(const PerRow& argument, int64_t /*cols*/) {
  return std::tuple(PerRow{as_contiguous(argument.tensor)});
}
inline auto member_in(const PerColumn& argument, int64_t cols) {
  return std::tuple(PerColumn{as_parameter(argument.tensor), argument.otherwise, cols});
}

}  // namespace detail

// For rowwise(): a tensor with a value for each row. The functor has it as `const T*` (T as the tensor's dtype), to be
// read at row.index().
inline detail::PerRow per_row(const Tensor& tensor) { return {tensor}; }

// For rowwise(): a tensor with a value for each column, perhaps None, perhaps wider than the rows. The functor has it
// as backend::Parameter<T>, for row.sum, row.write and the like.
inline detail::PerColumn per_column(const std::optional<Tensor>& tensor, double otherwise = 0) {
  return {tensor, otherwise};
}

// F<T>{outputs..., others...}(row) for every row of the tensors, which have one shape, [..., cols]. `outputs` are
// pointers to the M new tensors, of which there are as many as the operator returns: a tensor, or a tuple. `others` are
// the arguments besides the tensors of that shape, in their order: numbers, and what per_row and per_column say of.
template <template <class> class F, size_t M = 1, class... Arguments>
auto rowwise(const Operator& op, const Arguments&... arguments) {
  const CheckedInputs checked = std::apply(
      [&](const auto&... tensors) { return op.check(tensors...); }, std::tuple_cat(detail::checked_in(arguments)...));
  return std::apply(
      [&](const Tensor& first, const auto&... rest) {
        const DeviceGuard guard(first);
        auto outputs = detail::make_tensors<M>([&](size_t k) { return checked.new_output(k); });
        const std::array inputs{as_contiguous(first), as_contiguous(rest)...};
        const IntArrayRef sizes = first.sizes();
        const int64_t cols = sizes.empty() ? 1 : sizes[sizes.size() - 1];
        int64_t rows = 1;
        for (size_t d = 0; d + 1 < sizes.size(); ++d) {
          rows *= sizes[d];
        }
        for (const Tensor& input : inputs) {
          check(input.numel() == rows * cols, op.name(), ": what is not of the rows' shape is per_row or per_column");
        }
        const auto members = std::tuple_cat(detail::member_in(arguments, cols)...);
        dispatch_floating(first.scalar_type(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          std::array<const T*, 1 + sizeof...(rest)> pointers;
          std::transform(inputs.begin(), inputs.end(), pointers.begin(), [](const Tensor& input) {
            return input.template const_data_ptr<T>();
          });
          const auto launch = [&](const auto&... all) {
            backend::launch_rows<T>(first, F<T>{all...}, pointers, rows, cols);
          };
          const auto written = std::apply([](auto&... each) { return std::tuple(detail::Written{each}...); }, outputs);
          std::apply(launch, std::tuple_cat(written, members));
        });
        return detail::as_result(outputs);
      },
      detail::tensors_in(arguments...));
}

}  // namespace extension_cpp
