// outputs[i] = f(inputs[i]...) for tensors of any layout, on the CPU.
#pragma once

#include "cpu/clones.h"
#include "cpu/convert.h"
#include "dispatch.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <utility>

namespace extension_cpp::cpu {

namespace detail {

// `count` elements of every operand, which lie in a row.
using RowLoop = void (*)(const void* formula, int64_t count, char* const* outputs, const char* const* inputs);

// What is compiled for each formula and dtype. All else is compiled once, in elementwise.cpp.
template <class T, class F, class Outputs, class Inputs>
struct RowLoopOf;

template <class T, class F, size_t... M, size_t... I>
struct RowLoopOf<T, F, std::index_sequence<M...>, std::index_sequence<I...>> {
  static RowLoop choose() {
    if constexpr (has_half_vectors<T>) {
      return can_half_vectors() ? on_half_vectors : on_elements;
    } else {
      return on_elements_cloned;
    }
  }

  static void on_elements(const void* formula, int64_t count, char* const* outputs, const char* const* inputs) {
    const F f = *static_cast<const F*>(formula);  // nothing that the loop writes is part of it
    T* const to[] = {reinterpret_cast<T*>(outputs[M])...};
    const T* const from[] = {reinterpret_cast<const T*>(inputs[I])...};
    CPU_INDEPENDENT_LOOP
    for (int64_t j = 0; j < count; ++j) {
      const auto results = as_values(f(static_cast<acc_t<T>>(from[I][j])...));
      ((to[M][j] = static_cast<T>(results[M])), ...);
    }
  }

  CPU_CLONES CPU_FLATTEN static void on_elements_cloned(
      const void* formula, int64_t count, char* const* outputs, const char* const* inputs) {
    on_elements(formula, count, outputs, inputs);
  }

  CPU_CLONES CPU_FLATTEN static void on_half_vectors(
      const void* formula, int64_t count, char* const* outputs, const char* const* inputs) {
    const F f = *static_cast<const F*>(formula);
    int64_t j = 0;
    for (; j + kHalfVector <= count; j += kHalfVector) {
      const Half* const from[] = {reinterpret_cast<const Half*>(inputs[I]) + j...};
      Half* const to[] = {reinterpret_cast<Half*>(outputs[M]) + j...};
      on_half_vector(f, from, to);
    }
    if (j < count) {
      Half rest[sizeof...(I)][kHalfVector] = {};
      Half results[sizeof...(M)][kHalfVector];
      (std::copy_n(reinterpret_cast<const Half*>(inputs[I]) + j, count - j, rest[I]), ...);
      const Half* const from[] = {rest[I]...};
      Half* const to[] = {results[M]...};
      on_half_vector(f, from, to);
      (std::copy_n(results[M], count - j, reinterpret_cast<Half*>(outputs[M]) + j), ...);
    }
  }

  static void on_half_vector(const F& f, const Half* const (&from)[sizeof...(I)], Half* const (&to)[sizeof...(M)]) {
    float values[sizeof...(I)][kHalfVector];
    float results[sizeof...(M)][kHalfVector];
    (widen_vector(from[I], values[I]), ...);
    CPU_INDEPENDENT_LOOP
    for (int k = 0; k < kHalfVector; ++k) {
      const auto all = as_values(f(values[I][k]...));
      ((results[M][k] = all[M]), ...);
    }
    (narrow_vector(results[M], to[M]), ...);
  }
};

struct Operands {
  int64_t itemsize;
  Tensor* outputs;
  size_t num_outputs;
  const Tensor* const* inputs;
  size_t num_inputs;
};

void elementwise(RowLoop loop, const void* formula, const Operands& operands);

}  // namespace detail

// outputs[m][i] = result m of f(inputs[i]...) for every element of the outputs, to whose shape the inputs are
// broadcast; all of dtype T and of any layout, which is one for all outputs. f takes acc_t<T> and returns one, or
// Values. An output overlaps no input, unless it is exactly that input.
//
// There is one loop, over values that lie in a row, which the compiler vectorises; what does not lie so is copied to
// the cache first.
template <class T, size_t M, class F, class... Inputs>
void elementwise(const F& f, std::array<Tensor, M>& outputs, const Inputs&... inputs) {
  using Loop = detail::RowLoopOf<T, F, std::make_index_sequence<M>, std::index_sequence_for<Inputs...>>;
  static_cast<void>(outputs[0].template mutable_data_ptr<T>());  // throws where that is not the dtype
  const Tensor* const from[] = {&inputs...};
  detail::elementwise(Loop::choose(), &f, {sizeof(T), outputs.data(), M, from, sizeof...(inputs)});
}

template <class T, class F, class... Inputs>
void elementwise(const F& f, Tensor& output, const Inputs&... inputs) {
  std::array<Tensor, 1> outputs{output};
  elementwise<T>(f, outputs, inputs...);
}

// f(i, col) for every element i = row * cols + col of a [rows, cols] matrix. Split by elements, not by rows: one long
// row is as parallel as many short ones.
template <class F>
void for_each_element(int64_t rows, int64_t cols, F f) {
  parallel_for(0, rows * cols, kGrain, [=](int64_t begin, int64_t end) CPU_CLONES {
    while (begin < end) {
      const int64_t first = begin % cols;
      const int64_t count = std::min(cols - first, end - begin);
      CPU_INDEPENDENT_LOOP
      for (int64_t j = 0; j < count; ++j) {
        f(begin + j, first + j);
      }
      begin += count;
    }
  });
}

}  // namespace extension_cpp::cpu
