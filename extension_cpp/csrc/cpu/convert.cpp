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

template <int kVector, class From, class To>
CPU_INLINE void convert_vectors(const From* from, To* to, int64_t count, void (*convert_vector)(const From*, To*)) {
  int64_t j = 0;
  for (; j + kVector <= count; j += kVector) {
    convert_vector(from + j, to + j);
  }
  if (j < count) {
    From rest[kVector] = {};
    To converted[kVector];
    std::copy(from + j, from + count, rest);
    convert_vector(rest, converted);
    std::copy_n(converted, count - j, to + j);
  }
}

HALF_INSTRUCTIONS void widen_on_avx2(const Half* from, float* to, int64_t count) {
  convert_vectors<kHalfVector>(from, to, count, widen_vector);
}

HALF_INSTRUCTIONS void narrow_on_avx2(const float* from, Half* to, int64_t count) {
  convert_vectors<kHalfVector>(from, to, count, narrow_vector);
}

#define WIDE_HALF_INSTRUCTIONS __attribute__((target("avx512f"))) inline

constexpr int kWideHalfVector = 16;
using WideHalfVector = short __attribute__((vector_size(kWideHalfVector * sizeof(short))));
using WideFloatVector = float __attribute__((vector_size(kWideHalfVector * sizeof(float))));

WIDE_HALF_INSTRUCTIONS void widen_wide_vector(const Half* from, float* to) {
  constexpr int kCurrentRounding = 4;
  WideHalfVector half;
  std::memcpy(&half, from, sizeof(half));
  const WideFloatVector wide = __builtin_ia32_vcvtph2ps512_mask(half, WideFloatVector{}, -1, kCurrentRounding);
  std::memcpy(to, &wide, sizeof(wide));
}

WIDE_HALF_INSTRUCTIONS void narrow_wide_vector(const float* from, Half* to) {
  WideFloatVector wide;
  std::memcpy(&wide, from, sizeof(wide));
  const WideHalfVector half = __builtin_ia32_vcvtps2ph512_mask(wide, kToNearestEven, WideHalfVector{}, -1);
  std::memcpy(static_cast<void*>(to), &half, sizeof(half));
}

WIDE_HALF_INSTRUCTIONS void widen_on_avx512(const Half* from, float* to, int64_t count) {
  convert_vectors<kWideHalfVector>(from, to, count, widen_wide_vector);
}

WIDE_HALF_INSTRUCTIONS void narrow_on_avx512(const float* from, Half* to, int64_t count) {
  convert_vectors<kWideHalfVector>(from, to, count, narrow_wide_vector);
}

bool can_wide_half_vectors() { return __builtin_cpu_supports("avx512f"); }

#endif

}  // namespace

void widen(const Half* from, float* to, int64_t count) {
#if HAS_HALF_VECTORS
  if (can_half_vectors()) {
    (can_wide_half_vectors() ? widen_on_avx512 : widen_on_avx2)(from, to, count);
    return;
  }
#endif
  convert(from, to, count);
}

void narrow(const float* from, Half* to, int64_t count) {
#if HAS_HALF_VECTORS
  if (can_half_vectors()) {
    (can_wide_half_vectors() ? narrow_on_avx512 : narrow_on_avx2)(from, to, count);
    return;
  }
#endif
  convert(from, to, count);
}

CPU_CLONES void widen(const BFloat16* from, float* to, int64_t count) { convert(from, to, count); }

CPU_CLONES void narrow(const float* from, BFloat16* to, int64_t count) { convert(from, to, count); }

}  // namespace extension_cpp::cpu
