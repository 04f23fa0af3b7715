#include "cpu/elements.h"

#include "cpu/blocks.h"
#include "cpu/clones.h"
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

// A block of elements, or half of one where they need not be converted.
template <class Isa, class T, class V>
CPU_INLINE void load(const T* from, V& vector) {
  constexpr int kBlock = Isa::template kBlock<T>;
  if constexpr (sizeof(V) == kBlock * sizeof(acc_t<T>)) {
    acc_t<T> values[kBlock];  // never in memory
    Isa::load_block(from, values);
    detail::read_vector(vector, values);
  } else {
    static_assert(std::is_same_v<T, acc_t<T>>);
    detail::read_vector(vector, from);
  }
}

// The last elements, fewer than the vector has, and zeros.
template <class Isa, class T, class V>
CPU_INLINE void load_rest(const T* from, int64_t count, V& vector) {
  T rest[sizeof(V) / sizeof(acc_t<T>)] = {};
  std::copy_n(from, count, rest);
  load<Isa>(rest, vector);
}

template <class Isa, class T>
CPU_INLINE acc_t<T> sum_blocks(const T* from, int64_t count) {
  // 32 bytes of what is read as it is, for which see Avx512.
  constexpr int kBlock = std::is_same_v<T, acc_t<T>> ? 32 / sizeof(T) : Isa::template kBlock<T>;
  constexpr int kSums = 4;  // an addition takes four cycles
  using Block = detail::Vector<acc_t<T>, kBlock>;
  Block sums[kSums] = {};
  Block block;
  for (; count >= kSums * kBlock; from += kSums * kBlock, count -= kSums * kBlock) {
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) {
      load<Isa>(from + k * kBlock, block);
      sums[k] += block;
    }
  }
  for (; count >= kBlock; from += kBlock, count -= kBlock) {
    load<Isa>(from, block);
    sums[0] += block;
  }
  if (count > 0) {
    load_rest<Isa>(from, count, block);
    sums[1] += block;
  }
  acc_t<T> lanes[kBlock];
  detail::write_vector((sums[0] + sums[1]) + (sums[2] + sums[3]), lanes);
  return fold<kBlock>(lanes, std::plus<acc_t<T>>());
}

template <class Isa, class T>
CPU_INLINE void add_blocks(const T* from, int64_t count, acc_t<T>* sums) {
  constexpr int kBlock = Isa::template kBlock<T>;
  using Block = detail::Vector<acc_t<T>, kBlock>;
  Block block;
  Block sum;
  for (; count >= kBlock; from += kBlock, sums += kBlock, count -= kBlock) {
    load<Isa>(from, block);
    detail::read_vector(sum, sums);
    sum += block;
    detail::write_vector(sum, sums);
  }
  if (count > 0) {
    load_rest<Isa>(from, count, block);
    acc_t<T> rest[kBlock];
    detail::write_vector(block, rest);
    for (int64_t j = 0; j < count; ++j) {
      sums[j] += rest[j];
    }
  }
}

template <class T>
CPU_AVX512 CPU_FLATTEN acc_t<T> sum_blocks_of(Avx512, const T* from, int64_t count) {
  return sum_blocks<Avx512>(from, count);
}

CPU_AVX2 CPU_FLATTEN float sum_blocks_of(Avx2, const Half* from, int64_t count) {
  return sum_blocks<Avx2>(from, count);
}

template <class T>
CPU_AVX512 CPU_FLATTEN void add_blocks_of(Avx512, const T* from, int64_t count, acc_t<T>* sums) {
  add_blocks<Avx512>(from, count, sums);
}

CPU_AVX2 CPU_FLATTEN void add_blocks_of(Avx2, const Half* from, int64_t count, float* sums) {
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
