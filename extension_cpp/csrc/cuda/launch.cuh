// Grids and launches.
#pragma once

#include "torch_abi.h"

#include <algorithm>
#include <atomic>

namespace extension_cpp::cuda {

constexpr int kWarp = 32;
constexpr int kBlock = 256;
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxGridY = 65535;

// Threads that a multiprocessor of the architecture runs at once, for launch bounds.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kMostThreads = 1024;
#elif defined(__CUDA_ARCH__) && ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1200)
constexpr int kMostThreads = 1536;
#else
constexpr int kMostThreads = 2048;
#endif

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A kernel that is launched by launch_overlapped() may begin before the one before it on the stream has ended: it calls
// this before it reads or writes anything. One that lets the next begin so early calls may_begin_next(). In other
// kernels both do nothing.
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

__device__ inline void may_begin_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// What is asked once for each device: a number that is not negative.
class OncePerDevice {
 public:
  // ask() for the current device, or what it answered before.
  template <class Ask>
  int answer(const Ask& ask) {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    if (device >= kDevices) {
      return ask();
    }
    int known = known_[device];
    if (known == 0) {
      known = ask() + 1;
      known_[device] = known;
    }
    return known - 1;
  }

 private:
  static constexpr int kDevices = 64;

  std::atomic<int> known_[kDevices] = {};  // one more than the answer; 0: not asked yet
};

// Whether kernels of this library were compiled for what launch_overlapped() asks of the current device: they may have
// been compiled for less than it is. All of them are, or none, so that one is asked, once for each device.
inline bool may_overlap(const void* kernel) {
  static OncePerDevice known;
  return known.answer([&] {
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    return attributes.ptxVersion >= 90 ? 1 : 0;
  }) > 0;
}

// That so many blocks along x are a cluster.
inline cudaLaunchAttribute cluster_attribute(int blocks) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

// kernel<<<grid, block, shared, stream>>>(arguments...), of a kernel that calls wait_for_previous(): its launch
// overlaps with the kernel before (programmatic dependent launch), on devices of compute capability 9.0 and up. There
// so many blocks along x may be a cluster.
template <class... Parameters, class... Arguments>
void launch_clusters(
    void (*kernel)(Parameters...), int cluster, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
    const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1] = cluster_attribute(cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !may_overlap(reinterpret_cast<const void*>(kernel)) ? 0 : cluster == 1 ? 1 : 2;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

// The same without clusters.
template <class... Parameters, class... Arguments>
void launch_overlapped(
    void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
    const Arguments&... arguments) {
  launch_clusters(kernel, 1, grid, block, shared, stream, arguments...);
}

// Of the current device. The runtime answers from a cache of its own.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// Whether so many bytes, read or written one after the other, are likely to have left the L2 cache of the current
// device when the first of them is read again: from a quarter of it on, for blocks do not run in step, and halves of
// the cache may hold the same. (No GPU has less than `kLeast` of it.)
inline bool leave_the_cache(int64_t bytes) {
  constexpr int64_t kLeast = int64_t{1} << 20;
  return 4 * bytes >= kLeast && 4 * bytes >= device_attribute(cudaDevAttrL2CacheSize);
}

inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

// How many blocks the device runs at once.
template <class... Parameters>
int64_t resident_blocks(void (*kernel)(Parameters...), int block, size_t shared) {
  int each = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, block, shared));
  return int64_t{each} * multiprocessors();
}

// How many clusters of so many blocks the device runs at once; 0 where it has none.
template <class... Parameters>
int64_t resident_clusters(void (*kernel)(Parameters...), int cluster, dim3 block, size_t shared) {
  if (!may_overlap(reinterpret_cast<const void*>(kernel))) {
    return 0;
  }
  cudaLaunchAttribute attribute = cluster_attribute(cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(cluster);
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

// Blocks of a kernel that loops over its work by the size of the grid: no more than there is work.
inline unsigned blocks_for(int64_t work, int per_multiprocessor) {
  return static_cast<unsigned>(std::min(work, int64_t{per_multiprocessor} * multiprocessors()));
}

}  // namespace extension_cpp::cuda
