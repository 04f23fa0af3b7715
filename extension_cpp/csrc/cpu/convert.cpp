#include "cpu/convert.h"

#include "cpu/blocks.h"
#include "cpu/clones.h"

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

template <class Isa, class From, class To>
CPU_INLINE void convert_blocks(const From* from, To* to, int64_t count) {
  constexpr int kBlock = Isa::template kBlock<float>;
  float block[kBlock];  // a register
  for (; count >= kBlock; from += kBlock, to += kBlock, count -= kBlock) {
    Isa::load_block(from, block);
    Isa::store_block(block, to);
  }
  if (count > 0) {
    Isa::load_rest(from, count, block);
    Isa::store_rest(block, count, to);
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
