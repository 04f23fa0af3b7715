#include "fused_op.h"

#include "cpu/loops.h"
#include "dispatch.h"

namespace extension_cpp {
namespace {

template <class T>
void fused_op_kernel(
    const T* input,  // [rows, cols]
    const T* bias,   // [cols]
    T* output,       // [rows, cols]
    int64_t rows, int64_t cols, acc_t<T> scale) {
  using A = acc_t<T>;
  cpu::for_each_element(rows, cols, [=](int64_t i, int64_t col) {
    const A x = static_cast<A>(input[i]) * scale + static_cast<A>(bias[col]);
    output[i] = static_cast<T>(x < A(0) ? A(0) : x);  // in this order NaN stays NaN
  });
}

template <class T>
void fused_op_backward_kernel(
    const T* grad_output,  // [rows, cols]
    const T* output,       // [rows, cols]
    T* grad_input,         // [rows, cols]
    T* grad_bias,          // [cols]
    int64_t rows, int64_t cols, acc_t<T> scale) {
  using A = acc_t<T>;
  cpu::column_sums<A>(
      1, rows, cols,
      [=](int64_t i, int64_t, int64_t, A(&sums)[1]) {
        const A grad = static_cast<A>(grad_output[i]);
        const A masked = static_cast<A>(output[i]) <= A(0) ? A(0) : grad;
        grad_input[i] = static_cast<T>(masked * scale);
        sums[0] += masked;
      },
      std::array{grad_bias});
}

Tensor fused_op_cpu(const Tensor& input, const Tensor& bias, double scale) {
  const CheckedInputs inputs = kFusedOp.check(input, bias);
  const Tensor x = as_contiguous(input);
  const Tensor b = as_contiguous(bias);
  Tensor output = inputs.new_output();
  const int64_t cols = b.numel();
  const int64_t rows = cols == 0 ? 0 : x.numel() / cols;
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    fused_op_kernel<T>(
        x.const_data_ptr<T>(), b.const_data_ptr<T>(), output.mutable_data_ptr<T>(), rows, cols,
        static_cast<acc_t<T>>(scale));
  });
  return output;
}

std::tuple<Tensor, Tensor> fused_op_backward_cpu(const Tensor& grad_output, const Tensor& output, double scale) {
  const CheckedInputs inputs = kFusedOpBackward.check(grad_output, output);
  const Tensor grad = as_contiguous(grad_output);
  const Tensor out = as_contiguous(output);
  const int64_t cols = grad.size(grad.dim() - 1);
  const int64_t rows = cols == 0 ? 0 : grad.numel() / cols;
  Tensor grad_input = inputs.new_output(0);
  Tensor grad_bias = inputs.new_output(1);
  dispatch_floating(grad.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    fused_op_backward_kernel<T>(
        grad.const_data_ptr<T>(), out.const_data_ptr<T>(), grad_input.mutable_data_ptr<T>(),
        grad_bias.mutable_data_ptr<T>(), rows, cols, static_cast<acc_t<T>>(scale));
  });
  return {grad_input, grad_bias};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(extension_cpp::kFusedOp.schema());
  m.def(extension_cpp::kFusedOpBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl(extension_cpp::kFusedOp.name(), TORCH_BOX(&extension_cpp::fused_op_cpu));
  m.impl(extension_cpp::kFusedOpBackward.name(), TORCH_BOX(&extension_cpp::fused_op_backward_cpu));
}
