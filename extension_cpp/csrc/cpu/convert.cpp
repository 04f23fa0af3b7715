#include "cpu/convert.h"

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

#if HAS_HALF_VECTORS

template <class From, class To, void (*kConvert)(const From*, To*)>
HALF_INSTRUCTIONS void convert_vectors(const From* from, To* to, int64_t count) {
  int64_t j = 0;
  for (; j + kHalfVector <= count; j += kHalfVector) {
    kConvert(from + j, to + j);
  }
  if (j < count) {
    From rest[kHalfVector] = {};
    To converted[kHalfVector];
    std::copy(from + j, from + count, rest);
    kConvert(rest, converted);
    std::copy_n(converted, count - j, to + j);
  }
}

#endif

}  // namespace

void widen(const Half* from, float* to, int64_t count) {
#if HAS_HALF_VECTORS
  if (can_half_vectors()) {
    convert_vectors<Half, float, widen_vector>(from, to, count);
    return;
  }
#endif
  convert(from, to, count);
}

void narrow(const float* from, Half* to, int64_t count) {
#if HAS_HALF_VECTORS
  if (can_half_vectors()) {
    convert_vectors<float, Half, narrow_vector>(from, to, count);
    return;
  }
#endif
  convert(from, to, count);
}

CPU_CLONES void widen(const BFloat16* from, float* to, int64_t count) { convert(from, to, count); }

CPU_CLONES void narrow(const float* from, BFloat16* to, int64_t count) { convert(from, to, count); }

}  // namespace extension_cpp::cpu
