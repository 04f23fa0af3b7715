// Elementary functions for formulas, for both backends: math::exp, expm1, log, log1p, tanh, erf, sigmoid, softplus and
// rsqrt.
//
//   HOST_DEVICE A operator()(A x) const { return cap * math::tanh(x / cap); }
//
// A loop that calls std::exp of the C library is not vectorised. On the CPU these are arithmetic without a branch, of
// instructions that every processor has. Over the whole range, subnormal numbers included, they are within 2 units in
// the last place (tests/test_elementary.py has the figures), whether or not the compiler fuses multiplications with
// additions. On the device they are mostly CUDA's own.
//
// The vector libraries at hand do not serve: Sleef, inside torch, is no part of the stable ABI, and compilers reach the
// C library's, which is up to 4 units off, under -ffast-math alone.
//
// What is an instruction everywhere is not here: std::sqrt, std::fabs, std::floor and their like.
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

// The highest coefficient comes first.
template <class A, class... Lower>
HOST_DEVICE CPU_INLINE A polynomial(A x, A highest, Lower... lower) {
  A value = highest;
  ((value = value * x + lower), ...);
  return value;
}

// What the functions below want to know of a type.
template <class A>
struct Format;

template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr int kDigits = 23;  // of the fraction
  static constexpr Bits kBias = 127;

  // Adding it rounds a number n to an integer, and leaves n + 2 kBias in the lowest bits.
  static constexpr float kRound = 0x1.8p23f + 2 * kBias;

  // The two halves of ln 2 (W. J. Cody and W. Waite, 1980): n times the upper one is exact for |n| < 2^9.
  static constexpr float kLn2Upper = 0x1.62e4p-1f;
  static constexpr float kLn2Lower = 0x1.7f7d1cp-20f;

  // e^x is infinite above the one, and 0 below the other.
  static constexpr float kLargestExponent = 89.f;
  static constexpr float kLeastExponent = -104.f;
  // e^x - 1 is -1 below it; and x, where |x| is less than the next.
  static constexpr float kLeastExponentBeside1 = -18.f;
  static constexpr float kHalfUnitBelow1 = 0x1p-25f;

  // (e^r - 1 - r) / r^2, where |r| is at most ln(2) / 2.
  static CPU_INLINE float exponential(float r) {
    return polynomial(r, 0.00138824817f, 0.00836664625f, 0.0416672044f, 0.16666542f, 0.49999997f);
  }

  // log(1 + f) - f, where |f| is at most 1/3.
  static CPU_INLINE float logarithm(float f) {
    const float p = polynomial(
        f, -0.129484549f, 0.140046269f, -0.121672697f, 0.140011862f, -0.166822985f, 0.200107455f, -0.249997169f,
        0.333332092f, -0.5f);
    return p * (f * f);
  }
};

template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr int kDigits = 52;
  static constexpr Bits kBias = 1023;
  static constexpr double kRound = 0x1.8p52 + 2 * kBias;
  static constexpr double kLn2Upper = 0x1.62e42feep-1;
  static constexpr double kLn2Lower = 0x1.a39ef35793c76p-33;
  static constexpr double kLargestExponent = 710.;
  static constexpr double kLeastExponent = -746.;
  static constexpr double kLeastExponentBeside1 = -38.;
  static constexpr double kHalfUnitBelow1 = 0x1p-54;

  static CPU_INLINE double exponential(double r) {
    return polynomial(
        r, 2.0875455489388039e-09, 2.5109192932967952e-08, 2.7557402832406234e-07, 2.755724381061855e-06,
        2.4801587171615473e-05, 0.00019841269886470821, 0.0013888888888963192, 0.0083333333333215163,
        0.041666666666666505, 0.16666666666666677, 0.5);
  }

  // By 2 atanh(s), s = f / (2 + f), whose polynomial has a third of the terms. And 2 s is f - f^2 / 2 + s f^2 / 2.
  static CPU_INLINE double logarithm(double f) {
    const double s = f / (2. + f);
    const double q = s * s;
    const double p = polynomial(
        q, 0.06918860926046301, 0.065871977633324599, 0.076955319328237889, 0.090908336863389602, 0.11111112135511127,
        0.14285714278028819, 0.20000000000027854, 0.33333333333333298);
    const double square = 0.5 * f * f;
    return s * (square + 2. * q * p) - square;
  }
};

template <class A>
using Bits = typename Format<A>::Bits;

template <class A>
constexpr A kInfinity = std::numeric_limits<A>::infinity();

template <class A>
CPU_INLINE Bits<A> bits_of(A x) {
  Bits<A> bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

template <class A>
CPU_INLINE A from_bits(Bits<A> bits) {
  A x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// 2^(biased - kBias), where that is a normal number; else any number. Of the bits only those of an exponent and a sign
// matter, the lowest.
template <class A>
CPU_INLINE A power_of_two(Bits<A> biased) {
  return from_bits<A>(biased << Format<A>::kDigits);
}

// NaN stays NaN.
template <class A>
CPU_INLINE A at_most(A high, A x) {
  return high < x ? high : x;
}
template <class A>
CPU_INLINE A at_least(A low, A x) {
  return low > x ? low : x;
}

// e^x = 2^n e^(r + lost), where |r| is at most ln(2) / 2, and lost below its last place.
template <class A>
struct ExpParts {
  Bits<A> biased;  // n + 2 kBias in the lowest bits
  A r;
  A lost;
  A p;  // (e^r - 1 - r) / r^2

  CPU_INLINE A tail() const { return p * (r * r); }
};

// Of an x whose n is exact times the upper half of ln 2.
template <class A>
CPU_INLINE ExpParts<A> exponential(A x) {
  using F = Format<A>;
  const A shifted = x * A(1.4426950408889634) + F::kRound;
  const A n = shifted - F::kRound;
  const A upper = x - n * F::kLn2Upper;  // exact
  const A r = upper - n * F::kLn2Lower;
  return {bits_of(shifted), r, (upper - r) - n * F::kLn2Lower, F::exponential(r)};
}

// x = 2^n m, where 2/3 <= m < 4/3.
template <class A>
struct Scaled {
  Bits<A> biased;  // n + kBias
  A n;
  A m;
};

// Of a normal x > 0.
template <class A>
CPU_INLINE Scaled<A> scaled(A x) {
  using F = Format<A>;
  constexpr A kWhole = A(Bits<A>{1} << F::kDigits);  // from which on the last place is 1
  const Bits<A> bits = bits_of(x);
  const Bits<A> biased = (bits - bits_of(A(2) / 3) + bits_of(A(1))) >> F::kDigits;
  const A n = from_bits<A>(biased | bits_of(kWhole)) - (kWhole + F::kBias);
  return {biased, n, from_bits<A>(bits - (biased << F::kDigits) + bits_of(A(1)))};
}

// The logarithm of 2^n (1 + f + g), where |f| is at most 1/3, and g below f's last place.
template <class A>
CPU_INLINE A logarithm(A n, A f, A g) {
  using F = Format<A>;
  const A upper = n * F::kLn2Upper;  // exact, and more than f, or 0
  const A sum = upper + f;
  const A lost = f - (sum - upper);
  return sum + (F::logarithm(f) + (lost + (n * F::kLn2Lower + g)));
}

// What the logarithm of x is: `value` where x is positive and finite.
template <class A>
CPU_INLINE A logarithm_or_special(A x, A value) {
  const A positive = x < kInfinity<A> ? value : x;
  const A other = x == A(0) ? -kInfinity<A> : std::numeric_limits<A>::quiet_NaN();
  return x > A(0) ? positive : other;
}

template <class A>
CPU_INLINE A exp(A x) {
  using F = Format<A>;
  const ExpParts<A> e = exponential(x);
  // 2^n in two steps, of which the first is exact, and the second rounds where the result is subnormal.
  const A mantissa = (e.p * e.r + A(1)) * e.r + A(1);
  const Bits<A> half = e.biased >> 1;
  const A result = mantissa * power_of_two<A>(half) * power_of_two<A>(e.biased - half);
  const A not_large = x > F::kLargestExponent ? kInfinity<A> : result;
  return x < F::kLeastExponent ? A(0) : not_large;
}

template <class A>
CPU_INLINE A expm1(A x) {
  using F = Format<A>;
  const ExpParts<A> e = exponential(at_least(F::kLeastExponentBeside1, at_most(F::kLargestExponent, x)));
  // Of half the result, for 2^n not to overflow before the result does.
  const A power = power_of_two<A>(e.biased - (F::kBias + 1));
  const A less = power - A(0.5);
  const A head = power * e.r;  // exact
  const A sum = less + head;
  const A lost = head - (sum - less);
  const A result = A(2) * (sum + (power * (e.tail() + e.lost) + lost));
  return std::fabs(x) < F::kHalfUnitBelow1 ? x : result;
}

template <class A>
CPU_INLINE A log(A x) {
  constexpr int kDigits = Format<A>::kDigits;
  const bool subnormal = x < std::numeric_limits<A>::min();
  const Scaled<A> parts = scaled(subnormal ? x * A(Bits<A>{1} << kDigits) : x);
  const A n = subnormal ? parts.n - A(kDigits) : parts.n;
  return logarithm_or_special(x, logarithm(n, parts.m - A(1), A(0)));
}

template <class A>
CPU_INLINE A log1p(A x) {
  const A u = A(1) + x;
  const A back = u - A(1);
  const A rounding = (A(1) - (u - back)) + (x - back);  // u + rounding is 1 + x
  const Scaled<A> parts = scaled(u);
  // rounding / 2^n, by way of a power that is no subnormal.
  const A g = rounding * power_of_two<A>(2 * Format<A>::kBias + 30 - parts.biased) * A(0x1p-30);
  const A f = (parts.m - A(1)) + g;
  const A result = logarithm_or_special(u, logarithm(parts.n, f, g - (f - (parts.m - A(1)))));
  return std::copysign(result, x);  // of -0
}

CPU_INLINE float tanh(float x) {
  const float y = std::fabs(x);
  const float z = y * y;
  const float p = polynomial(z, -0.00627424708f, 0.0210716855f, -0.0538523123f, 0.13332586f, -0.333333164f);
  const float small = y + y * (z * p);
  // 1 - 2 / (1 + e^(2 y))
  const ExpParts<float> e = exponential(2.f * at_most(10.f, y));
  const float power = power_of_two<float>(381 - e.biased);
  const float large = 1.f - 2.f * power / (1.f + (power + (e.r + e.tail())));
  return std::copysign(y < 0.55f ? small : large, x);
}

// t / (t + 2), and what rounding lost of the sum.
CPU_INLINE double tanh(double x) {
  const double t = expm1(2. * at_most(22., std::fabs(x)));
  const double sum = 2. + t;
  const double lost = at_most(2., t) - (sum - at_least(2., t));
  const double quotient = t / sum;
  return std::copysign(quotient - quotient * (lost / sum), x);
}

CPU_INLINE float erf(float x) {
  const float y = at_most(4.f, std::fabs(x));
  const float z = y * y;
  const float p =
      polynomial(z, -0.000609035895f, 0.00501196273f, -0.0267789084f, 0.112821408f, -0.376125246f, 0.128379151f);
  const float small = y + y * p;
  // The logarithm of 1 - erf(y) in base 2: an integer and f.
  const float q =
      polynomial(y, -0.00181970967f, 0.0225812756f, -0.131749213f, -0.938408852f, -1.61639071f, -0.0026294156f);
  constexpr float kRound = Format<float>::kRound;
  const float shifted = q + kRound;
  const float f = q - (shifted - kRound);
  const float e =
      polynomial(f, 0.000153458022f, 0.00133999286f, 0.00961848907f, 0.0555032864f, 0.240226462f, 0.693147182f, 1.f);
  const float large = 1.f - power_of_two<float>(bits_of(shifted) - 127) * e;
  return std::copysign(y < 0.9f ? small : large, x);
}

CPU_INLINE double erf(double x) {
  const double y = at_most(6., std::fabs(x));
  const double z = y * y;
  const double p = polynomial(
      z, -7.7794697685024137e-10, 1.3710981296872088e-08, -1.6206314032613041e-07, 1.6447131617232896e-06,
      -1.492471230652664e-05, 0.00012055293577157444, -0.00085483259293218613, 0.0052239776061185038,
      -0.026866170643111427, 0.11283791670944184, -0.37612638903183521, 0.12837916709551256);
  const double small = y + y * p;
  // 1 - erf(y), in parts of e^(-y^2)
  const double t = (y - 3.) / (y + 3.);
  const double q = polynomial(
      t, 1.5272824300481001e-05, 0.00010316140393432708, 7.6668810446226681e-05, -0.00058088712776164955,
      0.00071327084840888688, 0.0042703824301544898, -0.024392322437751461, 0.07166585074082403, -0.15011593631199818,
      0.24560380166398382, -0.32623356004599791, 0.17900115118135157);
  const double large = 1. - exp(-z) * q;
  return std::copysign(y < 1. ? small : large, x);
}

template <class A>
CPU_INLINE A sigmoid(A x) {
  using F = Format<A>;
  // 1 / (1 + e^|x|), of which both halves follow: in steps, as exp, where it is subnormal.
  const ExpParts<A> e = exponential(at_most(-F::kLeastExponent, std::fabs(x)));
  const Bits<A> half = e.biased >> 1;
  const A first = power_of_two<A>(2 * F::kBias - half);
  const A second = power_of_two<A>(2 * F::kBias - (e.biased - half));
  const A power = first * second;
  const A sum = A(1) + power;
  const A lost = power - (sum - A(1));
  const A small = first / (sum + (e.r + (e.tail() + lost))) * second;
  return x < A(0) ? small : A(1) - small;
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
  const float p = polynomial(z, 0.015612673f, -0.0522118323f, 0.133131176f, -0.333325982f);
  const float small = x + x * std::fma(z, p, 0.f);  // -0 stays so: z * p alone is -0 there
  const float y = std::fabs(x);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y * 2.88539008f));  // e^(2 y)
  const float large = std::copysign(std::fma(-2.f, quotient(1.f, 1.f + power), 1.f), x);
  return y < 0.6f ? small : large;  // in the choice it would be a branch, in which -2 is loaded each time
}
#endif

// On the device.
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
HOST_DEVICE CPU_INLINE double exp(double x) { return DEVICE_OR_HOST(::exp(x), detail::exp(x)); }

HOST_DEVICE CPU_INLINE float expm1(float x) { return DEVICE_OR_HOST(::expm1f(x), detail::expm1(x)); }
HOST_DEVICE CPU_INLINE double expm1(double x) { return DEVICE_OR_HOST(::expm1(x), detail::expm1(x)); }

HOST_DEVICE CPU_INLINE float log(float x) { return DEVICE_OR_HOST(::logf(x), detail::log(x)); }
HOST_DEVICE CPU_INLINE double log(double x) { return DEVICE_OR_HOST(::log(x), detail::log(x)); }

HOST_DEVICE CPU_INLINE float log1p(float x) { return DEVICE_OR_HOST(::log1pf(x), detail::log1p(x)); }
HOST_DEVICE CPU_INLINE double log1p(double x) { return DEVICE_OR_HOST(::log1p(x), detail::log1p(x)); }

HOST_DEVICE CPU_INLINE float tanh(float x) { return DEVICE_OR_HOST(detail::tanh_on_device(x), detail::tanh(x)); }
HOST_DEVICE CPU_INLINE double tanh(double x) { return DEVICE_OR_HOST(::tanh(x), detail::tanh(x)); }

HOST_DEVICE CPU_INLINE float erf(float x) { return DEVICE_OR_HOST(::erff(x), detail::erf(x)); }
HOST_DEVICE CPU_INLINE double erf(double x) { return DEVICE_OR_HOST(::erf(x), detail::erf(x)); }

// 1 / (1 + exp(-x))
HOST_DEVICE CPU_INLINE float sigmoid(float x) { return DEVICE_OR_HOST(detail::sigmoid_of(x), detail::sigmoid(x)); }
HOST_DEVICE CPU_INLINE double sigmoid(double x) { return DEVICE_OR_HOST(detail::sigmoid_of(x), detail::sigmoid(x)); }

// log(1 + exp(x)), with no threshold: of a large x it is x.
HOST_DEVICE CPU_INLINE float softplus(float x) {
  // The logarithm of 1 + z is 2 atanh(s).
  const float z = exp(-std::fabs(x));
  const float s = detail::quotient(z, 2.f + z);
  const float q = s * s;
  const float p = detail::polynomial(q, 0.140059695f, 0.140009075f, 0.200107634f, 0.333332092f);
  return (x > 0.f ? x : 0.f) + (z - s * (z - 2.f * (q * p)));
}
HOST_DEVICE CPU_INLINE double softplus(double x) { return (x > 0. ? x : 0.) + log1p(exp(-std::fabs(x))); }

// 1 / sqrt(x). The square root itself is std::sqrt, an instruction everywhere.
HOST_DEVICE CPU_INLINE float rsqrt(float x) { return DEVICE_OR_HOST(::rsqrtf(x), 1.f / std::sqrt(x)); }
HOST_DEVICE CPU_INLINE double rsqrt(double x) { return DEVICE_OR_HOST(::rsqrt(x), 1. / std::sqrt(x)); }

#undef DEVICE_OR_HOST

}  // namespace extension_cpp::math
