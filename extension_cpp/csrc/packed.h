// Tensors that hold several side by side in their last dimension, for both backends: a gate and what it gates, the
// halves that a rotation turns. Their parts are views of them, which the shared loops read and write where they lie, so
// that nothing is copied, and nothing put together:
//
//   const Operator kPackedSwiglu{"packed_swiglu(Tensor x) -> Tensor", "*rows 2n -> *rows n"};
//
//   Tensor packed_swiglu(const Tensor& x) {
//     const CheckedInputs inputs = kPackedSwiglu.check(x);
//     const auto [gate, up] = parts<2>(x);
//     Tensor output = inputs.new_output();
//     elementwise_into<PackedSwiglu>(output, gate, up);
//     return output;
//   }
//
// Of an output with several parts the formula has a result for each: elementwise_into<F>(results, ...) with
// `auto results = parts<2>(output)`, and of several outputs `joined(parts<2>(grad_x), parts<1>(grad_y))`.
#pragma once

#include "elementwise.h"

#include <array>
#include <tuple>

namespace extension_cpp {

// Views of the first columns of a tensor to its last, as many in each: the line of shapes says so, `*rows 2n`.
template <size_t N>
std::array<Tensor, N> parts(const Tensor& packed) {
  const IntArrayRef whole = packed.sizes();
  check(
      whole.size() > 0 && whole[whole.size() - 1] % static_cast<int64_t>(N) == 0, "parts: expected a tensor of ", N,
      " parts with as many columns, got shape ", whole);
  detail::Few<int64_t, 8> sizes(whole.size());
  std::copy(whole.begin(), whole.end(), sizes.data());
  int64_t& columns = sizes.data()[whole.size() - 1];
  columns /= static_cast<int64_t>(N);
  const int64_t apart = columns * packed.strides()[whole.size() - 1];
  return detail::make_tensors<N>([&](size_t n) {
    return view_of(packed, {sizes.data(), whole.size()}, packed.strides(), static_cast<int64_t>(n) * apart);
  });
}

// One array of the tensors of several.
template <size_t... N>
std::array<Tensor, (N + ...)> joined(const std::array<Tensor, N>&... arrays) {
  return std::apply(
      [](const auto&... tensors) { return std::array<Tensor, (N + ...)>{tensors...}; }, std::tuple_cat(arrays...));
}

}  // namespace extension_cpp
