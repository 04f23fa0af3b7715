// A row as the functors of rows.h see it: what cuda/row.cuh is for CUDA.
#pragma once

#include "cpu/clones.h"
#include "cpu/elements.h"
#include "cpu/lines.h"
#include "cpu/row_blocks.h"
#include "cpu/row_isa.h"
#include "cpu/row_sums.h"
#include "cpu/wide_rows.h"
#include "dispatch.h"
#include "element_types.h"
#include "per_element.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

namespace extension_cpp::cpu {

// Rows cut into segments of at most segment_cols columns, for functors that need to see no more than a segment.
struct Split {
  int64_t segments;
  int64_t segment_cols;

  static Split none(int64_t cols) { return {1, cols}; }

  // Segments of so many columns, at most kSegment.
  static Split of(int64_t cols, int64_t segment) {
    return {std::max<int64_t>(1, (cols + segment - 1) / segment), std::min(cols, segment)};
  }

  static Split even(int64_t cols, int64_t /*inputs*/ = 1) { return of(cols, kSegment); }
};

namespace detail {

// loop(inputs, begin, end), by as many threads as 0 ... size - 1 is worth.
template <class Isa, class Inputs, class Loop>
void share_out(int64_t size, int64_t grain, const Inputs& inputs, const Loop& loop) {
  parallel_for(0, size, grain, [&](int64_t begin, int64_t end) {
    compiled_for(Isa(), [&inputs, &loop, begin, end](auto) {
      auto own = inputs.for_segments();
      loop(own, begin, end);
    });
  });
}

// What has been computed of a row's elements, by their columns.
template <class A>
struct KeptResults {
  const A* values;
  int64_t first_col;

  template <int N>
  CPU_INLINE Values<A, N> at(int64_t col) const {
    static_assert(N == 1, "an element at a time");
    return {{values[col - first_col]}};
  }
};

// Of every element of a row, one of another type in memory.
template <class U>
struct OfElements {
  const U* row;

  template <int N>
  CPU_INLINE auto at(int64_t col) const {
    static_assert(N == 1, "an element at a time");
    return Values<decltype(extension_cpp::detail::as_value(U())), 1>{{extension_cpp::detail::as_value(row[col])}};
  }
};

// The number of a column.
struct ColumnNumbers {
  template <int N>
  CPU_INLINE Values<int64_t, N> at(int64_t col) const {
    static_assert(N == 1, "an element at a time");
    return {{col}};
  }
};

// How a row is worked on. One thread has it, whole; fewer than kShortRow columns number by number. Or the passes over
// it are shared out between threads. Either way long rows are cut into the same segments, and give the same bits.
enum class RowKind { kShort, kWhole, kShared };

// A row, or a segment of one. K inputs; C column sums.
template <class T, size_t K, size_t C, RowKind kKind, class Isa>
class Row {
 public:
  using A = acc_t<T>;
  // Passes find a row in the cache.
  static constexpr bool kRereads = false;
  // On CUDA whether it is known that no more than a warp has the row.
  static constexpr bool kInWarp = false;
  // Whether its elements are loaded and stored by blocks.
  static constexpr bool kInBlocks = kIsaHasBlocks<Isa> && kKind != RowKind::kShort;

  // Columns first_col ... first_col + cols - 1 of row `index`.
  CPU_INLINE Row(
      WideRows<T, K>& inputs, int64_t index, int64_t segment_index, int64_t row_cols, int64_t first_col, int64_t cols,
      A* column_sums /* [C, cols] */)
      : inputs_(&inputs),
        index_(index),
        segment_index_(segment_index),
        first_col_(first_col),
        cols_(cols),
        row_cols_(row_cols),
        offset_(index * row_cols + first_col),
        column_sums_(column_sums) {}

  int64_t index() const { return index_; }
  // Of the segment, in a [rows, segments] matrix.
  int64_t segment_index() const { return segment_index_; }
  // Elements of the row, or of the segment.
  int64_t cols() const { return cols_; }
  // On CUDA true for one thread of each row, which writes what there is one of.
  bool leader() const { return true; }

  // Whether it is so of any row that this one keeps step with: what calls sum() or max() under a condition asks here.
  bool any(bool is) const { return is; }

  // The first element of input k; 0 of a row that has none.
  CPU_INLINE A first(size_t k = 0) const {
    if constexpr (kInBlocks) {
      return cols_ > 0 ? static_cast<A>(inputs_->in_memory(k)[offset_]) : A(0);
    } else {
      // With the rest of the segment, which is wanted next; threads that share a row read that by themselves.
      const int64_t count = kKind == RowKind::kShared ? 1 : std::min(kSegment, cols_);
      return cols_ > 0 ? static_cast<A>(inputs_->at(offset_, count)[k][0]) : A(0);
    }
  }

  // The same of a tensor of another type.
  template <class U>
  CPU_INLINE A first(const PerElement<U>& tensor) const {
    return cols_ > 0 ? static_cast<A>(*tensor.at(index_, first_col_, offset_)) : A(0);
  }

  // The element of input k in a column of the whole row; NaN where it has no such column.
  CPU_INLINE A at(int64_t col, size_t k = 0) const {
    const bool exists = 0 <= col && col < row_cols_;
    return exists ? static_cast<A>(inputs_->in_memory(k)[index_ * row_cols_ + col])
                  : std::numeric_limits<A>::quiet_NaN();
  }

  // The same of a parameter.
  template <class Column, class = std::enable_if_t<!std::is_integral_v<Column>>>
  CPU_INLINE A at(int64_t col, const Column& column) const {
    const bool exists = 0 <= col && col < row_cols_;
    return exists ? column.template at<1>(col)[0] : std::numeric_limits<A>::quiet_NaN();
  }

  // For each element the number of its column in the whole row, an int64_t, as a column operand.
  ColumnNumbers columns() const { return {}; }

  // The sum over the row of f(inputs..., columns...): a number, or Values of several.
  //
  // A column operand has a method at<N>(col), as Parameter.
  template <class F, class... Columns>
  CPU_INLINE auto sum(const F& f, const Columns&... columns) const {
    using R = as_result_t<decltype(call(f, Inputs(), 0, 0, columns...)), A>;
    constexpr int S = ResultCounts<R>::results;
    double long_sums[S] = {};
    Values<A, S> sums = over_segments<Values<A, S>>(
        [&](WideRows<T, K>& rows, int64_t first) CPU_INLINE_LAMBDA {
          return reduce_segment<S>(
              rows, first, A(0), Add(), [&](const Inputs& inputs, int64_t begin, int64_t j) CPU_INLINE_LAMBDA {
                return as_values(static_cast<R>(call(f, inputs, begin, j, columns...)));
              });
        },
        [&](const Values<A, S>& terms) CPU_INLINE_LAMBDA {
          for (int s = 0; s < S; ++s) {
            long_sums[s] += static_cast<double>(terms[s]);
          }
        });
    for (int s = 0; s < S && cols_ > kSegment; ++s) {
      sums[s] = static_cast<A>(long_sums[s]);
    }
    if constexpr (std::is_same_v<R, A>) {
      return sums[0];
    } else {
      return sums;
    }
  }

  // The sum of the row's elements, where it has one input.
  CPU_INLINE A sum() const {
    static_assert(K == 1);
    if constexpr (kKind == RowKind::kShort) {
      return sum([](A x) CPU_INLINE_LAMBDA { return x; });
    } else {
      double long_sum = 0;
      const A only = over_segments<A>(
          [&](WideRows<T, K>& rows, int64_t first) CPU_INLINE_LAMBDA {
            A sum;
            sum_elements(rows.in_memory(0) + offset_ + first, 1, std::min(kSegment, cols_ - first), &sum);
            return sum;
          },
          [&](A segment) CPU_INLINE_LAMBDA { long_sum += static_cast<double>(segment); });
      return cols_ > kSegment ? static_cast<A>(long_sum) : only;
    }
  }

  // The largest f(inputs..., columns...) of the row; NaN if there is one.
  template <class F, class... Columns>
  CPU_INLINE A max(const F& f, const Columns&... columns) const {
    constexpr A kLeast = -std::numeric_limits<A>::infinity();
    A largest = kLeast;
    const A only = over_segments<A>(
        [&](WideRows<T, K>& rows, int64_t first) CPU_INLINE_LAMBDA {
          return reduce_segment<1>(
              rows, first, kLeast, KeepLarger(), [&](const Inputs& inputs, int64_t begin, int64_t j) CPU_INLINE_LAMBDA {
                return as_values(static_cast<A>(call(f, inputs, begin, j, columns...)));
              })[0];
        },
        [&](A segment) CPU_INLINE_LAMBDA { KeepLarger()(largest, segment); });
    return cols_ > kSegment ? largest : only;
  }

  // The largest of the row's elements, where it has one input; NaN if there is one.
  CPU_INLINE A max() const {
    static_assert(K == 1);
    return max([](A x) CPU_INLINE_LAMBDA { return x; });
  }

  // The elements of a tensor of another type, [rows, cols], as a column operand.
  template <class U>
  CPU_INLINE OfElements<U> elements(const PerElement<U>& tensor) const {
    return {tensor.at(index_, 0, index_ * row_cols_)};
  }

  // f(inputs..., operands...) of every element, computed once, as a column operand. The operands are elements(),
  // columns(), or what is kept.
  template <class F, class... Operands>
  CPU_INLINE KeptResults<A> keep(const F& f, const Operands&... operands) {
    A* const results = inputs_->place(kept_++, cols_);
    for_columns([&](WideRows<T, K>& rows, int64_t begin, int64_t end) CPU_INLINE_LAMBDA {
      if constexpr (kInBlocks) {
        in_blocks(rows).for_each(begin, end, [&](const Inputs& inputs, int64_t first, auto count) CPU_INLINE_LAMBDA {
          const auto of = [&](int k) CPU_INLINE_LAMBDA { return call(f, inputs, first, k, operands...); };
          Blocks::write(results + first, count, of);
        });
      } else {
        for_parts(rows, begin, end, [&](const Inputs& inputs, int64_t first, int64_t count) CPU_INLINE_LAMBDA {
          for_each(
              count, [&](int64_t j) CPU_INLINE_LAMBDA { results[first + j] = call(f, inputs, first, j, operands...); });
        });
      }
    });
    return {results, first_col_};
  }

  // output[row, col] = f(inputs..., columns...) for every element; of the rows' type, or of any other. Of several
  // outputs, Outputs{a, b}, the results of f in their order. The terms of f, WithSums, are added to the column's sums.
  template <class U, class F, class... Columns>
  CPU_INLINE void write(U* output /* [rows, cols] */, const F& f, const Columns&... columns) const {
    write(Outputs<U>{output}, f, columns...);
  }

  template <class... U, class F, class... Columns>
  CPU_INLINE void write(const Outputs<U...>& outputs, const F& f, const Columns&... columns) const {
    for_columns([&](WideRows<T, K>& rows, int64_t begin, int64_t end) CPU_INLINE_LAMBDA {
      for_pieces(rows, begin, end, outputs, [&](const Inputs& inputs, int64_t first, int64_t j) CPU_INLINE_LAMBDA {
        const auto made = call(f, inputs, first, j, columns...);
        if constexpr (ResultCounts<std::decay_t<decltype(made)>>::terms > 0) {
          add(first + j, made.terms);
        }
        return made;
      });
    });
  }

  // write(output, f), and what the output then holds, as a column operand.
  template <class F>
  CPU_INLINE KeptResults<A> write_and_keep(T* output, const F& f) {
    write(output, f);
    const T* const written = output + offset_;
    if constexpr (std::is_same_v<T, A>) {
      return {written, first_col_};
    } else {
      A* const results = inputs_->place(kept_++, cols_);
      for_columns([&](WideRows<T, K>&, int64_t begin, int64_t end) CPU_INLINE_LAMBDA {
        if constexpr (kKind == RowKind::kShort || !WideRows<T, K>::kCopies) {
          for_each(end - begin, [&](int64_t j) CPU_INLINE_LAMBDA {
            results[begin + j] = static_cast<A>(written[begin + j]);
          });
        } else {
          widen(written + begin, results + begin, end - begin);
        }
      });
      return {results, first_col_};
    }
  }

  // Adds f(inputs..., columns...), Values of C numbers, to the sums of the element's column.
  template <class F, class... Columns>
  CPU_INLINE void add_to_columns(const F& f, const Columns&... columns) const {
    if constexpr (kInBlocks) {
      in_blocks(*inputs_).for_each(0, cols_, [&](const Inputs& inputs, int64_t first, auto count) CPU_INLINE_LAMBDA {
        const int width = count;  // as in RowBlocks::write()
        CPU_INDEPENDENT_LOOP
        CPU_ROLLED_LOOP
        for (int k = 0; k < width; ++k) {
          add(first + k, call(f, inputs, first, k, columns...));
        }
      });
    } else {
      // By segments of a known length, even if there is one: sums of 64 columns would take twice as long by
      // for_parts().
      for (int64_t segment = 0; segment < cols_; segment += kSegment) {
        of_segment(*inputs_, segment, [&](const Inputs& inputs, int64_t count) CPU_INLINE_LAMBDA {
          for_each(
              count, [&](int64_t j) CPU_INLINE_LAMBDA { add(segment + j, call(f, inputs, segment, j, columns...)); });
        });
      }
    }
  }

  // Adds each element to the sum of its column, where the row has one input and there is one sum.
  CPU_INLINE void add_to_columns() const {
    static_assert(K == 1 && C == 1 && kKind != RowKind::kShared);
    add_elements(inputs_->in_memory(0) + offset_, row_cols_, 1, cols_, column_sums_);
  }

 private:
  // Columns of which the next row is sent for together, and of which there are copies.
  static constexpr int64_t kPiece = 512 / (WideRows<T, K>::kCopies ? 1 : sizeof(T));

  using Blocks = RowBlocks<Isa, T, K>;

  // Where a piece of an output is computed: of half types in the type of the arithmetic, and converted together; others
  // in the output.
  template <class U, bool Copies = WideRows<T, K>::kCopies && std::is_same_v<U, T>>
  struct Computed {
    alignas(kLineBytes) A values[kPiece];

    A* at(U* /*to*/) { return values; }
    void put(U* to, int64_t width) const { narrow(values, to, width); }
  };
  template <class U>
  struct Computed<U, false> {
    U* at(U* to) { return to; }
    void put(U* /*to*/, int64_t /*width*/) const {}
  };

  // From column `first` on.
  using Inputs = std::array<const typename WideRows<T, K>::Element*, K>;

  CPU_INLINE void add(int64_t j, const Values<A, static_cast<int>(C)>& terms) const {
    static_assert(C > 0 && kKind != RowKind::kShared, "launch_rows_and_column_sums");
    for (size_t c = 0; c < C; ++c) {
      column_sums_[c * cols_ + j] += terms[static_cast<int>(c)];
    }
  }

  template <class F, size_t... I, class... Columns>
  CPU_INLINE auto call(
      const F& f, const Inputs& inputs, int64_t first, int64_t j, std::index_sequence<I...>,
      const Columns&... columns) const {
    return f(static_cast<A>(inputs[I][j])..., columns.template at<1>(first_col_ + first + j)[0]...);
  }

  // For column first + j.
  template <class F, class... Columns>
  CPU_INLINE auto call(const F& f, const Inputs& inputs, int64_t first, int64_t j, const Columns&... columns) const {
    return call(f, inputs, first, j, std::make_index_sequence<K>(), columns...);
  }

  template <class Each>
  CPU_INLINE auto of_segment(WideRows<T, K>& rows, int64_t first, const Each& each) const {
    const int64_t count = std::min(kSegment, cols_ - first);
    return each(rows.at(offset_ + first, count), count);
  }

  // Of a row that is one segment, each(rows, first); of others add(each(...)) for every segment, in their order.
  template <class Result, class Each, class Add>
  CPU_INLINE Result over_segments(const Each& each, const Add& add) const {
    if constexpr (kKind == RowKind::kShared) {
      const int64_t segments = (cols_ + kSegment - 1) / kSegment;
      const std::unique_ptr<Result[]> buffer(new Result[segments]);
      Result* const results = buffer.get();
      const auto some = [&each, results, this](auto& inputs, int64_t begin, int64_t end) CPU_INLINE_LAMBDA {
        for (int64_t segment = begin; segment < end; ++segment) {
          results[segment] = each(inputs, segment * kSegment);
        }
      };
      share_out<Isa>(segments, row_grain(kSegment), *inputs_, some);
      std::for_each(results, results + segments, add);
      return results[0];
    } else if constexpr (kKind == RowKind::kShort) {
      return each(*inputs_, 0);
    } else {
      for (int64_t first = 0;; first += kSegment) {
        const Result result = each(*inputs_, first);
        if (cols_ <= kSegment) {  // short rows take no longer than they must
          return result;
        }
        add(result);
        if (cols_ - first <= kSegment) {
          return result;
        }
      }
    }
  }

  // The S numbers f(inputs, begin, j) of column begin + j, for all columns of the segment that begins at `first`,
  // together.
  template <int S, class Combine, class F>
  CPU_INLINE Values<A, S> reduce_segment(
      WideRows<T, K>& rows, int64_t first, A start, const Combine& combine, const F& f) const {
    if constexpr (kInBlocks) {
      const int64_t end = first + std::min(kSegment, cols_ - first);
      return in_blocks(rows).template reduce<S>(first, end, start, combine, f);
    } else {
      return of_segment(rows, first, [&](const Inputs& inputs, int64_t count) CPU_INLINE_LAMBDA {
        const auto at = [&](int64_t j) CPU_INLINE_LAMBDA -> Values<A, S> { return f(inputs, first, j); };
        if constexpr (kKind == RowKind::kShort) {
          return reduce_short_row(count, start, combine, at);
        } else {
          return reduce_over(0, count, start, combine, at);
        }
      });
    }
  }

  // The row, where kInBlocks.
  CPU_INLINE Blocks in_blocks(const WideRows<T, K>& rows) const {
    std::array<const T*, K> row;
    for (size_t k = 0; k < K; ++k) {
      row[k] = rows.in_memory(k) + offset_;
    }
    return Blocks(row);
  }

  // each(j) for columns 0 ... count - 1, in any order.
  template <class Each>
  CPU_INLINE static void for_each(int64_t count, const Each& each) {
    if constexpr (kKind == RowKind::kShort) {
      for_short_row(count, each);
    } else {
      CPU_INDEPENDENT_LOOP
      for (int64_t j = 0; j < count; ++j) {
        each(j);
      }
    }
  }

  // loop(rows, begin, end) for all columns of the row.
  template <class Loop>
  CPU_INLINE void for_columns(const Loop& loop) const {
    if constexpr (kKind == RowKind::kShared) {
      share_out<Isa>(cols_, kGrain, *inputs_, loop);
    } else {
      loop(*inputs_, 0, cols_);
    }
  }

  template <class U, class R>
  CPU_INLINE static void set(U& element, R result) {
    element = static_cast<U>(result);
  }

  // output[row, first + j] = f(inputs, first, j) for columns begin ... end - 1, a piece at a time; of several outputs
  // its results.
  template <class... U, class F>
  CPU_INLINE void for_pieces(
      WideRows<T, K>& rows, int64_t begin, int64_t end, const Outputs<U...>& outputs, const F& f) const {
    write_pieces(rows, begin, end, outputs, f, std::index_sequence_for<U...>());
  }

  template <class... U, class F, size_t... M>
  CPU_INLINE void write_pieces(
      WideRows<T, K>& rows, int64_t begin, int64_t end, const Outputs<U...>& outputs, const F& f,
      std::index_sequence<M...>) const {
    using extension_cpp::detail::result_at;
    using extension_cpp::detail::slot_at;
    const Outputs<U...> out((slot_at<M>(outputs) + offset_)...);
    if constexpr (kInBlocks) {
      const auto write_block = [&](const Inputs& inputs, int64_t first, auto count) CPU_INLINE_LAMBDA {
        const auto of = [&](int k) CPU_INLINE_LAMBDA { return f(inputs, first, k); };
        Blocks::write_each(Outputs<U...>((slot_at<M>(out) + first)...), count, of, std::index_sequence<M...>());
      };
      const bool sends = sends_for_next_row();
      for (int64_t first = begin; first < end; first += kPiece) {
        const int64_t width = std::min(kPiece, end - first);
        if (sends) {
          send_for_next_row(rows, first, width, (slot_at<M>(out) + first)...);
        }
        in_blocks(rows).for_each(first, first + width, write_block);
      }
    } else {
      for_parts(rows, begin, end, [&](const Inputs& inputs, int64_t first, int64_t count) CPU_INLINE_LAMBDA {
        if constexpr (kKind == RowKind::kShort) {
          for_each(count, [&](int64_t j) CPU_INLINE_LAMBDA {
            const auto made = f(inputs, first, j);
            (set(slot_at<M>(out)[first + j], result_at<M>(made)), ...);
          });
        } else {
          constexpr bool kCopies = WideRows<T, K>::kCopies && (std::is_same_v<U, T> || ...);
          extension_cpp::detail::Slots<std::index_sequence<M...>, Computed<U>...> computed;
          const bool sends = sends_for_next_row();
          const int64_t most = kCopies || sends ? kPiece : count;
          for (int64_t piece = 0; piece < count; piece += most) {
            const int64_t width = std::min(most, count - piece);
            const Outputs<U...> to((slot_at<M>(out) + first + piece)...);
            if (sends) {
              send_for_next_row(rows, first + piece, width, slot_at<M>(to)...);
            }
            const Outputs at(slot_at<M>(computed).at(slot_at<M>(to))...);
            for_each(width, [&](int64_t j) CPU_INLINE_LAMBDA {
              const auto made = f(inputs, first, piece + j);
              (set(slot_at<M>(at)[j], result_at<M>(made)), ...);
            });
            (slot_at<M>(computed).put(slot_at<M>(to), width), ...);
          }
        }
      });
    }
  }

  // A pass that reads a row waits for memory, and one that writes it again. While a row is written, therefore, the
  // next one, inputs and output, is sent for, to the L2 cache: the processor itself reads ahead no further than a page.
  // Of short rows it does as well, and long ones would push out of the cache what is wanted first.
  CPU_INLINE bool sends_for_next_row() const {
    constexpr int64_t kLeast = 1024;  // bytes
    constexpr int64_t kMost = 32768;
    const int64_t bytes = row_cols_ * static_cast<int64_t>(sizeof(T));
    return kKind == RowKind::kWhole && kLeast <= bytes && bytes <= kMost;
  }

  // What lies below `width` columns of this row from `col` on, which are written to `to`. Behind the last row there may
  // be nothing, which does no harm.
  template <class... U>
  CPU_INLINE void send_for_next_row(const WideRows<T, K>& rows, int64_t col, int64_t width, const U*... to) const {
    constexpr int64_t kLine = kLineBytes / sizeof(T);
    const int64_t row_bytes = row_cols_ * static_cast<int64_t>(sizeof(T));
    for (int64_t j = 0; j < width; j += kLine) {
      for (size_t k = 0; k < K; ++k) {
        send_for<kLine, kToRead, kSecondLevel>(rows.in_memory(k) + offset_ + col + j, row_bytes);
      }
      (send_for<kLine, kToWrite, kSecondLevel>(to + j, row_cols_ * static_cast<int64_t>(sizeof(U))), ...);
    }
  }

  // each(inputs, first, count) for columns begin ... end - 1: all at once, or as many as are copied.
  template <class Each>
  CPU_INLINE void for_parts(WideRows<T, K>& rows, int64_t begin, int64_t end, const Each& each) const {
    if constexpr (kKind == RowKind::kShort || !WideRows<T, K>::kCopies) {
      each(rows.at(offset_ + begin, end - begin), begin, end - begin);
    } else {
      for (int64_t first = begin; first < end; first += kSegment) {
        const int64_t count = std::min(kSegment, end - first);
        each(rows.at(offset_ + first, count), first, count);
      }
    }
  }

  WideRows<T, K>* inputs_;
  int64_t index_;
  int64_t segment_index_;
  int64_t first_col_;
  int64_t cols_;
  int64_t row_cols_;  // of the whole row
  int64_t offset_;    // of the first element
  A* column_sums_;
  size_t kept_ = 0;
};

}  // namespace detail

}  // namespace extension_cpp::cpu
