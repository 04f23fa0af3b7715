#include "cpu/elements.h"

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "cpu/lines.h"
#include "cpu/row_sums.h"

#include <algorithm>
#include <functional>
#include <type_traits>

namespace extension_cpp::cpu {

namespace {

template <class T>
CPU_CLONES_BELOW_BLOCKS acc_t<T> sum_one_by_one(const T* from, int64_t count) {
  using A = acc_t<T>;
  return reduce_over(0, count, A(0), std::plus<A>(), [&](int64_t j) CPU_INLINE_LAMBDA -> Values<A, 1> {
    return {{static_cast<A>(from[j])}};
  })[0];
}

template <class T>
CPU_CLONES_BELOW_BLOCKS void add_one_by_one(const T* from, int64_t count, acc_t<T>* sums) {
  CPU_INDEPENDENT_LOOP
  for (int64_t j = 0; j < count; ++j) {
    sums[j] += static_cast<acc_t<T>>(from[j]);
  }
}

#if HAS_BLOCKS

template <class Isa, class T>
CPU_INLINE acc_t<T> sum_blocks(const T* from, int64_t count) {
  using A = acc_t<T>;
  constexpr int kBlock = Isa::template kBlock<T>;
  // Vectors of 32 bytes of what need not be converted: it is read by as many, for which see Avx512.
  constexpr bool kConverts = !std::is_same_v<T, A>;
  constexpr int kVector = kConverts ? kBlock : 32 / sizeof(A);
  constexpr int kSums = 4;  // an addition takes four cycles
  using Vector = detail::Vector<A, kVector>;
  // The processor reads ahead no further than a page: the first lines of what lies behind, as a rule the next row, are
  // sent for.
  constexpr int64_t kPage = 4096 / sizeof(T);
  constexpr int64_t kLine = kLineBytes / sizeof(T);
  constexpr int kSecondLevel = 2;
  for (int64_t line = 0; line < 4 && count >= kPage / 2; ++line) {
    __builtin_prefetch(from + count + line * kLine, 0, kSecondLevel);
  }
  A values[kBlock];  // never in memory
  Vector vector;
  Vector sums[kSums] = {};
  const auto add = [&](int k, const T* some) CPU_INLINE_LAMBDA {
    if constexpr (kConverts) {
      Isa::load_block(some, values);
      detail::read_vector(vector, values);
    } else {
      detail::read_vector(vector, some);
    }
    sums[k] += vector;
  };
  for (; count >= kSums * kVector; from += kSums * kVector, count -= kSums * kVector) {
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) {
      add(k, from + k * kVector);
    }
  }
  for (; count >= kVector; from += kVector, count -= kVector) {
    add(0, from);
  }
  if (count > 0) {
    Isa::load_rest(from, count, values);
    detail::read_vector(vector, values);
    sums[1] += vector;
  }
  A lanes[kVector];
  detail::write_vector((sums[0] + sums[1]) + (sums[2] + sums[3]), lanes);
  return fold<kVector>(lanes, std::plus<A>());
}

template <class Isa, class T>
CPU_INLINE void add_blocks(const T* from, int64_t count, acc_t<T>* sums) {
  constexpr int kBlock = Isa::template kBlock<T>;
  acc_t<T> values[kBlock];
  detail::Vector<acc_t<T>, kBlock> vector;
  detail::Vector<acc_t<T>, kBlock> sum;
  for (; count >= kBlock; from += kBlock, sums += kBlock, count -= kBlock) {
    Isa::load_block(from, values);
    detail::read_vector(vector, values);
    detail::read_vector(sum, sums);
    sum += vector;
    detail::write_vector(sum, sums);
  }
  if (count > 0) {
    Isa::load_rest(from, count, values);
    for (int64_t j = 0; j < count; ++j) {
      sums[j] += values[j];
    }
  }
}

template <class T>
CPU_AVX512 CPU_FLATTEN acc_t<T> sum_blocks_of(Avx512, const T* from, int64_t count) {
  return sum_blocks<Avx512>(from, count);
}

template <class T>
CPU_AVX2 CPU_FLATTEN float sum_blocks_of(Avx2, const T* from, int64_t count) {
  return sum_blocks<Avx2>(from, count);
}

template <class T>
CPU_AVX512 CPU_FLATTEN void add_blocks_of(Avx512, const T* from, int64_t count, acc_t<T>* sums) {
  add_blocks<Avx512>(from, count, sums);
}

template <class T>
CPU_AVX2 CPU_FLATTEN void add_blocks_of(Avx2, const T* from, int64_t count, float* sums) {
  add_blocks<Avx2>(from, count, sums);
}

#endif

}  // namespace

template <class T>
acc_t<T> sum_elements(const T* from, int64_t count) {
  return with_blocks<T>(
      [&](auto isa) { return sum_blocks_of(isa, from, count); }, [&] { return sum_one_by_one(from, count); });
}

template <class T>
void add_elements(const T* from, int64_t count, acc_t<T>* sums) {
  with_blocks<T>([&](auto isa) { add_blocks_of(isa, from, count, sums); }, [&] { add_one_by_one(from, count, sums); });
}

template float sum_elements(const float*, int64_t);
template double sum_elements(const double*, int64_t);
template float sum_elements(const Half*, int64_t);
template float sum_elements(const BFloat16*, int64_t);

template void add_elements(const float*, int64_t, float*);
template void add_elements(const double*, int64_t, double*);
template void add_elements(const Half*, int64_t, float*);
template void add_elements(const BFloat16*, int64_t, float*);

}  // namespace extension_cpp::cpu
