// A step of one channel on the CPU.
#pragma once

#include "cpu/clones.h"
#include "scan_arrays.h"

#include <utility>

namespace extension_cpp::cpu::detail {

using extension_cpp::detail::scan_next;
using extension_cpp::detail::scan_results;
using extension_cpp::detail::ScanElements;

// Takes it, and returns what is to be written.
template <class F, class A, size_t K>
CPU_INLINE auto scan_step(const F& f, A& state, const ScanElements<A, K>& elements) {
  constexpr std::make_index_sequence<K> kInputs;
  const A before = state;
  state = scan_next(f, before, elements, kInputs);
  return scan_results(f, before, state, elements, kInputs);
}

}  // namespace extension_cpp::cpu::detail
