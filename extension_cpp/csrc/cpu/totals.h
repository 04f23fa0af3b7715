// What results of a formula add up to over all elements of tensors of several dtypes (element_types.h), on the CPU.
//
// Of so many elements at a time, whatever the number of threads, and of those sums then in double.
#pragma once

#include "cpu/elementwise.h"
#include "layout.h"
#include "sum_output.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace extension_cpp::cpu {

namespace detail {

inline bool lie_alike_and_dense(const Tensor& first, const Tensor& other) {
  return same_layout(first, other) && !dense_order(geometry(first)).empty();
}

template <class T, class F, size_t M, class Elements, class I>
struct TotalsOf;

template <class T, class F, size_t M, class... E, size_t... I>
struct TotalsOf<T, F, M, extension_cpp::detail::Types<E...>, std::index_sequence<I...>>
    : MixedRowLoopOf<
          T, F, extension_cpp::detail::Types<>, extension_cpp::detail::Types<E...>, std::index_sequence<>,
          std::index_sequence<I...>> {
  using Loop = MixedRowLoopOf<
      T, F, extension_cpp::detail::Types<>, extension_cpp::detail::Types<E...>, std::index_sequence<>,
      std::index_sequence<I...>>;
  using A = acc_t<T>;
  using Loop::kElements;

  static constexpr int kLanes = 16;  // sums side by side

  // sums[m] of the elements of operands, which are one row.
  static void run(const F& f, const RowOperands& operands, A (&sums)[M]) {
    with_blocks([&](auto isa) { run_with(isa, f, operands, sums); }, [&] { run_by<void>(f, operands, sums); });
  }

#if HAS_BLOCKS

  CPU_AVX512 CPU_FLATTEN static void run_with(Avx512, const F& f, const RowOperands& operands, A (&sums)[M]) {
    run_by<Avx512>(f, operands, sums);
  }

  CPU_AVX2 CPU_FLATTEN static void run_with(Avx2, const F& f, const RowOperands& operands, A (&sums)[M]) {
    run_by<Avx2>(f, operands, sums);
  }

#endif

 private:
  template <class Isa>
  CPU_INLINE static void run_by(const F& given, const RowOperands& operands, A (&sums)[M]) {
    const F f = given;  // nothing that the loop writes is part of it
    std::tuple<typename Loop::template Room<E>...> inputs;
    A terms[M][kElements];
    A lanes[M][kLanes] = {};
    for (int64_t begin = 0; begin < operands.cols; begin += kElements) {
      const int64_t count = std::min(kElements, operands.cols - begin);
      compute(f, count, terms, Loop::template read<Isa, E>(operands, I, 0, begin, count, std::get<I>(inputs))...);
      for (size_t m = 0; m < M; ++m) {
        std::fill(terms[m] + count, terms[m] + kElements, A(0));
        for (int64_t j = 0; j < kElements; j += kLanes) {
          CPU_INDEPENDENT_LOOP
          for (int lane = 0; lane < kLanes; ++lane) {
            lanes[m][lane] += terms[m][j + lane];
          }
        }
      }
    }
    for (size_t m = 0; m < M; ++m) {
      for (int apart = kLanes / 2; apart > 0; apart /= 2) {
        for (int lane = 0; lane < apart; ++lane) {
          lanes[m][lane] += lanes[m][lane + apart];
        }
      }
      sums[m] = lanes[m][0];
    }
  }

  CPU_INLINE static void compute(
      const F& f, int64_t count, A (&terms)[M][kElements], const typename Loop::template Loaded<E>*... from) {
    CPU_INDEPENDENT_LOOP
    for (int64_t j = 0; j < count; ++j) {
      const auto results = as_values(f(Loop::template argument<E>(from[j])...));
      for (size_t m = 0; m < M; ++m) {
        terms[m][j] = results[m];
      }
    }
  }
};

}  // namespace detail

// sums[m] = the sum of result m of f over all elements of the inputs, which have one shape and may have any layout.
template <class T, class F, class... E, size_t M, class... Inputs>
void totals(
    const F& f, extension_cpp::detail::Types<E...> elements, const std::array<SumOutput<T>, M>& sums,
    const Inputs&... inputs) {
  using Of = detail::TotalsOf<T, F, M, extension_cpp::detail::Types<E...>, std::make_index_sequence<sizeof...(E)>>;
  using A = acc_t<T>;
  constexpr int64_t kSegment = 8192;
  const Tensor& first = std::get<0>(std::tie(inputs...));
  // In any order of the dimensions, one for all.
  if (!(detail::lie_alike_and_dense(first, inputs) && ...) && !(inputs.is_contiguous() && ...)) {
    totals<T>(f, elements, sums, as_contiguous(inputs)...);
    return;
  }
  static constexpr int64_t kItemsizes[] = {sizeof(extension_cpp::detail::stored_as<T, E>)...};
  const char* const data[] = {
      reinterpret_cast<const char*>(inputs.template const_data_ptr<extension_cpp::detail::stored_as<T, E>>())...};
  const int64_t numel = first.numel();
  const int64_t segments = (numel + kSegment - 1) / kSegment;
  std::vector<std::array<A, M>> found(segments);
  parallel_for(0, segments, kGrain / kSegment, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const char* from[sizeof...(E)];
      for (size_t k = 0; k < sizeof...(E); ++k) {
        from[k] = data[k] + s * kSegment * kItemsizes[k];
      }
      constexpr int64_t kBytes[sizeof...(E)] = {};
      constexpr bool kNumbers[sizeof...(E)] = {};
      A own[M];
      Of::run(f, {1, std::min(kSegment, numel - s * kSegment), nullptr, from, kBytes, kNumbers}, own);
      std::copy_n(own, M, found[s].begin());
    }
  });
  for (size_t m = 0; m < M; ++m) {
    double sum = 0;
    for (const auto& segment : found) {
      sum += segment[m];
    }
    sums[m].store(0, static_cast<A>(sum));
  }
}

}  // namespace extension_cpp::cpu
