// outputs[i] = f(inputs[i]...) for tensors of any layout, on the CPU.
#pragma once

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "cpu/lines.h"
#include "dispatch.h"
#include "element_types.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace extension_cpp::cpu {

namespace detail {

// What a loop works on: some rows of every operand.
struct RowOperands {
  int64_t rows;
  int64_t cols;
  char* const* outputs;  // rows that lie one behind the other
  const char* const* inputs;
  const int64_t* input_bytes;  // from one row of an input to the next
  const bool* numbers;         // whether an input is one number throughout a row
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
    with_blocks([&](auto isa) { on_blocks_of(isa, formula, operands); }, [&] { on_elements(formula, operands); });
  }

  CPU_FLATTEN static void on_elements(const void* formula, const RowOperands& operands) {
    constexpr int64_t kRepeats = 64;              // of a number
    const F f = *static_cast<const F*>(formula);  // nothing that the loop writes is part of it
    const int64_t longest = std::min(operands.cols, (operands.numbers[I] || ...) ? kRepeats : operands.cols);
    T repeated[sizeof...(I)][kRepeats];
    for (int64_t row = 0; row < operands.rows; ++row) {
      const auto is_new = [&](size_t input) {
        return operands.numbers[input] && (row == 0 || operands.input_bytes[input] != 0);
      };
      (std::fill_n(repeated[I], is_new(I) ? longest : 0, *row_of(operands, I, row)), ...);
      for (int64_t begin = 0; begin < operands.cols; begin += longest) {
        const int64_t count = std::min(longest, operands.cols - begin);
        T* const to[] = {reinterpret_cast<T*>(operands.outputs[M]) + row * operands.cols + begin...};
        const T* const from[] = {operands.numbers[I] ? repeated[I] : row_of(operands, I, row) + begin...};
        CPU_INDEPENDENT_LOOP
        for (int64_t j = 0; j < count; ++j) {
          const auto results = as_values(f(static_cast<A>(from[I][j])...));
          ((to[M][j] = static_cast<T>(results[M])), ...);
        }
      }
    }
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
    const F f = *static_cast<const F*>(formula);
    const int64_t step[] = {operands.numbers[I] ? 0 : 1 ...};
    const int64_t cols = operands.cols;
    const bool has_rest = cols % kBlock != 0;
    for (int64_t row = 0; row < operands.rows; ++row) {
      T repeated[sizeof...(I)][kBlock];
      ((operands.numbers[I] ? repeat<kBlock>(*row_of(operands, I, row), repeated[I]) : void()), ...);
      const T* const from[] = {operands.numbers[I] ? repeated[I] : row_of(operands, I, row)...};
      T* const to[] = {reinterpret_cast<T*>(operands.outputs[M]) + row * cols...};
      A values[sizeof...(I)][kBlock];
      // What no whole block is left for is part of the last block of the row, which is computed first: the row may be
      // its own output.
      A last[sizeof...(M)][kBlock];
      if (has_rest) {
        (load_last<Isa>(from[I], step[I], cols, values[I]), ...);
        on_block<kBlock>(f, values, last);
      }
      const auto on_block_at = [&](int64_t j) CPU_INLINE_LAMBDA {
        A results[sizeof...(M)][kBlock];
        (Isa::load_block(from[I] + j * step[I], values[I]), ...);
        on_block<kBlock>(f, values, results);
        (Isa::store_block(results[M], to[M] + j), ...);
      };
      int64_t j = 0;
      // Two at a time: with AVX2 up to a third less time.
      for (; j + 2 * kBlock <= cols; j += 2 * kBlock) {
        (send_for<2 * kBlock, kToRead>(from[I] + j * step[I], kBytesAhead), ...);
        (send_for<2 * kBlock, kToWrite>(to[M] + j, kBytesAhead), ...);
        on_block_at(j);
        on_block_at(j + kBlock);
      }
      if (j + kBlock <= cols) {
        on_block_at(j);
      }
      if (has_rest) {
        (store_last<Isa>(last[M], cols, to[M]), ...);
      }
    }
  }

  // The last block of a row, or all of it and zeros.
  template <class Isa>
  CPU_INLINE static void load_last(const T* row, int64_t step, int64_t cols, A* block) {
    constexpr int64_t kBlock = Isa::template kBlock<T>;
    if (step == 0 || cols >= kBlock) {
      Isa::load_block(row + (cols - kBlock) * step, block);
    } else {
      Isa::load_rest(row, cols, block);
    }
  }

  template <class Isa>
  CPU_INLINE static void store_last(const A* block, int64_t cols, T* row) {
    constexpr int64_t kBlock = Isa::template kBlock<T>;
    if (cols >= kBlock) {
      Isa::store_block(block, row + cols - kBlock);
    } else {
      Isa::store_rest(block, cols, row);
    }
  }

  // Each array becomes a register.
  template <int kBlock>
  static void on_block(const F& f, const A (&values)[sizeof...(I)][kBlock], A (&results)[sizeof...(M)][kBlock]) {
    CPU_INDEPENDENT_LOOP
    CPU_ROLLED_LOOP
    for (int k = 0; k < kBlock; ++k) {
      const auto all = as_values(f(values[I][k]...));
      ((results[M][k] = all[M]), ...);
    }
  }

#endif

 private:
  CPU_INLINE static const T* row_of(const RowOperands& operands, size_t input, int64_t row) {
    return reinterpret_cast<const T*>(operands.inputs[input] + row * operands.input_bytes[input]);
  }
};

// The same for tensors of several dtypes (element_types.h): some elements at a time, of which half types are converted
// to arrays of float and back, so that compilers make vectors of the formula.
template <class T, class F, class Results, class Elements, class Outputs, class Inputs>
struct MixedRowLoopOf;

template <class T, class F, class... R, class... E, size_t... M, size_t... I>
struct MixedRowLoopOf<
    T, F, extension_cpp::detail::Types<R...>, extension_cpp::detail::Types<E...>, std::index_sequence<M...>,
    std::index_sequence<I...>> {
  static constexpr int64_t kElements = 256;

  // A RowLoop.
  static void run(const void* formula, const RowOperands& operands) {
    with_blocks([&](auto isa) { run_with(isa, formula, operands); }, [&] { run_by<void>(formula, operands); });
  }

#if HAS_BLOCKS

  CPU_AVX512 CPU_FLATTEN static void run_with(Avx512, const void* formula, const RowOperands& operands) {
    run_by<Avx512>(formula, operands);
  }

  CPU_AVX2 CPU_FLATTEN static void run_with(Avx2, const void* formula, const RowOperands& operands) {
    run_by<Avx2>(formula, operands);
  }

#endif

 protected:
  template <class Element>
  using Stored = extension_cpp::detail::stored_as<T, Element>;

  // What the loop is on.
  template <class Element>
  using Loaded = std::conditional_t<std::is_same_v<Element, extension_cpp::detail::Own>, acc_t<T>, Stored<Element>>;

  template <class Element>
  static constexpr bool kIsConverted = !std::is_same_v<Stored<Element>, Loaded<Element>>;

  // Room for what is converted, or is one number.
  template <class Element>
  using Room = std::array<Loaded<Element>, kElements>;

 private:
  template <class Isa>
  CPU_INLINE static void run_by(const void* formula, const RowOperands& operands) {
    const F f = *static_cast<const F*>(formula);
    std::tuple<Room<E>...> inputs;
    std::tuple<Room<R>...> outputs;
    for (int64_t row = 0; row < operands.rows; ++row) {
      for (int64_t begin = 0; begin < operands.cols; begin += kElements) {
        const int64_t count = std::min(kElements, operands.cols - begin);
        const std::tuple<Stored<R>*...> to{
            reinterpret_cast<Stored<R>*>(operands.outputs[M]) + row * operands.cols + begin...};
        compute(
            f, count, result_place<R>(std::get<M>(to), std::get<M>(outputs))...,
            read<Isa, E>(operands, I, row, begin, count, std::get<I>(inputs))...);
        (write<Isa, R>(std::get<M>(outputs), count, std::get<M>(to)), ...);
      }
    }
  }

  CPU_INLINE static void compute(const F& f, int64_t count, Loaded<R>*... to, const Loaded<E>*... from) {
    CPU_INDEPENDENT_LOOP
    for (int64_t j = 0; j < count; ++j) {
      const auto results = f(argument<E>(from[j])...);
      ((to[j] = static_cast<Loaded<R>>(extension_cpp::detail::result_at<M>(results))), ...);
    }
  }

 protected:
  template <class Element>
  CPU_INLINE static auto argument(const Loaded<Element>& value) {
    if constexpr (std::is_same_v<Element, extension_cpp::detail::Own>) {
      return value;
    } else {
      return extension_cpp::detail::as_argument<T, Element>(value);
    }
  }

  // Elements of an input where the loop finds them.
  template <class Isa, class Element>
  CPU_INLINE static const Loaded<Element>* read(
      const RowOperands& operands, size_t input, int64_t row, int64_t begin, int64_t count, Room<Element>& room) {
    const auto* const from =
        reinterpret_cast<const Stored<Element>*>(operands.inputs[input] + row * operands.input_bytes[input]);
    if (operands.numbers[input]) {
      if (begin == 0 && (row == 0 || operands.input_bytes[input] != 0)) {
        if constexpr (std::is_same_v<Element, bool>) {
          room.fill(extension_cpp::detail::is_true(*from));
        } else {
          room.fill(static_cast<Loaded<Element>>(*from));
        }
      }
      return room.data();
    }
    if constexpr (kIsConverted<Element>) {
      convert<Isa>(from + begin, count, room.data());
      return room.data();
    } else {
      return from + begin;
    }
  }

 private:
  template <class Element>
  CPU_INLINE static Loaded<Element>* result_place(Stored<Element>* to, Room<Element>& room) {
    if constexpr (kIsConverted<Element>) {
      return room.data();
    } else {
      return to;
    }
  }

  template <class Isa, class Element>
  CPU_INLINE static void write(const Room<Element>& room, int64_t count, Stored<Element>* to) {
    if constexpr (kIsConverted<Element>) {
      convert<Isa>(room.data(), count, to);
    }
  }

  template <class Isa, class From, class To>
  CPU_INLINE static void convert(const From* from, int64_t count, To* to) {
    int64_t j = 0;
    if constexpr (!std::is_void_v<Isa>) {
      constexpr int64_t kBlock = Isa::template kBlock<T>;
      for (; j + kBlock <= count; j += kBlock) {
        if constexpr (std::is_same_v<To, T>) {
          Isa::store_block(from + j, to + j);
        } else {
          Isa::load_block(from + j, to + j);
        }
      }
    }
    for (; j < count; ++j) {
      to[j] = static_cast<To>(from[j]);
    }
  }
};

struct Operands {
  const int64_t* itemsizes;  // of the outputs, then of the inputs
  Tensor* outputs;
  size_t num_outputs;
  const Tensor* const* inputs;
  size_t num_inputs;
};

void elementwise(RowLoop loop, const void* formula, const Operands& operands);

template <size_t N>
constexpr std::array<int64_t, N> repeated(int64_t value) {
  std::array<int64_t, N> result{};
  for (size_t n = 0; n < N; ++n) {
    result[n] = value;
  }
  return result;
}

}  // namespace detail

// outputs[m][i] = result m of f(inputs[i]...) for every element of the outputs, to whose shape the inputs are
// broadcast; all of dtype T and of any layout, which is one for all outputs. f takes acc_t<T> and returns one, or
// Values. An output overlaps no input, unless it is exactly that input.
//
// There is one loop, over values that lie in a row; what does not lie so is copied to the cache first.
template <class T, size_t M, class F, class... Inputs>
void elementwise(const F& f, std::array<Tensor, M>& outputs, const Inputs&... inputs) {
  using Loop = detail::RowLoopOf<T, F, std::make_index_sequence<M>, std::index_sequence_for<Inputs...>>;
  static constexpr auto kItemsizes = detail::repeated<M + sizeof...(Inputs)>(int64_t{sizeof(T)});
  const Tensor* const from[] = {&inputs...};
  detail::elementwise(Loop::run, &f, {kItemsizes.data(), outputs.data(), M, from, sizeof...(inputs)});
}

// The same of tensors of several dtypes, of which T is the operator's own.
template <class T, class F, class... R, class... E, size_t M, class... Inputs>
void mixed_elementwise(
    const F& f, extension_cpp::detail::Types<R...> /*results*/, extension_cpp::detail::Types<E...> /*elements*/,
    std::array<Tensor, M>& outputs, const Inputs&... inputs) {
  using Loop = detail::MixedRowLoopOf<
      T, F, extension_cpp::detail::Types<R...>, extension_cpp::detail::Types<E...>, std::make_index_sequence<M>,
      std::index_sequence_for<Inputs...>>;
  static constexpr int64_t kItemsizes[] = {
      sizeof(extension_cpp::detail::stored_as<T, R>)..., sizeof(extension_cpp::detail::stored_as<T, E>)...};
  const Tensor* const from[] = {&inputs...};
  detail::elementwise(Loop::run, &f, {kItemsizes, outputs.data(), M, from, sizeof...(inputs)});
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
