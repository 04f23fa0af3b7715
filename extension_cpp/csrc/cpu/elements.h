// Sums of elements as they are in memory, whatever operator asks for them: compiled once, in blocks of a register where
// there are such.
#pragma once

#include "dispatch.h"

#include <cstdint>

namespace extension_cpp::cpu {

// The sum of `count` elements, no more than a row's segment has.
template <class T>
acc_t<T> sum_elements(const T* from, int64_t count);

// sums[j] += from[j] for j = 0 ... count - 1.
template <class T>
void add_elements(const T* from, int64_t count, acc_t<T>* sums);

}  // namespace extension_cpp::cpu
