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
//       const A max = row.max();
//       const auto powers = row.keep([=](A x) { return math::exp(x - max); });
//       const Divisor<A> total = row.sum([](A /*x*/, A power) { return power; }, powers);
//       row.write(output, [=](A /*x*/, A power) { return power / total; }, powers);
//     }
//   };
//
//   Tensor softmax(const Tensor& input) { return rowwise<Softmax>(kSoftmax, input); }
//
// A functor says what happens to one row; each backend lends it the row in its own way. cuda/rows.cuh and cpu/rows.h
// say how; row.sum, row.max, row.keep, row.write and row.add_to_columns are the same. row.sum(), row.max() and
// row.add_to_columns() are of the elements as they are. What row.keep returns is for the row's later passes, which have
// its values after the inputs; row.write_and_keep(output, f) gives the values that it wrote, as they are rounded. Under
// rowwise() lies backend::launch_rows, for an operator that prepares more than tensors. It may also give a functor
// segments of rows (Split), so that few long rows keep all of the machine busy, and leave partial results for a second
// launch. What a functor reads besides its inputs is read ahead, or kept, if it says what that is (row_values.h). One
// that says `static constexpr bool kWritesRows = false;`, as a sum may, has its accesses aligned to what it reads, and
// must not call row.write.
//
// One call of row.write writes several outputs, of any types, and adds the terms of WithSums to the sums of columns.
// What it is given is read once, where each call reads it again:
//
//   row.write(Outputs{y, there}, [=](A x, A w) { return Results<A, bool>{x * w, x > mean}; }, weight);
//   row.write(grad_x, [=](A grad, A x, A w) { return WithSums<A, 1, 1>{{grad * w}, {grad * x}}; }, weight);
//
// Of tensors of the rows' shape that have another dtype, per_element(mask) is `PerElement<bool> mask` in the functor.
// Its passes have the elements by row.elements(mask), and their lambdas a `bool` each, after the inputs:
//
//   const A count = row.sum([](A /*x*/, bool there) { return A(there); }, row.elements(mask));
//   const auto kept = row.keep([](A x, bool there) { return there ? x : A(0); }, row.elements(mask));
//   const A mean = row.sum([](A /*x*/, A x) { return x; }, kept) / count;
//
// Each pass that has them reads them again, which row.keep spares the later ones, and, of column sums, a functor that
// names them (row_values.h). The first of a row is row.first(mask), as row.first() is that of an input. Rows that are
// expanded, transposed or cut out of longer ones are read where they lie (per_element.h): no mask is made larger before
// the call. One for all rows, [cols], is per_column(mask), and the same `PerElement<bool> mask` in the functor. The
// types of a functor's members say what dtypes its tensors have: others are refused.
//
// Lambdas have the number of their column, an int64_t, by row.columns(), as an operand like any other. row.at(col) is
// the element in that column, of a row that has it, else NaN; of several inputs row.at(col, k), and row.at(col, weight)
// of a parameter:
//
//   const A loss = -row.at(target[row.index()]);
//   row.write(output, [=](A x, int64_t col) { return col < length ? x : A(0); }, row.columns());
#pragma once

#include "arguments.h"
#include "backend.h"
#include "dispatch.h"
#include "divisor.h"
#include "element_types.h"
#include "elementary.h"
#include "formula.h"
#include "layout.h"
#include "operator.h"
#include "per_element.h"
#include "row_values.h"
#include "sum_output.h"

#ifdef __CUDACC__
#include "cuda/columns.cuh"
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"
#else
#include "cpu/columns.h"
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

// The columns of a parameter that are read. Without rows none are, and an absent one is not made: no rows may be of
// more columns than there is memory.
inline int64_t parameter_cols(int64_t rows, int64_t cols) { return rows > 0 ? cols : 0; }

// Tensors that are members of a functor, and become whatever the member is.

template <class T>
void check_member(const char* op, const Tensor& tensor) {
  constexpr ScalarType kWanted = dtype_of_type<T>();
  check(dtype_of(tensor) == kWanted, op, ": the functor has ", kWanted, " here, the tensor is ", dtype_of(tensor));
}

struct Written {
  const char* op;
  Tensor& tensor;

  template <class T>
  operator T*() const {
    check_member<T>(op, tensor);
    return tensor.template mutable_data_ptr<T>();
  }
};

struct Read {
  const char* op;
  Tensor tensor;

  template <class T>
  operator const T*() const {
    check_member<T>(op, tensor);
    return tensor.template const_data_ptr<T>();
  }
};

struct ReadElements {
  const char* op;
  Tensor tensor;
  RowOffsets offsets;

  template <class T>
  operator extension_cpp::PerElement<T>() const {
    return {Read{op, tensor}, offsets};
  }
};

struct PerRow {
  Tensor tensor;
};

struct OneNumber {
  Tensor tensor;
};

struct BesideRows {
  Tensor tensor;
};

struct SaysDtype {
  const Tensor& tensor;
};

struct PerColumn {
  std::optional<Tensor> tensor;
  double otherwise;
  int64_t cols = 0;
  const char* op = "";

  template <class T>
  operator backend::Parameter<T>() const {
    return backend::Parameter<T>(tensor, static_cast<acc_t<T>>(otherwise), cols);
  }

  template <class T>
  operator extension_cpp::PerElement<T>() const {
    return {Read{op, *tensor}, RowOffsets::of_one_row()};
  }
};

// What the operator checks of an argument.
template <class Argument>
auto checked_in(const Argument& argument) {
  return tensor_in(argument);
}
inline auto checked_in(const PerRow& argument) { return std::tuple<const Tensor&>(argument.tensor); }
inline auto checked_in(const OneNumber& argument) { return std::tuple<const Tensor&>(argument.tensor); }
inline auto checked_in(const BesideRows& argument) { return std::tuple<const Tensor&>(argument.tensor); }
inline auto checked_in(const PerColumn& argument) { return std::tuple<const std::optional<Tensor>&>(argument.tensor); }
inline auto checked_in(const SaysDtype& argument) { return std::tuple<const Tensor&>(argument.tensor); }

// Of which operator an argument is one, and the matrix of its rows.
struct OfRows {
  const char* op;
  const Tensor& first;
  int64_t rows;
  int64_t cols;
};

// What an argument is as a member of the functor.
template <class Argument>
auto member_in(const Argument& argument, const OfRows& /*of*/) {
  return number_in(argument);
}
inline auto member_in(const PerRow& argument, const OfRows& of) {
  check(argument.tensor.numel() == of.rows, of.op, ": per_row is what has a value for each row");
  return std::tuple(Read{of.op, as_contiguous(argument.tensor)});
}
inline auto member_in(const OneNumber& argument, const OfRows& of) {
  check(argument.tensor.numel() == 1, of.op, ": one_number is what has one for all rows");
  return std::tuple(Read{of.op, argument.tensor});
}
inline auto member_in(const BesideRows& argument, const OfRows& of) {
  const Tensor& tensor = argument.tensor;
  check(tensor.numel() == of.rows * of.cols, of.op, ": per_element is what has a value for each element");
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  const int64_t boundary = backend::boundary_beside_rows(of.cols, static_cast<int64_t>(of.first.element_size()), bytes);
  const auto offsets = RowOffsets::of(geometry(tensor), of.cols);
  if (offsets.has_value() && offsets->are_multiples_of(boundary / bytes) &&
      reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % boundary == 0) {
    return std::tuple(ReadElements{of.op, tensor, *offsets});
  }
  return std::tuple(ReadElements{of.op, *as_parameter(tensor), RowOffsets()});
}
inline auto member_in(const PerColumn& argument, const OfRows& of) {
  const int64_t cols = parameter_cols(of.rows, of.cols);
  return std::tuple(PerColumn{as_parameter(argument.tensor), argument.otherwise, cols, of.op});
}

inline auto member_in(const SaysDtype& /*argument*/, const OfRows& /*of*/) { return std::tuple<>(); }

template <class... Arguments>
inline constexpr bool has_its_dtype_said = (std::is_same_v<Arguments, SaysDtype> || ...);

// The tensor of the operator's dtype: the first of the rows' shape, or the one that says it.
template <class... Arguments>
const Tensor& of_own_dtype(const Tensor& first, const Arguments&... arguments) {
  const Tensor* result = &first;
  const auto look_at = [&](const auto& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, SaysDtype>) {
      result = &argument.tensor;
    }
  };
  (look_at(arguments), ...);
  return *result;
}

// launch(tag of the dtype, first tensor, pointers to the tensors of the rows' shape, rows, cols, M outputs, members)
// for an operator's arguments; the outputs.
template <size_t M, class Launch, class... Arguments>
auto for_rows(const Operator& op, const Launch& launch, const Arguments&... arguments) {
  const CheckedInputs checked = std::apply(
      [&](const auto&... tensors) { return op.check(tensors...); }, std::tuple_cat(checked_in(arguments)...));
  return std::apply(
      [&](const Tensor& first, const auto&... rest) {
        const DeviceGuard guard(first);
        auto outputs = make_tensors<M>([&](size_t k) { return checked.new_output(k); });
        const std::array inputs{as_contiguous(first), as_contiguous(rest)...};
        const IntArrayRef sizes = first.sizes();
        const int64_t cols = sizes.empty() ? 1 : sizes[sizes.size() - 1];
        int64_t rows = 1;
        for (size_t d = 0; d + 1 < sizes.size(); ++d) {
          rows *= sizes[d];
        }
        for (const Tensor& input : inputs) {
          check(input.numel() == rows * cols, op.name(), ": what is not of the rows' shape is per_row or per_column");
          check(
              dtype_of(input) == dtype_of(first), op.name(), ": what is not of the rows' dtype, ", dtype_of(first),
              ", is per_element, got ", dtype_of(input));
        }
        const auto members = std::tuple_cat(member_in(arguments, OfRows{op.name(), first, rows, cols})...);
        dispatch_floating(of_own_dtype(first, arguments...).scalar_type(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          using Element = std::conditional_t<has_its_dtype_said<Arguments...>, acc_t<T>, T>;
          std::array<const Element*, 1 + sizeof...(rest)> pointers;
          std::transform(inputs.begin(), inputs.end(), pointers.begin(), [](const Tensor& input) {
            return input.template const_data_ptr<Element>();
          });
          launch(tag, first, pointers, rows, cols, outputs, members);
        });
        return as_result(outputs);
      },
      tensors_in(arguments...));
}

// F{outputs..., members...}, of the outputs M.
template <class F, class... Arguments, size_t... M, class Outputs, class Members>
F make_row_functor(const char* op, std::index_sequence<M...>, Outputs& outputs, const Members& members) {
  static_assert(
      writes_rows<F> || !(std::is_same_v<Arguments, BesideRows> || ...),
      "accesses that are aligned to what is read may not be to what is per_element");
  return std::apply([&](const auto&... each) { return F{Written{op, outputs[M]}..., each...}; }, members);
}

// What rowwise_with_column_sums() does with a row at once, or in two steps.

template <class F>
struct FindAndWrite {
  F f;

  HOST_DEVICE auto row_columns() const { return detail::row_columns(f); }
  HOST_DEVICE auto row_elements() const { return detail::row_elements(f); }
  HOST_DEVICE auto row_values(int64_t row) const { return detail::row_values(f, row); }

  template <class Row, class... Known>
  HOST_DEVICE void operator()(Row& row, const Known&... known) const {
    f.write(row, f.of_row(row, known...));
  }
};

template <class F>
struct FindRowValues {
  F f;
  typename F::RowValues* found;  // [rows]

  HOST_DEVICE auto row_values(int64_t row) const { return detail::row_values(f, row); }

  template <class Row, class... Known>
  HOST_DEVICE void operator()(Row& row, const Known&... known) const {
    const typename F::RowValues values = f.of_row(row, known...);
    if (row.leader()) {
      found[row.index()] = values;
    }
  }
};

template <class F>
struct WriteColumns {
  F f;
  const typename F::RowValues* found;  // [rows]

  HOST_DEVICE auto row_columns() const { return detail::row_columns(f); }
  HOST_DEVICE auto row_elements() const { return detail::row_elements(f); }
  HOST_DEVICE typename F::RowValues row_values(int64_t row) const { return found[row]; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const typename F::RowValues& values) const {
    f.write(row, values);
  }
};

template <class T, class F, size_t K, size_t C>
void launch_rows_of_any_length(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const std::array<SumOutput<T>, C>& sums) {
  using A = acc_t<T>;
  using Values = typename F::RowValues;
  // Of no columns there are no sums, but perhaps values for rows, which of_row() writes.
  if (cols > 0 && backend::launch_rows_and_column_sums<T>(like, FindAndWrite<F>{f}, inputs, rows, cols, sums)) {
    return;
  }
  constexpr auto kNumbers = static_cast<int64_t>((sizeof(Values) + sizeof(A) - 1) / sizeof(A));
  Tensor buffer = new_empty(like, {rows * kNumbers}, kDtypeOf<A>);
  auto* const found = reinterpret_cast<Values*>(buffer.mutable_data_ptr<A>());
  backend::launch_rows<T>(like, FindRowValues<F>{f, found}, inputs, rows, cols);
  backend::launch_column_sums<T>(like, WriteColumns<F>{f, found}, inputs, 1, rows, cols, sums);
}

}  // namespace detail

// f(row) for every row of K inputs, [rows, cols] each, or for every segment of it where they are cut.
template <class T, size_t K, class F>
void launch_rows(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const backend::Split& split) {
  if (split.segments == 1) {
    backend::launch_rows(like, f, inputs, rows, cols);
  } else {
    backend::launch_segments(like, f, inputs, rows, cols, split);
  }
}

// For rowwise(): a tensor with a value for each row. The functor has it as a pointer to what its dtype holds, to be
// read at row.index().
inline detail::PerRow per_row(const Tensor& tensor) { return {tensor}; }

// For rowwise(): a tensor of one number. The functor has it as a pointer to that.
inline detail::OneNumber one_number(const Tensor& tensor) { return {tensor}; }

// For rowwise(): a tensor of the rows' shape that has another dtype. The functor has it as PerElement of what that
// holds, for row.elements().
inline detail::BesideRows per_element(const Tensor& tensor) { return {tensor}; }

// For rowwise(): a tensor with a value for each column, perhaps None, perhaps wider than the rows. The functor has it
// as backend::Parameter<T>, for row.sum, row.write and the like; one of another dtype, which is not None, as PerElement
// of what that holds, for row.elements().
inline detail::PerColumn per_column(const std::optional<Tensor>& tensor, double otherwise = 0) {
  return {tensor, otherwise};
}

// For rowwise(): a tensor that is not read. Its dtype is the T of the functor, whose other tensors of the rows' shape
// are of the type of the arithmetic, acc_t<T>, as the gradient is of a result that is float32 beside half types.
inline detail::SaysDtype says_dtype(const Tensor& tensor) { return {tensor}; }

// In a functor: output[row] = value, of which there is one for the row.
template <class Row, class T, class A>
HOST_DEVICE void write_per_row(const Row& row, T* output, A value) {
  if (row.leader()) {
    output[row.index()] = static_cast<T>(value);
  }
}

// F<T>{outputs..., others...}(row) for every row of the tensors, which have one shape, [..., cols]. `outputs` are
// pointers to the M new tensors, of which there are as many as the operator returns: a tensor, or a tuple. `others` are
// the arguments besides the tensors of that shape, in their order: numbers, and what per_row, per_column, per_element
// and one_number say of. (What says_dtype says of is none of them.)
template <template <class> class F, size_t M = 1, class... Arguments>
auto rowwise(const Operator& op, const Arguments&... arguments) {
  const auto launch = [&](auto tag, const Tensor& like, const auto& inputs, int64_t rows, int64_t cols, auto& outputs,
                          const auto& members) {
    using T = typename decltype(tag)::type;
    const auto f =
        detail::make_row_functor<F<T>, Arguments...>(op.name(), std::make_index_sequence<M>(), outputs, members);
    backend::launch_rows(like, f, inputs, rows, cols);
  };
  return detail::for_rows<M>(op, launch, arguments...);
}

// The same for a functor that also adds to columns, of rows of any length. The operator returns C more tensors, [cols],
// which are the sums: of what the functor adds to each, of the rows' dtype or of that in which they are summed, as the
// gradient of a wide parameter is. It says in two steps what happens to a row,
//
//   using RowValues = Values<A, 2>;
//
//   HOST_DEVICE RowValues of_row(Row& row) const;                            // passes that find something out,
//                                                                            // and write_per_row
//   HOST_DEVICE void write(Row& row, const RowValues& values) const;         // row.write, or row.add_to_columns
//
// for long rows: there the first step is done with all rows before the second, for which `row` may be a part of one.
// A functor with row_values() (row_values.h) is called as of_row(row, values).
template <template <class> class F, size_t M, size_t C, class... Arguments>
auto rowwise_with_column_sums(const Operator& op, const Arguments&... arguments) {
  static_assert(
      !detail::has_its_dtype_said<Arguments...>, "sums of columns are of rows that have the operator's dtype");
  const auto launch = [&](auto tag, const Tensor& like, const auto& inputs, int64_t rows, int64_t cols, auto& outputs,
                          const auto& members) {
    using T = typename decltype(tag)::type;
    const auto f =
        detail::make_row_functor<F<T>, Arguments...>(op.name(), std::make_index_sequence<M>(), outputs, members);
    std::array<SumOutput<T>, C> sums;
    std::transform(outputs.begin() + M, outputs.end(), sums.begin(), [](Tensor& sum) { return SumOutput<T>::of(sum); });
    detail::launch_rows_of_any_length<T>(like, f, inputs, rows, cols, sums);
  };
  return detail::for_rows<M + C>(op, launch, arguments...);
}

}  // namespace extension_cpp
