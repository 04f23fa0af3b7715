// outputs[m][i] = f(a[i], b[i], ...)[m]: one pass over memory in 16-byte accesses, at any alignment.
//
// elementwise() takes tensors of any layout that broadcast to the output. f takes one value of the accumulation type
// per operand and returns the result in it, or Values of several. One access a thread has enough bytes in flight at
// full occupancy, and keeps the grid below 2^31 blocks for any tensor that fits a GPU. Where the output is exactly one
// of the operands, each element is read before it is written.
#pragma once

#include "launch.cuh"
#include "layout.h"
#include "strided.cuh"
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

template <int N, class A>
__device__ Values<A, N> repeat(A value) {
  Values<A, N> values;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = value;
  }
  return values;
}

// What a matrix kernel knows of an input: where element (row, col) of the output finds its own.
template <class T>
struct MatrixInput {
  const T* data;
  int64_t row_stride;
  int64_t col_stride;  // 1; 0: one value for a whole row

  template <int N>
  __device__ Values<acc_t<T>, N> aligned_at(int64_t row, int64_t col) const {
    if (col_stride == 1) {
      return load<N>(data + row * row_stride + col);
    }
    return repeat<N>(load<1>(data + row * row_stride)[0]);
  }

  template <int N>
  __device__ Values<acc_t<T>, N> at(int64_t row, int64_t col, int64_t cols) const {
    const T* address = data + row * row_stride + (col_stride == 0 ? 0 : col);
    // Rows that follow one another are as one.
    if (col + N <= cols || row_stride == col_stride * cols) {
      if (col_stride == 1) {
        return load_unaligned<N>(address);
      }
      return repeat<N>(load<1>(address)[0]);
    }
    Values<acc_t<T>, N> result;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      result[n] = load<1>(address)[0];
      address += col_stride;
      if (++col == cols) {
        col = 0;
        address += row_stride - cols * col_stride;
      }
    }
    return result;
  }
};

template <int N, class F, class T, size_t M, class... Inputs>
__device__ void store_results(const F& f, int64_t i, const PointerArray<T, M>& outputs, const Inputs&... inputs) {
  Values<acc_t<T>, N> results[M];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const auto values = as_values(f(inputs[n]...));
#pragma unroll
    for (size_t m = 0; m < M; ++m) {
      results[m][n] = values[m];
    }
  }
#pragma unroll
  for (size_t m = 0; m < M; ++m) {
    store(outputs.data[m] + i, results[m]);
  }
}

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
  for_own_elements<N>(numel, before, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    store_results<W>(f, i, outputs, operands.template at<W>(i)...);
  });
}

template <int N, class F, class T, size_t M, class... Inputs>
__global__ void __launch_bounds__(kBlock)
    matrix_kernel(F f, int64_t numel, Divider cols, int before, PointerArray<T, M> outputs, Inputs... inputs) {
  for_own_elements<N>(numel, before, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    const int64_t row = cols.divide(i);
    const int64_t col = i - row * cols.divisor();
    store_results<W>(f, i, outputs, inputs.template at<W>(row, col, cols.divisor())...);
  });
}

// Where every access is aligned: no thread divides, nor asks whether its elements lie in one row. 2^lane_bits threads
// lie along a row, in blocks.divisor() blocks. Threads that take several rows each were slower.
template <int N, class F, class T, size_t M, class... Inputs>
__global__ void __launch_bounds__(kBlock) tile_kernel(
    F f, int64_t rows, int64_t cols, int lane_bits, Divider blocks, PointerArray<T, M> outputs, Inputs... inputs) {
  const int lane = static_cast<int>(threadIdx.x) & ((1 << lane_bits) - 1);
  const int64_t tile = blocks.divide(blockIdx.x);
  const int64_t row = (tile * kBlock + threadIdx.x) >> lane_bits;
  const int64_t col = (((blockIdx.x - tile * blocks.divisor()) << lane_bits) + lane) * N;
  if (row < rows && col < cols) {
    store_results<N>(f, row * cols + col, outputs, inputs.template aligned_at<N>(row, col)...);
  }
}

template <class T>
int elements_before(const T* output) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(output) % kAccessBytes / sizeof(T));
}

// Whether the outputs lie in a row, as a [rows, cols] matrix of which every input has whole rows, one row for all, one
// value for each row or one for all.
template <int K>
bool is_matrix(const Indexing<K>& indexing) {
  bool is = indexing.dims <= 2 && indexing.linear[0];
  for (int k = 1; k < K; ++k) {
    is = is && (indexing.strides[0][k] == 0 || indexing.strides[0][k] == 1);
  }
  return is;
}

// Whether accesses to N elements are aligned from the first element of every row on.
template <int N, class T>
bool rows_are_aligned(const MatrixInput<T>& input) {
  return input.col_stride == 0 || (is_aligned(input.data) && input.row_stride % N == 0);
}

template <class T, size_t M, class F, class... Inputs>
void launch_matrix(
    const F& f, int64_t numel, const Divider& cols, int before, const PointerArray<T, M>& outputs, cudaStream_t stream,
    const Inputs&... inputs) {
  constexpr int N = kVector<T>;
  // Of float64 the other kernel will do: fewer kernels to compile.
  if constexpr (!std::is_same_v<T, double>) {
    if (before == 0 && cols.divisor() % N == 0 && (rows_are_aligned<N>(inputs) && ...)) {
      const int64_t rows = numel / cols.divisor();
      const int64_t chunks = cols.divisor() / N;
      int lane_bits = 0;
      while (1 << lane_bits < kBlock && 1 << lane_bits < chunks) {
        ++lane_bits;
      }
      const int64_t along_row = ceil_div(chunks, 1 << lane_bits);
      const int64_t blocks = along_row * ceil_div(rows, kBlock >> lane_bits);
      if (blocks <= kMaxGridX) {
        tile_kernel<N><<<static_cast<unsigned>(blocks), kBlock, 0, stream>>>(
            f, rows, cols.divisor(), lane_bits, Divider(along_row), outputs, inputs...);
        return;
      }
    }
  }
  const auto blocks = static_cast<unsigned>(ceil_div(before + numel, int64_t{kBlock} * N));
  matrix_kernel<N><<<blocks, kBlock, 0, stream>>>(f, numel, cols, before, outputs, inputs...);
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
  if (aligned_alike && indexing.all_linear()) {
    elementwise_kernel<N><<<blocks, kBlock, 0, stream>>>(f, indexing.numel, before, outputs, Flat<T>{inputs[I]}...);
  } else if (aligned_alike && is_matrix(indexing)) {
    const int64_t* const cols = indexing.strides[0];
    const int64_t* const rows = indexing.strides[indexing.dims - 1];
    launch_matrix<T>(
        f, indexing.numel, indexing.sizes[0], before, outputs, stream,
        MatrixInput<T>{inputs[I], indexing.dims == 1 ? 0 : rows[I + 1], cols[I + 1]}...);
  } else {
    strided_kernel<N><<<blocks, kBlock, 0, stream>>>(f, indexing, outputs, inputs[I]...);
  }
  CUDA_LAUNCH_CHECK();
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
