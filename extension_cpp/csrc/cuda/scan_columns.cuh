// Scans with many channels inside: a thread for each word of channels, which goes through time while later steps are on
// their way. Few channels, and those that are not whole accesses: scan_column_tiles.cuh.
#pragma once

#include "launch.cuh"
#include "queue.cuh"
#include "scan_column_tiles.cuh"
#include "scan_path.cuh"
#include "scan_piece.cuh"
#include "vector.cuh"

namespace extension_cpp::cuda {

namespace detail {

// Neighbouring channels of a thread.
template <class T>
constexpr int kScanChannels = sizeof(T) == 2 ? 2 : 1;

constexpr int kScanColumnsBlock = 64;

// What a thread has on its way, in bytes: of 32768 words of channels a multiprocessor has 250.
constexpr int kScanBytes = 768;

// Steps on their way to the threads of a block, in shared memory. (In registers every wait for a word would be one for
// all words, of which there are more than the six things that a warp can tell apart when it waits.)
template <class T, size_t Arrays>
struct ScanRing {
  using Word = Chunk<T, kScanChannels<T>>;
  static constexpr int kSteps = kScanBytes / static_cast<int>(Arrays * sizeof(Word));
  static constexpr int kBatch = kSteps >= 32 ? 8 : 4;  // that are sent for together
  static constexpr int kBatches = kSteps / kBatch;

  Word words[kBatches][kBatch][Arrays][kScanColumnsBlock];
};

// Sends for steps: each thread for its own words or, in accesses of several, for those of as many threads of its warp,
// which then sends for as many steps at once.
template <class T, class F, size_t K, size_t R, class Access>
class ScanSender {
  static constexpr bool kLagged = kLaggedOf<F>;
  using Ring = ScanRing<T, kArraysOf<F, K>>;
  static constexpr int kThreadsOfAccess = sizeof(Access) / sizeof(typename Ring::Word);
  static constexpr int kAccessesOfStep = kWarp / kThreadsOfAccess;

 public:
  __device__ ScanSender(
      const ScanArrays<T, K, R>& arrays, const ScanExtent& extent, const ScanPath<F>& path_of_thread, Ring& ring)
      : arrays_(arrays),
        extent_(extent),
        ring_(ring),
        step_(static_cast<int>(threadIdx.x) % kWarp / kAccessesOfStep),
        thread_(
            static_cast<int>(threadIdx.x) / kWarp * kWarp +
            static_cast<int>(threadIdx.x) % kAccessesOfStep * kThreadsOfAccess),
        path_(
            extent, path_of_thread.channel + (thread_ - static_cast<int64_t>(threadIdx.x)) * kScanChannels<T>,
            path_of_thread.first, path_of_thread.count) {}

  // For a batch, from a step on.
  __device__ void operator()(int batch, int64_t first) const {
#pragma unroll
    for (int k = 0; k < Ring::kBatch; k += kThreadsOfAccess) {
      const int64_t step = first + k + step_;
      if (step < path_.count) {
        const int64_t offset = path_.offset + step * path_.stride;
        auto& words = ring_.words[batch][k + step_];
#pragma unroll
        for (size_t input = 0; input < K; ++input) {
          send(words[input], arrays_.inputs[input] + offset);
        }
        if constexpr (kLagged) {
          send_lagged(words[K], step, offset);
        }
      }
    }
    __pipeline_commit();
  }

 private:
  __device__ void send(typename Ring::Word* words, const T* from) const {
    copy_async<Access>(shared_address(words + thread_), from);
  }

  __device__ void send_lagged(typename Ring::Word* words, int64_t step, int64_t offset) const {
    if ((kReverseOf<F> ? extent_.steps - 1 - step : step) > 0) {
      send(words, arrays_.lagged + (offset - extent_.inner));
    } else if (arrays_.before_lagged != nullptr) {
      send(words, arrays_.before_lagged + path_.channel);
    } else {
      *reinterpret_cast<Access*>(words + thread_) = Access{};
    }
  }

  const ScanArrays<T, K, R>& arrays_;
  const ScanExtent& extent_;
  Ring& ring_;
  int step_;    // of those that are sent for at once
  int thread_;  // the first for which it is
  ScanPath<F> path_;
};

// visit(offset, elements of the channels) for each step.
template <class Access, class T, class F, size_t K, size_t R, class Visit>
__device__ void walk(
    const ScanArrays<T, K, R>& arrays, const ScanExtent& extent, const ScanPath<F>& path, const Visit& visit) {
  using A = acc_t<T>;
  constexpr int C = kScanChannels<T>;
  constexpr size_t kArrays = kArraysOf<F, K>;
  using Ring = ScanRing<T, kArrays>;
  constexpr bool kForOthers = sizeof(Access) > sizeof(typename Ring::Word);
  constexpr int kBatch = Ring::kBatch;
  constexpr int kBatches = Ring::kBatches;
  __shared__ alignas(kAccessBytes) Ring ring;
  const ScanSender<T, F, K, R, Access> send(arrays, extent, path, ring);
#pragma unroll 1
  for (int batch = 0; batch < kBatches - 1; ++batch) {
    send(batch, batch * kBatch);
  }
  int64_t offset = path.offset;
  const auto take = [&](const typename Ring::Word(&words)[kArrays][kScanColumnsBlock]) {
    ScanElements<A, K> elements[C];
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      set_elements(elements, k, to_values(words[k][threadIdx.x]));
    }
    visit(offset, elements);
    offset += path.stride;
  };
  int batch = 0;
  for (int64_t first = 0; first < path.count; first += kBatch) {
    if constexpr (kForOthers) {
      __syncwarp();  // all have taken what was where the next batch comes
    }
    send(batch == 0 ? kBatches - 1 : batch - 1, first + (kBatches - 1) * kBatch);
    __pipeline_wait_prior(kBatches - 1);
    if constexpr (kForOthers) {
      __syncwarp();  // what others sent for has come, too
    }
    if (path.count - first >= kBatch) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        take(ring.words[batch][k]);
      }
    } else {
#pragma unroll 1
      for (int k = 0; k < path.count - first; ++k) {
        take(ring.words[batch][k]);
      }
    }
    batch = batch == kBatches - 1 ? 0 : batch + 1;
  }
}

template <class T, class F, size_t K, size_t R, class Access>
__global__ void __launch_bounds__(kScanColumnsBlock)
    scan_columns_kernel(F f, ScanArrays<T, K, R> arrays, ScanExtent extent) {
  wait_for_previous();
  using A = acc_t<T>;
  constexpr int C = kScanChannels<T>;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * C;
  if (channel >= extent.outer * extent.inner) {
    return;
  }
  A states[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    states[c] = arrays.initial == nullptr ? A(0) : static_cast<A>(arrays.initial[channel + c]);
  }
  const ScanPath<F> path(extent, channel, 0, extent.steps);
  walk<Access>(arrays, extent, path, [&](int64_t offset, const ScanElements<A, K>(&elements)[C]) {
    Values<A, C> outputs[R];
    take_step(f, states, elements, outputs);
#pragma unroll
    for (size_t r = 0; r < R; ++r) {
      store(arrays.outputs[r] + offset, outputs[r]);
    }
  });
  if (arrays.last != nullptr) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      arrays.last[channel + c] = static_cast<T>(states[c]);
    }
  }
}

template <class T, class F, size_t K, size_t R, class Access>
void launch_scan_columns(const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  const int64_t threads = extent.outer * extent.inner / kScanChannels<T>;
  const int64_t blocks = ceil_div(threads, int64_t{kScanColumnsBlock});
  launch_overlapped(
      scan_columns_kernel<T, F, K, R, Access>, static_cast<unsigned>(blocks), kScanColumnsBlock, 0,
      current_stream(like), f, arrays, extent);
}

// Returns false where tiles are faster: of steps that threads have all at once (scan_column_tiles.cuh), of channels too
// few for what each thread has on its way to suffice, and where a step of a block shares lines of the cache with
// others, which are not gone through at the same time. (Of half types that do not share sectors, and of others that are
// pairs, tiles are slower nonetheless. Single ones cannot be sent for without waiting.)
template <class T, class F, size_t K, size_t R>
bool launch_scan_columns(const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  constexpr int64_t kEnough = 48;  // threads on a multiprocessor
  constexpr int64_t kWholeBytes = sizeof(T) == 2 ? 32 : 128;
  const int64_t channels = extent.outer * extent.inner;
  if (extent.steps <= kColumnTileSteps<T, kArraysOf<F, K>> ||
      channels / kScanChannels<T> < kEnough * multiprocessors()) {
    return false;
  }
  const bool whole_warps = channels % (int64_t{kWarp} * kScanChannels<T>) == 0;
  if (whole_warps && channels_in_words(arrays, extent.inner, kWholeBytes)) {
    launch_scan_columns<T, F, K, R, uint4>(like, f, extent, arrays);
    return true;
  }
  if constexpr (sizeof(T) == 2) {
    if (channels_in_words(arrays, extent.inner, sizeof(unsigned))) {
      launch_scan_columns<T, F, K, R, unsigned>(like, f, extent, arrays);
      return true;
    }
  }
  return false;
}

}  // namespace detail

}  // namespace extension_cpp::cuda
