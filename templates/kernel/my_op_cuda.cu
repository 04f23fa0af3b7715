#include "my_op.h"

#include "arguments.h"
#include "cuda/accessor.cuh"
#include "cuda/launch.cuh"
#include "dispatch.h"

namespace extension_cpp::my_op {

// EDIT: the launch configuration, for all kernels of this file.
constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;

// A packed accessor is a pointer with sizes and strides: input[row][col]. It reads the elements where they lie,
// contiguous or not. A raw pointer is as good where everything is contiguous.
template <class T>
using Matrix = cuda::PackedAccessor<const T, 2>;

// An element plus its two neighbours, for the thread's column of a tile. The block reads the tile from memory once,
// with a neighbour at either end, and all else from shared memory. Every thread of the block has to reach both
// barriers: a thread without a column goes along.
template <class A, class T>
__device__ A with_neighbours(const Matrix<T>& matrix, int64_t row, int64_t first_col, A* shared) {
  for (int k = static_cast<int>(threadIdx.x); k < kThreads + 2; k += kThreads) {
    const int64_t col = first_col + k - 1;
    shared[k] = col >= 0 && col < matrix.size(1) ? static_cast<A>(matrix[row][col]) : A(0);
  }
  __syncthreads();  // the tile is complete
  const A sum = shared[threadIdx.x] + shared[threadIdx.x + 1] + shared[threadIdx.x + 2];
  __syncthreads();  // the tile is read: the next one may be written
  return sum;
}

// EDIT: the kernel. Blocks take tiles of kThreads columns, and when done the tile as many further on as there are
// blocks (a grid-stride loop): a grid of any size is right for a tensor of any size. It is symmetric: of gradients, and
// without the other tensors, it is its own derivative.
template <class T>
__global__ void __launch_bounds__(kThreads) my_op_kernel(
    const Matrix<T> input,        // [rows, cols]
    const T* __restrict__ other,  // [rows, cols], or null
    T* __restrict__ output,       // [rows, cols]
    int64_t cols, int64_t tiles_per_row, int64_t tiles, acc_t<T> alpha) {
  using A = acc_t<T>;
  __shared__ A shared[kThreads + 2];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row = tile / tiles_per_row;
    const int64_t first_col = tile % tiles_per_row * kThreads;
    const int64_t col = first_col + threadIdx.x;
    const A sum = with_neighbours(input, row, first_col, shared);
    if (col < cols) {
      const int64_t i = row * cols + col;  // 64 bits: a tensor may have more than 2^31 elements
      A result = sum * (A(1) + alpha);
      if (other != nullptr) {
        result += static_cast<A>(other[i]);
      }
      output[i] = static_cast<T>(result);
    }
  }
}

// EDIT: what the kernel is called with.
void launch_my_op(const Tensor& input, const std::optional<Tensor>& other, Tensor& output, double alpha) {
  const DeviceGuard guard(input);
  const Tensor contiguous_input = as_contiguous(input);
  const auto contiguous_other = as_contiguous(other);
  if (output.numel() == 0) {
    return;  // a grid of no blocks would be an error
  }
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = input.numel() / cols;
  const int64_t tiles_per_row = cuda::ceil_div(cols, kThreads);
  const int64_t tiles = rows * tiles_per_row;
  const unsigned blocks = cuda::blocks_for(tiles, kBlocksPerMultiprocessor);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    my_op_kernel<T><<<blocks, kThreads, 0, current_stream(input)>>>(
        cuda::packed_rows<T>(contiguous_input, rows, cols), data_of<T>(contiguous_other), output.mutable_data_ptr<T>(),
        cols, tiles_per_row, tiles, alpha);
    CUDA_LAUNCH_CHECK();
  });
}

Tensor my_op_cuda(const Tensor& input, const Tensor& other, double alpha) {
  Tensor output = kMyOp.check(input, other).new_output();
  launch_my_op(input, other, output, alpha);
  return output;
}

Tensor my_op_backward_cuda(const Tensor& grad_output, double alpha) {
  Tensor grad_input = kMyOpBackward.check(grad_output).new_output();
  launch_my_op(grad_output, {}, grad_input, alpha);
  return grad_input;
}

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl("my_op", TORCH_BOX(&my_op_cuda));
  m.impl("my_op_backward", TORCH_BOX(&my_op_backward_cuda));
}

}  // namespace extension_cpp::my_op
