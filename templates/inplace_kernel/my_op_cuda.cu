#include "my_op.h"

#include "arguments.h"
#include "cuda/launch.cuh"
#include "dispatch.h"

namespace extension_cpp::my_op {

// EDIT: the launch configuration, for all kernels of this file.
constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;

// EDIT: the kernel. This one adds each element of a row to the one as far from the row's other end. What is written is
// read as well, and other tensors may be the one that is written (so that no pointer is __restrict__): no element is
// read by one thread and written by another, and a thread reads both of its elements before it writes either. Threads
// take one pair, and when done the pair as many further on as there are threads (a grid-stride loop).
template <class T>
__global__ void __launch_bounds__(kThreads) my_op_kernel(
    T* input,        // [rows, cols], read and written
    const T* other,  // [rows, cols], or null
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  const int64_t pairs = (cols + 1) / 2;  // of a row; the element in its middle is a pair of its own
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x; pair < rows * pairs; pair += threads) {
    const int64_t row = pair / pairs;
    const int64_t col = pair % pairs;
    const int64_t ends[] = {row * cols + col, (row + 1) * cols - 1 - col};  // 64 bits: there may be more than 2^31
    const A sum = static_cast<A>(input[ends[0]]) + static_cast<A>(input[ends[1]]);
    A results[2];
    for (int end = 0; end < 2; ++end) {
      const int64_t i = ends[end];
      A result = sum * (A(1) + alpha);
      if (other != nullptr) {
        result += static_cast<A>(other[i]);
      }
      results[end] = result;
    }
    input[ends[0]] = static_cast<T>(results[0]);
    input[ends[1]] = static_cast<T>(results[1]);
  }
}

// EDIT: what the kernel is called with. What it writes to lies in any layout: of each such tensor there is a contiguous
// one, itself or a copy, and what it was copied from gets the result.
void launch_my_op(Tensor& input, const std::optional<Tensor>& other, double alpha) {
  const DeviceGuard guard(input);
  if (input.numel() == 0) {
    return;  // a grid of no blocks would be an error
  }
  Tensor contiguous_input = as_contiguous(input);
  const auto contiguous_other = as_contiguous(other);
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = input.numel() / cols;
  const int64_t work = cuda::ceil_div(rows * ((cols + 1) / 2), kThreads);
  const unsigned blocks = cuda::blocks_for(work, kBlocksPerMultiprocessor);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    my_op_kernel<T><<<blocks, kThreads, 0, current_stream(input)>>>(
        contiguous_input.mutable_data_ptr<T>(), data_of<T>(contiguous_other), rows, cols, alpha);
    CUDA_LAUNCH_CHECK();
  });
  if (!input.is_contiguous()) {
    copy_into(input, contiguous_input);  // the kernel wrote to a copy
  }
}

void my_op_cuda(Tensor& input, const Tensor& other, double alpha) {
  kMyOp.check(input, other);
  launch_my_op(input, other, alpha);
}

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) { m.impl("my_op", TORCH_BOX(&my_op_cuda)); }

}  // namespace extension_cpp::my_op
