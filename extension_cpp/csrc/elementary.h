// Elementary functions for formulas, for both backends: math::exp, expm1, log, log1p, tanh, erf, sigmoid, softplus and
// rsqrt.
//
//   HOST_DEVICE A operator()(A x) const { return cap * math::tanh(x / cap); }
//
// A loop that calls std::exp of the C library is not vectorised. These are, for float on the CPU: arithmetic without a
// branch, of instructions that every processor has. Over the whole range of float32, subnormal numbers included, they
// are within 2 units in the last place (tests/test_elementary.py has the figures), whether or not the compiler fuses
// multiplications with additions. For double on the CPU they are those of std::, on the device mostly CUDA's own.
//
// The vector libraries at hand do not serve: Sleef, inside torch, is no part of the stable ABI, and compilers reach the
// C library's, which is up to 4 units off, under -ffast-math alone.
//
// They have a namespace of their own because an operator may be called exp or sigmoid.
#pragma once

#include "cpu/clones.h"
#include "host_device.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace extension_cpp::math {

namespace detail {

// Polynomials are those of tests/elementary_coefficients.py. Of a product that is said to be exact it does not matter
// whether the compiler fuses it with the addition that follows.

constexpr float kInfinity = std::numeric_limits<float>::infinity();

CPU_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

CPU_INLINE float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// 2^(biased - 127), where that is a normal number; else any number. Bits above the lowest nine do not matter.
CPU_INLINE float power_of_two(uint32_t biased) { return from_bits(biased << 23); }

// NaN stays NaN.
CPU_INLINE float at_most(float high, float x) { return high < x ? high : x; }
CPU_INLINE float at_least(float low, float x) { return low > x ? low : x; }

// Adding it rounds a number n to an integer, and leaves n + 254 in the lowest bits.
constexpr float kRound = 0x1.8p23f + 254.f;

// The two halves of ln 2 (W. J. Cody and W. Waite, 1980): n times the upper one is exact for |n| < 2^9.
constexpr float kLn2Upper = 0x1.62e4p-1f;
constexpr float kLn2Lower = 0x1.7f7d1cp-20f;

// e^x = 2^n e^(r + lost), where |r| is at most ln(2) / 2, and lost below its last place. |x| < 2^9.
struct ExpParts {
  uint32_t biased;  // n + 254 in the lowest bits
  float r;
  float lost;
  float p;  // (e^r - 1 - r) / r^2

  CPU_INLINE float tail() const { return p * (r * r); }
};

CPU_INLINE ExpParts exponential(float x) {
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float upper = x - n * kLn2Upper;  // exact
  const float r = upper - n * kLn2Lower;
  float p = 0.00138824817f;
  p = p * r + 0.00836664625f;
  p = p * r + 0.0416672044f;
  p = p * r + 0.16666542f;
  p = p * r + 0.49999997f;
  return {bits_of(shifted), r, (upper - r) - n * kLn2Lower, p};
}

// The logarithm of 2^k (1 + f + g), where |f| is at most 1/3, and g below f's last place.
CPU_INLINE float logarithm(int32_t k, float f, float g) {
  float p = -0.129484549f;
  p = p * f + 0.140046269f;
  p = p * f + -0.121672697f;
  p = p * f + 0.140011862f;
  p = p * f + -0.166822985f;
  p = p * f + 0.200107455f;
  p = p * f + -0.249997169f;
  p = p * f + 0.333332092f;
  p = p * f + -0.5f;
  const float n = static_cast<float>(k);
  const float upper = n * kLn2Upper;  // exact, and more than f, or 0
  const float sum = upper + f;
  const float lost = f - (sum - upper);
  return sum + (p * (f * f) + (lost + (n * kLn2Lower + g)));
}

// k of x = 2^k m, where 2/3 <= m < 4/3, for a normal x > 0.
CPU_INLINE int32_t exponent_of(float x) { return static_cast<int32_t>(bits_of(x) - bits_of(2.f / 3)) >> 23; }

// What the logarithm of x is: `value` where x is positive and finite.
CPU_INLINE float logarithm_or_special(float x, float value) {
  const float positive = x < kInfinity ? value : x;
  const float other = x == 0.f ? -kInfinity : std::numeric_limits<float>::quiet_NaN();
  return x > 0.f ? positive : other;
}

CPU_INLINE float exp(float x) {
  const ExpParts e = exponential(x);
  // 2^n in two steps, of which the first is exact, and the second rounds where the result is subnormal.
  const float mantissa = (e.p * e.r + 1.f) * e.r + 1.f;
  const uint32_t half = e.biased >> 1;
  const float result = mantissa * power_of_two(half) * power_of_two(e.biased - half);
  const float not_large = x > 89.f ? kInfinity : result;
  return x < -104.f ? 0.f : not_large;
}

CPU_INLINE float expm1(float x) {
  const ExpParts e = exponential(at_least(-18.f, at_most(89.f, x)));
  // Of half the result, for 2^n not to overflow before the result does.
  const float power = power_of_two(e.biased - 128);
  const float less = power - 0.5f;
  const float head = power * e.r;  // exact
  const float sum = less + head;
  const float lost = head - (sum - less);
  const float result = 2.f * (sum + (power * (e.tail() + e.lost) + lost));
  return std::fabs(x) < 0x1p-25f ? x : result;
}

CPU_INLINE float log(float x) {
  const bool subnormal = x < std::numeric_limits<float>::min();
  const float scaled = subnormal ? x * 0x1p23f : x;
  const int32_t k = exponent_of(scaled);
  const float m = from_bits(bits_of(scaled) - (static_cast<uint32_t>(k) << 23));
  return logarithm_or_special(x, logarithm(subnormal ? k - 23 : k, m - 1.f, 0.f));
}

CPU_INLINE float log1p(float x) {
  const float u = 1.f + x;
  const float back = u - 1.f;
  const float rounding = (1.f - (u - back)) + (x - back);  // u + rounding is 1 + x
  const int32_t k = exponent_of(u);
  const float m = from_bits(bits_of(u) - (static_cast<uint32_t>(k) << 23));
  // rounding / 2^k, by way of a power that is no subnormal.
  const float g = rounding * power_of_two(static_cast<uint32_t>(157 - k)) * 0x1p-30f;
  const float f = (m - 1.f) + g;
  const float result = logarithm_or_special(u, logarithm(k, f, g - (f - (m - 1.f))));
  return std::copysign(result, x);  // of -0
}

CPU_INLINE float tanh(float x) {
  const float y = std::fabs(x);
  const float z = y * y;
  float p = -0.00627424708f;
  p = p * z + 0.0210716855f;
  p = p * z + -0.0538523123f;
  p = p * z + 0.13332586f;
  p = p * z + -0.333333164f;
  const float small = y + y * (z * p);
  // 1 - 2 / (1 + e^(2 y))
  const ExpParts e = exponential(2.f * at_most(10.f, y));
  const float power = power_of_two(381 - e.biased);
  const float large = 1.f - 2.f * power / (1.f + (power + (e.r + e.tail())));
  return std::copysign(y < 0.55f ? small : large, x);
}

CPU_INLINE float erf(float x) {
  const float y = at_most(4.f, std::fabs(x));
  const float z = y * y;
  float p = -0.000609035895f;
  p = p * z + 0.00501196273f;
  p = p * z + -0.0267789084f;
  p = p * z + 0.112821408f;
  p = p * z + -0.376125246f;
  p = p * z + 0.128379151f;
  const float small = y + y * p;
  // The logarithm of 1 - erf(y) in base 2: an integer and f.
  float q = -0.00181970967f;
  q = q * y + 0.0225812756f;
  q = q * y + -0.131749213f;
  q = q * y + -0.938408852f;
  q = q * y + -1.61639071f;
  q = q * y + -0.0026294156f;
  const float shifted = q + kRound;
  const float f = q - (shifted - kRound);
  float e = 0.000153458022f;
  e = e * f + 0.00133999286f;
  e = e * f + 0.00961848907f;
  e = e * f + 0.0555032864f;
  e = e * f + 0.240226462f;
  e = e * f + 0.693147182f;
  e = e * f + 1.f;
  const float large = 1.f - power_of_two(bits_of(shifted) - 127) * e;
  return std::copysign(y < 0.9f ? small : large, x);
}

CPU_INLINE float sigmoid(float x) {
  // 1 / (1 + e^|x|), of which both halves follow: in steps, as exp, where it is subnormal.
  const ExpParts e = exponential(at_most(104.f, std::fabs(x)));
  const uint32_t half = e.biased >> 1;
  const float first = power_of_two(254 - half);
  const float second = power_of_two(254 - (e.biased - half));
  const float power = first * second;
  const float sum = 1.f + power;
  const float lost = power - (sum - 1.f);
  const float small = first / (sum + (e.r + (e.tail() + lost))) * second;
  return x < 0.f ? small : 1.f - small;
}

// The quotient; on the device, where 1 <= b is known, without the branch of IEEE's division: of b beyond 2^126 the
// reciprocal counts as 0.
HOST_DEVICE inline double quotient(double a, double b) { return a / b; }
HOST_DEVICE inline float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
  return a * reciprocal;
#else
  return a / b;
#endif
}

#ifdef __CUDA_ARCH__
// By the instructions of CUDA's own, which asks besides whether x is large: e^(2 y) is infinite then, its reciprocal 0.
__device__ inline float tanh_on_device(float x) {
  const float z = x * x;
  float p = 0.015612673f;
  p = p * z + -0.0522118323f;
  p = p * z + 0.133131176f;
  p = p * z + -0.333325982f;
  const float small = x + x * std::fma(z, p, 0.f);  // -0 stays so: z * p alone is -0 there
  const float y = std::fabs(x);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y * 2.88539008f));  // e^(2 y)
  const float large = std::copysign(std::fma(-2.f, quotient(1.f, 1.f + power), 1.f), x);
  return y < 0.6f ? small : large;  // in the choice it would be a branch, in which -2 is loaded each time
}
#endif

// For double, and on the device.
template <class A>
HOST_DEVICE inline A sigmoid_of(A x) {
  const A z = std::exp(-std::fabs(x));  // never overflows, and keeps subnormal results
  return quotient(x < A(0) ? z : A(1), A(1) + z);
}

}  // namespace detail

#ifdef __CUDA_ARCH__
#define DEVICE_OR_HOST(device, host) device
#else
#define DEVICE_OR_HOST(device, host) host
#endif

HOST_DEVICE CPU_INLINE float exp(float x) { return DEVICE_OR_HOST(::expf(x), detail::exp(x)); }
HOST_DEVICE CPU_INLINE double exp(double x) { return ::exp(x); }

HOST_DEVICE CPU_INLINE float expm1(float x) { return DEVICE_OR_HOST(::expm1f(x), detail::expm1(x)); }
HOST_DEVICE CPU_INLINE double expm1(double x) { return ::expm1(x); }

HOST_DEVICE CPU_INLINE float log(float x) { return DEVICE_OR_HOST(::logf(x), detail::log(x)); }
HOST_DEVICE CPU_INLINE double log(double x) { return ::log(x); }

HOST_DEVICE CPU_INLINE float log1p(float x) { return DEVICE_OR_HOST(::log1pf(x), detail::log1p(x)); }
HOST_DEVICE CPU_INLINE double log1p(double x) { return ::log1p(x); }

HOST_DEVICE CPU_INLINE float tanh(float x) { return DEVICE_OR_HOST(detail::tanh_on_device(x), detail::tanh(x)); }
HOST_DEVICE CPU_INLINE double tanh(double x) { return ::tanh(x); }

HOST_DEVICE CPU_INLINE float erf(float x) { return DEVICE_OR_HOST(::erff(x), detail::erf(x)); }
HOST_DEVICE CPU_INLINE double erf(double x) { return ::erf(x); }

// 1 / (1 + exp(-x))
HOST_DEVICE CPU_INLINE float sigmoid(float x) { return DEVICE_OR_HOST(detail::sigmoid_of(x), detail::sigmoid(x)); }
HOST_DEVICE CPU_INLINE double sigmoid(double x) { return detail::sigmoid_of(x); }

// log(1 + exp(x)), with no threshold: of a large x it is x.
HOST_DEVICE CPU_INLINE float softplus(float x) {
  // The logarithm of 1 + z is 2 atanh(s).
  const float z = exp(-std::fabs(x));
  const float s = detail::quotient(z, 2.f + z);
  const float q = s * s;
  float p = 0.140059695f;
  p = p * q + 0.140009075f;
  p = p * q + 0.200107634f;
  p = p * q + 0.333332092f;
  return (x > 0.f ? x : 0.f) + (z - s * (z - 2.f * (q * p)));
}
HOST_DEVICE CPU_INLINE double softplus(double x) { return (x > 0. ? x : 0.) + ::log1p(::exp(-::fabs(x))); }

// 1 / sqrt(x). The square root itself is std::sqrt, an instruction everywhere.
HOST_DEVICE CPU_INLINE float rsqrt(float x) { return DEVICE_OR_HOST(::rsqrtf(x), 1.f / std::sqrt(x)); }
HOST_DEVICE CPU_INLINE double rsqrt(double x) { return DEVICE_OR_HOST(::rsqrt(x), 1. / std::sqrt(x)); }

#undef DEVICE_OR_HOST

}  // namespace extension_cpp::math
