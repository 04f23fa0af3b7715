// What a functor for rows (rows.h) reads besides its inputs: for each row, a mean say, and for each column. A functor
// that has
//
//   HOST_DEVICE RowValues row_values(int64_t row) const { return {mean[row], rstd[row]}; }
//
// is called as f(row, values); they may be any numbers, a class of each row beside its mean. On CUDA, where blocks stay
// for many rows, its values are read long before their turn: to wait for them takes a quarter of the time of a layer
// norm's backward. row_values() may be called for any existing row, and of one that has no effect.
//
// A functor may name its parameters, of the rows' type, with a value for each of their columns at least,
//
//   HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&weight}}; }
//
// and on CUDA, where it sums columns, each thread keeps what it needs of them: it meets the same columns in every row.
// Of rows of several inputs they may be asked for before the row is reduced.
//
// A functor may name its tensors of other dtypes, those with a value for each element (rows.h),
//
//   HOST_DEVICE RowElements<bool> row_elements() const { return {&mask}; }
//
// and on CUDA, where it sums columns, their elements are read once for all passes, and a row ahead.
#pragma once

#include "element_types.h"
#include "host_device.h"
#include "per_element.h"

#include <cstdint>
#include <type_traits>
#include <utility>

namespace extension_cpp {

// P members of a functor.
template <class Parameter, int P>
struct RowColumns {
  static constexpr int kCount = P;

  const Parameter* parameters[P];
};

// Members of a functor that have elements of such types.
template <class... U>
struct RowElements : detail::Slots<std::index_sequence_for<U...>, const PerElement<U>*...> {
  static constexpr int kCount = sizeof...(U);

  HOST_DEVICE RowElements(const PerElement<U>*... tensors)  // NOLINT(google-explicit-constructor)
      : detail::Slots<std::index_sequence_for<U...>, const PerElement<U>*...>(tensors...) {}
};

namespace detail {

struct NoRowValues {};

template <class F, class = void>
struct RowValuesOf {
  using type = NoRowValues;
};
template <class F>
struct RowValuesOf<F, std::void_t<decltype(std::declval<const F&>().row_values(int64_t{}))>> {
  using type = decltype(std::declval<const F&>().row_values(int64_t{}));
};

template <class F>
HOST_DEVICE auto row_values(const F& f, int64_t row) {
  using Values = typename RowValuesOf<F>::type;
  if constexpr (std::is_same_v<Values, NoRowValues>) {
    return Values{};
  } else {
    return f.row_values(row);
  }
}

template <class F, class Row, class Values>
HOST_DEVICE void call_with_row_values(const F& f, Row& row, const Values& values) {
  if constexpr (std::is_same_v<Values, NoRowValues>) {
    f(row);
  } else {
    f(row, values);
  }
}

// The same where nothing is read ahead.
template <class F, class Row>
HOST_DEVICE void call_with_row_values(const F& f, Row& row) {
  call_with_row_values(f, row, row_values(f, row.index()));
}

// Whether a functor writes rows; one says where it does not (rows.h).
template <class F, class = void>
constexpr bool writes_rows = true;
template <class F>
constexpr bool writes_rows<F, std::enable_if_t<!F::kWritesRows>> = false;

struct NoRowColumns {
  static constexpr int kCount = 0;
};

template <class F, class = void>
struct RowColumnsOf {
  using type = NoRowColumns;
};
template <class F>
struct RowColumnsOf<F, std::void_t<decltype(std::declval<const F&>().row_columns())>> {
  using type = decltype(std::declval<const F&>().row_columns());
};

template <class F>
HOST_DEVICE typename RowColumnsOf<F>::type row_columns(const F& f) {
  if constexpr (RowColumnsOf<F>::type::kCount > 0) {
    return f.row_columns();
  } else {
    return {};
  }
}

struct NoRowElements {
  static constexpr int kCount = 0;
};

template <class F, class = void>
struct RowElementsOf {
  using type = NoRowElements;
};
template <class F>
struct RowElementsOf<F, std::void_t<decltype(std::declval<const F&>().row_elements())>> {
  using type = decltype(std::declval<const F&>().row_elements());
};

template <class F>
HOST_DEVICE typename RowElementsOf<F>::type row_elements(const F& f) {
  if constexpr (RowElementsOf<F>::type::kCount > 0) {
    return f.row_elements();
  } else {
    return {};
  }
}

}  // namespace detail

}  // namespace extension_cpp
