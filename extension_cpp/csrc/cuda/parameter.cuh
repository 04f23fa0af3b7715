// Parameters of a row kernel, one value for each column.
#pragma once

#include "element_types.h"
#include "elements.cuh"
#include "request.cuh"
#include "vector.cuh"

#include <optional>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

using extension_cpp::detail::as_value;

// N values as they are in memory, in the accesses that they take.
template <class U, int N>
struct RawValues {
  static constexpr int kStep = N < kVector<U> ? N : kVector<U>;

  Chunk<U, kStep> chunks[N / kStep];
};

template <class U, int N>
__device__ Values<acc_t<U>, N> column_values(const RawValues<U, N>& raw) {
  constexpr int kStep = RawValues<U, N>::kStep;
  Values<acc_t<U>, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    result[k] = to_values(raw.chunks[k / kStep])[k % kStep];
  }
  return result;
}

// N values from any column on, on their way.
template <class U, int N>
struct RequestedValues {
  static constexpr int kStep = RawValues<U, N>::kStep;

  Requested requested[N / kStep];
};

template <class U, int N>
__device__ Values<acc_t<U>, N> column_values(const RequestedValues<U, N>& values) {
  RawValues<U, N> raw;
#pragma unroll
  for (int k = 0; k < N / raw.kStep; ++k) {
    raw.chunks[k] = receive_chunk<U, raw.kStep>(values.requested[k]);
  }
  return column_values(raw);
}

template <class U, int N>
__device__ auto column_values(const Elements<U, N>& elements) {
  Values<decltype(as_value(U())), N> result;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    result[n] = as_value(elements.at[n]);
  }
  return result;
}

// What is no more than that already.
template <class Column>
__device__ const Column& column_values(const Column& values) {
  return values;
}

// Raw values of several operands. (To assign a std::tuple is not for device code.)
template <class... Raw>
struct RawColumns {};

template <class Raw, class... Rest>
struct RawColumns<Raw, Rest...> {
  Raw first;
  RawColumns<Rest...> rest;
};

__device__ inline RawColumns<> raw_columns() { return {}; }

template <class Raw, class... Rest>
__device__ RawColumns<Raw, Rest...> raw_columns(const Raw& first, const Rest&... rest) {
  return {first, raw_columns(rest...)};
}

// f(values...)
template <class F, class... Done>
__device__ auto with_column_values(const F& f, const RawColumns<>& /*no more*/, const Done&... values) {
  return f(values...);
}

template <class F, class Raw, class... Rest, class... Done>
__device__ auto with_column_values(const F& f, const RawColumns<Raw, Rest...>& raw, const Done&... values) {
  return with_column_values(f, raw.rest, values..., column_values(raw.first));
}

// One value for each column, in memory.
template <class U>
struct Stored {
  const U* data;

  // Of columns col ... col + N - 1; col is a multiple of N.
  template <int N, class Index>
  __device__ RawValues<U, N> raw(Index col) const {
    RawValues<U, N> result;
#pragma unroll
    for (int k = 0; k < N; k += result.kStep) {
      result.chunks[k / result.kStep] = load_chunk<result.kStep>(data + col + k);
    }
    return result;
  }

  // Of any columns, N being whole accesses.
  template <int N, class Index>
  __device__ RequestedValues<U, N> requested(Index col) const {
    constexpr int kStep = RawValues<U, N>::kStep;
    static_assert(kStep == kVector<U>);
    RequestedValues<U, N> result;
#pragma unroll
    for (int k = 0; k < N / kStep; ++k) {
      result.requested[k] = request_access(data + col + k * kStep, true);
    }
    return result;
  }

  // Of any columns.
  template <int N, class Index>
  __device__ Values<acc_t<U>, N> at(Index col) const {
    constexpr int kStep = RawValues<U, N>::kStep;
    Values<acc_t<U>, N> result;
#pragma unroll
    for (int first = 0; first < N; first += kStep) {
      const auto part = load_unaligned<kStep>(data + col + first);
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        result[first + k] = part[k];
      }
    }
    return result;
  }
};

}  // namespace detail

// An optional parameter with one value per column, which may be wider than the inputs.
template <class T>
struct Parameter {
  using A = acc_t<T>;
  static constexpr bool kHalf = !std::is_same_v<T, A>;

  const T* narrow = nullptr;
  const A* wide = nullptr;
  A otherwise;

  // `parameter` is what as_parameter() made of it; or any that is contiguous, for kernels that read by at() and
  // with_values_at() alone.
  Parameter(const std::optional<Tensor>& parameter, A otherwise, int64_t /*cols*/) : otherwise(otherwise) {
    if (!parameter.has_value()) {
      return;
    }
    if (parameter->element_size() == sizeof(A)) {
      wide = parameter->template const_data_ptr<A>();
    } else {
      narrow = parameter->template const_data_ptr<T>();
    }
  }

  // The values where they are of the rows' type, else null.
  __device__ const T* same() const {
    if constexpr (kHalf) {
      return narrow;
    } else {
      return wide;
    }
  }

  // Of columns col ... col + N - 1.
  template <int N>
  __device__ Values<A, N> at(int64_t col) const {
    return read<N>([=](const auto& stored) { return stored.template at<N>(col); });
  }

  // The same where col is a multiple of N.
  template <int N>
  __device__ Values<A, N> aligned_at(int64_t col) const {
    return read<N>([=](const auto& stored) { return detail::column_values(stored.template raw<N>(col)); });
  }

 private:
  template <int N, class F>
  __device__ Values<A, N> read(const F& f) const {
    if (wide != nullptr) {
      return f(detail::Stored<A>{wide});
    }
    if (kHalf && narrow != nullptr) {
      return f(detail::Stored<T>{narrow});
    }
    Values<A, N> result;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      result[k] = otherwise;
    }
    return result;
  }
};

// The first of as many columns as an access has, in kernels of aligned accesses.
struct WholeColumn {
  int64_t col;

  HOST_DEVICE operator int64_t() const { return col; }
};

namespace detail {

// N values, each of which is looked at by itself: little code for what is rare.
template <int N, class T>
__device__ Values<acc_t<T>, N> values_one_by_one(const Parameter<T>& parameter, int64_t col) {
  Values<acc_t<T>, N> result;
#pragma unroll 1
  for (int k = 0; k < N; ++k) {
    const acc_t<T> value = parameter.template at<1>(col + k)[0];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      result[n] = n == k ? value : result[n];
    }
  }
  return result;
}

// use(values...) of stored parameters. No load waits for another.
template <class Result, int N, class Use, class... U>
__device__ Result with_stored_values_at(int64_t col, const Use& use, const Stored<U>&... stored) {
  if constexpr (N > 1) {
    if (!(is_aligned(stored.data + col) && ...)) {
      const auto received = [&](const auto&... requested) { return use(column_values(requested)...); };
      return received(stored.template requested<N>(col)...);
    }
  }
  return use(column_values(stored.template raw<N>(col))...);
}

template <class Result, int N, class Use, class... U>
__device__ Result with_stored_values_at(WholeColumn whole, const Use& use, const Stored<U>&... stored) {
  return use(column_values(stored.template raw<N>(whole.col))...);
}

// Whether with_stored_values_at() may be called: the columns of an access to an aligned parameter are aligned.
template <class... U>
__device__ bool may_be_read_at(int64_t /*col*/, const U*... data) {
  return ((data != nullptr) && ...);
}
template <class... U>
__device__ bool may_be_read_at(WholeColumn /*col*/, const U*... data) {
  return ((data != nullptr && is_aligned(data)) && ...);
}

}  // namespace detail

// use(values...), a Result, of N columns of several parameters, from `col` on, which is an int64_t or a WholeColumn.
// What they are in memory is asked once if that is the same for all.
template <class Result, int N, class Index, class Use, class T, class... More>
__device__ Result with_values_at(Index col, const Use& use, const Parameter<T>& first, const More&... more) {
  if (detail::may_be_read_at(col, first.wide, more.wide...)) {
    using Wide = detail::Stored<acc_t<T>>;
    return detail::with_stored_values_at<Result, N>(col, use, Wide{first.wide}, Wide{more.wide}...);
  }
  if constexpr (Parameter<T>::kHalf) {
    if (detail::may_be_read_at(col, first.narrow, more.narrow...)) {
      using Narrow = detail::Stored<T>;
      return detail::with_stored_values_at<Result, N>(col, use, Narrow{first.narrow}, Narrow{more.narrow}...);
    }
  }
  return use(detail::values_one_by_one<N>(first, col), detail::values_one_by_one<N>(more, col)...);
}

namespace detail {

template <class Column>
struct is_parameter : std::false_type {};
template <class T>
struct is_parameter<Parameter<T>> : std::true_type {};

// Whether a kernel has nothing to read of a column operand: it says by itself what it is at an access of the thread,
// and at the edge.
template <class Column, class = void>
constexpr bool is_at_hand = false;
template <class Column>
constexpr bool is_at_hand<Column, typename Column::IsAtHand> = true;

// One that has the value of an element computed from the inputs when it is asked for.
template <class F>
struct Recomputed {
  using IsAtHand = void;

  F f;

  __device__ const Recomputed& at_access(int /*v*/) const { return *this; }
  __device__ const Recomputed& at_edge() const { return *this; }
};

// What a thread wrote of its row, which it reads again.
template <class T>
struct Written {
  using IsOfRow = void;

  const T* first;

  // Not by the read-only path, which is for what no kernel writes while it runs.
  template <int N, class Index>
  __device__ RawValues<T, N> raw(Index col) const {
    using Chunks = RawValues<T, N>;
    using Word = typename Word<static_cast<int>(sizeof(T)) * Chunks::kStep>::type;
    Chunks result;
#pragma unroll
    for (int k = 0; k < N / Chunks::kStep; ++k) {
      result.chunks[k].word = *reinterpret_cast<const Word*>(first + col + k * Chunks::kStep);
    }
    return result;
  }

  // In whole accesses where they are aligned, as those of an output that begins at a boundary.
  template <int N, class Index>
  __device__ Values<acc_t<T>, N> at(Index col) const {
    if (N > 1 && is_aligned(first + col)) {
      return column_values(raw<N>(col));
    }
    Values<acc_t<T>, N> result;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      result[n] = static_cast<acc_t<T>>(first[col + n]);
    }
    return result;
  }

  template <int N, class Index>
  __device__ auto requested(Index col) const {
    return at<N>(col);
  }
};

// Of every element of the row, one of another type in memory, which each pass reads. Whole: they lie in whole accesses.
template <class U, bool Whole>
struct OfElements {
  using IsOfRow = void;

  const U* first;

  template <int N, class Index>
  __device__ Elements<U, N> raw(Index col) const {
    if constexpr (Whole) {
      return load_whole_elements<N>(first + col);
    } else {
      return load_elements<N>(first + col);
    }
  }

  template <int N, class Index>
  __device__ Elements<U, N> requested(Index col) const {
    return raw<N>(col);
  }

  template <int N, class Index>
  __device__ auto at(Index col) const {
    return column_values(raw<N>(col));
  }
};

// The numbers of N columns, in one register or two until each is asked for.
template <int N>
struct NumbersFrom {
  int64_t first;
};

template <int N>
__device__ Values<int64_t, N> column_values(const NumbersFrom<N>& numbers) {
  Values<int64_t, N> result;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    result[n] = numbers.first + n;
  }
  return result;
}

// Of every element of the row the number of its column, from `first` on.
struct ColumnNumbers {
  using IsOfRow = void;

  int64_t first;

  template <int N, class Index>
  __device__ NumbersFrom<N> raw(Index col) const {
    return {first + static_cast<int64_t>(col)};
  }

  template <int N, class Index>
  __device__ NumbersFrom<N> requested(Index col) const {
    return raw<N>(col);
  }

  template <int N, class Index>
  __device__ Values<int64_t, N> at(Index col) const {
    return column_values(raw<N>(col));
  }
};

// Elements of one tensor that a thread has read of its row.
template <class U, int N, int V>
struct ReadElements {
  ElementWords<U, N> accesses[V];
};

// The same elements where a thread may have read them.
template <class U, bool Whole, int N, int V>
struct NamedElements {
  using IsOfRow = void;

  OfElements<U, Whole> in_memory;
  ReadElements<U, N, V> read;
  bool is_read = false;  // compilers see whether it is so
};

// One that has the value of an element computed from the inputs and from operands of the row when it is asked for.
template <class F, class Operands>
struct RecomputedOf {
  using IsOfRow = void;

  F f;
  Operands operands;
};
template <class F, class Operands>
RecomputedOf(F, Operands) -> RecomputedOf<F, Operands>;

template <class F, class Operands>
__device__ auto column_values(const RecomputedOf<F, Operands>& raw) {
  return with_column_values(
      [&](const auto&... values) { return RecomputedOf{raw.f, raw_columns(values...)}; }, raw.operands);
}

template <class Column>
constexpr bool is_recomputed_of = false;
template <class F, class Operands>
constexpr bool is_recomputed_of<RecomputedOf<F, Operands>> = true;

// Whether an operand is of elements in memory that are of another type, or of their places: no parameter, at any rate.
template <class Column>
constexpr bool is_of_elements = is_recomputed_of<Column>;
template <>
constexpr bool is_of_elements<ColumnNumbers> = true;
template <class U, bool Whole>
constexpr bool is_of_elements<OfElements<U, Whole>> = true;
template <class U, bool Whole, int N, int V>
constexpr bool is_of_elements<NamedElements<U, Whole, N, V>> = true;

template <class Column>
constexpr bool is_named_elements = false;
template <class U, bool Whole, int N, int V>
constexpr bool is_named_elements<NamedElements<U, Whole, N, V>> = true;

// Whether an operand is the row's own, and not to be moved to its first column.
template <class Column, class = void>
constexpr bool is_of_row = is_at_hand<Column>;
template <class Column>
constexpr bool is_of_row<Column, typename Column::IsOfRow> = true;

// Whether an operand is in memory in the rows' type.
template <class Column>
__device__ bool is_of_rows_type(const Column& column) {
  if constexpr (is_of_row<Column>) {
    return true;
  } else {
    return column.same() != nullptr;
  }
}

// One of which is_of_rows_type() is known, from column `first` on.
template <class Column>
__device__ decltype(auto) stored(const Column& column, int64_t first) {
  if constexpr (is_of_row<Column>) {
    return (column);
  } else {
    using U = std::remove_cv_t<std::remove_pointer_t<decltype(column.same())>>;
    return Stored<U>{column.same() + first};
  }
}

// A column operand from column `first` on.
template <class Column>
struct Shifted {
  const Column& column;
  int64_t first;

  template <int N, class Index>
  __device__ auto raw(Index col) const {
    if constexpr (is_parameter<Column>::value) {
      return column.template aligned_at<N>(first + col);
    } else {
      return at<N>(col);
    }
  }

  template <int N, class Index>
  __device__ auto requested(Index col) const {
    return at<N>(col);
  }

  template <int N, class Index>
  __device__ auto at(Index col) const {
    return column.template at<N>(first + col);
  }
};

template <class Column>
constexpr bool is_shifted = false;
template <class Column>
constexpr bool is_shifted<Shifted<Column>> = true;

template <class Column>
__device__ decltype(auto) shifted(const Column& column, int64_t first) {
  if constexpr (is_of_row<Column>) {
    return (column);
  } else {
    return Shifted<Column>{column, first};
  }
}

// use(columns...) with the operands from column `first` on. What a parameter is in memory is asked here, once for all
// columns, if all are of the rows' type; others are asked for each access. (To ask for all kinds here would take more
// registers than there are: what is on its way for the next row would have to be put aside.)
template <class Use, class... Columns>
__device__ void with_kinds(const Use& use, int64_t first, const Columns&... columns) {
  constexpr int kParameters = (0 + ... + (is_parameter<Columns>::value ? 1 : 0));
  constexpr int kOfRow = (0 + ... + (is_of_row<Columns> ? 1 : 0));
  if constexpr (kParameters > 0 && kParameters + kOfRow == sizeof...(Columns)) {
    if ((is_of_rows_type(columns) && ...)) {
      use(stored(columns, first)...);
      return;
    }
  }
  use(shifted(columns, first)...);
}

}  // namespace detail

}  // namespace extension_cpp::cuda
