// Argument checks. extension_cpp/checks.py holds the same functions for the fake kernels: same order, same words.
//
// A failed check throws std::runtime_error, which reaches Python as a RuntimeError with exactly this text.
// (STD_TORCH_CHECK would add the C++ function and the build path.) Never check inside parallel_for: the message would
// be replaced.
#pragma once

#include "indexing.h"
#include "torch_abi.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <type_traits>

namespace extension_cpp {

inline std::string python_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return "torch.uint8";
    case ScalarType::Char: return "torch.int8";
    case ScalarType::Short: return "torch.int16";
    case ScalarType::Int: return "torch.int32";
    case ScalarType::Long: return "torch.int64";
    case ScalarType::Half: return "torch.float16";
    case ScalarType::Float: return "torch.float32";
    case ScalarType::Double: return "torch.float64";
    case ScalarType::ComplexHalf: return "torch.complex32";
    case ScalarType::ComplexFloat: return "torch.complex64";
    case ScalarType::ComplexDouble: return "torch.complex128";
    default: break;
  }
  std::string name = "torch.";
  for (const char* c = toString(dtype); *c != '\0'; ++c) {
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  return name;
}

inline std::string python_name(const Device& device) {
  switch (device.type()) {
    case DeviceType::CPU: return "cpu";
    case DeviceType::CUDA:
      return device.index() < 0 ? "cuda" : "cuda:" + std::to_string(static_cast<int>(device.index()));
    case DeviceType::Meta: return "meta";
    default: return "another device";
  }
}

inline std::string python_name(IntArrayRef sizes) {
  std::string name = "(";
  for (size_t i = 0; i < sizes.size(); ++i) {
    name += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  }
  return name + (sizes.size() == 1 ? ",)" : ")");
}

// As "%g" in Python, which shows no sign of NaN.
inline std::string python_name(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  char name[32];
  std::snprintf(name, sizeof(name), "%g", value);
  return name;
}

namespace detail {

// Strings, not streams: a library that was linked with a C++ runtime of its own (-static-libstdc++) shares no locale
// with torch's, and crashes where a stream formats a number.
template <class Part>
void append(std::string& message, const Part& part) {
  if constexpr (std::is_integral_v<Part>) {
    message += std::to_string(part);
  } else if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    message += part;
  } else {
    message += python_name(part);
  }
}

}  // namespace detail

// Parts that Python spells in its own way (dtypes, devices, shapes, floats) are turned into text only if the check
// fails.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) {
    std::string message;
    (detail::append(message, parts), ...);
    throw std::runtime_error(message);
  }
}

inline bool equal_sizes(IntArrayRef a, IntArrayRef b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

// None, where the schema says Tensor, comes as a tensor that has not even a dtype. The checks of dtypes ask first.
inline void check_defined(const char* op, const char* name, const Tensor& tensor) {
  check(tensor.defined(), op, ": ", name, " must be a tensor, got None");
}

inline void check_floating(const char* op, const char* name, const Tensor& tensor) {
  check_defined(op, name, tensor);
  const ScalarType dtype = dtype_of(tensor);
  check(
      dtype == ScalarType::Double || dtype == ScalarType::Float || dtype == ScalarType::Half ||
          dtype == ScalarType::BFloat16,
      op, ": ", name, " must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got ", dtype);
}

inline void check_same_dtype(
    const char* op, const char* name, const Tensor& tensor, const char* like_name, const Tensor& like) {
  check_defined(op, name, tensor);
  check(
      dtype_of(tensor) == dtype_of(like), op, ": ", name, " must have the dtype of ", like_name, ", ", dtype_of(like),
      ", got ", dtype_of(tensor));
}

inline void check_same_device(
    const char* op, const char* name, const Tensor& tensor, const char* like_name, const Tensor& like) {
  check(
      tensor.device() == like.device(), op, ": ", name, " must be on the device of ", like_name, ", ", like.device(),
      ", got ", tensor.device());
}

inline void check_min_dim(const char* op, const char* name, const Tensor& tensor, int64_t min_dim) {
  check(
      tensor.dim() >= min_dim, op, ": ", name, " must have at least ", min_dim, " dimension", min_dim == 1 ? "" : "s",
      ", got shape ", tensor.sizes());
}

inline void check_shape(const char* op, const char* name, const Tensor& tensor, IntArrayRef expected) {
  check(equal_sizes(tensor.sizes(), expected), op, ": ", name, " must have shape ", expected, ", got ", tensor.sizes());
}

// The shape to which `tensor` and a tensor of shape `like` broadcast; `like_name` says whose shape that is.
inline std::vector<int64_t> check_broadcast(
    const char* op, const char* name, const Tensor& tensor, const char* like_name, IntArrayRef like) {
  const IntArrayRef own = tensor.sizes();
  const size_t dim = std::max(own.size(), like.size());
  std::vector<int64_t> result(dim);
  for (size_t d = 1; d <= dim; ++d) {  // from the last dimension
    const int64_t a = d <= like.size() ? like[like.size() - d] : 1;
    const int64_t b = d <= own.size() ? own[own.size() - d] : 1;
    check(
        a == b || a == 1 || b == 1, op, ": ", name, " must broadcast with ", like_name, " of shape ", like, ", got ",
        own);
    result[dim - d] = a == 1 ? b : a;
  }
  return result;
}

inline void check_non_overlapping(const char* op, const char* name, const Tensor& tensor) {
  check(
      is_non_overlapping({tensor.dim(), tensor.sizes().data(), tensor.strides().data()}), op, ": ", name,
      " must not overlap itself, got shape ", tensor.sizes(), " and strides ", tensor.strides());
}

// The parameters of a norm: half inputs are also taken with parameters in float32.
inline void check_parameter_dtype(
    const char* op, const char* name, const Tensor& tensor, const char* like_name, const Tensor& like) {
  check_defined(op, name, tensor);
  const ScalarType dtype = dtype_of(like);
  const bool half = dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
  check(
      dtype_of(tensor) == dtype || (half && dtype_of(tensor) == ScalarType::Float), op, ": ", name,
      " must have the dtype of ", like_name, ", ", dtype, half ? ", or torch.float32" : "", ", got ", dtype_of(tensor));
}

inline void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType expected) {
  check_defined(op, name, tensor);
  check(dtype_of(tensor) == expected, op, ": ", name, " must be ", expected, ", got ", dtype_of(tensor));
}

inline void check_not_negative(const char* op, const char* name, double value) {
  check(value >= 0, op, ": ", name, " must not be negative, got ", value);
}

// Dimensions of a tensor with `ndim` of them (0 counts as 1, as in PyTorch); negative ones count from the last.
inline void check_dims(const char* op, const char* name, IntArrayRef dims, int64_t ndim) {
  const int64_t n = std::max<int64_t>(1, ndim);
  for (size_t i = 0; i < dims.size(); ++i) {
    check(dims[i] >= -n && dims[i] < n, op, ": ", name, " must be in [", -n, ", ", n - 1, "], got ", dims[i]);
    for (size_t j = 0; j < i; ++j) {
      check((dims[i] + n) % n != (dims[j] + n) % n, op, ": ", name, " must name a dimension once, got ", dims);
    }
  }
}

}  // namespace extension_cpp
