// Elementwise operators that need numbers of each channel (channels.h), on the CPU: by the row loops, with rows of one
// channel, or of all.
#pragma once

#include "rows.h"

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace extension_cpp::cpu {

namespace detail {

// A number of each channel, as a column operand of a row.
template <class A>
struct ChannelNumber {
  const A* data;

  template <int N>
  CPU_INLINE Values<A, N> at(int64_t c) const {
    return load<N>(data + c);
  }
};

// A formula of K inputs and P numbers of a channel.
template <class T, class Channels, class F, class Inputs, class Numbers>
struct ChannelRows;

template <class T, class Channels, class F, size_t... I, size_t... P>
struct ChannelRows<T, Channels, F, std::index_sequence<I...>, std::index_sequence<P...>> {
  using A = acc_t<T>;
  using Numbers = Values<A, static_cast<int>(sizeof...(P))>;
  template <size_t>
  using Number = A;

  // A row of one channel.
  struct OfOne {
    const Channels& channels;
    F f;
    int64_t count;  // of channels
    T* output;      // [outer * channels, inner]

    CPU_INLINE Numbers row_values(int64_t row) const { return channels.template numbers<1>(row % count)[0]; }

    template <class Row>
    CPU_INLINE void operator()(Row& row, const Numbers& numbers) const {
      const F of = f;
      row.write(output, [of, numbers](Number<I>... inputs) CPU_INLINE_LAMBDA { return of(numbers, inputs...); });
    }
  };

  // The same with C sums.
  template <size_t C>
  struct OfOneWithSums {
    OfOne plain;
    std::array<A*, C> sums;  // [outer * channels]

    CPU_INLINE Numbers row_values(int64_t row) const { return plain.row_values(row); }

    template <class Row>
    CPU_INLINE void operator()(Row& row, const Numbers& numbers) const {
      const F of = plain.f;
      const auto total =
          row.sum([of, numbers](Number<I>... inputs) CPU_INLINE_LAMBDA { return of(numbers, inputs...).terms; });
      const auto factors = plain.channels.sum_factors(row.index() % plain.count);
      if (row.leader()) {
        for (size_t c = 0; c < C; ++c) {
          sums[c][row.index()] = total[static_cast<int>(c)] * factors[static_cast<int>(c)];
        }
      }
      row.write(plain.output, [of, numbers](Number<I>... inputs) CPU_INLINE_LAMBDA {
        return of(numbers, inputs...).results[0];
      });
    }
  };

  // A row of all channels, whose numbers are worked out ahead.
  struct OfAll {
    F f;
    ChannelNumber<A> numbers[sizeof...(P)];
    T* output;  // [outer, channels]

    template <class Row>
    CPU_INLINE void operator()(Row& row) const {
      const F of = f;
      row.write(
          output,
          [of](Number<I>... inputs, Number<P>... numbers)
              CPU_INLINE_LAMBDA { return of(Numbers{{numbers...}}, inputs...); },
          numbers[P]...);
    }
  };

  struct OfAllWithSums {
    OfAll plain;

    template <class Row>
    CPU_INLINE void operator()(Row& row) const {
      const F of = plain.f;
      row.write(
          plain.output,
          [of](Number<I>... inputs, Number<P>... numbers)
              CPU_INLINE_LAMBDA { return of(Numbers{{numbers...}}, inputs...); },
          plain.numbers[P]...);
    }
  };

  // `values` are for the numbers of all channels.
  static OfAll of_all(const Channels& channels, const F& f, int64_t count, T* output, std::unique_ptr<A[]>& values) {
    values.reset(new A[sizeof...(P) * count]);
    for (int64_t c = 0; c < count; ++c) {
      const Numbers numbers = channels.template numbers<1>(c)[0];
      ((values[P * count + c] = numbers[static_cast<int>(P)]), ...);
    }
    return {f, {{values.get() + P * count}...}, output};
  }
};

template <class Channels>
using NumbersOf = std::decay_t<decltype(std::declval<const Channels&>().template numbers<1>(int64_t{})[0])>;

template <class T, class Channels, class F, size_t K>
using ChannelRowsOf = ChannelRows<
    T, Channels, F, std::make_index_sequence<K>, std::make_index_sequence<ResultCounts<NumbersOf<Channels>>::results>>;

struct AddUpRows {
  template <class Row>
  CPU_INLINE void operator()(Row& row) const {
    using A = typename Row::A;
    row.add_to_columns([](auto... sums) CPU_INLINE_LAMBDA { return Values<A, int{sizeof...(sums)}>{{sums...}}; });
  }
};

}  // namespace detail

template <class T, class Channels, class F, size_t K>
void for_channels(
    const Tensor& like, const Channels& channels, const F& f, const Images& images,
    const std::array<const T*, K>& inputs, T* output) {
  using Rows = detail::ChannelRowsOf<T, Channels, F, K>;
  if (images.inner == 1) {
    std::unique_ptr<acc_t<T>[]> values;
    launch_rows(
        like, Rows::of_all(channels, f, images.channels, output, values), inputs, images.outer, images.channels);
  } else {
    const int64_t rows = images.outer * images.channels;
    const typename Rows::OfOne of_one{channels, f, images.channels, output};
    extension_cpp::launch_rows(like, of_one, inputs, rows, images.inner, split_few_rows(rows, images.inner));
  }
}

template <class T, class Channels, class F, size_t K, class Out, size_t C>
void for_channels_with_sums(
    const Tensor& like, const Channels& channels, const F& f, const Images& images,
    const std::array<const T*, K>& inputs, T* output, const std::array<Out, C>& sums) {
  using A = acc_t<T>;
  using Rows = detail::ChannelRowsOf<T, Channels, F, K>;
  const int64_t rows = images.inner == 1 ? 1 : images.outer;
  const int64_t size = rows * images.channels;
  const std::unique_ptr<A[]> buffer(new A[C * size]);
  std::array<A*, C> found;  // [rows, channels]
  std::array<const A*, C> found_const;
  for (size_t c = 0; c < C; ++c) {
    found[c] = buffer.get() + c * size;
    found_const[c] = found[c];
  }
  if (images.inner == 1) {
    std::unique_ptr<A[]> values;
    const typename Rows::OfAllWithSums of_all{Rows::of_all(channels, f, images.channels, output, values)};
    launch_column_sums(like, of_all, inputs, 1, images.outer, images.channels, found);
    for (int64_t c = 0; c < images.channels; ++c) {
      const auto factors = channels.sum_factors(c);
      for (size_t k = 0; k < C; ++k) {
        found[k][c] *= factors[static_cast<int>(k)];
      }
    }
  } else {
    const typename Rows::template OfOneWithSums<C> of_one{{channels, f, images.channels, output}, found};
    launch_rows(like, of_one, inputs, size, images.inner);
  }
  launch_column_sums(like, detail::AddUpRows(), found_const, 1, rows, images.channels, sums);
}

}  // namespace extension_cpp::cpu
