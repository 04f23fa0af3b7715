// Parameters of a row kernel, one value for each column.
#pragma once

#include "vector.cuh"

#include <optional>

namespace extension_cpp::cuda {

// An optional parameter with one value per column, which may be wider than the inputs.
template <class T>
struct Parameter {
  using A = acc_t<T>;

  const T* narrow = nullptr;
  const A* wide = nullptr;
  A otherwise;

  // `parameter` is contiguous.
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

  template <int N>
  __device__ Values<A, N> at(int64_t col) const {
    Values<A, N> result;
    if (wide != nullptr) {
      load_into(result, wide + col);
    } else if (narrow != nullptr) {
      load_into(result, narrow + col);
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
  __device__ static void load_into(Values<A, N>& result, const U* address) {
    constexpr int kStep = N < kVector<U> ? N : kVector<U>;
    if (reinterpret_cast<uintptr_t>(address) % (kStep * sizeof(U)) == 0) {
#pragma unroll
      for (int first = 0; first < N; first += kStep) {
        const auto part = load<kStep>(address + first);
#pragma unroll
        for (int k = 0; k < kStep; ++k) {
          result[first + k] = part[k];
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        result[k] = load<1>(address + k)[0];
      }
    }
  }
};

}  // namespace extension_cpp::cuda
