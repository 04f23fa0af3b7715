#include "my_op.h"

#include "arguments.h"
#include "cuda/launch.cuh"
#include "dispatch.h"

namespace extension_cpp::my_op {

// EDIT: the launch configuration, for all kernels of this file: a block works on a row, and has whole warps.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kBlocksPerMultiprocessor = 8;

// The sum of what all threads of the block have, for each of them: the same bits, in every run. The threads of a warp
// give each other what is in their registers, and warps meet in shared memory. Every thread of the block has to reach
// the shuffles and both barriers: one without a column brings 0.
template <class A>
__device__ A block_sum(A value, A* shared) {
  for (int mask = cuda::kWarp / 2; mask > 0; mask /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, mask);
  }
  if (threadIdx.x % cuda::kWarp == 0) {
    shared[threadIdx.x / cuda::kWarp] = value;
  }
  __syncthreads();  // the sums of all warps are there
  A sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    sum += shared[warp];
  }
  __syncthreads();  // they are read: the next ones may be written
  return sum;
}

// EDIT: the kernel. This one squares the distance of each element from the mean of its row, and returns the mean, too.
// Blocks take a row, and when done the row as many further on as there are blocks (a grid-stride loop); their threads
// take every kThreads-th column of it: a row of any length is right, and one of no columns, whose mean is NaN. All
// threads of a block make the same turns of the outer loop, so that all of them reach the barriers.
template <class T>
__global__ void __launch_bounds__(kThreads) my_op_kernel(
    const T* __restrict__ input,  // [rows, cols]
    const T* __restrict__ other,  // [rows, cols], or null
    T* __restrict__ output,       // [rows, cols]
    acc_t<T>* __restrict__ mean,  // [rows]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  __shared__ A shared[kWarps];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    A sum = 0;
    for (int64_t col = threadIdx.x; col < cols; col += kThreads) {
      sum += static_cast<A>(input[row * cols + col]);
    }
    const A average = block_sum(sum, shared) / static_cast<A>(cols);
    for (int64_t col = threadIdx.x; col < cols; col += kThreads) {
      const int64_t i = row * cols + col;  // 64 bits: a tensor may have more than 2^31 elements
      const A centered = static_cast<A>(input[i]) - average;
      A result = centered * centered * (A(1) + alpha);
      if (other != nullptr) {
        result += static_cast<A>(other[i]);
      }
      output[i] = static_cast<T>(result);
    }
    if (threadIdx.x == 0) {  // a number of the row is written once
      mean[row] = average;
    }
  }
}

// EDIT: the derivative, from the saved mean.
template <class T>
__global__ void __launch_bounds__(kThreads) my_op_backward_kernel(
    const T* __restrict__ grad_output,  // [rows, cols]
    const T* __restrict__ input,        // [rows, cols]
    const acc_t<T>* __restrict__ mean,  // [rows]
    T* __restrict__ grad_input,         // [rows, cols]
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  __shared__ A shared[kWarps];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const A center = mean[row];
    const auto term = [=](int64_t col) {
      const int64_t i = row * cols + col;
      return A(2) * (static_cast<A>(input[i]) - center) * static_cast<A>(grad_output[i]);
    };
    A sum = 0;
    for (int64_t col = threadIdx.x; col < cols; col += kThreads) {
      sum += term(col);
    }
    const A average = block_sum(sum, shared) / static_cast<A>(cols);
    for (int64_t col = threadIdx.x; col < cols; col += kThreads) {
      grad_input[row * cols + col] = static_cast<T>((term(col) - average) * (A(1) + alpha));
    }
  }
}

// EDIT: what the kernel is called with.
std::tuple<Tensor, Tensor> my_op_cuda(const Tensor& input, const Tensor& other, double alpha) {
  const CheckedInputs checked = kMyOp.check(input, other);
  Tensor output = checked.new_output();
  Tensor mean = checked.new_output(1);
  const DeviceGuard guard(input);
  const Tensor contiguous_input = as_contiguous(input);
  const auto contiguous_other = as_contiguous(other);
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = mean.numel();  // a row without columns has a mean, too
  if (rows == 0) {
    return {output, mean};  // a grid of no blocks would be an error
  }
  const unsigned blocks = cuda::blocks_for(rows, kBlocksPerMultiprocessor);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    my_op_kernel<T><<<blocks, kThreads, 0, current_stream(input)>>>(
        contiguous_input.const_data_ptr<T>(), data_of<T>(contiguous_other), output.mutable_data_ptr<T>(),
        mean.mutable_data_ptr<acc_t<T>>(), rows, cols, alpha);
    CUDA_LAUNCH_CHECK();
  });
  return {output, mean};
}

// EDIT: what its derivative is called with.
Tensor my_op_backward_cuda(const Tensor& grad_output, const Tensor& input, const Tensor& mean, double alpha) {
  Tensor grad_input = kMyOpBackward.check(grad_output, input, mean).new_output();
  const DeviceGuard guard(grad_output);
  const Tensor contiguous_grad_output = as_contiguous(grad_output);
  const Tensor contiguous_input = as_contiguous(input);
  const Tensor contiguous_mean = as_contiguous(mean);
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = mean.numel();
  if (rows == 0) {
    return grad_input;
  }
  const unsigned blocks = cuda::blocks_for(rows, kBlocksPerMultiprocessor);
  dispatch_floating(grad_output.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    my_op_backward_kernel<T><<<blocks, kThreads, 0, current_stream(grad_output)>>>(
        contiguous_grad_output.const_data_ptr<T>(), contiguous_input.const_data_ptr<T>(),
        contiguous_mean.const_data_ptr<acc_t<T>>(), grad_input.mutable_data_ptr<T>(), rows, cols, alpha);
    CUDA_LAUNCH_CHECK();
  });
  return grad_input;
}

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl("my_op", TORCH_BOX(&my_op_cuda));
  m.impl("my_op_backward", TORCH_BOX(&my_op_backward_cuda));
}

}  // namespace extension_cpp::my_op
