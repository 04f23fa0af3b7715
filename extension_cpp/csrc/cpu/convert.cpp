#include "cpu/convert.h"

#include "cpu/blocks.h"
#include "cpu/clones.h"

#include <algorithm>
#include <type_traits>

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

template <class Isa, class From, class To>
CPU_INLINE void convert_blocks(const From* from, To* to, int64_t count) {
  if constexpr (std::is_same_v<To, float>) {
    convert_blocks<Isa::template kBlock<From>, From, To>(from, to, count, Isa::load_block);
  } else {
    convert_blocks<Isa::template kBlock<To>, From, To>(from, to, count, Isa::store_block);
  }
}

template <class From, class To>
CPU_AVX2 void convert_blocks_of(Avx2, const From* from, To* to, int64_t count) {
  convert_blocks<Avx2>(from, to, count);
}

template <class From, class To>
CPU_AVX512 void convert_blocks_of(Avx512, const From* from, To* to, int64_t count) {
  convert_blocks<Avx512>(from, to, count);
}

#endif

template <class From, class To>
void convert_any(const From* from, To* to, int64_t count) {
  with_blocks([&](auto isa) { convert_blocks_of(isa, from, to, count); }, [&] { convert(from, to, count); });
}

}  // namespace

void widen(const Half* from, float* to, int64_t count) { convert_any(from, to, count); }

void widen(const BFloat16* from, float* to, int64_t count) { convert_any(from, to, count); }

void narrow(const float* from, Half* to, int64_t count) { convert_any(from, to, count); }

void narrow(const float* from, BFloat16* to, int64_t count) { convert_any(from, to, count); }

}  // namespace extension_cpp::cpu
