// A row as the functors of rows.cuh see it.
#pragma once

#include "elements.cuh"
#include "kept.cuh"
#include "larger.cuh"
#include "launch.cuh"
#include "parameter.cuh"
#include "per_element.h"
#include "span.cuh"
#include "team.cuh"
#include "vector.cuh"

#include <cmath>
#include <type_traits>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

using extension_cpp::detail::result_at;

// The first element of each input's row.
template <class In>
struct First {
  using T = typename In::Element;

  Chunk<T, 1> elements[In::kCount] = {};

  // Of the span, or of the row of which it is a part.
  __device__ First(const In& inputs, Span span, bool of_row) {
    if (span.cols > 0) {
      if (of_row) {
        span.offset -= span.first_col;
        span.first_col = 0;
      }
#pragma unroll
      for (size_t k = 0; k < In::kCount; ++k) {
        elements[k] = load_chunk<1>(inputs.row(k, span));
      }
    }
  }

  __device__ acc_t<T> operator[](size_t k) const { return to_values(elements[k])[0]; }
};

// What is done with elements of one input as they are in memory, several of them: f(chunk).
template <class F>
struct OfChunks {
  F f;
};
template <class F>
OfChunks(F) -> OfChunks<F>;

template <class Of>
constexpr bool is_of_chunks = false;
template <class F>
constexpr bool is_of_chunks<OfChunks<F>> = true;

// What a functor sees of its row. C column sums in registers, which only kernels whose threads meet the same columns in
// every row can have. Shares: the span is this block's part of a row that a cluster shares. Named: what is at hand of
// the parameters that the functor names; Read: of the tensors of other types.
template <
    class In, int N, int V, Fit Rows, size_t C, class TeamHere, bool Shares, class Chunks, class Named,
    class Read = RowElementsRead<N, V, Rows, NoRowElements>>
class Row {
  static_assert(V > 0 || !kFull<Rows>);
  using T = typename In::Element;
  static constexpr size_t K = In::kCount;
  using Edge = KeptEdge<In, N, Rows>;

 public:
  using A = acc_t<T>;
  // Whether each pass reads the row from memory again.
  static constexpr bool kRereads = V == 0;
  // Whether it is known that no more than a warp has the row.
  static constexpr bool kInWarp = TeamHere::kInWarp;
  // For each access, and then for the edge.
  static constexpr int kEdge = V > 0 ? V : 1;
  using Sums = Values<A, N>[C > 0 ? C : 1][kEdge + (kRagged<Rows> ? 1 : 0)];

  __device__ Row(
      const In& inputs, int64_t segments, int64_t cols, const Span& span, const First<In>& first, const Chunks& kept,
      const Edge& edge, const Named& columns, const Read& read, TeamHere& team, Sums& sums)
      : inputs_(inputs),
        segments_(segments),
        cols_(cols),
        span_(span),
        first_(first),
        kept_(kept),
        edge_(edge),
        columns_(columns),
        read_(read),
        team_(team),
        sums_(sums) {}

  // Always of an existing row, so that statistics may be read without asking.
  __device__ int64_t index() const { return span_.row; }
  // Of the segment, in a [rows, segments] matrix.
  __device__ int64_t segment_index() const { return Shares ? span_.row : span_.row * segments_ + span_.segment; }
  // Elements of the row, or of the segment.
  __device__ int64_t cols() const { return Shares ? cols_ : span_.cols; }
  // True for one thread of each row: it writes what there is one of.
  __device__ bool leader() const { return span_.exists && team_.leads(); }

  // Whether it is so of any row that this one keeps step with: what calls sum() or max() under a condition asks here,
  // for they have to be called for all of these. `is` follows from what is the same for the whole row.
  __device__ bool any(bool is) const { return team_.lanes() < kWarp ? __any_sync(0xffffffffu, is) : is; }

  // The first element of input k; 0 of a row that has none.
  __device__ A first(size_t k = 0) const { return first_[k]; }

  // The same of a tensor of another type.
  template <class U>
  __device__ A first(const PerElement<U>& tensor) const {
    const int64_t col = Shares ? 0 : span_.first_col;
    return cols() > 0 ? static_cast<A>(*tensor.at(span_.row, col, span_.offset - span_.first_col + col)) : A(0);
  }

  // The element of input k in a column of the whole row; NaN where it has no such column.
  __device__ A at(int64_t col, size_t k = 0) const {
    if (col < 0 || col >= cols_) {
      return static_cast<A>(NAN);
    }
    return to_values(load_chunk<1>(inputs_.row(k, span_) - span_.first_col + col))[0];
  }

  // The same of a parameter.
  template <class Column, class = std::enable_if_t<!std::is_integral_v<Column>>>
  __device__ A at(int64_t col, const Column& column) const {
    if (col < 0 || col >= cols_) {
      return static_cast<A>(NAN);
    }
    return column.template at<1>(col)[0];
  }

  // For each element the number of its column in the whole row, an int64_t, as a column operand.
  __device__ ColumnNumbers columns() const { return {span_.first_col}; }

  // The sum over the row of f(inputs..., columns...): a number, or Values of up to four.
  //
  // A column operand has a method at<N>(col), as Parameter in parameter.cuh.
  template <class F, class... Columns>
  __device__ auto sum(const F& f, const Columns&... columns) {
    using Term = decltype(call(f, std::declval<const InputsAt<N>&>(), 0, std::declval<const AnyColumn<Columns>&>()...));
    using R = as_result_t<Term, A>;
    R total{};
    for_each(
        [&](int, const auto& inputs, int n, const auto&... values) {
          total = plus(total, static_cast<R>(call(f, inputs, n, values...)));
        },
        nothing(), columns...);
    return team_.all_reduce(total, R{}, Plus{});
  }

  // The sum of the row's elements, where it has one input.
  __device__ A sum() {
    static_assert(K == 1);
    if constexpr (kRereads && !kTight<In, Rows>) {
      return team_.all_reduce(own_sum(), A(0), Plus{});
    } else {
      return sum([](A x) { return x; });
    }
  }

  // The largest f(inputs..., columns...) of the row; NaN if there is one.
  template <class F, class... Columns>
  __device__ A max(const F& f, const Columns&... columns) {
    const A lowest = -static_cast<A>(INFINITY);
    A largest = lowest;
    for_each(
        [&](int, const auto& inputs, int n, const auto&... values) {
          largest = Larger{}(largest, call(f, inputs, n, values...));
        },
        nothing(), columns...);
    return team_.all_reduce(largest, lowest, Larger{});
  }

  // The largest of the row's elements, where it has one input; NaN if there is one.
  __device__ A max() {
    static_assert(K == 1);
    Largest<T> largest;
    for_each(OfChunks{[&](const auto& chunk) { largest.add(chunk); }}, nothing());
    return team_.all_reduce(largest.value(), -static_cast<A>(INFINITY), Larger{});
  }

  // The elements of a tensor of another type, [rows, cols], as a column operand: what per_element() gives a functor
  // whose accesses are aligned to what it writes.
  template <class U>
  __device__ auto elements(const PerElement<U>& tensor) const {
    const U* const row = tensor.at(span_.row, span_.first_col, span_.offset);
    const OfElements<U, !kRagged<Rows>> in_memory{in_register(row)};
    if constexpr (Read::template kMayHave<U>) {
      return read_.of(tensor, in_memory);
    } else {
      return in_memory;
    }
  }

  // f(inputs..., operands...) of every element, as a column operand: computed once and kept in registers, or, where
  // that would take too many, whenever it is asked for. The operands are elements(), columns(), or what is kept.
  template <class F, class... Operands>
  __device__ auto keep(const F& f, const Operands&... operands) {
    static_assert((is_of_row<Operands> && ...), "elements of the row, or what it keeps");
    if constexpr (V > 0 && V * N <= kMostKept) {
      KeptResults<A, N, V, Rows> kept;
      for_each(
          [&](int v, const auto& inputs, int n, const auto&... values) {
            kept.results[v][n] = call(f, inputs, n, values...);
          },
          nothing(), operands...);
      return kept;
    } else if constexpr (sizeof...(Operands) > 0) {
      return RecomputedOf{f, raw_columns(operands...)};
    } else {
      return Recomputed<F>{f};
    }
  }

  // output[row, col] = f(inputs..., columns...) for every element; of the rows' type, or of any other. Of several
  // outputs, Outputs{a, b}, the results of f in their order. The terms of f, WithSums, are added to the column's sums.
  template <class U, class F, class... Columns>
  __device__ void write(U* output /* [rows, cols] */, const F& f, const Columns&... columns) {
    write(Outputs<U>{output}, f, columns...);
  }

  template <class... U, class F, class... Columns>
  __device__ void write(const Outputs<U...>& outputs, const F& f, const Columns&... columns) {
    write_each(outputs, std::index_sequence_for<U...>{}, f, columns...);
  }

  // write(output, f), and what the output then holds, as a column operand.
  template <class F>
  __device__ auto write_and_keep(T* output, const F& f) {
    const auto kept = keep([f](auto... elements) { return static_cast<A>(static_cast<T>(f(elements...))); });
    T* const to = in_register(at_head(output));
    Values<A, N> result;
    for_each(
        [&](int, const auto& inputs, int n, const auto& values) { result[n] = at_element(values, inputs, n); },
        [&](auto count, auto col) { store_at<count>(to + col, result); }, kept);
    return kept;
  }

  // write(output, f), and the sum over the row of g(what the output then holds), in one pass.
  template <class F, class G>
  __device__ auto write_and_sum_written(T* output, const F& f, const G& g) {
    using R = decltype(g(A()));
    T* const to = in_register(at_head(output));
    Values<A, N> result;
    R total{};
    for_each(
        [&](int, const auto& inputs, int n) {
          result[n] = static_cast<A>(static_cast<T>(call(f, inputs, n)));
          total = plus(total, g(result[n]));
        },
        [&](auto count, auto col) { store_at<count>(to + col, result); });
    return team_.all_reduce(total, R{}, Plus{});
  }

  // What was written to an output, as a column operand, which the next passes read.
  __device__ Written<T> written(const T* output) const { return {output + span_.offset}; }

  // Adds f(inputs..., columns...), Values of C numbers, to the sums of the element's column.
  template <class F, class... Columns>
  __device__ void add_to_columns(const F& f, const Columns&... columns) {
    static_assert(C > 0 && V > 0, "launch_rows_and_column_sums");
    for_each(
        [&](int v, const auto& inputs, int n, const auto&... values) { add(v, n, call(f, inputs, n, values...)); },
        nothing(), columns...);
  }

  // Adds each element to the sum of its column, where the row has one input and there is one sum.
  __device__ void add_to_columns() {
    add_to_columns([](A x) { return Values<A, 1>{x}; });
  }

  // outputs[m][row, col] = result m of f(inputs...), Values, where there is such an output; where columns are summed,
  // all results are added to the sums of the element's. Returns what they add up to in this thread's elements of the
  // row.
  template <class F, size_t M>
  __device__ Values<A, static_cast<int>(M)> write_and_sum(const PointerArray<T, M>& outputs, const F& f) {
    Values<A, N> results[M];
    Values<A, static_cast<int>(M)> total{};
    for_each(
        [&](int v, const auto& inputs, int n) {
          const Values<A, static_cast<int>(M)> values = call(f, inputs, n);
#pragma unroll
          for (size_t m = 0; m < M; ++m) {
            results[m][n] = values[static_cast<int>(m)];
            total[static_cast<int>(m)] += values[static_cast<int>(m)];
          }
          if constexpr (C > 0) {
            add(v, n, values);
          }
        },
        [&](auto count, auto col) {
#pragma unroll
          for (size_t m = 0; m < M; ++m) {
            if (outputs.data[m] != nullptr) {
              store_at<count>(at_head(outputs.data[m]) + col, results[m]);
            }
          }
        });
    return total;
  }

  // What the threads of the row have together.
  __device__ A sum_of_threads(A own) { return team_.all_reduce(own, A(0), Plus{}); }

 private:
  // What this thread's elements of a row in memory add up to. Nothing is kept but a few accesses, which are asked for
  // together, so that as many threads run at once as may. (Of half types four take up to a twentieth longer.)
  __device__ A own_sum() const {
    constexpr int kAccesses = sizeof(T) == 2 ? 3 : 4;
    const int64_t step = int64_t{N} * team_.lanes();
    const T* address = inputs_.row(0, span_) + int64_t{N} * team_.lane();
    int64_t left = span_.cols - int64_t{N} * team_.lane();  // from the address on
    A totals[kAccesses] = {};
    const auto add = [](A& total, const Chunk<T, N>& chunk) {
      const auto values = to_values(chunk);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        total += values[n];
      }
    };
    for (; left > (kAccesses - 1) * step; left -= kAccesses * step, address += kAccesses * step) {
      Chunk<T, N> chunks[kAccesses];
#pragma unroll
      for (int k = 0; k < kAccesses; ++k) {
        chunks[k] = load_chunk<N>(address + k * step);
      }
#pragma unroll
      for (int k = 0; k < kAccesses; ++k) {
        add(totals[k], chunks[k]);
      }
    }
    for (; left > 0; left -= step, address += step) {
      add(totals[0], load_chunk<N>(address));
    }
    A total{};
#pragma unroll
    for (const A& each : totals) {
      total += each;
    }
    return total;
  }

  using Index = ColumnIndex<V>;
  using Where = Place<N, V, Index, Rows>;

  template <int M>
  struct InputsAt {
    Values<A, M> inputs[K];
  };

  // A value of an operand for each element of an access.
  template <class Column>
  struct ValuesOf {
    using type = Values<A, N>;
  };
  template <class U, bool Whole>
  struct ValuesOf<OfElements<U, Whole>> {
    using type = Values<decltype(as_value(U())), N>;
  };
  template <class U, bool Whole, int M, int W>
  struct ValuesOf<NamedElements<U, Whole, M, W>> : ValuesOf<OfElements<U, Whole>> {};
  template <class Column>
  using AnyColumn = typename ValuesOf<Column>::type;

  __device__ static auto nothing() {
    return [](auto, auto) {};
  }

  // Of a row that is read again, accesses to each input that a thread sends for at a time: 32 bytes, but of ragged
  // rows, and of those that are shifted, whose accesses take twice the registers, a single one.
  static constexpr int kRereadAccesses = kTight<In, Rows> ? 1 : 32 / (N * static_cast<int>(sizeof(T)));

  // Results that keep() leaves in a thread's registers.
  static constexpr int kMostKept = 32;

  // The value of a column operand at an element.
  template <int M, class Column>
  __device__ static auto at_element(const Column& column, const InputsAt<M>& /*elements*/, int n) {
    return column[n];
  }
  template <int M, class F>
  __device__ static A at_element(const Recomputed<F>& column, const InputsAt<M>& elements, int n) {
    return call(column.f, elements, n);
  }
  template <int M, class F, class Operands>
  __device__ static A at_element(const RecomputedOf<F, Operands>& column, const InputsAt<M>& elements, int n) {
    return with_column_values(
        [&](const auto&... values) { return call(column.f, elements, n, values...); }, column.operands);
  }

  template <int M, class F, size_t... I, class... Columns>
  __device__ static auto call(
      const F& f, const InputsAt<M>& elements, int n, std::index_sequence<I...>, const Columns&... columns) {
    return f(elements.inputs[I][n]..., at_element(columns, elements, n)...);
  }

  template <int M, class F, class... Columns>
  __device__ static auto call(const F& f, const InputsAt<M>& elements, int n, const Columns&... columns) {
    return call(f, elements, n, std::make_index_sequence<K>{}, columns...);
  }

  // The results of an access to an output of type U: such of the rows' type are converted when they are stored.
  template <class U>
  using ResultsTo = std::conditional_t<std::is_same_v<U, T>, Values<A, N>, Elements<U, N>>;

  template <class R>
  __device__ static void set(Values<A, N>& results, int n, R result) {
    results[n] = result;
  }
  template <class U, class R>
  __device__ static void set(Elements<U, N>& results, int n, R result) {
    results.at[n] = static_cast<U>(result);
  }

  template <class... U, size_t... M, class F, class... Columns>
  __device__ void write_each(
      const Outputs<U...>& outputs, std::index_sequence<M...> /*places*/, const F& f, const Columns&... columns) {
    const Slots<std::index_sequence<M...>, U*...> to(in_register(at_head(slot_at<M>(outputs)))...);
    Slots<std::index_sequence<M...>, ResultsTo<U>...> results;
    for_each(
        [&](int v, const auto& inputs, int n, const auto&... values) {
          const auto made = call(f, inputs, n, values...);
          (set(slot_at<M>(results), n, result_at<M>(made)), ...);
          if constexpr (ResultCounts<std::decay_t<decltype(made)>>::terms > 0) {
            add(v, n, made.terms);
          }
        },
        [&](auto count, auto col) { (store_at<count>(slot_at<M>(to) + col, slot_at<M>(results)), ...); }, columns...);
  }

  // v: which access of the thread, or kEdge.
  __device__ void add(int v, int n, const Values<A, static_cast<int>(C)>& terms) {
#pragma unroll
    for (size_t c = 0; c < C; ++c) {
      sums_[c][v][n] += terms[static_cast<int>(c)];
    }
  }

  // Where the span's columns begin in an output, apart from those before the head.
  template <class U>
  __device__ U* at_head(U* output) const {
    return output + (span_.offset + (kRagged<Rows> ? span_.head : 0));
  }

  // The first M of the values, in one access where it is aligned.
  template <int M>
  __device__ static void store_at(T* address, const Values<A, N>& values) {
    if (M == N && (!kRagged<Rows> || is_aligned(address))) {
      store(address, values);
    } else {
#pragma unroll
      for (int n = 0; n < M; ++n) {
        address[n] = static_cast<T>(values[n]);
      }
    }
  }

  template <int M, class U>
  __device__ static void store_at(U* address, const Elements<U, N>& elements) {
    if constexpr (M == N) {
      store_elements(address, elements);
    } else {
#pragma unroll
      for (int n = 0; n < M; ++n) {
        address[n] = elements.at[n];
      }
    }
  }

  // The values of a column operand at an access, as they are in memory if that is known. Those that are kept come as
  // they are.
  template <class Column>
  __device__ auto column_at(const Column& column, int v, const Where& where) const {
    if constexpr (is_at_hand<Column>) {
      return column.at_access(v);
    } else if constexpr (is_named_elements<Column>) {
      return column.is_read ? column.read.accesses[v].elements() : column_at(column.in_memory, v, where);
    } else if constexpr (is_recomputed_of<Column>) {
      return with_column_values(
          [&](const auto&... operands) {
            return RecomputedOf{column.f, raw_columns(column_at(operands, v, where)...)};
          },
          column.operands);
    } else if constexpr (kRagged<Rows>) {
      return column.template requested<N>(span_.head + where.col);
    } else {
      return column.template raw<N>(where.col);
    }
  }

  template <class Column>
  __device__ auto edge_column(const Column& column, int64_t col) const {
    if constexpr (is_at_hand<Column>) {
      return column.at_edge();
    } else if constexpr (is_recomputed_of<Column>) {
      return with_column_values(
          [&](const auto&... operands) { return RecomputedOf{column.f, raw_columns(edge_column(operands, col)...)}; },
          column.operands);
    } else if constexpr (is_named_elements<Column>) {
      return edge_column(column.in_memory, col);
    } else {
      return column.template at<1>(col);
    }
  }

  // of(v, elements, n, values...) for each element of an access, and then done(M, col): their number, and the first of
  // them, from the head on. OfChunks is called once, with the elements as they are in memory.
  template <int M, class Get, class Of, class Done, class Col, class... Columns>
  __device__ static void visit(
      int v, Col col, const Get& get, const Of& of, const Done& done, const Columns&... values) {
    if constexpr (is_of_chunks<Of>) {
      static_assert(K == 1);
      of.f(get(0));
    } else {
      InputsAt<M> elements;
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        elements.inputs[k] = to_values(get(k));
      }
#pragma unroll
      for (int n = 0; n < M; ++n) {
        of(v, elements, n, values...);
      }
    }
    done(std::integral_constant<int, M>{}, col);
  }

  // visit() for U accesses from the one called `access` on, those that exist.
  template <int U, class KeptHere, class Of, class Done, class... Columns>
  __device__ void visit_all(
      Index access, const KeptHere& kept, const Of& of, const Done& done, const Columns&... columns) const {
    if constexpr (kFull<Rows>) {
      if (span_.exists) {
        visit_full<0, U>(access, kept, of, done, columns...);
      }
      return;
    }
    const int64_t cols = whole_cols<N, Rows>(span_);
#pragma unroll
    for (int v = 0; v < U; ++v) {
      const Where here(cols, access, team_.lanes(), v);
      if (here.exists()) {
        with_column_values(
            [&](const auto&... values) {
              visit<N>(v, here.col, [&](size_t k) { return kept.chunk(k, v); }, of, done, values...);
            },
            raw_columns(column_at(columns, v, here)...));
      }
    }
  }

  // Accesses whose column operands, of those that are in memory in the rows' type, are waited for together: in as many
  // registers as the row leaves.
  template <class... Columns>
  static constexpr int kTogether =
      (is_shifted<Columns> || ...)
          ? 1
          : std::max(1, (V > 4 ? 4 : 8) / std::max(1, (0 + ... + (is_at_hand<Columns> ? 0 : 1))));

  // The same where all exist, from access V0 on.
  template <int V0, int U, class KeptHere, class Of, class Done, class... Columns>
  __device__ void visit_full(
      Index access, const KeptHere& kept, const Of& of, const Done& done, const Columns&... columns) const {
    constexpr int kCount = std::min(kTogether<Columns...>, U - V0);
    const auto here = [&](int v) { return Where(0, access, team_.lanes(), v); };
    const auto raw_at = [&](int v) { return raw_columns(column_at(columns, v, here(v))...); };
    visit_together<V0>(std::make_integer_sequence<int, kCount>(), kept, of, done, here, raw_at);
    if constexpr (V0 + kCount < U) {
      visit_full<V0 + kCount, U>(access, kept, of, done, columns...);
    }
  }

  template <int V0, int... I, class KeptHere, class Of, class Done, class Here, class RawAt>
  __device__ static void visit_together(
      std::integer_sequence<int, I...>, const KeptHere& kept, const Of& of, const Done& done, const Here& here,
      const RawAt& raw_at) {
    const decltype(raw_at(0)) raw[] = {raw_at(V0 + I)...};
    const auto visit_one = [&](int v, const auto& raw_here) {
      with_column_values(
          [&](const auto&... values) {
            visit<N>(v, here(v).col, [&](size_t k) { return kept.chunk(k, v); }, of, done, values...);
          },
          raw_here);
    };
    (visit_one(V0 + I, raw[I]), ...);
  }

  // The same for the edge.
  template <class Of, class Done, class... Columns>
  __device__ void visit_edge(const Of& of, const Done& done, const Columns&... columns) const {
    if constexpr (kRagged<Rows>) {
      const EdgePlace<N> here(span_, team_.lane());
      if (here.is) {
        visit<1>(
            kEdge, here.col - span_.head, [&](size_t k) { return edge_.elements[k]; }, of, done,
            edge_column(columns, here.col)...);
      }
    }
  }

  // Of a column operand that is kept what is at hand; others as they are.
  template <class Column>
  __device__ decltype(auto) at_hand(const Column& column) const {
    if constexpr (is_at_hand<Column> || is_of_elements<Column>) {
      return (column);
    } else {
      return columns_.of(column);
    }
  }

  // visit() for every access to the row.
  template <class Of, class Done, class... Columns>
  __device__ void for_each(const Of& of, const Done& done, const Columns&... columns) {
    if constexpr (Named::kCount > 0 && (... || !(is_at_hand<Columns> || is_of_elements<Columns>))) {
      if (columns_.has(columns...)) {
        visit_all<V>(static_cast<Index>(team_.lane()), kept_, of, done, at_hand(columns)...);
        visit_edge(of, done, at_hand(columns)...);
        return;
      }
    }
    with_kinds(
        [&](const auto&... kinds) {
          if constexpr (V > 0) {
            visit_all<V>(static_cast<Index>(team_.lane()), kept_, of, done, kinds...);
          } else {
            // What comes next is asked for before what is here is used.
            constexpr int U = kRereadAccesses;
            const int64_t cols = whole_cols<N, Rows>(span_);
            const int64_t step = int64_t{U} * team_.lanes();
            Awaited<In, N, U, Rows> next;
            int64_t access = team_.lane();
            next.ask(inputs_, span_, team_.lanes(), access);
            for (; Where(cols, access, 0, 0).exists(); access += step) {
              const Kept<In, N, U> here = next.arrived();
              next.ask(inputs_, span_, team_.lanes(), access + step);
              visit_all<U>(access, here, of, done, kinds...);
            }
          }
          visit_edge(of, done, kinds...);
        },
        span_.first_col, columns...);
  }

  const In& inputs_;
  int64_t segments_;
  int64_t cols_;
  const Span& span_;
  const First<In>& first_;
  const Chunks& kept_;
  const Edge& edge_;
  const Named& columns_;
  const Read& read_;
  TeamHere& team_;
  Sums& sums_;
};

}  // namespace detail

}  // namespace extension_cpp::cuda
