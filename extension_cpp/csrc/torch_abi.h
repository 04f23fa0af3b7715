// The only file that knows which ABI the sources are compiled against.
//
// stable (EXTENSION_CPP_STABLE_ABI=1, the default): torch's C shims, so that one build serves every torch from
// TORCH_TARGET_VERSION on. aten (=0): ATen itself, for an operator that needs a call which the stable ABI lacks; it
// also checks every C++ signature against its schema, which the stable ABI does not.
//
// Operators use the names below and the methods that both tensor classes share (sizes, numel, scalar_type,
// const_data_ptr, ...). A wrapper that is a function never takes the name of an ATen function: argument-dependent
// lookup would find both.
#pragma once

#include "few.h"
#include "float8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#if EXTENSION_CPP_STABLE_ABI

#include <torch/csrc/stable/macros.h>  // STD_CUDA_KERNEL_LAUNCH_CHECK; in 2.11 no other header includes it
#include <torch/headeronly/util/shim_utils.h>

#include <stdexcept>

// Weak: null where torch is older than 2.13, which has it. Before, the reason was printed to stderr and lost.
extern "C" __attribute__((weak)) AOTI_TORCH_EXPORT const char* torch_exception_get_what_without_backtrace();

namespace extension_cpp {

// Where a call into PyTorch fails: PyTorch's own words for it. The type does not cross the C shims, so that out of
// memory on CUDA is a RuntimeError here, not a torch.OutOfMemoryError (as in the aten build). The autograd kernels of
// registration/ give it its type back by the text.
[[noreturn]] inline void throw_torch_error() {
  if (torch_exception_get_what_without_backtrace != nullptr) {
    throw std::runtime_error(torch_exception_get_what_without_backtrace());
  }
#ifdef __CUDACC__
  const std::string memory = "CUDA out of memory. ";
#else
  const std::string memory = "out of memory. ";
#endif
  throw std::runtime_error(
      memory +
      "(Or another failure of a call into PyTorch, which before torch 2.13 gives its reason on stderr alone.)");
}

}  // namespace extension_cpp

// For torch's headers too, which name the call, a header and its line instead.
#undef TORCH_ERROR_CODE_CHECK
#define TORCH_ERROR_CODE_CHECK(call)    \
  if ((call) != TORCH_SUCCESS) {        \
    extension_cpp::throw_torch_error(); \
  }
#undef STABLE_TORCH_ERROR_CODE_CHECK
#define STABLE_TORCH_ERROR_CODE_CHECK(call) TORCH_ERROR_CODE_CHECK(call)

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#define TORCH_LIBRARY(ns, m) STABLE_TORCH_LIBRARY(ns, m)
#define TORCH_LIBRARY_FRAGMENT(ns, m) STABLE_TORCH_LIBRARY_FRAGMENT(ns, m)
#define TORCH_LIBRARY_IMPL(ns, key, m) STABLE_TORCH_LIBRARY_IMPL(ns, key, m)
#define TORCH_LIBRARY_FRAGMENT(ns, m) STABLE_TORCH_LIBRARY_FRAGMENT(ns, m)

namespace extension_cpp {

using torch::headeronly::BFloat16;
using torch::headeronly::DeviceType;
using torch::headeronly::Half;
using torch::headeronly::Layout;
using torch::headeronly::MemoryFormat;
using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::get_num_threads;
using torch::stable::parallel_for;
using torch::stable::Tensor;
using Library = torch::stable::detail::StableLibrary;
using IntArrayRef = torch::headeronly::IntHeaderOnlyArrayRef;
using FloatArrayRef = torch::headeronly::HeaderOnlyArrayRef<double>;
using OptionalIntArrayRef = std::optional<IntArrayRef>;
using TensorList = torch::headeronly::HeaderOnlyArrayRef<Tensor>;

// For arguments of type str, optional ones too: headers before torch 2.14 leak each std::string that they hand over.
struct String : std::string {
  using std::string::string;
};

inline Tensor call_contiguous(const Tensor& tensor) { return torch::stable::contiguous(tensor); }

// scalar_type() throws where the shims have no name for the dtype (bits8, uint4), by way of a stream, which crashes
// where the library has a C++ runtime of its own. Torch's number for it, which is that of ScalarType, names it in a
// message.
inline ScalarType dtype_of(const Tensor& tensor) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return static_cast<ScalarType>(dtype);
}

// What empty_with_strides() leaves uninitialised on the CPU, in every byte, is 0xff: NaN as a floating number, -1 as an
// integer. In deterministic mode PyTorch's own allocation has NaN there, but not by the shim below, and no shim tells
// of that mode; on CUDA both are one. Of this library alone; extension_cpp/_loader.py switches it.
__attribute__((visibility("hidden"))) inline bool new_tensors_are_filled = false;

inline void fill_uninitialized(AtenTensorHandle tensor) {
  void* data = nullptr;
  int64_t bytes = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &data));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor, &bytes));
  if (bytes > 0) {
    std::memset(data, 0xff, static_cast<size_t>(bytes));
  }
}

// Uninitialised, with the device of `like` and, unless another is given, its dtype.
inline Tensor empty_with_strides(
    const Tensor& like, IntArrayRef sizes, IntArrayRef strides, std::optional<ScalarType> other_dtype = std::nullopt) {
  int32_t dtype = 0;
  int32_t device_type = 0;
  AtenTensorHandle result = nullptr;
  if (other_dtype.has_value()) {
    dtype = torch::stable::detail::to<int32_t>(torch::stable::detail::from(*other_dtype));
  } else {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  }
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype, device_type, like.get_device_index(),
      &result));
  Tensor tensor(result);
  if (new_tensors_are_filled && device_type == static_cast<int32_t>(DeviceType::CPU)) {
    fill_uninitialized(result);
  }
  return tensor;
}

// The same, contiguous. (torch::stable::new_empty looks its operator up by name and packs the arguments: 1 us more, and
// 20 on a CPU whose caches a large tensor has just passed through. Beside that one a function would be ambiguous, by
// argument-dependent lookup, which an object turns off.)
struct NewEmpty {
  Tensor operator()(const Tensor& like, IntArrayRef sizes, std::optional<ScalarType> other_dtype = std::nullopt) const {
    detail::Few<int64_t, 8> strides(sizes.size());
    for (size_t d = sizes.size(); d-- > 0;) {
      const bool last = d + 1 == sizes.size();
      strides.data()[d] = last ? 1 : strides.data()[d + 1] * std::max<int64_t>(sizes[d + 1], 1);
    }
    return empty_with_strides(like, sizes, {strides.data(), strides.size()}, other_dtype);
  }
};
inline constexpr NewEmpty new_empty;

// Broadcasts.
inline void copy_into(Tensor& destination, const Tensor& source) { torch::stable::copy_(destination, source); }

// A tensor in the memory of another, `offset` elements behind its first one. Autograd is not told.
inline Tensor view_of(const Tensor& tensor, IntArrayRef sizes, IntArrayRef strides, int64_t offset) {
  AtenTensorHandle result = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(
      tensor.get(), static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), offset, &result));
  return Tensor(result);
}

}  // namespace extension_cpp

template <>
struct torch::stable::detail::ToImpl<extension_cpp::String> {
  static extension_cpp::String call(StableIValue value, uint64_t /*extension_build_version*/, bool /*is_internal*/) {
    const auto handle = to<StringHandle>(value);
    size_t length = 0;
    const char* data = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    const extension_cpp::String result(data, length);
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    return result;
  }
};

#else  // aten

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/new_empty.h>
#include <torch/library.h>

#define TORCH_BOX(f) TORCH_FN(*(f))

namespace extension_cpp {

using at::BFloat16;
using at::Device;
using at::DeviceType;
using at::get_num_threads;
using at::Half;
using at::IntArrayRef;
using at::Layout;
using at::MemoryFormat;
using at::OptionalIntArrayRef;
using at::parallel_for;
using at::ScalarType;
using at::Tensor;
using at::TensorList;
using FloatArrayRef = at::ArrayRef<double>;
using Library = torch::Library;
using String = std::string;

inline Tensor new_empty(const Tensor& like, IntArrayRef sizes, std::optional<ScalarType> dtype = std::nullopt) {
  return like.new_empty(sizes, like.options().dtype(dtype.value_or(like.scalar_type())));
}

inline Tensor call_contiguous(const Tensor& tensor) { return tensor.contiguous(); }

inline ScalarType dtype_of(const Tensor& tensor) { return tensor.scalar_type(); }

inline Tensor empty_with_strides(
    const Tensor& like, IntArrayRef sizes, IntArrayRef strides, std::optional<ScalarType> dtype = std::nullopt) {
  return at::empty_strided(sizes, strides, like.options().dtype(dtype.value_or(like.scalar_type())));
}

inline void copy_into(Tensor& destination, const Tensor& source) { destination.copy_(source); }

inline Tensor view_of(const Tensor& tensor, IntArrayRef sizes, IntArrayRef strides, int64_t offset) {
  return tensor.as_strided(sizes, strides, tensor.storage_offset() + offset);
}

}  // namespace extension_cpp

#endif

// The pointers to a tensor's elements, of our own types in the place of torch's.
#if EXTENSION_CPP_STABLE_ABI
#define OF_TENSORS torch::stable::Tensor
#else
#define OF_TENSORS at::TensorBase
#endif
#define DATA_POINTERS(type)                                                           \
  template <>                                                                         \
  inline extension_cpp::type* OF_TENSORS::mutable_data_ptr() const {                  \
    return reinterpret_cast<extension_cpp::type*>(mutable_data_ptr<c10::type>());     \
  }                                                                                   \
  template <>                                                                         \
  inline const extension_cpp::type* OF_TENSORS::const_data_ptr() const {              \
    return reinterpret_cast<const extension_cpp::type*>(const_data_ptr<c10::type>()); \
  }
DATA_POINTERS(Float8_e4m3fn)
DATA_POINTERS(Float8_e5m2)
#undef DATA_POINTERS
#undef OF_TENSORS

// A source that is compiled for both backends says its schemas twice, and PyTorch takes each once: those of the CPU
// library, which is always loaded. Here they are a function that nobody calls.
#ifdef __CUDACC__
#undef TORCH_LIBRARY_FRAGMENT
#define TORCH_LIBRARY_FRAGMENT(ns, m) \
  [[maybe_unused]] static void C10_CONCATENATE(unused_schemas_of_##ns##_, C10_UID)(extension_cpp::Library & m)
#endif

namespace extension_cpp {

// A call through the stable ABI costs 0.6 us even where there is nothing to copy.
inline Tensor as_contiguous(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : call_contiguous(tensor); }

}  // namespace extension_cpp

#ifdef __CUDACC__

#include <cuda_runtime.h>

#if EXTENSION_CPP_STABLE_ABI

#define CUDA_LAUNCH_CHECK() STD_CUDA_KERNEL_LAUNCH_CHECK()
#define CUDA_CHECK(call) STD_CUDA_CHECK(call)

namespace extension_cpp {

struct DeviceGuard : torch::stable::accelerator::DeviceGuard {
  explicit DeviceGuard(const Tensor& tensor) : torch::stable::accelerator::DeviceGuard(tensor.get_device_index()) {}
};

// Stream::nativeHandle would be the public way, but it asks for torch 2.13.
inline cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

}  // namespace extension_cpp

#else  // aten

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#define CUDA_LAUNCH_CHECK() C10_CUDA_KERNEL_LAUNCH_CHECK()
#define CUDA_CHECK(call) C10_CUDA_CHECK(call)

namespace extension_cpp {

struct DeviceGuard : c10::cuda::CUDAGuard {
  explicit DeviceGuard(const Tensor& tensor) : c10::cuda::CUDAGuard(tensor.device()) {}
};

inline cudaStream_t current_stream(const Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.get_device()).stream();
}

}  // namespace extension_cpp

#endif

#endif  // __CUDACC__
