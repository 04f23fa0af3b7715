// Half and BFloat16 on the CPU: to and from the type of the arithmetic.
#pragma once

#include "cpu/clones.h"
#include "dispatch.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_HALF_VECTORS 1
#else
#define HAS_HALF_VECTORS 0
#endif

namespace extension_cpp::cpu {

// Copies, for loops that see their elements more than once: compiled here once, with the processor's own instructions.
void widen(const Half* from, float* to, int64_t count);
void widen(const BFloat16* from, float* to, int64_t count);
// Round to nearest, even.
void narrow(const float* from, Half* to, int64_t count);
void narrow(const float* from, BFloat16* to, int64_t count);

// Of BFloat16, conversion is a shift, which compilers vectorise as part of any loop. Of Half they make bit arithmetic,
// two to five times slower than the instructions that x86 has for eight of them.
constexpr int kHalfVector = 8;

template <class T>
constexpr bool has_half_vectors = HAS_HALF_VECTORS && std::is_same_v<T, Half>;

inline bool can_half_vectors() {
#if HAS_HALF_VECTORS
  return __builtin_cpu_supports("avx2");  // and with it F16C, by which name not every compiler asks
#else
  return false;
#endif
}

#if HAS_HALF_VECTORS

constexpr int kToNearestEven = 0;

// Inlined into functions for instruction sets that have these, as those of CPU_CLONES for newer processors.
#define HALF_INSTRUCTIONS __attribute__((target("avx2,f16c"))) inline

// The compiler's own names: immintrin.h would take longer to read than the rest of a small operator to compile.
using HalfVector = short __attribute__((vector_size(kHalfVector * sizeof(short))));
using FloatVector = float __attribute__((vector_size(kHalfVector * sizeof(float))));

HALF_INSTRUCTIONS void widen_vector(const Half* from, float* to) {
  HalfVector half;
  std::memcpy(&half, from, sizeof(half));
  const FloatVector wide = __builtin_ia32_vcvtph2ps256(half);
  std::memcpy(to, &wide, sizeof(wide));
}

HALF_INSTRUCTIONS void narrow_vector(const float* from, Half* to) {
  FloatVector wide;
  std::memcpy(&wide, from, sizeof(wide));
  const HalfVector half = __builtin_ia32_vcvtps2ph256(wide, kToNearestEven);
  std::memcpy(static_cast<void*>(to), &half, sizeof(half));
}

#endif

}  // namespace extension_cpp::cpu
