// The larger of numbers, and of half types of pairs of them at once. NaN wins.
#pragma once

#include "vector.cuh"

#include <cmath>
#include <cstring>

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

// The same of half types, by pairs as they are in memory: as float each number would be converted first.
template <class T, class Pair, unsigned kLowest>
class LargestOfPairs {
 public:
  template <int N>
  __device__ void add(const Chunk<T, N>& chunk) {
    if constexpr (N == 1) {
      const unsigned element = chunk.word;
      add_pair(element << 16 | element);
    } else {
      unsigned pairs[N / 2];
      memcpy(pairs, &chunk.word, sizeof(pairs));
#pragma unroll
      for (int k = 0; k < N / 2; ++k) {  // one over `pairs` stays a loop, over local memory
        add_pair(pairs[k]);
      }
    }
  }

  __device__ float value() const {
    const float2 both = unpack_pair(pair_, T());
    return Larger{}(both.x, both.y);
  }

 private:
  __device__ void add_pair(unsigned pair) {
    const Pair larger = __hmax2_nan(*reinterpret_cast<const Pair*>(&pair_), *reinterpret_cast<const Pair*>(&pair));
    pair_ = *reinterpret_cast<const unsigned*>(&larger);
  }

  unsigned pair_ = kLowest << 16 | kLowest;
};

// -infinity
template <>
class Largest<Half> : public LargestOfPairs<Half, __half2, 0xfc00> {};
template <>
class Largest<BFloat16> : public LargestOfPairs<BFloat16, __nv_bfloat162, 0xff80> {};

}  // namespace extension_cpp::cuda::detail
