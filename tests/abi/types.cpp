// Every argument and result type that torch_abi.h names, in both ABIs: describe() sees each value and returns a number
// of it.
#include "torch_abi.h"

namespace {

using extension_cpp::IntArrayRef;
using extension_cpp::OptionalIntArrayRef;
using extension_cpp::ScalarType;
using extension_cpp::Tensor;
using extension_cpp::TensorList;

std::tuple<Tensor, double, int64_t> describe(
    const Tensor& x, const std::optional<Tensor>& maybe, TensorList list, double scale, int64_t count, bool flag,
    IntArrayRef dims, OptionalIntArrayRef maybe_dims, ScalarType dtype, std::optional<double> maybe_scale) {
  double sum = 2 * scale + 3 * static_cast<double>(count) + (flag ? 5 : 0) + maybe_scale.value_or(0.5);
  for (const int64_t dim : dims) {
    sum += 7 * static_cast<double>(dim);
  }
  if (maybe_dims.has_value()) {
    sum += 11 * static_cast<double>(maybe_dims->size());
  }
  sum += dtype == ScalarType::Half ? 13 : 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const Tensor& tensor = list[i];
    sum += 17 * static_cast<double>(tensor.numel());
  }
  return {maybe.has_value() ? *maybe : x, sum, x.numel()};
}

}  // namespace

TORCH_LIBRARY(extension_cpp_types, m) {
  m.def(
      "describe(Tensor x, Tensor? maybe, Tensor[] list, float scale, int count, bool flag, int[] dims, int[]? "
      "maybe_dims, "
      "ScalarType dtype, float? maybe_scale=None) -> (Tensor, float, int)");
}

TORCH_LIBRARY_IMPL(extension_cpp_types, CPU, m) { m.impl("describe", TORCH_BOX(&describe)); }
