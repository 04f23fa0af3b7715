// What valid inputs of myadd_out are, and what it computes, for both backends; ops.py says the former to fake tensors.
#pragma once

#include "checks.h"
#include "layout.h"

namespace extension_cpp {

template <class A>
struct MyAddOut {
  HOST_DEVICE A operator()(A a, A b) const { return a + b; }
};

// Fake tensors have no memory: what overlaps what is known here alone.
inline void check_same_or_apart(const char* op, const char* name, const Tensor& tensor, const Tensor& out) {
  const bool same = tensor.const_data_ptr() == out.const_data_ptr() && same_layout(tensor, out);
  check(
      same || !share_memory(
                  tensor.const_data_ptr(), geometry(tensor), out.const_data_ptr(), geometry(out),
                  static_cast<int64_t>(out.element_size())),
      op, ": out must be ", name, " itself or share no memory with it, but overlaps it in part");
}

inline void check_myadd_out(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_floating("myadd_out", "a", a);
  check_same_dtype("myadd_out", "b", b, "a", a);
  check_same_device("myadd_out", "b", b, "a", a);
  check_shape("myadd_out", "b", b, a.sizes());
  check_same_dtype("myadd_out", "out", out, "a", a);
  check_same_device("myadd_out", "out", out, "a", a);
  check_shape("myadd_out", "out", out, a.sizes());
  check_non_overlapping("myadd_out", "out", out);
  check_same_or_apart("myadd_out", "a", a, out);
  check_same_or_apart("myadd_out", "b", b, out);
}

}  // namespace extension_cpp
