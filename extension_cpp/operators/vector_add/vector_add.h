// What valid inputs of vector_add are, for both backends; ops.py says the same to fake tensors.
#pragma once

#include "checks.h"

namespace extension_cpp {

// Returns the shape of the output.
inline std::vector<int64_t> check_vector_add(const Tensor& a, const Tensor& b) {
  check_floating("vector_add", "a", a);
  check_same_dtype("vector_add", "b", b, "a", a);
  check_same_device("vector_add", "b", b, "a", a);
  return check_broadcast("vector_add", "b", b, "a", a.sizes());
}

}  // namespace extension_cpp
