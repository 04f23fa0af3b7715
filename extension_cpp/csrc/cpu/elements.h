// Sums of elements as they are in memory, whatever operator asks for them: compiled once, in blocks of a register where
// there are such.
#pragma once

#include "dispatch.h"

#include <cstdint>

namespace extension_cpp::cpu {

// sums[row] = the sum over each of some rows of `count` elements, no more than a segment has, one behind the other.
template <class T>
void sum_elements(const T* from, int64_t rows, int64_t count, acc_t<T>* sums);

// sums[j] += from[row * stride + j] for j = 0 ... count - 1 of every row, in their order.
template <class T>
void add_elements(const T* from, int64_t stride, int64_t rows, int64_t count, acc_t<T>* sums);

}  // namespace extension_cpp::cpu
