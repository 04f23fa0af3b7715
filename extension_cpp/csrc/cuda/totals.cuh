// What results of a formula add up to over all elements of tensors of several dtypes (element_types.h).
//
// As many blocks as run at once go through the tensors together, in whole accesses of several elements a thread. Each
// leaves what its threads add up to, which a block for each result brings together, always in the same order.
#pragma once

#include "element_types.h"
#include "elements.cuh"
#include "indexing.h"
#include "launch.cuh"
#include "layout.h"
#include "mixed.cuh"
#include "operands.cuh"
#include "sum_output.cuh"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

// The sum over a block of `Threads` threads, in its first.
template <int Threads, class A>
__device__ A sum_of_block(A sum, A (&shared)[Threads / kWarp]) {
  const auto sum_of_warp = [](A value) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      value += __shfl_down_sync(~0u, value, distance);
    }
    return value;
  };
  sum = sum_of_warp(sum);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    sum = sum_of_warp(threadIdx.x < Threads / kWarp ? shared[threadIdx.x] : A(0));
  }
  return sum;
}

template <class T, class F, size_t M, class Elements, class I>
struct TotalsOf;

template <class T, class F, size_t M, class... E, size_t... I>
struct TotalsOf<T, F, M, Types<E...>, std::index_sequence<I...>> {
  using A = acc_t<T>;
  using Inputs = typename PointersOf<T, Types<E...>>::read;

  static constexpr int N = kAccessBytes / widest<T>(Types<E...>());  // elements of an access
  static constexpr int K = 1 + sizeof...(I);                         // of an Indexing, whose first stands for outputs
  // Accesses of a thread that are asked for at once: 64 bytes, or one of each tensor.
  static constexpr int kAtOnce = sizeof...(I) == 1 ? 4 : sizeof...(I) == 2 ? 2 : 1;

  using Words = Slots<std::index_sequence_for<E...>, ElementWords<stored_as<T, E>, N>...>;

  A sums[M] = {};

  static Inputs pointers_to(const std::array<const Tensor*, sizeof...(I)>& inputs) {
    return Inputs(inputs[I]->template const_data_ptr<stored_as<T, E>>()...);
  }

  static bool lie_in_accesses(const Inputs& inputs) {
    return (Elements<stored_as<T, E>, N>::lie_at(slot_at<I>(inputs)) && ...);
  }

  __device__ static Words words_at(const Inputs& inputs, int64_t i) {
    return Words(load_element_words<N>(slot_at<I>(inputs) + i)...);
  }

  __device__ void add(const F& f, const Words& words) { add(f, slot_at<I>(words).elements()...); }

  // Elements from offsets of the inputs on, which follow that of an output.
  template <int Count>
  __device__ void add_at(const F& f, const Inputs& inputs, const int64_t (&offsets)[K], const int64_t* strides) {
    add(f, load_elements<Count>(slot_at<I>(inputs) + offsets[I + 1], strides[I + 1])...);
  }

  // What the block adds up to, to [results, blocks].
  __device__ void leave(A* partials) const {
    __shared__ A shared[kBlock / kWarp];
#pragma unroll
    for (size_t m = 0; m < M; ++m) {
      const A sum = sum_of_block<kBlock>(sums[m], shared);
      if (threadIdx.x == 0) {
        partials[m * gridDim.x + blockIdx.x] = sum;
      }
    }
  }

 private:
  template <int Count>
  __device__ void add(const F& f, const Elements<stored_as<T, E>, Count>&... elements) {
#pragma unroll
    for (int n = 0; n < Count; ++n) {
      const auto results = as_values(f(as_argument<T, E>(elements.at[n])...));
#pragma unroll
      for (size_t m = 0; m < M; ++m) {
        sums[m] += results[m];
      }
    }
  }
};

// Of tensors whose elements lie one behind the other, all alike, in whole accesses.
template <class Of, class F>
__global__ void __launch_bounds__(kBlock)
    totals_kernel(F f, int64_t numel, typename Of::Inputs inputs, typename Of::A* __restrict__ partials) {
  wait_for_previous();
  Of totals;
  const int64_t apart = static_cast<int64_t>(gridDim.x) * kBlock * Of::N;
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * Of::N;
  for (; i + (Of::kAtOnce - 1) * apart + Of::N <= numel; i += Of::kAtOnce * apart) {
    typename Of::Words words[Of::kAtOnce];
#pragma unroll
    for (int a = 0; a < Of::kAtOnce; ++a) {
      words[a] = Of::words_at(inputs, i + a * apart);
    }
#pragma unroll
    for (int a = 0; a < Of::kAtOnce; ++a) {
      totals.add(f, words[a]);
    }
  }
  for (; i + Of::N <= numel; i += apart) {
    totals.add(f, Of::words_at(inputs, i));
  }
  // Of one thread.
  for (; i < numel; ++i) {
    int64_t offsets[Of::K];
    int64_t strides[Of::K];
#pragma unroll
    for (int k = 0; k < Of::K; ++k) {
      offsets[k] = i;
      strides[k] = 1;
    }
    totals.template add_at<1>(f, inputs, offsets, strides);
  }
  totals.leave(partials);
}

// Of any layout.
template <class Of, class F>
__global__ void __launch_bounds__(kBlock) strided_totals_kernel(
    F f, const Indexing<Of::K> indexing, typename Of::Inputs inputs, typename Of::A* __restrict__ partials) {
  wait_for_previous();
  Of totals;
  const int64_t apart = static_cast<int64_t>(gridDim.x) * kBlock * Of::N;
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * Of::N;
  for (; i < indexing.numel; i += apart) {
    int64_t offsets[Of::K];
    const int64_t first = indexing.locate(i, offsets);
    if (first + Of::N <= indexing.sizes[0].divisor()) {
      totals.template add_at<Of::N>(f, inputs, offsets, indexing.strides[0]);
      continue;
    }
    for (int64_t j = i; j < i + Of::N && j < indexing.numel; ++j) {
      indexing.locate(j, offsets);
      totals.template add_at<1>(f, inputs, offsets, indexing.strides[0]);
    }
  }
  totals.leave(partials);
}

// Blocks of a multiprocessor, which has room for as many threads where a formula takes few registers.
constexpr int kMostBlocks = kMostThreads / kBlock;
constexpr int kTotalsBlock = 1024;

// blockIdx.x: which of the M results.
template <class A, class T, size_t M>
__global__ void __launch_bounds__(kTotalsBlock)
    add_totals_kernel(int parts, const A* __restrict__ partials /* [M, parts] */, SumOutputs<SumOutput<T>, M> sums) {
  __shared__ A shared[kTotalsBlock / kWarp];
  wait_for_previous();
  A sum = 0;
  for (int part = static_cast<int>(threadIdx.x); part < parts; part += kTotalsBlock) {
    sum += partials[static_cast<int64_t>(blockIdx.x) * parts + part];
  }
  sum = sum_of_block<kTotalsBlock>(sum, shared);
  if (threadIdx.x == 0) {
    sums.store(blockIdx.x, 0, sum);
  }
}

}  // namespace detail

// sums[m] = the sum of result m of f over all elements of the inputs, which have one shape and may have any layout.
template <class T, class F, class... E, size_t M, class... Inputs>
void totals(
    const F& f, detail::Types<E...> elements, const std::array<SumOutput<T>, M>& sums, const Inputs&... tensors) {
  using Of = detail::TotalsOf<T, F, M, detail::Types<E...>, std::make_index_sequence<sizeof...(E)>>;
  using A = acc_t<T>;
  const Tensor& first = std::get<0>(std::tie(tensors...));
  const auto indexing = make_indexing(first, tensors...);
  if (!indexing.fits) {
    totals<T>(f, elements, sums, as_contiguous(tensors)...);
    return;
  }
  const auto inputs = Of::pointers_to({&tensors...});
  const cudaStream_t stream = current_stream(first);
  const int64_t accesses = std::max<int64_t>(1, ceil_div(indexing.numel, Of::N));
  const unsigned blocks = blocks_for(ceil_div(accesses, int64_t{kBlock}), detail::kMostBlocks);
  Tensor partials = new_empty(first, {static_cast<int64_t>(M), blocks}, kDtypeOf<A>);
  A* const parts = partials.template mutable_data_ptr<A>();
  if (indexing.all_linear() && Of::lie_in_accesses(inputs)) {
    launch_overlapped(detail::totals_kernel<Of, F>, blocks, kBlock, 0, stream, f, indexing.numel, inputs, parts);
  } else {
    launch_overlapped(detail::strided_totals_kernel<Of, F>, blocks, kBlock, 0, stream, f, indexing, inputs, parts);
  }
  launch_overlapped(
      detail::add_totals_kernel<A, T, M>, static_cast<unsigned>(M), detail::kTotalsBlock, 0, stream,
      static_cast<int>(blocks), parts, detail::sum_outputs(sums, std::make_index_sequence<M>()));
}

}  // namespace extension_cpp::cuda
