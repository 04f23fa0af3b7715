// outputs[i] = f(inputs[i]...) for tensors of any layout, on the CPU.
#pragma once

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "dispatch.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <utility>

namespace extension_cpp::cpu {

namespace detail {

// Of an input that is one number, copies of it.
constexpr int64_t kRepeats = 64;

// What a loop works on: `count` elements of every operand, which lie in a row; kRepeats of the inputs that are
// `repeated`.
struct RowOperands {
  int64_t count;
  char* const* outputs;
  const char* const* inputs;
  const bool* repeated;
};

using RowLoop = void (*)(const void* formula, const RowOperands& operands);

// What is compiled for each formula and dtype. All else is compiled once, in elementwise.cpp.
template <class T, class F, class Outputs, class Inputs>
struct RowLoopOf;

template <class T, class F, size_t... M, size_t... I>
struct RowLoopOf<T, F, std::index_sequence<M...>, std::index_sequence<I...>> {
  using A = acc_t<T>;

  // A RowLoop.
  static void run(const void* formula, const RowOperands& operands) {
    with_blocks<T>(
        [&](auto isa) { on_blocks_of(isa, formula, operands); },
        [&] {
          if constexpr (sizeof(T) == 2 && HAS_BLOCKS) {  // of which no processor with AVX2 comes here
            on_elements(formula, operands);
          } else {
            on_elements_cloned(formula, operands);
          }
        });
  }

  static void on_elements(const void* formula, const RowOperands& operands) {
    const F f = *static_cast<const F*>(formula);  // nothing that the loop writes is part of it
    const int64_t longest = (operands.repeated[I] || ...) ? kRepeats : operands.count;
    for (int64_t begin = 0; begin < operands.count; begin += longest) {
      const int64_t count = std::min(longest, operands.count - begin);
      T* const to[] = {reinterpret_cast<T*>(operands.outputs[M]) + begin...};
      const T* const from[] = {reinterpret_cast<const T*>(operands.inputs[I]) + (operands.repeated[I] ? 0 : begin)...};
      CPU_LOOP_BY_LINES
      for (int64_t j = 0; j < count; ++j) {
        const auto results = as_values(f(static_cast<A>(from[I][j])...));
        ((to[M][j] = static_cast<T>(results[M])), ...);
      }
    }
  }

  CPU_CLONES_BELOW_BLOCKS CPU_FLATTEN static void on_elements_cloned(const void* formula, const RowOperands& operands) {
    on_elements(formula, operands);
  }

#if HAS_BLOCKS

  CPU_AVX512 CPU_FLATTEN static void on_blocks_of(Avx512, const void* formula, const RowOperands& operands) {
    on_blocks<Avx512>(formula, operands);
  }

  CPU_AVX2 CPU_FLATTEN static void on_blocks_of(Avx2, const void* formula, const RowOperands& operands) {
    on_blocks<Avx2>(formula, operands);
  }

  template <class Isa>
  static void on_blocks(const void* formula, const RowOperands& operands) {
    constexpr int64_t kBlock = Isa::template kBlock<T>;
    static_assert(kBlock <= kRepeats);
    const F f = *static_cast<const F*>(formula);
    T* const to[] = {reinterpret_cast<T*>(operands.outputs[M])...};
    const T* const from[] = {reinterpret_cast<const T*>(operands.inputs[I])...};
    const int64_t step[] = {operands.repeated[I] ? 0 : 1 ...};
    const int64_t count = operands.count;
    int64_t j = 0;
    // With AVX2, of float16, two thirds of the time of one by one.
#pragma GCC unroll 2
    for (; j + kBlock <= count; j += kBlock) {
      on_block<Isa>(f, {from[I] + j * step[I]...}, {to[M] + j...});
    }
    if (j < count) {
      T rest[sizeof...(I)][kBlock] = {};
      T results[sizeof...(M)][kBlock];
      (std::copy_n(from[I] + j * step[I], count - j, rest[I]), ...);
      on_block<Isa>(f, {rest[I]...}, {results[M]...});
      (std::copy_n(results[M], count - j, to[M] + j), ...);
    }
  }

  // Each array becomes a register.
  template <class Isa>
  static void on_block(const F& f, const T* const (&from)[sizeof...(I)], T* const (&to)[sizeof...(M)]) {
    constexpr int kBlock = Isa::template kBlock<T>;
    A values[sizeof...(I)][kBlock];
    A results[sizeof...(M)][kBlock];
    (Isa::load_block(from[I], values[I]), ...);
    CPU_INDEPENDENT_LOOP
    CPU_ROLLED_LOOP
    for (int k = 0; k < kBlock; ++k) {
      const auto all = as_values(f(values[I][k]...));
      ((results[M][k] = all[M]), ...);
    }
    (Isa::store_block(results[M], to[M]), ...);
  }

#endif
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
// There is one loop, over values that lie in a row; what does not lie so is copied to the cache first.
template <class T, size_t M, class F, class... Inputs>
void elementwise(const F& f, std::array<Tensor, M>& outputs, const Inputs&... inputs) {
  using Loop = detail::RowLoopOf<T, F, std::make_index_sequence<M>, std::index_sequence_for<Inputs...>>;
  static_cast<void>(outputs[0].template mutable_data_ptr<T>());  // throws where that is not the dtype
  const Tensor* const from[] = {&inputs...};
  detail::elementwise(Loop::run, &f, {sizeof(T), outputs.data(), M, from, sizeof...(inputs)});
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
