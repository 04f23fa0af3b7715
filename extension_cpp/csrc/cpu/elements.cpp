#include "cpu/elements.h"

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "cpu/row_sums.h"

#include <algorithm>
#include <functional>

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

// Elements as a vector. What a block is loaded to becomes one, and is never in memory.
template <class Isa, class T>
CPU_INLINE void load_vector(const T* from, detail::Vector<acc_t<T>, Isa::template kBlock<T>>& vector) {
  acc_t<T> values[Isa::template kBlock<T>];
  Isa::load_block(from, values);
  detail::read_vector(vector, values);
}

// The last elements, fewer than a block, and zeros.
template <class Isa, class T>
CPU_INLINE void load_rest(const T* from, int64_t count, detail::Vector<acc_t<T>, Isa::template kBlock<T>>& vector) {
  T rest[Isa::template kBlock<T>] = {};
  std::copy_n(from, count, rest);
  load_vector<Isa>(rest, vector);
}

template <class Isa, class T>
CPU_INLINE acc_t<T> sum_blocks(const T* from, int64_t count) {
  constexpr int kBlock = Isa::template kBlock<T>;
  constexpr int kSums = 4;  // an addition takes four cycles
  using Block = detail::Vector<acc_t<T>, kBlock>;
  Block sums[kSums] = {};
  Block block;
  for (; count >= kSums * kBlock; from += kSums * kBlock, count -= kSums * kBlock) {
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) {
      load_vector<Isa>(from + k * kBlock, block);
      sums[k] += block;
    }
  }
  for (; count >= kBlock; from += kBlock, count -= kBlock) {
    load_vector<Isa>(from, block);
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
  detail::Vector<acc_t<T>, kBlock> block;
  detail::Vector<acc_t<T>, kBlock> sum;
  for (; count >= kBlock; from += kBlock, sums += kBlock, count -= kBlock) {
    load_vector<Isa>(from, block);
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
