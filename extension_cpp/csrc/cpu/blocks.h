// Blocks of elements, to and from arrays of the type of the arithmetic, each of which becomes a register: of half types
// compilers would not make vectors by themselves, and loops over rows are the same for all types.
#pragma once

#include "cpu/clones.h"
#include "dispatch.h"

#include <cstring>
#include <type_traits>

// Defined as 0: as for other processors and compilers.
#ifndef HAS_BLOCKS
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#define HAS_BLOCKS 1
#else
#define HAS_BLOCKS 0
#endif
#endif

// Defined as 32: as for processors without AVX-512.
#ifndef WIDEST_BLOCK
#define WIDEST_BLOCK 64  // bytes
#endif

#if HAS_BLOCKS

// Of functions for processors with these instructions, as they are named for CPU_CLONES.
#define CPU_AVX2 __attribute__((target("arch=x86-64-v3")))
#define CPU_AVX512 __attribute__((target("arch=x86-64-v4")))

namespace extension_cpp::cpu {

namespace detail {

template <class Element, int kCount>
using Vector __attribute__((vector_size(kCount * sizeof(Element)))) = Element;

// Not a function that returns a vector: one for the baseline would pass it in another way.
template <class V>
CPU_INLINE void read_vector(V& vector, const void* address) {
  std::memcpy(&vector, address, sizeof(vector));
}

template <class V>
CPU_INLINE void write_vector(const V& vector, void* address) {
  std::memcpy(address, &vector, sizeof(vector));
}

// One element to `kCount` neighbouring places, at once: what is read later as a vector is not waited for.
template <int kCount, class T>
CPU_INLINE void repeat(const T& element, T* to) {
  using Bits = std::conditional_t<sizeof(T) == 2, short, std::conditional_t<sizeof(T) == 4, int, long long>>;
  static_assert(sizeof(T) == sizeof(Bits));
  Bits bits;
  std::memcpy(&bits, &element, sizeof(bits));
  write_vector(Vector<Bits, kCount>{} + bits, to);
}

constexpr int kToNearestEven = 0;

// Of float to BFloat16, by the bits: to nearest, even; every NaN becomes the same, as where c10::BFloat16 rounds.
template <int kCount>
CPU_INLINE void round_to_upper_half(Vector<unsigned, kCount>& bits) {
  constexpr unsigned kNan = 0x7fc0;
  const auto floats = reinterpret_cast<Vector<float, kCount>>(bits);
  const Vector<unsigned, kCount> rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  bits = floats != floats ? (bits & 0) + kNan : rounded;
}

}  // namespace detail

// Half to float: compilers make bit arithmetic of it, two to five times slower than the instructions that x86 has. (The
// compiler's own names for them: immintrin.h would take longer to read than the rest of a small operator to compile.)
// BFloat16 they convert eight at a time, too, but take a quarter longer.
struct Avx2 {
  template <class T>
  static constexpr int kBlock = 32 / sizeof(acc_t<T>);  // elements

  static bool can() { return __builtin_cpu_supports("x86-64-v3"); }

  CPU_AVX2 static void load_block(const Half* from, float* to) {
    detail::Vector<short, 8> halves;
    detail::read_vector(halves, from);
    detail::write_vector(__builtin_ia32_vcvtph2ps256(halves), to);
  }

  CPU_AVX2 static void load_block(const BFloat16* from, float* to) {
    detail::Vector<short, 8> upper;
    detail::read_vector(upper, from);
    const detail::Vector<int, 8> bits = __builtin_ia32_pmovzxwd256(upper) << 16;
    detail::write_vector(bits, to);
  }

  template <class A>
  CPU_AVX2 static void load_block(const A* from, A* to) {
    detail::Vector<A, kBlock<A>> block;
    detail::read_vector(block, from);
    detail::write_vector(block, to);
  }

  template <class T>
  CPU_AVX2 static acc_t<T> load_one(const T* from) {
    return static_cast<acc_t<T>>(*from);
  }

  CPU_AVX2 static float load_one(const Half* from) { return __builtin_ia32_vcvtph2ps(load_halves<1>(from))[0]; }

  template <class T>
  CPU_AVX2 static void store_one(acc_t<T> from, T* to) {
    *to = static_cast<T>(from);
  }

  CPU_AVX2 static void store_one(float from, Half* to) {
    const detail::Vector<float, 4> floats{from};
    const detail::Vector<short, 8> halves = __builtin_ia32_vcvtps2ph(floats, detail::kToNearestEven);
    std::memcpy(to, &halves, sizeof(Half));
  }

  // Four neighbours.
  CPU_AVX2 static void load_four(const Half* from, float* to) {
    detail::write_vector(__builtin_ia32_vcvtph2ps(load_halves<4>(from)), to);
  }

  CPU_AVX2 static void load_four(const BFloat16* from, float* to) {
    const detail::Vector<int, 4> bits = __builtin_ia32_pmovzxwd128(load_halves<4>(from)) << 16;
    detail::write_vector(bits, to);
  }

  template <class A>
  CPU_AVX2 static void load_four(const A* from, A* to) {
    detail::Vector<A, 4> four;
    detail::read_vector(four, from);
    detail::write_vector(four, to);
  }

  CPU_AVX2 static void store_four(const float* from, Half* to) {
    detail::Vector<float, 4> floats;
    detail::read_vector(floats, from);
    const detail::Vector<short, 8> halves = __builtin_ia32_vcvtps2ph(floats, detail::kToNearestEven);
    std::memcpy(to, &halves, 4 * sizeof(Half));
  }

  CPU_AVX2 static void store_four(const float* from, BFloat16* to) {
    detail::Vector<unsigned, 4> bits;
    detail::read_vector(bits, from);
    detail::round_to_upper_half<4>(bits);
    const auto upper = reinterpret_cast<detail::Vector<int, 4>>(bits);
    const auto halves = __builtin_ia32_packusdw128(upper, upper);
    std::memcpy(to, &halves, 4 * sizeof(BFloat16));
  }

  template <class A>
  CPU_AVX2 static void store_four(const A* from, A* to) {
    load_four(from, to);
  }

  // The first elements of a block, and zeros: nothing behind them is read.
  template <class T>
  CPU_AVX2 static void load_rest(const T* from, int64_t count, float* to) {
    static_assert(sizeof(T) == 2);
    // Words, by what `count` is made of: of copies on the stack, stored in pieces, the load of all would wait.
    detail::Vector<unsigned long long, 2> words{};
    const T* const last = from + (count & 4);
    if ((count & 2) != 0) {
      unsigned two;
      std::memcpy(&two, last, sizeof(two));
      words[0] = two;
    }
    if ((count & 1) != 0) {
      unsigned short one;
      std::memcpy(&one, last + (count & 2), sizeof(one));
      words[0] |= static_cast<unsigned long long>(one) << (count & 2) * 16;
    }
    if ((count & 4) != 0) {
      words[1] = words[0];
      unsigned long long four;
      std::memcpy(&four, from, sizeof(four));
      words[0] = four;
    }
    T rest[kBlock<T>];
    detail::write_vector(words, rest);
    load_block(rest, to);
  }

  CPU_AVX2 static void load_rest(const float* from, int64_t count, float* to) {
    const auto* const address = reinterpret_cast<const detail::Vector<float, 8>*>(from);
    detail::write_vector(__builtin_ia32_maskloadps256(address, below<8, int>(count)), to);
  }

  CPU_AVX2 static void load_rest(const double* from, int64_t count, double* to) {
    const auto* const address = reinterpret_cast<const detail::Vector<double, 4>*>(from);
    detail::write_vector(__builtin_ia32_maskloadpd256(address, below<4, long long>(count)), to);
  }

  // The first elements of a block: nothing behind them is written.
  template <class T>
  CPU_AVX2 static void store_rest(const float* from, int64_t count, T* to) {
    static_assert(sizeof(T) == 2);
    T rest[kBlock<T>];
    store_block(from, rest);
    detail::Vector<unsigned long long, 2> words;
    detail::read_vector(words, rest);
    unsigned long long word = words[0];
    if ((count & 4) != 0) {
      std::memcpy(to, &word, 4 * sizeof(T));
      to += 4;
      word = words[1];
    }
    if ((count & 2) != 0) {
      std::memcpy(to, &word, 2 * sizeof(T));
      to += 2;
      word >>= 32;
    }
    if ((count & 1) != 0) {
      std::memcpy(to, &word, sizeof(T));
    }
  }

  CPU_AVX2 static void store_rest(const float* from, int64_t count, float* to) {
    detail::Vector<float, 8> block;
    detail::read_vector(block, from);
    __builtin_ia32_maskstoreps256(reinterpret_cast<detail::Vector<float, 8>*>(to), below<8, int>(count), block);
  }

  CPU_AVX2 static void store_rest(const double* from, int64_t count, double* to) {
    detail::Vector<double, 4> block;
    detail::read_vector(block, from);
    __builtin_ia32_maskstorepd256(reinterpret_cast<detail::Vector<double, 4>*>(to), below<4, long long>(count), block);
  }

  template <class A>
  CPU_AVX2 static void store_block(const A* from, A* to) {
    load_block(from, to);
  }

  CPU_AVX2 static void store_block(const float* from, Half* to) {
    detail::Vector<float, 8> floats;
    detail::read_vector(floats, from);
    detail::write_vector(__builtin_ia32_vcvtps2ph256(floats, detail::kToNearestEven), to);
  }

  CPU_AVX2 static void store_block(const float* from, BFloat16* to) {
    detail::Vector<unsigned, 8> bits;
    detail::read_vector(bits, from);
    detail::round_to_upper_half<8>(bits);
    const auto upper = reinterpret_cast<detail::Vector<int, 8>>(bits);
    const detail::Vector<int, 4> low = __builtin_shufflevector(upper, upper, 0, 1, 2, 3);
    const detail::Vector<int, 4> high = __builtin_shufflevector(upper, upper, 4, 5, 6, 7);
    detail::write_vector(__builtin_ia32_packusdw128(low, high), to);
  }

  // KeepLarger (row_sums.h) of vectors. Outside of a function for these instructions compilers compare them one by one.
  template <class V>
  CPU_AVX2 static void keep_larger(V& largest, const V& other) {
    largest = (largest > other) | (largest != largest) ? largest : other;
  }

 private:
  // All bits of the first `count` lanes.
  template <int kLanes, class Lane>
  CPU_AVX2 static detail::Vector<Lane, kLanes> below(int64_t count) {
    detail::Vector<Lane, kLanes> places;
    for (int lane = 0; lane < kLanes; ++lane) {
      places[lane] = lane;
    }
    return places < static_cast<Lane>(count);
  }

  // And zeros.
  template <int kCount, class T>
  CPU_AVX2 static detail::Vector<short, 8> load_halves(const T* from) {
    static_assert(sizeof(T) == 2);
    long long low = 0;
    std::memcpy(&low, from, kCount * sizeof(T));
    return reinterpret_cast<detail::Vector<short, 8>>(detail::Vector<long long, 2>{low});
  }
};

// Besides, numbers of four and eight bytes are read by 32 bytes, where the compiler reads 64: memory is read ahead
// sooner, on AMD's Zen 4 by a sixth of the time of a product.
struct Avx512 {
  template <class T>
  static constexpr int kBlock = 64 / sizeof(acc_t<T>);

  static bool can() { return __builtin_cpu_supports("x86-64-v4"); }

  // The first elements of a block, and zeros: nothing behind them is read. (Copied to the stack first, they would be
  // waited for: a load of more than what one store has written.)
  template <class T>
  CPU_AVX512 static void load_rest(const T* from, int64_t count, acc_t<T>* to) {
    const unsigned mask = (1u << count) - 1;
    if constexpr (sizeof(T) == 8) {
      detail::write_vector(__builtin_ia32_loadupd512_mask(from, detail::Vector<double, 8>{}, mask), to);
    } else if constexpr (sizeof(T) == 4) {
      detail::write_vector(__builtin_ia32_loadups512_mask(from, detail::Vector<float, 16>{}, mask), to);
    } else {
      T rest[16];
      detail::write_vector(
          __builtin_ia32_loaddquhi256_mask(reinterpret_cast<const short*>(from), detail::Vector<short, 16>{}, mask),
          rest);
      load_block(rest, to);
    }
  }

  // The first elements of a block: nothing behind them is written.
  template <class T>
  CPU_AVX512 static void store_rest(const acc_t<T>* from, int64_t count, T* to) {
    const unsigned mask = (1u << count) - 1;
    if constexpr (sizeof(T) == 8) {
      detail::Vector<double, 8> block;
      detail::read_vector(block, from);
      __builtin_ia32_storeupd512_mask(to, block, mask);
    } else if constexpr (sizeof(T) == 4) {
      detail::Vector<float, 16> block;
      detail::read_vector(block, from);
      __builtin_ia32_storeups512_mask(to, block, mask);
    } else {
      detail::Vector<short, 16> block;
      T rest[16];
      store_block(from, rest);
      detail::read_vector(block, rest);
      __builtin_ia32_storedquhi256_mask(reinterpret_cast<short*>(to), block, mask);
    }
  }

  CPU_AVX512 static void load_block(const Half* from, float* to) {
    constexpr int kCurrentRounding = 4;
    detail::Vector<short, 16> halves;
    detail::read_vector(halves, from);
    const detail::Vector<float, 16> masked_out{};
    detail::write_vector(__builtin_ia32_vcvtph2ps512_mask(halves, masked_out, -1, kCurrentRounding), to);
  }

  CPU_AVX512 static void store_block(const float* from, Half* to) {
    detail::Vector<float, 16> floats;
    detail::read_vector(floats, from);
    const detail::Vector<short, 16> masked_out{};
    detail::write_vector(__builtin_ia32_vcvtps2ph512_mask(floats, detail::kToNearestEven, masked_out, -1), to);
  }

  CPU_AVX512 static void load_block(const BFloat16* from, float* to) {
    detail::Vector<short, 16> upper;
    detail::read_vector(upper, from);
    const detail::Vector<int, 16> masked_out{};
    const detail::Vector<int, 16> bits = __builtin_ia32_pmovzxwd512_mask(upper, masked_out, -1) << 16;
    detail::write_vector(reinterpret_cast<detail::Vector<float, 16>>(bits), to);
  }

  CPU_AVX512 static void store_block(const float* from, BFloat16* to) {
    detail::Vector<unsigned, 16> bits;
    detail::read_vector(bits, from);
    detail::round_to_upper_half<16>(bits);
    const auto upper = reinterpret_cast<detail::Vector<int, 16>>(bits);
    const detail::Vector<short, 16> masked_out{};
    detail::write_vector(__builtin_ia32_pmovdw512_mask(upper, masked_out, -1), to);
  }

  CPU_AVX512 static void load_block(const float* from, float* to) {
    detail::Vector<float, 8> low;
    detail::Vector<float, 8> high;
    detail::read_vector(low, from);
    detail::read_vector(high, from + 8);
    detail::write_vector(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), to);
  }

  CPU_AVX512 static void load_block(const double* from, double* to) {
    detail::Vector<double, 4> low;
    detail::Vector<double, 4> high;
    detail::read_vector(low, from);
    detail::read_vector(high, from + 4);
    detail::write_vector(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7), to);
  }

  template <class A>
  CPU_AVX512 static void store_block(const A* from, A* to) {
    std::memcpy(to, from, 64);
  }

  template <class V>
  CPU_AVX512 static void keep_larger(V& largest, const V& other) {
    largest = (largest > other) | (largest != largest) ? largest : other;
  }
};

}  // namespace extension_cpp::cpu

#endif

namespace extension_cpp::cpu {

// What Avx2 has for scans of rows (scan_rows.h), for a processor of any kind.
struct Scalar {
  template <class T>
  CPU_INLINE static acc_t<T> load_one(const T* from) {
    return static_cast<acc_t<T>>(*from);
  }

  template <class T>
  CPU_INLINE static void store_one(acc_t<T> from, T* to) {
    *to = static_cast<T>(from);
  }

  template <class T>
  CPU_INLINE static void load_four(const T* from, acc_t<T>* to) {
    for (int k = 0; k < 4; ++k) {
      to[k] = static_cast<acc_t<T>>(from[k]);
    }
  }

  template <class T>
  CPU_INLINE static void store_four(const acc_t<T>* from, T* to) {
    for (int k = 0; k < 4; ++k) {
      to[k] = static_cast<T>(from[k]);
    }
  }
};

// on(isa), of the best instruction set with blocks that the processor has; or otherwise().
template <class On, class Otherwise>
auto with_blocks([[maybe_unused]] const On& on, const Otherwise& otherwise) {
#if HAS_BLOCKS
  if (WIDEST_BLOCK >= 64 && Avx512::can()) {
    return on(Avx512());
  }
  if (Avx2::can()) {
    return on(Avx2());
  }
#endif
  return otherwise();
}

// Whether loops over T convert it as fast as widen() does. Of BFloat16 that is a shift, which compilers vectorise.
template <class T>
bool converts_in_loops() {
#if HAS_BLOCKS
  return !std::is_same_v<T, Half> || Avx2::can();
#else
  return !std::is_same_v<T, Half>;
#endif
}

}  // namespace extension_cpp::cpu
