// outputs[m][i] = result m of f(a[i], b[i], ...) of tensors of several dtypes (element_types.h).
//
// A thread has as many elements as are 16 bytes of the widest dtype, and of each tensor reads or writes them in one
// access where they lie together, at a multiple of its size.
#pragma once

#include "element_types.h"
#include "elements.cuh"
#include "indexing.h"
#include "launch.cuh"
#include "layout.h"
#include "operands.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

using extension_cpp::detail::as_argument;
using extension_cpp::detail::result_at;
using extension_cpp::detail::slot_at;
using extension_cpp::detail::Slots;
using extension_cpp::detail::stored_as;
using extension_cpp::detail::Types;

// The pointers of tensors of such elements.
template <class T, class Elements>
struct PointersOf;
template <class T, class... E>
struct PointersOf<T, Types<E...>> {
  using type = Slots<std::index_sequence_for<E...>, stored_as<T, E>*...>;
  using read = Slots<std::index_sequence_for<E...>, const stored_as<T, E>*...>;
};

// The most bytes of an element.
template <class T, class... E>
constexpr int widest(Types<E...>) {
  return static_cast<int>(std::max({sizeof(stored_as<T, E>)...}));
}

// In the place of strides: of all tensors the elements are whole accesses.
struct InWholeAccesses {};

// The formula for N elements: their offsets and strides are those of the outputs, then of each input.
template <class T, class Results, class Elements, class M, class I>
struct MixedFormula;

template <class T, class... R, class... E, size_t... M, size_t... I>
struct MixedFormula<T, Types<R...>, Types<E...>, std::index_sequence<M...>, std::index_sequence<I...>> {
  using Outputs = typename PointersOf<T, Types<R...>>::type;
  using Inputs = typename PointersOf<T, Types<E...>>::read;

  static constexpr int kWidest = widest<T>(Types<R..., E...>());

  static Outputs pointers_to(std::array<Tensor, sizeof...(M)>& outputs) {
    return Outputs(outputs[M].template mutable_data_ptr<stored_as<T, R>>()...);
  }

  static Inputs pointers_to(const std::array<const Tensor*, sizeof...(I)>& inputs) {
    return Inputs(inputs[I]->template const_data_ptr<stored_as<T, E>>()...);
  }

  // Whether rows of whole accesses, so far apart, are in whole accesses of each tensor.
  template <int N>
  static bool is_whole(const Outputs& outputs, const Inputs& inputs, const int64_t* row_strides) {
    const bool rows = std::all_of(row_strides, row_strides + 1 + sizeof...(I), [](int64_t s) { return s % N == 0; });
    return rows && (Elements<stored_as<T, R>, N>::lie_at(slot_at<M>(outputs)) && ...) &&
           (Elements<stored_as<T, E>, N>::lie_at(slot_at<I>(inputs)) && ...);
  }

  template <int N, class F, class Offset, class Strides>
  __device__ static void apply(
      const F& f, const Outputs& outputs, const Inputs& inputs, const Offset* offsets, const Strides& strides) {
    compute<N>(f, outputs, offsets[0], strides, load<N>(slot_at<I>(inputs) + offsets[I + 1], strides, I + 1)...);
  }

 private:
  template <int N, class F, class Strides>
  __device__ static void compute(
      const F& f, const Outputs& outputs, int64_t offset, const Strides& strides,
      const Elements<stored_as<T, E>, N>&... elements) {
    Slots<std::index_sequence_for<R...>, Elements<stored_as<T, R>, N>...> results;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const auto result = f(as_argument<T, E>(elements.at[n])...);
      ((slot_at<M>(results).at[n] = static_cast<stored_as<T, R>>(result_at<M>(result))), ...);
    }
    (store(slot_at<M>(outputs) + offset, slot_at<M>(results), strides), ...);
  }

  template <int N, class U, class Strides>
  __device__ static Elements<U, N> load(const U* address, const Strides& strides, size_t k) {
    if constexpr (std::is_same_v<Strides, InWholeAccesses>) {
      return load_whole_elements<N>(address);
    } else {
      return load_elements<N>(address, strides[k]);
    }
  }

  template <int N, class U, class Strides>
  __device__ static void store(U* address, const Elements<U, N>& elements, const Strides& strides) {
    if constexpr (std::is_same_v<Strides, InWholeAccesses>) {
      store_whole_elements(address, elements);
    } else {
      store_elements(address, elements, strides[0]);
    }
  }
};

// Of tensors whose elements lie one behind the other, all alike.
template <int N, class Formula, int K, class F>
__global__ void __launch_bounds__(kBlock)
    mixed_kernel(F f, int64_t numel, typename Formula::Outputs outputs, typename Formula::Inputs inputs) {
  wait_for_previous();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  int64_t offsets[K];
  int64_t strides[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    offsets[k] = i;
    strides[k] = 1;
  }
  if (i + N <= numel) {
    Formula::template apply<N>(f, outputs, inputs, offsets, strides);
    return;
  }
  for (int64_t j = i; j < numel; ++j) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      offsets[k] = j;
    }
    Formula::template apply<1>(f, outputs, inputs, offsets, strides);
  }
}

// Rows of as many whole accesses, which each tensor has where it has them.
template <int K, class Offset, class Strides>
struct MixedRows {
  int accesses;
  Divider of_row;
  Offset row_strides[K];
  Strides col_strides;
};

template <int K>
struct StridesOf {
  int64_t of[K];

  __device__ int64_t operator[](size_t k) const { return of[k]; }
};

// Little arithmetic, of elements in 32 bits where all are in whole accesses.
template <int N, class Formula, int K, class Offset, class Strides, class F>
__global__ void __launch_bounds__(kBlock) mixed_rows_kernel(
    F f, const MixedRows<K, Offset, Strides> rows, typename Formula::Outputs outputs, typename Formula::Inputs inputs) {
  wait_for_previous();
  const int access = static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
  if (access >= rows.accesses) {
    return;
  }
  const int row = rows.of_row.divide_small(access);
  const int col = (access - row * static_cast<int>(rows.of_row.divisor())) * N;
  Offset offsets[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if constexpr (std::is_same_v<Strides, InWholeAccesses>) {
      offsets[k] = row * rows.row_strides[k] + col;
    } else {
      offsets[k] = row * rows.row_strides[k] + col * rows.col_strides[k];
    }
  }
  Formula::template apply<N>(f, outputs, inputs, offsets, rows.col_strides);
}

// False, and nothing done, where there are no such rows, or one that is not in whole accesses of every tensor.
template <int N, class Formula, int K, class F>
bool launch_mixed_rows(
    const F& f, const Indexing<K>& indexing, const typename Formula::Outputs& outputs,
    const typename Formula::Inputs& inputs, cudaStream_t stream) {
  const int64_t cols = indexing.sizes[0].divisor();
  const int64_t accesses = indexing.numel / N;
  if (indexing.dims > 2 || cols % N != 0 || accesses > kMost) {
    return false;
  }
  // Of one row none.
  const std::array<int64_t, K> none{};
  const int64_t* const row_strides = indexing.dims == 2 ? indexing.strides[1] : none.data();
  const int64_t* const col_strides = indexing.strides[0];
  const auto launch = [&](auto rows, auto offset) {
    rows.accesses = static_cast<int>(accesses);
    rows.of_row = Divider(cols / N);
    std::copy_n(row_strides, K, rows.row_strides);
    using Strides = decltype(rows.col_strides);
    const auto kernel = mixed_rows_kernel<N, Formula, K, decltype(offset), Strides, F>;
    const auto blocks = static_cast<unsigned>(ceil_div(accesses, int64_t{kBlock}));
    launch_overlapped(kernel, blocks, kBlock, 0, stream, f, rows, outputs, inputs);
  };
  const int64_t most = *std::max_element(row_strides, row_strides + K) * (indexing.numel / cols - 1) + cols;
  const bool along = std::all_of(col_strides, col_strides + K, [](int64_t stride) { return stride == 1; });
  if (along && most <= kMost && Formula::template is_whole<N>(outputs, inputs, row_strides)) {
    launch(MixedRows<K, int, InWholeAccesses>{}, int());
  } else if (indexing.all_linear()) {
    return false;
  } else {
    MixedRows<K, int64_t, StridesOf<K>> rows{};
    std::copy_n(col_strides, K, rows.col_strides.of);
    launch(rows, int64_t());
  }
  return true;
}

// Of any layout.
template <int N, class Formula, int K, class F>
__global__ void __launch_bounds__(kBlock) mixed_strided_kernel(
    F f, const Indexing<K> indexing, typename Formula::Outputs outputs, typename Formula::Inputs inputs) {
  wait_for_previous();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  if (i >= indexing.numel) {
    return;
  }
  int64_t offsets[K];
  const int64_t first = indexing.locate(i, offsets);
  if (first + N <= indexing.sizes[0].divisor()) {
    Formula::template apply<N>(f, outputs, inputs, offsets, indexing.strides[0]);
    return;
  }
  for (int64_t j = i; j < i + N && j < indexing.numel; ++j) {
    indexing.locate(j, offsets);
    Formula::template apply<1>(f, outputs, inputs, offsets, indexing.strides[0]);
  }
}

}  // namespace detail

// As elementwise(), of tensors of several dtypes, of which T is the operator's own.
template <class T, class F, class... R, class... E, size_t M, class... Inputs>
void mixed_elementwise(
    const F& f, detail::Types<R...> results, detail::Types<E...> elements, std::array<Tensor, M>& outputs,
    const Inputs&... inputs) {
  const auto indexing = make_indexing(outputs[0], inputs...);
  if (!indexing.fits) {
    on_contiguous_copies(
        [&](std::array<Tensor, M>& to, const auto&... from) {
          mixed_elementwise<T>(f, results, elements, to, from...);
        },
        outputs, inputs...);
    return;
  }
  if (indexing.numel == 0) {
    return;
  }
  constexpr int K = 1 + sizeof...(Inputs);
  using Formula = detail::MixedFormula<
      T, detail::Types<R...>, detail::Types<E...>, std::make_index_sequence<M>, std::index_sequence_for<Inputs...>>;
  constexpr int N = kAccessBytes / Formula::kWidest;
  const auto to = Formula::pointers_to(outputs);
  const auto from = Formula::pointers_to(std::array<const Tensor*, K - 1>{&inputs...});
  const auto blocks = static_cast<unsigned>(ceil_div(indexing.numel, int64_t{kBlock} * N));
  const cudaStream_t stream = current_stream(outputs[0]);
  if (detail::launch_mixed_rows<N, Formula>(f, indexing, to, from, stream)) {
    return;
  }
  if (indexing.all_linear()) {
    launch_overlapped(detail::mixed_kernel<N, Formula, K, F>, blocks, kBlock, 0, stream, f, indexing.numel, to, from);
  } else {
    launch_overlapped(detail::mixed_strided_kernel<N, Formula, K, F>, blocks, kBlock, 0, stream, f, indexing, to, from);
  }
}

}  // namespace extension_cpp::cuda
