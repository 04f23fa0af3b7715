// A number by which many are divided: a member of a formula, or what a row has one of.
//
//   template <class A>
//   struct Softcap {
//     Divisor<A> cap;
//
//     HOST_DEVICE A operator()(A x) const { return cap * math::tanh(x / cap); }
//   };
//
// On the device x / cap is then x times a reciprocal that is computed once, as where PyTorch divides a tensor by a
// number there: over the whole range within two units in the last place of the quotient. IEEE's division is a branch
// and some twenty instructions for every element. On the CPU, where it is one instruction, it is the quotient.
#pragma once

#include "host_device.h"

#include <cstdint>
#include <limits>

namespace extension_cpp {

template <class A>
class Divisor {
 public:
  HOST_DEVICE constexpr Divisor(A value)
      : value_(value), scale_(scale_of(value < A(0) ? -value : value)), reciprocal_(A(1) / (value * scale_)) {}

  HOST_DEVICE constexpr operator A() const { return value_; }

  HOST_DEVICE friend constexpr A operator/(A x, const Divisor& divisor) {
#ifdef __CUDA_ARCH__
    return x * divisor.scale_ * divisor.reciprocal_;
#else
    return x / divisor.value_;
#endif
  }

 private:
  // A power of two: of numbers whose reciprocals are no normal ones it makes some whose are.
  HOST_DEVICE static constexpr A scale_of(A size) {
    constexpr A kSmall = std::numeric_limits<A>::min() * A(4);
    constexpr A kFactor = A(uint64_t{1} << 63);
    return size < kSmall ? kFactor : size > A(1) / kSmall ? A(1) / kFactor : A(1);
  }

  A value_;
  A scale_;
  A reciprocal_;
};

}  // namespace extension_cpp
