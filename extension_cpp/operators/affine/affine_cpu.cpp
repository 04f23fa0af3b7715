#include "affine.h"

#include "cpu/loops.h"

namespace extension_cpp {
namespace {

template <class T>
void affine_backward_kernel(
    const T* grad_output,  // [rows, cols]
    const T* a,            // [cols]
    const T* x,            // [rows, cols]
    T* grad_a,             // [cols]
    T* grad_x,             // [rows, cols]
    T* grad_b,             // [cols]
    int64_t rows, int64_t cols) {
  using A = acc_t<T>;
  cpu::column_sums<A>(
      1, rows, cols,
      [=](int64_t i, int64_t, int64_t col, A(&sums)[2]) {
        const A grad = static_cast<A>(grad_output[i]);
        grad_x[i] = static_cast<T>(grad * static_cast<A>(a[col]));
        sums[0] += grad * static_cast<A>(x[i]);
        sums[1] += grad;
      },
      std::array{grad_a, grad_b});
}

Tensor affine_cpu(const Tensor& a, const Tensor& x, const Tensor& b) {
  const std::vector<int64_t> sizes = check_affine(a, x, b);
  Tensor output = new_elementwise(sizes, a, x, b);
  dispatch_floating(a.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::elementwise<T>(Affine<acc_t<T>>{}, output, a, x, b);
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> affine_backward_cpu(const Tensor& grad_output, const Tensor& a, const Tensor& x) {
  check_affine_backward(grad_output, a, x);
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
    affine_backward_kernel<T>(
        grad.const_data_ptr<T>(), scale.const_data_ptr<T>(), input.const_data_ptr<T>(), grad_a.mutable_data_ptr<T>(),
        grad_x.mutable_data_ptr<T>(), grad_b.mutable_data_ptr<T>(), rows, cols);
  });
  return {grad_a, grad_x, grad_b};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl("affine", TORCH_BOX(&extension_cpp::affine_cpu));
  m.impl("affine_backward", TORCH_BOX(&extension_cpp::affine_backward_cpu));
}
