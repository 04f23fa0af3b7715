// float8, as torch has it in memory. GPUs from sm_89 on convert it by an instruction, where torch's own types take some
// twenty operations of integers. It computes as a float does.
//
// They round as torch's do, to the nearest and to even. What is too large is infinite in e5m2, and in e4m3fn, which has
// no infinity, the largest number, 448, as in torch from 2.12 on and in Triton. (Before, it was NaN in torch.)
#pragma once

#include "host_device.h"

#include <torch/headeronly/util/Float8_e4m3fn.h>
#include <torch/headeronly/util/Float8_e5m2.h>

#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define CONVERTS_FLOAT8 1
#else
#define CONVERTS_FLOAT8 0
#endif

namespace extension_cpp {

struct Float8_e4m3fn {
  uint8_t x;  // the bits

  Float8_e4m3fn() = default;
  HOST_DEVICE Float8_e4m3fn(float value)  // NOLINT(google-explicit-constructor)
      : x(bits_of(value)) {}
  constexpr HOST_DEVICE Float8_e4m3fn(c10::Float8_e4m3fn torch) : x(torch.x) {}  // NOLINT(google-explicit-constructor)

  HOST_DEVICE operator float() const {  // NOLINT(google-explicit-constructor)
#if CONVERTS_FLOAT8
    uint32_t pair = 0;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(x)));
    return __half2float(__ushort_as_half(static_cast<uint16_t>(pair)));
#else
    return c10::detail::fp8e4m3fn_to_fp32_value(x);
#endif
  }

 private:
  HOST_DEVICE static uint8_t bits_of(float value) {
#if CONVERTS_FLOAT8
    uint16_t pair = 0;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(value));
    return static_cast<uint8_t>(pair);
#else
    constexpr float kMost = 448;
    return c10::detail::fp8e4m3fn_from_fp32_value(value > kMost ? kMost : value < -kMost ? -kMost : value);
#endif
  }
};

struct Float8_e5m2 {
  uint8_t x;  // the bits

  Float8_e5m2() = default;
  HOST_DEVICE Float8_e5m2(float value)  // NOLINT(google-explicit-constructor)
      : x(bits_of(value)) {}
  constexpr HOST_DEVICE Float8_e5m2(c10::Float8_e5m2 torch) : x(torch.x) {}  // NOLINT(google-explicit-constructor)

  HOST_DEVICE operator float() const {  // NOLINT(google-explicit-constructor)
#ifdef __CUDA_ARCH__
    // The upper half of a float16.
    return __half2float(__ushort_as_half(static_cast<uint16_t>(x << 8)));
#else
    return c10::detail::fp8e5m2_to_fp32_value(x);
#endif
  }

 private:
  HOST_DEVICE static uint8_t bits_of(float value) {
#if CONVERTS_FLOAT8
    constexpr float kLeast = 61440;  // that is rounded to infinity
    uint16_t pair = 0;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(value));
    return static_cast<uint8_t>(fabsf(value) >= kLeast ? (pair & 0x80) | 0x7c : pair);
#else
    return c10::detail::fp8e5m2_from_fp32_value(value);
#endif
  }
};

static_assert(sizeof(Float8_e4m3fn) == 1 && sizeof(Float8_e5m2) == 1);

}  // namespace extension_cpp

template <>
struct std::numeric_limits<extension_cpp::Float8_e4m3fn> : std::numeric_limits<c10::Float8_e4m3fn> {};
template <>
struct std::numeric_limits<extension_cpp::Float8_e5m2> : std::numeric_limits<c10::Float8_e5m2> {};
