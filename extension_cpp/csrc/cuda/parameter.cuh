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
  bool aligned = false;

  // `parameter` is contiguous.
  Parameter(const std::optional<Tensor>& parameter, A otherwise, int64_t /*cols*/) : otherwise(otherwise) {
    if (!parameter.has_value()) {
      return;
    }
    if (parameter->element_size() == sizeof(A)) {
      wide = parameter->template const_data_ptr<A>();
      aligned = is_aligned(wide);
    } else {
      narrow = parameter->template const_data_ptr<T>();
      aligned = is_aligned(narrow);
    }
  }

  template <int N>
  __device__ Values<A, N> at(int64_t col) const {
    Values<A, N> result;
    if (wide != nullptr) {
      load_into(result, wide, col);
    } else if (!std::is_same_v<T, A> && narrow != nullptr) {
      load_into(result, narrow, col);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        result[k] = otherwise;
      }
    }
    return result;
  }

 private:
  template <class U, int N>
  __device__ void load_into(Values<A, N>& result, const U* data, int64_t col) const {
    constexpr int kStep = N < kVector<U> ? N : kVector<U>;
    const bool whole = aligned && static_cast<int>(col) % kStep == 0;
#pragma unroll
    for (int first = 0; first < N; first += kStep) {
      const U* const address = data + col + first;
      const auto part = whole ? load<kStep>(address) : load_unaligned<kStep>(address);
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        result[first + k] = part[k];
      }
    }
  }
};

}  // namespace extension_cpp::cuda
