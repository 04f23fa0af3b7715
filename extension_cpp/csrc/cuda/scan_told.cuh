// What the tiles of a chained scan tell each other: numbers of whose bits at least one is 0, in memory whose bits are
// all 1 before. That says by itself whether they are there, so that they are told, and read, without a fence.
#pragma once

#include "launch.cuh"
#include "scan_piece.cuh"

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

// Such memory, of the current stream.
inline Tensor nothing_told(const Tensor& like, int64_t bytes) {
  Tensor memory = new_empty(like, {bytes}, ScalarType::Byte);
  CUDA_CHECK(cudaMemsetAsync(memory.mutable_data_ptr<uint8_t>(), 0xff, bytes, current_stream(like)));
  return memory;
}

__device__ inline void tell_word(unsigned* to, unsigned word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

__device__ inline void tell_word(unsigned long long* to, unsigned long long word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ inline unsigned told_word(const unsigned* from) {
  unsigned word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

__device__ inline unsigned long long told_word(const unsigned long long* from) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}

template <class A>
class Told {
  using Word = std::conditional_t<sizeof(A) == 4, unsigned, unsigned long long>;

 public:
  __device__ void tell(A value) { tell_word(&word_, bits(value)); }

  // Whether it is there.
  __device__ bool read(A& value) const {
    const Word word = told_word(&word_);
    memcpy(&value, &word, sizeof(value));
    return word != ~Word{0};
  }

  // All ones are a NaN, for which there are others.
  __device__ static Word bits(A value) {
    Word word;
    memcpy(&word, &value, sizeof(word));
    return word == ~Word{0} ? word - 1 : word;
  }

 private:
  Word word_;
};

template <class A>
class Told<Piece<A>> {
 public:
  __device__ void tell(const Piece<A>& piece) {
    factor_.tell(piece.factor);
    term_.tell(piece.term);
  }

  __device__ bool read(Piece<A>& piece) const {
    const bool has_factor = factor_.read(piece.factor);
    const bool has_term = term_.read(piece.term);
    return has_factor && has_term;
  }

 private:
  Told<A> factor_;
  Told<A> term_;
};

// In one word.
template <>
class Told<Piece<float>> {
 public:
  __device__ void tell(const Piece<float>& piece) {
    using Bits = Told<float>;
    tell_word(&word_, static_cast<unsigned long long>(Bits::bits(piece.term)) << 32 | Bits::bits(piece.factor));
  }

  __device__ bool read(Piece<float>& piece) const {
    const unsigned long long word = told_word(&word_);
    piece = {__uint_as_float(static_cast<unsigned>(word)), __uint_as_float(static_cast<unsigned>(word >> 32))};
    return word != ~0ull;
  }

 private:
  unsigned long long word_;
};

template <class X>
__device__ X wait_for(const Told<X>& told) {
  X value;
  while (!told.read(value)) {
  }
  return value;
}

}  // namespace detail

}  // namespace extension_cpp::cuda
