#include "fused_op.h"

#include "cuda/columns.cuh"
#include "cuda/elementwise.cuh"
#include "dispatch.h"

namespace extension_cpp {
namespace {

template <class A>
struct FusedOp {
  A scale;

  __device__ A operator()(A input, A bias) const {
    const A x = input * scale + bias;
    return x < A(0) ? A(0) : x;  // in this order NaN stays NaN
  }
};

template <class T>
struct FusedOpBackward {
  const T* __restrict__ grad_output;  // [rows, cols]
  const T* __restrict__ output;       // [rows, cols]
  T* __restrict__ grad_input;         // [rows, cols]
  acc_t<T> scale;

  template <int N>
  __device__ void operator()(int64_t i, int64_t /*row*/, int64_t /*col*/, cuda::Values<acc_t<T>, N> (&sums)[1]) const {
    using A = acc_t<T>;
    const auto grad = cuda::load<N>(grad_output + i);
    const auto out = cuda::load<N>(output + i);
    cuda::Values<A, N> result;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A masked = out[k] <= A(0) ? A(0) : grad[k];
      sums[0][k] += masked;
      result[k] = masked * scale;
    }
    cuda::store(grad_input + i, result);
  }
};

Tensor fused_op_cuda(const Tensor& input, const Tensor& bias, double scale) {
  const CheckedInputs inputs = kFusedOp.check(input, bias);
  const DeviceGuard guard(input);
  const Tensor x = as_contiguous(input);
  const Tensor b = as_contiguous(bias);
  Tensor output = inputs.new_output();
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::launch_elementwise(
        FusedOp<acc_t<T>>{static_cast<acc_t<T>>(scale)}, x.numel(), output.mutable_data_ptr<T>(), current_stream(x),
        cuda::Flat<T>{x.const_data_ptr<T>()}, cuda::PerColumn<T>{b.const_data_ptr<T>(), b.numel()});
  });
  return output;
}

std::tuple<Tensor, Tensor> fused_op_backward_cuda(const Tensor& grad_output, const Tensor& output, double scale) {
  const CheckedInputs inputs = kFusedOpBackward.check(grad_output, output);
  const DeviceGuard guard(grad_output);
  const Tensor grad = as_contiguous(grad_output);
  const Tensor out = as_contiguous(output);
  const int64_t cols = grad.size(grad.dim() - 1);
  const int64_t rows = cols == 0 ? 0 : grad.numel() / cols;
  Tensor grad_input = inputs.new_output(0);
  Tensor grad_bias = inputs.new_output(1);
  dispatch_floating(grad.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const FusedOpBackward<T> f{
        grad.const_data_ptr<T>(), out.const_data_ptr<T>(), grad_input.mutable_data_ptr<T>(),
        static_cast<acc_t<T>>(scale)};
    const bool aligned = cuda::is_aligned(f.grad_output) && cuda::is_aligned(f.output);
    cuda::launch_column_sums<T>(grad, f, 1, rows, cols, aligned, std::array{grad_bias.mutable_data_ptr<T>()});
  });
  return {grad_input, grad_bias};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl(extension_cpp::kFusedOp.name(), TORCH_BOX(&extension_cpp::fused_op_cuda));
  m.impl(extension_cpp::kFusedOpBackward.name(), TORCH_BOX(&extension_cpp::fused_op_backward_cuda));
}
