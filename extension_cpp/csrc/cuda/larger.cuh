// The larger of numbers, and of half types of pairs of them at once. NaN wins.
#pragma once

#include "vector.cuh"

#include <cmath>

namespace extension_cpp::cuda::detail {

struct Larger {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  __device__ float operator()(float a, float b) const {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
#endif
};

// The largest of elements; -infinity of none.
template <class T>
class Largest {
  using A = acc_t<T>;

 public:
  template <int N>
  __device__ void add(const Chunk<T, N>& chunk) {
    const auto values = to_values(chunk);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      largest_ = Larger{}(largest_, values[n]);
    }
  }

  __device__ A value() const { return largest_; }

 private:
  A largest_ = -static_cast<A>(INFINITY);
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// The larger of each half. (To convert them takes two instructions more.)
__device__ inline unsigned larger_of_pairs(unsigned a, unsigned b, Half /*type*/) {
  unsigned larger;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

__device__ inline unsigned larger_of_pairs(unsigned a, unsigned b, BFloat16 /*type*/) {
  unsigned larger;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

template <class T>
class LargestOfPairs {
 public:
  template <int N>
  __device__ void add(const Chunk<T, N>& chunk) {
    if constexpr (N == 1) {
      const unsigned element = chunk.word;
      pair_ = larger_of_pairs(pair_, element << 16 | element, T());
    } else {
      unsigned pairs[N / 2];
      memcpy(pairs, &chunk.word, sizeof(pairs));
#pragma unroll
      for (int k = 0; k < N / 2; ++k) {
        pair_ = larger_of_pairs(pair_, pairs[k], T());
      }
    }
  }

  __device__ float value() const {
    const float2 both = unpack_pair(pair_, T());
    return Larger{}(both.x, both.y);
  }

 private:
  static constexpr unsigned kInfinity = std::is_same_v<T, Half> ? 0xfc00 : 0xff80;  // negative

  unsigned pair_ = kInfinity << 16 | kInfinity;
};

template <>
class Largest<Half> : public LargestOfPairs<Half> {};
template <>
class Largest<BFloat16> : public LargestOfPairs<BFloat16> {};
#endif

}  // namespace extension_cpp::cuda::detail
