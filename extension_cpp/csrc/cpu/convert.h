// Half and BFloat16 on the CPU: to and from the type of the arithmetic.
#pragma once

#include "dispatch.h"

#include <cstdint>

namespace extension_cpp::cpu {

// Copies, for loops that see their elements more than once: compiled here once, with the processor's own instructions.
void widen(const Half* from, float* to, int64_t count);
void widen(const BFloat16* from, float* to, int64_t count);
// Round to nearest, even.
void narrow(const float* from, Half* to, int64_t count);
void narrow(const float* from, BFloat16* to, int64_t count);

}  // namespace extension_cpp::cpu
