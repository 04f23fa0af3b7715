#include "my_op.h"

#include "arguments.h"
#include "cpu/elementwise.h"
#include "dispatch.h"

namespace extension_cpp::my_op {

// EDIT: the kernel. This one adds each element of a row to the one as far from the row's other end. What is written is
// read as well, and other tensors may be the one that is written: both elements are read before either is written, and
// neither is anything to another call of the function, for these run in no order and side by side. (Where a kernel
// cannot do so, it reads a copy: new_empty() and copy_into() of torch_abi.h.)
template <class T>
void my_op_kernel(
    T* input,        // [rows, cols], read and written
    const T* other,  // [rows, cols], or null
    int64_t rows, int64_t cols, acc_t<T> alpha) {
  using A = acc_t<T>;
  const int64_t pairs = (cols + 1) / 2;  // of a row; the element in its middle is a pair of its own
  cpu::for_each_element(rows, pairs, [=](int64_t pair, int64_t col) {
    const int64_t row = pair / pairs;
    const int64_t ends[] = {row * cols + col, (row + 1) * cols - 1 - col};
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
  });
}

// EDIT: what the kernel is called with. What it writes to lies in any layout: of each such tensor there is a contiguous
// one, itself or a copy, and what it was copied from gets the result.
void launch_my_op(Tensor& input, const std::optional<Tensor>& other, double alpha) {
  Tensor contiguous_input = as_contiguous(input);
  const auto contiguous_other = as_contiguous(other);
  const int64_t cols = input.size(input.dim() - 1);
  const int64_t rows = cols == 0 ? 0 : input.numel() / cols;
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    my_op_kernel<T>(contiguous_input.mutable_data_ptr<T>(), data_of<T>(contiguous_other), rows, cols, alpha);
  });
  if (!input.is_contiguous()) {
    copy_into(input, contiguous_input);  // the kernel wrote to a copy
  }
}

void my_op_cpu(Tensor& input, const Tensor& other, double alpha) {
  kMyOp.check(input, other);
  launch_my_op(input, other, alpha);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) { m.def(kMyOp.schema()); }

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) { m.impl("my_op", TORCH_BOX(&my_op_cpu)); }

}  // namespace extension_cpp::my_op
