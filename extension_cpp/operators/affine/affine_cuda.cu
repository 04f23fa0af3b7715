#include "affine.h"

#include "cuda/columns.cuh"
#include "cuda/elementwise.cuh"

namespace extension_cpp {
namespace {

template <class T>
struct AffineBackward {
  const T* __restrict__ grad_output;  // [rows, cols]
  const T* __restrict__ a;            // [cols]
  const T* __restrict__ x;            // [rows, cols]
  T* __restrict__ grad_x;             // [rows, cols]

  template <int N>
  __device__ void operator()(int64_t i, int64_t /*row*/, int64_t col, cuda::Values<acc_t<T>, N> (&sums)[2]) const {
    const auto grad = cuda::load<N>(grad_output + i);
    const auto scale = cuda::load<N>(a + col);
    const auto input = cuda::load<N>(x + i);
    cuda::Values<acc_t<T>, N> result;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      result[k] = grad[k] * scale[k];
      sums[0][k] += grad[k] * input[k];
      sums[1][k] += grad[k];
    }
    cuda::store(grad_x + i, result);
  }
};

Tensor affine_cuda(const Tensor& a, const Tensor& x, const Tensor& b) {
  const std::vector<int64_t> sizes = check_affine(a, x, b);
  const DeviceGuard guard(a);
  Tensor output = new_elementwise(sizes, a, x, b);
  dispatch_floating(a.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::elementwise<T>(Affine<acc_t<T>>{}, output, a, x, b);
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> affine_backward_cuda(const Tensor& grad_output, const Tensor& a, const Tensor& x) {
  check_affine_backward(grad_output, a, x);
  const DeviceGuard guard(grad_output);
  const Tensor grad = as_contiguous(grad_output);
  const Tensor scale = as_contiguous(a);
  const Tensor input = as_contiguous(x);
  const int64_t cols = scale.numel();
  const int64_t rows = cols == 0 ? 0 : grad.numel() / cols;
  Tensor grad_a = new_empty(grad, {cols});
  Tensor grad_x = new_empty(grad, grad.sizes());
  Tensor grad_b = new_empty(grad, {cols});
  dispatch_floating(grad.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const AffineBackward<T> f{
        grad.const_data_ptr<T>(), scale.const_data_ptr<T>(), input.const_data_ptr<T>(), grad_x.mutable_data_ptr<T>()};
    const bool aligned = cuda::is_aligned(f.grad_output) && cuda::is_aligned(f.a) && cuda::is_aligned(f.x);
    cuda::launch_column_sums<T>(
        grad, f, 1, rows, cols, aligned, std::array{grad_a.mutable_data_ptr<T>(), grad_b.mutable_data_ptr<T>()});
  });
  return {grad_a, grad_x, grad_b};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl("affine", TORCH_BOX(&extension_cpp::affine_cuda));
  m.impl("affine_backward", TORCH_BOX(&extension_cpp::affine_backward_cuda));
}
