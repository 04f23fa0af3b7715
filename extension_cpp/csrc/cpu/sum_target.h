// Where the CPU leaves sums over columns.
#pragma once

#include "cpu/clones.h"
#include "cpu/convert.h"
#include "sum_output.h"

#include <algorithm>
#include <array>
#include <type_traits>

namespace extension_cpp::cpu::detail {

// An output of sums whatever its dtype: what adds up is compiled once for all.
template <class A>
class SumTarget {
 public:
  template <class T>
  explicit SumTarget(const SumOutput<T>& output) : SumTarget(output.wide()) {
    if (wide_ == nullptr && output.narrow() != nullptr) {
      *this = SumTarget(output.narrow());
    }
  }

  template <class T>
  explicit SumTarget(T* data) {
    if constexpr (std::is_same_v<T, A>) {
      wide_ = data;
    } else {
      narrow_ = data;
      store_narrow_ = [](void* to, int64_t i, const A* sums, int64_t count) {
        cpu::narrow(sums, static_cast<T*>(to) + i, count);
      };
    }
  }

  bool wanted() const { return wide_ != nullptr || narrow_ != nullptr; }

  // sums[j] at place i + j.
  void store(int64_t i, const A* sums, int64_t count) const {
    if (wide_ != nullptr) {
      std::copy_n(sums, count, wide_ + i);
    } else if (narrow_ != nullptr) {
      store_narrow_(narrow_, i, sums, count);
    }
  }

 private:
  A* wide_ = nullptr;
  void* narrow_ = nullptr;
  void (*store_narrow_)(void* to, int64_t i, const A* sums, int64_t count) = nullptr;
};

template <class A, class Out, size_t K>
std::array<SumTarget<A>, K> sum_targets(const std::array<Out, K>& outputs) {
  return std::apply([](const auto&... output) { return std::array{SumTarget<A>(output)...}; }, outputs);
}

}  // namespace extension_cpp::cpu::detail
