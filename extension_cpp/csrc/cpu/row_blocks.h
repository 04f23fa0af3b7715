// Rows whose elements are loaded and stored by blocks of a register (blocks.h), where row_isa.h says so.
#pragma once

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "cpu/row_sums.h"
#include "dispatch.h"
#include "element_types.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace extension_cpp::cpu::detail {

// K inputs of a row.
template <class Isa, class T, size_t K>
class RowBlocks;

#if HAS_BLOCKS

template <class Isa, class T, size_t K>
class RowBlocks {
 public:
  using A = acc_t<T>;
  // Of a block, which has been converted.
  using Inputs = std::array<const A*, K>;

  // Where the row's inputs begin.
  CPU_INLINE explicit RowBlocks(const std::array<const T*, K>& row) : row_(row) {}

  // each(inputs, first, count) for the columns begin ... end - 1, a block from column `first` on at a time. The count
  // of those that are whole is a constant.
  template <class Each>
  CPU_INLINE void for_each(int64_t begin, int64_t end, const Each& each) const {
    for (; end - begin >= kBlock; begin += kBlock) {
      A values[K][kBlock];
      each(load(values, begin), begin, std::integral_constant<int, kBlock>());
    }
    if (begin < end) {
      A values[K][kBlock];
      each(load_rest(values, begin, end - begin), begin, static_cast<int>(end - begin));
    }
  }

  // to[k] = f(k), of so many.
  template <class Out, class Count, class F>
  CPU_INLINE static void write(Out* to, Count count, const F& f) {
    write_each(Outputs<Out>{to}, count, f, std::index_sequence<0>());
  }

  // The same of several outputs, and the results of f.
  template <class... Out, class Count, class F, size_t... M>
  CPU_INLINE static void write_each(const Outputs<Out...>& to, Count count, const F& f, std::index_sequence<M...>) {
    using extension_cpp::detail::result_at;
    using extension_cpp::detail::slot_at;
    const int width = count;  // a condition that calls something is none of a loop to be vectorised
    extension_cpp::detail::Slots<std::index_sequence<M...>, Computed<Out>...> computed(
        Computed<Out>{slot_at<M>(to)}...);
    CPU_INDEPENDENT_LOOP
    CPU_ROLLED_LOOP
    for (int k = 0; k < width; ++k) {
      const auto made = f(k);
      (slot_at<M>(computed).set(k, result_at<M>(made)), ...);
    }
    (slot_at<M>(computed).put(count), ...);
  }

  // The S numbers f(inputs, first, k) of each column first + k, together, as by reduce_over().
  template <int S, class Combine, class F>
  CPU_INLINE Values<A, S> reduce(int64_t begin, int64_t end, A start, const Combine& combine, const F& f) const {
    constexpr int kSideBySide = 32 / kBlock;  // an addition takes four cycles
    Values<A, S> result;
    std::fill_n(result.values, S, start);
    reduce_blocks<kSideBySide>(begin, end, start, combine, f, result);
    reduce_blocks<1>(begin, end, start, combine, f, result);
    if (const int64_t count = end - begin; count > 0) {
      A values[K][kBlock];
      const Inputs inputs = load_rest(values, begin, count);
      const auto of = [&](int64_t k) CPU_INLINE_LAMBDA -> Values<A, S> { return f(inputs, begin, k); };
      const Values<A, S> rest = reduce_over<kShortRow>(0, count, start, combine, of);
      for (int s = 0; s < S; ++s) {
        combine(result[s], rest[s]);
      }
    }
    return result;
  }

 private:
  static constexpr int kBlock = Isa::template kBlock<T>;

  // Where a block of an output is computed: in a register, in the type of the arithmetic; of other types in the output.
  template <class Out, bool InRegister = std::is_same_v<Out, T> || std::is_same_v<Out, A>>
  struct Computed {
    Out* to;
    A results[kBlock] = {};  // what is not set is stored nowhere

    CPU_INLINE void set(int k, A result) { results[k] = result; }

    template <class Count>
    CPU_INLINE void put(Count count) const {
      if constexpr (std::is_same_v<Count, int>) {
        Isa::store_rest(results, count, to);
      } else {
        Isa::store_block(results, to);
      }
    }
  };
  template <class Out>
  struct Computed<Out, false> {
    Out* to;

    template <class R>
    CPU_INLINE void set(int k, R result) {
      to[k] = static_cast<Out>(result);
    }

    template <class Count>
    CPU_INLINE void put(Count /*count*/) const {}
  };

  // Adds to `result` what reduce() makes of whole blocks, so many side by side, and moves `begin` behind them.
  template <int kBlocks, int S, class Combine, class F>
  CPU_INLINE void reduce_blocks(
      int64_t& begin, int64_t end, A start, const Combine& combine, const F& f, Values<A, S>& result) const {
    constexpr int kLanes = kBlocks * kBlock;
    if (end - begin < kLanes) {
      return;
    }
    Vector<A, kBlock> sums[S][kBlocks];
    for (auto& each : sums) {
      std::fill_n(each, kBlocks, Vector<A, kBlock>{} + start);
    }
    for (; end - begin >= kLanes; begin += kLanes) {
#pragma GCC unroll 4
      for (int block = 0; block < kBlocks; ++block) {
        const int64_t first = begin + block * kBlock;
        A values[K][kBlock];
        A terms[S][kBlock];
        const Inputs inputs = load(values, first);
        CPU_INDEPENDENT_LOOP
        CPU_ROLLED_LOOP
        for (int k = 0; k < kBlock; ++k) {
          const Values<A, S> all = f(inputs, first, k);
          for (int s = 0; s < S; ++s) {
            terms[s][k] = all[s];
          }
        }
        for (int s = 0; s < S; ++s) {
          Vector<A, kBlock> term;
          read_vector(term, terms[s]);
          if constexpr (std::is_same_v<Combine, KeepLarger>) {
            Isa::keep_larger(sums[s][block], term);
          } else {
            combine(sums[s][block], term);
          }
        }
      }
    }
    for (int s = 0; s < S; ++s) {
      A lanes[kLanes];
      for (int block = 0; block < kBlocks; ++block) {
        write_vector(sums[s][block], lanes + block * kBlock);
      }
      combine(result[s], fold<kLanes>(lanes, combine));
    }
  }

  // A block, to arrays each of which becomes a register.
  CPU_INLINE Inputs load(A (&values)[K][kBlock], int64_t first) const {
    return load(values, first, std::make_index_sequence<K>());
  }

  template <size_t... I>
  CPU_INLINE Inputs load(A (&values)[K][kBlock], int64_t first, std::index_sequence<I...>) const {
    (Isa::load_block(row_[I] + first, values[I]), ...);
    return {values[I]...};
  }

  // Less than a block.
  CPU_INLINE Inputs load_rest(A (&values)[K][kBlock], int64_t first, int64_t count) const {
    Inputs inputs;
    for (size_t k = 0; k < K; ++k) {
      Isa::load_rest(row_[k] + first, count, values[k]);
      inputs[k] = values[k];
    }
    return inputs;
  }

  std::array<const T*, K> row_;
};

#endif

}  // namespace extension_cpp::cpu::detail
