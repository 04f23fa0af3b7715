// The sum over any dimensions.
#include "backend.h"
#include "operator.h"
#include "sum_dims.h"

namespace extension_cpp::reduce_sum {

const Operator kReduceSum{"reduce_sum(Tensor input, int[]? dim=None, bool keepdim=False) -> Tensor"};

Tensor reduce_sum(const Tensor& input, OptionalIntArrayRef dim, bool keepdim) {
  check_floating(kReduceSum.name(), "input", input);
  const int64_t ndim = input.dim();
  // As in PyTorch, no dimensions mean all of them.
  std::vector<bool> reduced(ndim, !dim.has_value() || dim->empty());
  if (dim.has_value()) {
    check_dims(kReduceSum.name(), "dim", *dim, ndim);
    for (size_t k = 0; k < dim->size() && ndim > 0; ++k) {
      reduced[((*dim)[k] + ndim) % ndim] = true;
    }
  }
  const DeviceGuard guard(input);
  const Tensor x = as_contiguous(input);
  std::vector<int64_t> output_sizes;
  for (int64_t d = 0; d < ndim; ++d) {
    if (!reduced[d]) {
      output_sizes.push_back(x.size(d));
    } else if (keepdim) {
      output_sizes.push_back(1);
    }
  }
  Tensor output = new_empty(x, output_sizes);
  backend::sum_dims(x, x.sizes(), reduced, output);
  return output;
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) { m.def(kReduceSum.schema()); }

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) { m.impl("reduce_sum", TORCH_BOX(&reduce_sum)); }

}  // namespace extension_cpp::reduce_sum
