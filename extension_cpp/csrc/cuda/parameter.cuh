// Parameters of a row kernel, one value for each column.
#pragma once

#include "vector.cuh"

#include <optional>
#include <type_traits>

namespace extension_cpp::cuda {

// An optional parameter with one value per column, which may be wider than the inputs.
template <class T>
struct Parameter {
  using A = acc_t<T>;

  const T* narrow = nullptr;
  const A* wide = nullptr;
  A otherwise;

  // `parameter` is what as_parameter() made of it.
  Parameter(const std::optional<Tensor>& parameter, A otherwise, int64_t /*cols*/) : otherwise(otherwise) {
    if (!parameter.has_value()) {
      return;
    }
    if (parameter->element_size() == sizeof(A)) {
      wide = parameter->template const_data_ptr<A>();
    } else {
      narrow = parameter->template const_data_ptr<T>();
    }
  }

  // Of columns col ... col + N - 1.
  template <int N>
  __device__ Values<A, N> at(int64_t col) const {
    return at<N, false>(col);
  }

  // The same where col is a multiple of N.
  template <int N>
  __device__ Values<A, N> aligned_at(int64_t col) const {
    return at<N, true>(col);
  }

 private:
  template <int N, bool Aligned>
  __device__ Values<A, N> at(int64_t col) const {
    Values<A, N> result;
    if (wide != nullptr) {
      load_into<Aligned>(result, wide + col);
    } else if (!std::is_same_v<T, A> && narrow != nullptr) {
      load_into<Aligned>(result, narrow + col);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        result[k] = otherwise;
      }
    }
    return result;
  }

  template <bool Aligned, class U, int N>
  __device__ static void load_into(Values<A, N>& result, const U* address) {
    constexpr int kStep = N < kVector<U> ? N : kVector<U>;
#pragma unroll
    for (int first = 0; first < N; first += kStep) {
      const auto part = Aligned ? load<kStep>(address + first) : load_unaligned<kStep>(address + first);
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        result[first + k] = part[k];
      }
    }
  }
};

}  // namespace extension_cpp::cuda
