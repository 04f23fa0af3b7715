#include "vector_add.h"

#include "dispatch.h"
#include "layout.h"

#include <algorithm>

namespace extension_cpp::vector_add {

// Each thread adds the elements i, i + step, i + 2 * step, ... with a step of as many elements as the grid has threads
// (a grid-stride loop): a grid of any size is right for an array of any size. Neighbouring threads take neighbouring
// elements, so that a warp reads whole cache lines.
template <class T>
__global__ void vector_add_kernel(
    const T* __restrict__ a,  // [numel]
    const T* __restrict__ b,  // [numel]
    T* __restrict__ output,   // [numel]
    int64_t numel) {
  using A = acc_t<T>;  // half types are added in float
  // 64 bits: an array may have more than 2^31 elements.
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < numel; i += step) {
    output[i] = static_cast<T>(static_cast<A>(a[i]) + static_cast<A>(b[i]));
  }
}

template <class T>
void launch_vector_add(const T* a, const T* b, T* output, int64_t numel, cudaStream_t stream) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kMaxBlocks = 65536;
  const int64_t blocks = std::min((numel + kThreads - 1) / kThreads, kMaxBlocks);
  vector_add_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a, b, output, numel);
  CUDA_LAUNCH_CHECK();
}

Tensor vector_add_cuda(const Tensor& a, const Tensor& b) {
  const CheckedInputs inputs = kVectorAdd.check(a, b);
  const DeviceGuard guard(a);
  Tensor output = inputs.new_output();
  if (output.numel() == 0) {
    return output;  // a grid of no blocks would be an error
  }
  // The kernel walks through memory: element i of all three must be the same element.
  const Tensor x = with_layout_of(output, a);
  const Tensor y = with_layout_of(output, b);
  dispatch_floating(output.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_vector_add(
        x.const_data_ptr<T>(), y.const_data_ptr<T>(), output.mutable_data_ptr<T>(), output.numel(),
        current_stream(output));
  });
  return output;
}

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) { m.impl("vector_add", TORCH_BOX(&vector_add_cuda)); }

}  // namespace extension_cpp::vector_add
