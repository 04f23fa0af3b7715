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

HALF_INSTRUCTIONS void widen_vectors(const Half* from, float* to, int64_t count) {
  int64_t j = 0;
  for (; j + kHalfVector <= count; j += kHalfVector) {
    widen_vector(from + j, to + j);
  }
  if (j < count) {
    Half rest[kHalfVector] = {};
    float wide[kHalfVector];
    std::copy(from + j, from + count, rest);
    widen_vector(rest, wide);
    std::copy_n(wide, count - j, to + j);
  }
}

HALF_INSTRUCTIONS void narrow_vectors(const float* from, Half* to, int64_t count) {
  int64_t j = 0;
  for (; j + kHalfVector <= count; j += kHalfVector) {
    narrow_vector(from + j, to + j);
  }
  if (j < count) {
    float rest[kHalfVector] = {};
    Half rounded[kHalfVector];
    std::copy(from + j, from + count, rest);
    narrow_vector(rest, rounded);
    std::copy_n(rounded, count - j, to + j);
  }
}

#endif

}  // namespace

void widen(const Half* from, float* to, int64_t count) {
#if HAS_HALF_VECTORS
  if (can_half_vectors()) {
    widen_vectors(from, to, count);
    return;
  }
#endif
  convert(from, to, count);
}

void narrow(const float* from, Half* to, int64_t count) {
#if HAS_HALF_VECTORS
  if (can_half_vectors()) {
    narrow_vectors(from, to, count);
    return;
  }
#endif
  convert(from, to, count);
}

CPU_CLONES void widen(const BFloat16* from, float* to, int64_t count) { convert(from, to, count); }

CPU_CLONES void narrow(const float* from, BFloat16* to, int64_t count) { convert(from, to, count); }

}  // namespace extension_cpp::cpu
