// Outputs that lie in a row, as a [rows, cols] matrix of which every input has whole rows, one row for all, one value
// for each row or one for all.
#pragma once

#include "indexing.h"
#include "launch.cuh"
#include "operands.cuh"
#include "request.cuh"
#include "turns.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>

namespace extension_cpp::cuda::detail {

// An input of a [rows, cols] matrix, as its kernel wants it.
struct MatrixInput {
  const char* data;
  int64_t row_bytes;    // from row to row
  unsigned col_bytes;   // from column to column; 0: one value for a whole row
  unsigned held_bytes;  // where elements start, from a 16-byte boundary on, to lie in that one piece of 16
  int last_col;         // where the elements of a thread may start: further on they are in two rows

  // Of an element that exists.
  __device__ const char* address(int row, int col) const {
    return data + static_cast<uint64_t>(static_cast<unsigned>(col)) * col_bytes +
           static_cast<unsigned>(row) * row_bytes;
  }

  HOST_DEVICE bool is_one_row() const { return row_bytes == 0 && col_bytes != 0; }
};

template <size_t K>
struct MatrixInputs {
  MatrixInput inputs[K];
};

template <class T>
__device__ T element_at(const char* address) {
  const auto chunk = load_chunk<1>(reinterpret_cast<const T*>(address));
  T value;
  memcpy(&value, &chunk.word, sizeof(value));
  return value;
}

// Elements that do not lie in one row, one by one: of the N from (row, col) on those from `begin` to `end` - 1.
template <class T>
__device__ Packed gather(const MatrixInput& input, int row, int col, int cols, int begin, int end) {
  const auto col_bytes = static_cast<int64_t>(input.col_bytes);
  const char* address = input.data + (row * input.row_bytes + col * col_bytes);
  return pack_elements<T>([&](int n) {
    const T value = n >= begin && n < end ? element_at<T>(address) : T(0);
    address += col_bytes;
    if (++col == cols) {
      col = 0;
      address += input.row_bytes - cols * col_bytes;
    }
    return value;
  });
}

// Outputs that lie in a row, as a [rows, cols] matrix of at most kMost elements. The loads of all inputs go out
// together: to wait for one after the other costs a tenth of the time.
template <class F, class T, size_t M, size_t K>
__global__ void __launch_bounds__(kBlock)
    matrix_kernel(F f, int numel, Divider by_cols, int before, PointerArray<T, M> outputs, MatrixInputs<K> matrix) {
  wait_for_previous();
  constexpr int N = kVector<T>;
  const int i = (own_block() * kBlock + static_cast<int>(threadIdx.x)) * N - before;
  if (i >= numel) {
    return;
  }
  const auto cols = static_cast<int>(by_cols.divisor());
  const int row = by_cols.divide_small(i < 0 ? 0 : i);
  const int col = i - row * cols;
  const bool whole = i >= 0 && i <= numel - N;

  Requested requested[K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const MatrixInput& input = matrix.inputs[k];
    const char* const address = input.address(row, col);
    const bool asked = whole && col <= input.last_col;
    requested[k] = request(address, asked, asked && misalignment(address) > input.held_bytes);
  }
  Packed packed[K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const MatrixInput& input = matrix.inputs[k];
    if (whole && col <= input.last_col) {
      packed[k] = receive<sizeof(T)>(requested[k], input.col_bytes == 0);
    } else {
      packed[k] = gather<T>(input, row, col, cols, -i, numel - i);
    }
  }
  store_results(f, packed, outputs, i, -i, numel - i);
}

// The same of matrices of whole accesses, all of them aligned; an input with one value for a row need not be. Two
// accesses a thread, in half the threads: short kernels start sooner, and a formula of many instructions has a second
// load under way while it computes.
//
// One of more tensors, whose accesses would take the registers of other threads.
constexpr int matrix_accesses(size_t tensors) { return tensors <= 4 ? 2 : 1; }
constexpr int matrix_threads(size_t tensors) { return kBlock / matrix_accesses(tensors); }

template <class F, class T, size_t M, size_t K>
__global__ void __launch_bounds__(matrix_threads(M + K))
    aligned_matrix_kernel(F f, int numel, Divider by_cols, PointerArray<T, M> outputs, MatrixInputs<K> matrix) {
  wait_for_previous();
  constexpr int N = kVector<T>;
  constexpr int kAccesses = matrix_accesses(M + K);
  constexpr int kThreads = matrix_threads(M + K);
  const int first = (own_block() * kBlock + static_cast<int>(threadIdx.x)) * N;
  Packed packed[kAccesses][K];
  unsigned misaligned[kAccesses][K];
#pragma unroll
  for (int a = 0; a < kAccesses; ++a) {
    const int i = first + a * (kThreads * N);
    if (i < numel) {
      const int row = by_cols.divide_small(i);
      const int col = i - row * static_cast<int>(by_cols.divisor());
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        const char* const address = matrix.inputs[k].address(row, col);
        misaligned[a][k] = misalignment(address);
        packed[a][k] = request_piece(address);
      }
    }
  }
#pragma unroll
  for (int a = 0; a < kAccesses; ++a) {
    const int i = first + a * (kThreads * N);
    if (i < numel) {
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        if (matrix.inputs[k].col_bytes == 0) {
          packed[a][k] = repeated<sizeof(T)>(packed[a][k], misaligned[a][k]);
        }
      }
      store_results(f, packed[a], outputs, i, 0, N);
    }
  }
}

// An access that straddles: after so many elements of a row the first ones of the next, or of the same where there is
// no other.
template <class T>
__device__ Packed straddling(const MatrixInput& input, int row, int next_row, int col, int in_row) {
  if (input.col_bytes == 0) {
    const T value = element_at<T>(input.address(row, 0));
    const T next_value = element_at<T>(input.address(next_row, 0));
    return pack_elements<T>([&](int n) { return n < in_row ? value : next_value; });
  }
  const char* const from = input.address(row, col);
  const char* const from_next = input.address(next_row, 0) - in_row * sizeof(T);
  return pack_elements<T>([&](int n) { return element_at<T>((n < in_row ? from : from_next) + n * sizeof(T)); });
}

constexpr int kTurnRows = 4;

// Whether several rows a thread gain: not where there is little to do for an access (of two float32 inputs they take a
// hundredth more time, and of float64 there is less still), nor where so many tensors would take the registers of other
// threads.
template <class T, size_t M, size_t K>
constexpr bool kGainsByTurns = M + K <= 4 && (sizeof(T) == 2 || (sizeof(T) == 4 && K > 2));

// Outputs are aligned. An input is aligned and lies as they do, or is one row for all, or has one value for each row.
template <class F, class T, size_t M, size_t K>
__global__ void __launch_bounds__(kBlock)
    in_turns_kernel(F f, Turns<kTurnRows> turns, PointerArray<T, M> outputs, MatrixInputs<K> matrix) {
  wait_for_previous();
  constexpr int N = kVector<T>;
  constexpr int kSize = sizeof(T);
  constexpr int kRows = kTurnRows;

  int row = 0;
  int col = 0;
  if (!turns.template find<N>(own_block() * kBlock + static_cast<int>(threadIdx.x), row, col)) {
    return;
  }
  const int period = turns.period();
  const int in_row = turns.cols - col;
  const bool straddles = in_row < N;

  Packed pieces[kRows][K];
  Packed second[K];  // of one row for all
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const MatrixInput& input = matrix.inputs[k];
    if (input.is_one_row()) {
      if (!straddles) {
        const char* const address = input.address(0, col);
        pieces[0][k] = request_piece(address);
        if (!is_aligned(address)) {
          second[k] = request_piece(address + kAccessBytes);
        }
      }
      continue;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int own = row + r * period;
      if (own < turns.rows) {
        pieces[r][k] = request_piece(input.address(own, col));
      }
    }
  }
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const MatrixInput& input = matrix.inputs[k];
    if (input.is_one_row()) {
      const Packed all = straddles ? straddling<T>(input, 0, 0, col, in_row)
                                   : across<kSize>(pieces[0][k], second[k], misalignment(input.address(0, col)));
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        pieces[r][k] = all;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int own = row + r * period;
    if (own < turns.rows) {
      const bool is_last = own == turns.rows - 1;
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        const MatrixInput& input = matrix.inputs[k];
        if (input.col_bytes == 0) {
          pieces[r][k] = straddles ? straddling<T>(input, own, is_last ? own : own + 1, col, in_row)
                                   : repeated<kSize>(pieces[r][k], misalignment(input.address(own, 0)));
        }
      }
      store_results(f, pieces[r], outputs, own * turns.cols + col, 0, is_last ? in_row : N);
    }
  }
}

// Whether operands lie so, as is said at the head of this file.
template <int K>
bool is_matrix(const Indexing<K>& indexing) {
  bool is = indexing.dims <= 2 && indexing.linear[0];
  for (int k = 1; k < K; ++k) {
    is = is && (indexing.strides[0][k] == 0 || indexing.strides[0][k] == 1);
  }
  return is;
}

// `aligned`: all accesses are, and whole. `alike`: inputs are as in_turns_kernel wants them.
template <class T, size_t M, class F, size_t K>
void launch_part(
    const F& f, int64_t rows, int64_t cols, bool aligned, bool alike, const PointerArray<T, M>& outputs,
    const MatrixInputs<K>& inputs, cudaStream_t stream) {
  constexpr int N = kVector<T>;
  const bool shared =
      std::any_of(inputs.inputs, inputs.inputs + K, [](const MatrixInput& input) { return input.is_one_row(); });
  const int64_t row_bytes = cols * static_cast<int64_t>((M + K) * sizeof(T));  // or less, of single numbers
  const auto grid = [&](int64_t threads, int64_t turns) {
    return in_order(ceil_div(threads, kBlock), turns, shared, row_bytes);
  };
  if constexpr (kGainsByTurns<T, M, K>) {
    if (!aligned && alike && cols >= 2 * N) {
      const Turns<kTurnRows> turns(rows, cols, N);
      if (rows >= kTurnRows * turns.period()) {
        launch_overlapped(
            in_turns_kernel<F, T, M, K>, grid(turns.threads(), turns.count()), kBlock, 0, stream, f, turns, outputs,
            inputs);
        return;
      }
    }
  }
  const auto numel = static_cast<int>(rows * cols);
  const int before = elements_before(outputs.data[0]);
  const dim3 blocks = grid(ceil_div(before + numel, N), rows);
  if (aligned) {
    launch_overlapped(
        aligned_matrix_kernel<F, T, M, K>, blocks, matrix_threads(M + K), 0, stream, f, numel, Divider(cols), outputs,
        inputs);
  } else {
    launch_overlapped(
        matrix_kernel<F, T, M, K>, blocks, kBlock, 0, stream, f, numel, Divider(cols), before, outputs, inputs);
  }
}

template <class T, size_t M, class F, size_t K>
void launch_matrix(
    const F& f, const Indexing<1 + K>& indexing, const PointerArray<T, M>& outputs,
    const std::array<const T*, K>& inputs, cudaStream_t stream) {
  constexpr unsigned kSize = sizeof(T);
  // Whole rows, or parts of one.
  const int64_t cols = indexing.sizes[0].divisor();
  const int64_t rows = indexing.numel / cols;
  const int64_t some_rows = std::max<int64_t>(kMost / cols, 1);
  for (int64_t row = 0; row < rows; row += some_rows) {
    for (int64_t col = 0; col < cols; col += kMost) {
      const int64_t width = std::min(cols - col, kMost);
      PointerArray<T, M> to = outputs;
      for (T*& output : to.data) {
        output += row * cols + col;
      }
      const bool at_boundary = is_aligned(to.data[0]);
      bool aligned = at_boundary && width % kVector<T> == 0;
      bool alike = at_boundary;
      MatrixInputs<K> from;
      for (size_t k = 0; k < K; ++k) {
        const int64_t row_stride = indexing.dims == 1 ? 0 : indexing.strides[1][1 + k];
        const int64_t col_stride = indexing.strides[0][1 + k];
        const bool flat = row_stride == col_stride * cols;  // rows follow one another as those of the outputs
        const T* const data = inputs[k] + row * row_stride + col * col_stride;
        from.inputs[k] = {
            reinterpret_cast<const char*>(data), row_stride * kSize, static_cast<unsigned>(col_stride) * kSize,
            col_stride == 0 ? kAccessBytes - kSize : 0, static_cast<int>(flat ? width : width - kVector<T>)};
        aligned = aligned && (col_stride == 0 || (is_aligned(data) && row_stride % kVector<T> == 0));
        alike = alike && (col_stride == 0 || row_stride == 0 || (flat && is_aligned(data)));
      }
      launch_part<T>(f, std::min(rows - row, some_rows), width, aligned, alike, to, from, stream);
    }
  }
}

}  // namespace extension_cpp::cuda::detail
