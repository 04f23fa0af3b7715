#include "cpu/convert.h"

#include "cpu/blocks.h"
#include "cpu/clones.h"

#include <algorithm>

namespace extension_cpp::cpu {

namespace {

template <class From, class To>
CPU_INLINE void convert(const From* from, To* to, int64_t count) {
  CPU_INDEPENDENT_LOOP
  for (int64_t j = 0; j < count; ++j) {
    to[j] = static_cast<To>(from[j]);
  }
}

#if HAS_BLOCKS

template <int kBlock, class From, class To>
CPU_INLINE void convert_blocks(const From* from, To* to, int64_t count, void (*convert_block)(const From*, To*)) {
  int64_t j = 0;
  for (; j + kBlock <= count; j += kBlock) {
    convert_block(from + j, to + j);
  }
  if (j < count) {
    From rest[kBlock] = {};
    To converted[kBlock];
    std::copy(from + j, from + count, rest);
    convert_block(rest, converted);
    std::copy_n(converted, count - j, to + j);
  }
}

template <class T>
CPU_AVX2 void widen_blocks(Avx2, const T* from, float* to, int64_t count) {
  convert_blocks<Avx2::kBlock<T>, T, float>(from, to, count, Avx2::load_block);
}

template <class T>
CPU_AVX512 void widen_blocks(Avx512, const T* from, float* to, int64_t count) {
  convert_blocks<Avx512::kBlock<T>, T, float>(from, to, count, Avx512::load_block);
}

template <class T>
CPU_AVX2 void narrow_blocks(Avx2, const float* from, T* to, int64_t count) {
  convert_blocks<Avx2::kBlock<T>, float, T>(from, to, count, Avx2::store_block);
}

template <class T>
CPU_AVX512 void narrow_blocks(Avx512, const float* from, T* to, int64_t count) {
  convert_blocks<Avx512::kBlock<T>, float, T>(from, to, count, Avx512::store_block);
}

#endif

template <class T>
void widen_any(const T* from, float* to, int64_t count) {
  with_blocks<T>([&](auto isa) { widen_blocks(isa, from, to, count); }, [&] { convert(from, to, count); });
}

template <class T>
void narrow_any(const float* from, T* to, int64_t count) {
  with_blocks<T>([&](auto isa) { narrow_blocks(isa, from, to, count); }, [&] { convert(from, to, count); });
}

}  // namespace

void widen(const Half* from, float* to, int64_t count) { widen_any(from, to, count); }

void widen(const BFloat16* from, float* to, int64_t count) { widen_any(from, to, count); }

void narrow(const float* from, Half* to, int64_t count) { narrow_any(from, to, count); }

void narrow(const float* from, BFloat16* to, int64_t count) { narrow_any(from, to, count); }

}  // namespace extension_cpp::cpu
