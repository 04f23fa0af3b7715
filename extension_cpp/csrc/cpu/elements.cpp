#include "cpu/elements.h"

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "cpu/lines.h"
#include "cpu/row_sums.h"

#include <type_traits>

namespace extension_cpp::cpu {

namespace {

// Where there are no blocks.
template <class T>
void sum_one_by_one(const T* from, int64_t rows, int64_t count, acc_t<T>* sums) {
  using A = acc_t<T>;
  for (int64_t row = 0; row < rows; ++row, from += count) {
    sums[row] = reduce_over(0, count, A(0), Add(), [&](int64_t j) CPU_INLINE_LAMBDA -> Values<A, 1> {
      return {{static_cast<A>(from[j])}};
    })[0];
  }
}

// each(rows) for some rows at a time, whose sum is read and written once, and the number of them a constant.
template <class Each>
CPU_INLINE void for_several_rows(int64_t rows, const Each& each) {
  constexpr int kTogether = 4;
  for (; rows >= kTogether; rows -= kTogether) {
    each(std::integral_constant<int, kTogether>());
  }
  for (; rows > 0; --rows) {
    each(std::integral_constant<int, 1>());
  }
}

template <class T>
void add_one_by_one(const T* from, int64_t stride, int64_t rows, int64_t count, acc_t<T>* sums) {
  for_several_rows(rows, [&](auto together) CPU_INLINE_LAMBDA {
    CPU_INDEPENDENT_LOOP
    for (int64_t j = 0; j < count; ++j) {
      acc_t<T> sum = sums[j];
      for (int row = 0; row < together; ++row) {
        sum += static_cast<acc_t<T>>(from[row * stride + j]);
      }
      sums[j] = sum;
    }
    from += together * stride;
  });
}

#if HAS_BLOCKS

template <class Isa, class T>
CPU_INLINE acc_t<T> sum_blocks(const T* from, int64_t count) {
  using A = acc_t<T>;
  // What need not be converted is read by vectors of 32 bytes, with AVX-512, too (see Avx512).
  constexpr bool kConverts = !std::is_same_v<T, A>;
  constexpr int kBlock = Isa::template kBlock<T>;
  constexpr int kVector = kConverts ? kBlock : 32 / sizeof(A);
  constexpr int kSums = 4;  // an addition takes four cycles
  using Vector = detail::Vector<A, kVector>;
  A values[kBlock];  // never in memory
  Vector vector;
  Vector sums[kSums] = {};
  const auto add = [&](int k, const T* some) CPU_INLINE_LAMBDA {
    if constexpr (kConverts) {
      Isa::load_block(some, values);
      detail::read_vector(vector, values);
    } else {
      detail::read_vector(vector, some);
    }
    sums[k] += vector;
  };
  for (; count >= kSums * kVector; from += kSums * kVector, count -= kSums * kVector) {
    send_for<kSums * kVector, kToRead>(from, kBytesFarAhead);
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) {
      add(k, from + k * kVector);
    }
  }
  for (; count >= kVector; from += kVector, count -= kVector) {
    add(0, from);
  }
  if (count > 0) {
    Isa::load_rest(from, count, values);
    detail::read_vector(vector, values);
    sums[1] += vector;
  }
  A lanes[kVector];
  detail::write_vector((sums[0] + sums[1]) + (sums[2] + sums[3]), lanes);
  return fold<kVector>(lanes, Add());
}

template <class Isa, class T>
CPU_INLINE void add_blocks(const T* from, int64_t stride, int64_t rows, int64_t count, acc_t<T>* sums) {
  constexpr int kBlock = Isa::template kBlock<T>;
  acc_t<T> values[kBlock];  // never in memory
  detail::Vector<acc_t<T>, kBlock> vector;
  detail::Vector<acc_t<T>, kBlock> sum;
  for_several_rows(rows, [&](auto together) CPU_INLINE_LAMBDA {
    int64_t j = 0;
    for (; j + kBlock <= count; j += kBlock) {
      detail::read_vector(sum, sums + j);
      for (int row = 0; row < together; ++row) {
        Isa::load_block(from + row * stride + j, values);
        detail::read_vector(vector, values);
        sum += vector;
      }
      detail::write_vector(sum, sums + j);
    }
    for (int row = 0; row < together && j < count; ++row) {
      Isa::load_rest(from + row * stride + j, count - j, values);
      for (int64_t k = j; k < count; ++k) {
        sums[k] += values[k - j];
      }
    }
    from += together * stride;
  });
}

template <class T>
CPU_AVX512 CPU_FLATTEN void sum_blocks_of(Avx512, const T* from, int64_t rows, int64_t count, acc_t<T>* sums) {
  for (int64_t row = 0; row < rows; ++row) {
    sums[row] = sum_blocks<Avx512>(from + row * count, count);
  }
}

template <class T>
CPU_AVX2 CPU_FLATTEN void sum_blocks_of(Avx2, const T* from, int64_t rows, int64_t count, acc_t<T>* sums) {
  for (int64_t row = 0; row < rows; ++row) {
    sums[row] = sum_blocks<Avx2>(from + row * count, count);
  }
}

template <class T>
CPU_AVX512 CPU_FLATTEN void add_blocks_of(
    Avx512, const T* from, int64_t stride, int64_t rows, int64_t count, acc_t<T>* sums) {
  add_blocks<Avx512>(from, stride, rows, count, sums);
}

template <class T>
CPU_AVX2 CPU_FLATTEN void add_blocks_of(
    Avx2, const T* from, int64_t stride, int64_t rows, int64_t count, acc_t<T>* sums) {
  add_blocks<Avx2>(from, stride, rows, count, sums);
}

#endif

}  // namespace

template <class T>
void sum_elements(const T* from, int64_t rows, int64_t count, acc_t<T>* sums) {
  with_blocks(
      [&](auto isa) { sum_blocks_of(isa, from, rows, count, sums); }, [&] { sum_one_by_one(from, rows, count, sums); });
}

template <class T>
void add_elements(const T* from, int64_t stride, int64_t rows, int64_t count, acc_t<T>* sums) {
  with_blocks(
      [&](auto isa) { add_blocks_of(isa, from, stride, rows, count, sums); },
      [&] { add_one_by_one(from, stride, rows, count, sums); });
}

template void sum_elements(const float*, int64_t, int64_t, float*);
template void sum_elements(const double*, int64_t, int64_t, double*);
template void sum_elements(const Half*, int64_t, int64_t, float*);
template void sum_elements(const BFloat16*, int64_t, int64_t, float*);

template void add_elements(const float*, int64_t, int64_t, int64_t, float*);
template void add_elements(const double*, int64_t, int64_t, int64_t, double*);
template void add_elements(const Half*, int64_t, int64_t, int64_t, float*);
template void add_elements(const BFloat16*, int64_t, int64_t, int64_t, float*);

}  // namespace extension_cpp::cpu
