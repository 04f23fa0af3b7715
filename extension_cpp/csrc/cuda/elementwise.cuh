// outputs[m][i] = f(a[i], b[i], ...)[m]: one pass over memory in 16-byte accesses, at any alignment.
//
// elementwise() takes tensors of any layout that broadcast to the output. f takes one value of the accumulation type
// per operand and returns the result in it, or Values of several. One access a thread has enough bytes in flight at
// full occupancy, and keeps the grid below 2^31 blocks for any tensor that fits a GPU. Where the output is exactly one
// of the operands, each element is read before it is written.
#pragma once

#include "element_types.h"
#include "formula.h"
#include "launch.cuh"
#include "layout.h"
#include "matrix.cuh"
#include "operands.cuh"
#include "strided.cuh"
#include "tiles.cuh"
#include "vector.cuh"

#include <array>
#include <type_traits>
#include <utility>

namespace extension_cpp::cuda {

// A tensor with the shape and layout of the output.
template <class T>
struct Flat {
  const T* data;

  template <int N>
  __device__ Values<acc_t<T>, N> at(int64_t i) const {
    return load_unaligned<N>(data + i);
  }
};

namespace detail {

using extension_cpp::detail::Same;

// Calls at(N) for the N elements of this thread, or at(1) for each of those that are there. `before`: elements from the
// 16-byte boundary below the outputs to their first element; accesses start there.
template <int N, class At>
__device__ void for_own_elements(int64_t numel, int before, const At& at) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N - before;
  if (i >= 0 && i + N <= numel) {
    at(std::integral_constant<int, N>{}, i);
  } else {
    for (int64_t j = i < 0 ? 0 : i; j < i + N && j < numel; ++j) {
      at(std::integral_constant<int, 1>{}, j);
    }
  }
}

template <int N, class F, class T, size_t M, class... Operands>
__global__ void __launch_bounds__(kBlock)
    elementwise_kernel(F f, int64_t numel, int before, PointerArray<T, M> outputs, Operands... operands) {
  wait_for_previous();
  for_own_elements<N>(numel, before, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    const Values<acc_t<T>, W> inputs[] = {operands.template at<W>(i)...};
    Values<acc_t<T>, W> results[M];
    apply_formula(f, inputs, results, std::index_sequence_for<Operands...>());
#pragma unroll
    for (size_t m = 0; m < M; ++m) {
      store(outputs.data[m] + i, results[m]);
    }
  });
}

// elementwise_kernel of inputs that lie otherwise than the outputs: a thread asks for one piece of each and has the
// next one from its neighbour, half of what elementwise_kernel asks of the L1 cache. At most kMost elements.
template <class F, class T, size_t M, size_t K>
__global__ void __launch_bounds__(kBlock)
    shifted_kernel(F f, int numel, int before, PointerArray<T, M> outputs, PointerArray<const T, K> inputs) {
  wait_for_previous();
  constexpr int N = kVector<T>;
  const int i = (static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x)) * N - before;
  const bool whole = i >= 0 && i <= numel - N;
  const bool has_neighbour = threadIdx.x % kWarp != kWarp - 1 && i <= numel - 2 * N;
  Requested requested[K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const char* const address = reinterpret_cast<const char*>(inputs.data[k] + i);
    requested[k] = request(address, whole, whole && !has_neighbour && !is_aligned(address));
  }
  Packed packed[K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const unsigned (&w)[8] = requested[k].words;
    Packed next;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned of_neighbour = __shfl_down_sync(~0u, w[j], 1);
      next.words[j] = has_neighbour ? of_neighbour : w[4 + j];
    }
    packed[k] = across<sizeof(T)>({{w[0], w[1], w[2], w[3]}}, next, requested[k].misaligned);
    if (!whole) {
      packed[k] = pack_elements<T>([&](int n) {
        const bool is = i + n >= 0 && i + n < numel;
        return is ? element_at<T>(reinterpret_cast<const char*>(inputs.data[k] + (i + n))) : T(0);
      });
    }
  }
  store_results(f, packed, outputs, i, -i, numel - i);
}

// elementwise_kernel of tensors that are aligned, in whole accesses, `Accesses` for a thread: nothing but that, for a
// kernel whose code is not in any cache waits for every jump to more of it. Index: has room for one block more.
template <int Accesses, int Block, class Index, class F, class T, size_t M, size_t K>
__global__ void __launch_bounds__(Block)
    aligned_kernel(F f, Index numel, PointerArray<T, M> outputs, PointerArray<const T, K> inputs) {
  wait_for_previous();
  constexpr int N = kVector<T>;
  const Index first = static_cast<Index>(blockIdx.x) * (Accesses * Block * N) + static_cast<int>(threadIdx.x) * N;
  Packed packed[Accesses][K];
#pragma unroll
  for (int a = 0; a < Accesses; ++a) {
    const Index i = first + a * (Block * N);
    if (i < numel) {
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        packed[a][k] = request_piece(reinterpret_cast<const char*>(inputs.data[k] + i));
      }
    }
  }
#pragma unroll
  for (int a = 0; a < Accesses; ++a) {
    const Index i = first + a * (Block * N);
    if (i < numel) {
      store_results(f, packed[a], outputs, i, 0, N);
    }
  }
}

template <int Accesses, int Block, class Index, class F, class T, size_t M, size_t K>
void launch_aligned_kernel(
    const F& f, int64_t numel, const PointerArray<T, M>& outputs, const PointerArray<const T, K>& inputs,
    cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(numel, int64_t{Accesses} * Block * kVector<T>));
  const auto kernel = aligned_kernel<Accesses, Block, Index, F, T, M, K>;
  launch_overlapped(kernel, blocks, Block, 0, stream, f, static_cast<Index>(numel), outputs, inputs);
}

// Whether a thread has a second access of large tensors under way while it computes the first. That gains up to a tenth
// where the arithmetic is as long as the wait for memory, from 3.5 instructions for a byte on, and costs a hundredth
// elsewhere.
template <class T, class F>
constexpr bool needs_two_accesses(size_t tensors) {
  constexpr int kWork = extension_cpp::detail::kWorkOf<F>;
  return 2 * kWork >= 7 * static_cast<int>(tensors * sizeof(T));
}

// By what benchmarks/NOTES.md says of accesses and blocks. Of more than three tensors several accesses would take the
// registers of other threads.
template <class F, class T, size_t M, size_t K>
void launch_aligned(
    const F& f, int64_t numel, const PointerArray<T, M>& outputs, const PointerArray<const T, K>& inputs,
    cudaStream_t stream) {
  constexpr size_t kTensors = M + K;
  if constexpr (kTensors > 3) {
    launch_aligned_kernel<1, kBlock, int64_t>(f, numel, outputs, inputs, stream);
  } else {
    // Bytes of each tensor. Blocks of 1024 threads have half of the registers that double may need.
    constexpr int64_t kLarge = kTensors == 3 ? int64_t{128} << 20 : int64_t{64} << 20;
    constexpr int kLargeBlock = kTensors < 3 ? kBlock / 2 : sizeof(T) < 8 ? 1024 : kBlock;
    if (numel * static_cast<int64_t>(sizeof(T)) < kLarge) {
      launch_aligned_kernel<2, kBlock / 2, int>(f, numel, outputs, inputs, stream);
    } else if constexpr (needs_two_accesses<T, F>(kTensors)) {
      launch_aligned_kernel<2, kBlock / 2, int64_t>(f, numel, outputs, inputs, stream);
    } else {
      launch_aligned_kernel<1, kLargeBlock, int64_t>(f, numel, outputs, inputs, stream);
    }
  }
}

template <class T, size_t M, class F, size_t... I>
void elementwise(
    const F& f, const Indexing<1 + sizeof...(I)>& indexing, const PointerArray<T, M>& outputs,
    const std::array<const T*, sizeof...(I)>& inputs, cudaStream_t stream, std::index_sequence<I...>) {
  constexpr int N = kVector<T>;
  const int before = elements_before(outputs.data[0]);
  bool aligned_alike = true;
  for (const T* output : outputs.data) {
    aligned_alike = aligned_alike && elements_before(output) == before;
  }
  const auto blocks = static_cast<unsigned>(ceil_div(before + indexing.numel, int64_t{kBlock} * N));
  const PointerArray<const T, sizeof...(I)> from{{inputs[I]...}};
  const bool lie_alike = (is_aligned(inputs[I] - before) && ...);  // as the outputs
  if (aligned_alike && indexing.all_linear() && lie_alike && before == 0 && indexing.numel % N == 0) {
    launch_aligned(f, indexing.numel, outputs, from, stream);
  } else if (aligned_alike && indexing.all_linear()) {
    // Of smaller tensors the neighbours' pieces are waited for longer than caches take for a second one.
    constexpr int64_t kShifted = int64_t{16} << 20;  // bytes
    if (lie_alike || indexing.numel * static_cast<int64_t>(sizeof(T)) < kShifted || indexing.numel > kMost) {
      const auto kernel = elementwise_kernel<N, F, T, M, Same<Flat<T>, I>...>;
      launch_overlapped(kernel, blocks, kBlock, 0, stream, f, indexing.numel, before, outputs, Flat<T>{inputs[I]}...);
    } else {
      launch_overlapped(
          shifted_kernel<F, T, M, sizeof...(I)>, blocks, kBlock, 0, stream, f, static_cast<int>(indexing.numel), before,
          outputs, from);
    }
  } else if (aligned_alike && is_matrix(indexing)) {
    launch_matrix(f, indexing, outputs, inputs, stream);
  } else if (!aligned_alike || !launch_tiles(f, indexing, outputs, inputs, stream)) {
    const auto kernel = strided_kernel<N, F, T, M, Same<const T*, I>...>;
    launch_overlapped(kernel, blocks, kBlock, 0, stream, f, indexing, outputs, inputs[I]...);
  }
}

}  // namespace detail

// outputs[m][i] = result m of f(inputs[i]...) for every element of the outputs, to whose shape the inputs are
// broadcast; all of dtype T and of any layout, which is one for all outputs. f takes acc_t<T> and returns one, or
// Values. An output overlaps no input, unless it is exactly that input.
template <class T, size_t M, class F, class... Inputs>
void elementwise(const F& f, std::array<Tensor, M>& outputs, const Inputs&... inputs) {
  const auto indexing = make_indexing(outputs[0], inputs...);
  if (!indexing.fits) {
    on_contiguous_copies(
        [&](std::array<Tensor, M>& to, const auto&... from) { elementwise<T>(f, to, from...); }, outputs, inputs...);
  } else if (indexing.numel > 0) {
    PointerArray<T, M> to;
    std::transform(outputs.begin(), outputs.end(), to.data, [](Tensor& t) { return t.template mutable_data_ptr<T>(); });
    detail::elementwise<T, M>(
        f, indexing, to, {inputs.template const_data_ptr<T>()...}, current_stream(outputs[0]),
        std::index_sequence_for<Inputs...>());
  }
}

template <class T, class F, class... Inputs>
void elementwise(const F& f, Tensor& output, const Inputs&... inputs) {
  std::array<Tensor, 1> outputs{output};
  elementwise<T>(f, outputs, inputs...);
}

}  // namespace extension_cpp::cuda
