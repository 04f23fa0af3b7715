// Scans with channels inside: a thread for each word of channels, which goes through time while later steps are on
// their way. Of few channels, time is cut into segments: their pieces first, then the states between them, then the
// results.
#pragma once

#include "launch.cuh"
#include "queue.cuh"
#include "scan_piece.cuh"
#include "vector.cuh"

#include <algorithm>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

// How a thread goes through time: it has C neighbouring channels. Wide: the channels of a warp are sent for in accesses
// of 16 bytes, each for several threads.
template <int C, bool Wide>
struct ScanWalk {
  static constexpr int kChannels = C;
  static constexpr bool kWide = Wide;
};

constexpr int kScanColumnsBlock = 64;

// What a thread has on its way, in bytes: of 32768 words of channels a multiprocessor has 250.
constexpr int kScanBytes = 768;

// Which steps a thread goes through, of neighbouring channels.
template <class F>
struct ScanPath {
  int64_t channel;  // the first, of [outer, inner]
  int64_t first;    // in the order of the scan
  int64_t count;
  int64_t stride;  // from step to step
  int64_t offset;  // of the first step, in [outer, steps, inner]

  __device__ ScanPath(const ScanExtent& extent, int64_t first_channel, int64_t first_step, int64_t steps)
      : channel(first_channel),
        first(first_step),
        count(min(steps, extent.steps - first_step)),
        stride(kReverseOf<F> ? -extent.inner : extent.inner) {
    const int64_t outer = channel / extent.inner;
    const int64_t t = kReverseOf<F> ? extent.steps - 1 - first : first;
    offset = (outer * extent.steps + t) * extent.inner + (channel - outer * extent.inner);
  }
};

// Steps on their way to the threads of a block, in shared memory. (In registers every wait for a word would be one for
// all words, of which there are more than the six things that a warp can tell apart when it waits.)
template <class T, size_t Arrays, class Walk>
struct ScanRing {
  using Word = Chunk<T, Walk::kChannels>;
  static constexpr int kSteps = kScanBytes / static_cast<int>(Arrays * std::max(sizeof(Word), sizeof(unsigned)));
  static constexpr int kBatch = kSteps >= 32 ? 8 : 4;  // that are sent for together
  static constexpr int kBatches = kSteps / kBatch;

  Word words[kBatches][kBatch][Arrays][kScanColumnsBlock];
};

// Sends for steps: each thread for its own words or, in a Wide walk, for 16 bytes of a step of its warp, which are the
// words of several threads; the warp then sends for as many steps at once.
template <class T, class F, size_t K, size_t R, class Walk, bool Lagged>
class ScanSender {
  using Ring = ScanRing<T, K + (Lagged ? 1 : 0), Walk>;
  using Word = std::conditional_t<Walk::kWide, uint4, decltype(Ring::Word::word)>;
  static constexpr int kThreadsOfWord = static_cast<int>(sizeof(Word) / sizeof(typename Ring::Word));
  static constexpr int kWordsOfStep = kWarp / kThreadsOfWord;

 public:
  __device__ ScanSender(
      const ScanArrays<T, K, R>& arrays, const ScanExtent& extent, const ScanPath<F>& path_of_thread, Ring& ring)
      : arrays_(arrays),
        extent_(extent),
        ring_(ring),
        step_(static_cast<int>(threadIdx.x) % kWarp / kWordsOfStep),
        thread_(
            static_cast<int>(threadIdx.x) / kWarp * kWarp +
            static_cast<int>(threadIdx.x) % kWordsOfStep * kThreadsOfWord),
        path_(
            extent, path_of_thread.channel + (thread_ - static_cast<int64_t>(threadIdx.x)) * Walk::kChannels,
            path_of_thread.first, path_of_thread.count) {}

  // For a batch, from a step of the path on.
  __device__ void operator()(int batch, int64_t first) const {
#pragma unroll
    for (int k = 0; k < Ring::kBatch; k += kThreadsOfWord) {
      const int64_t step = first + k + step_;
      if (step < path_.count) {
        const int64_t offset = path_.offset + step * path_.stride;
        auto& words = ring_.words[batch][k + step_];
#pragma unroll
        for (size_t input = 0; input < K; ++input) {
          send(words[input], arrays_.inputs[input] + offset);
        }
        if constexpr (Lagged) {
          send_lagged(words[K], step, offset);
        }
      }
    }
    __pipeline_commit();
  }

 private:
  __device__ void send(typename Ring::Word* words, const T* from) const {
    auto* const to = reinterpret_cast<Word*>(words + thread_);
    if constexpr (sizeof(Word) < sizeof(unsigned)) {
      *to = load_chunk<Walk::kChannels>(from).word;
    } else {
      copy_async<Word>(shared_address(to), from);
    }
  }

  __device__ void send_lagged(typename Ring::Word* words, int64_t step, int64_t offset) const {
    const int64_t in_order = path_.first + step;
    if ((kReverseOf<F> ? extent_.steps - 1 - in_order : in_order) > 0) {
      send(words, arrays_.lagged + (offset - extent_.inner));
    } else if (arrays_.before_lagged != nullptr) {
      send(words, arrays_.before_lagged + path_.channel);
    } else {
      *reinterpret_cast<Word*>(words + thread_) = Word{};
    }
  }

  const ScanArrays<T, K, R>& arrays_;
  const ScanExtent& extent_;
  Ring& ring_;
  int step_;    // of those that are sent for at once
  int thread_;  // the first for which it is
  ScanPath<F> path_;
};

// visit(offset, elements of the channels) for each step of a path.
template <class Walk, bool Lagged, class T, class F, size_t K, size_t R, class Visit>
__device__ void walk(
    const ScanArrays<T, K, R>& arrays, const ScanExtent& extent, const ScanPath<F>& path, const Visit& visit) {
  using A = acc_t<T>;
  constexpr int C = Walk::kChannels;
  constexpr size_t kArrays = K + (Lagged ? 1 : 0);
  using Ring = ScanRing<T, kArrays, Walk>;
  constexpr int kBatch = Ring::kBatch;
  constexpr int kBatches = Ring::kBatches;
  __shared__ alignas(kAccessBytes) Ring ring;
  const ScanSender<T, F, K, R, Walk, Lagged> send(arrays, extent, path, ring);
#pragma unroll 1
  for (int batch = 0; batch < kBatches - 1; ++batch) {
    send(batch, batch * kBatch);
  }
  int64_t offset = path.offset;
  const auto take = [&](const typename Ring::Word(&words)[kArrays][kScanColumnsBlock]) {
    ScanElements<A, K> elements[C];
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      const Values<A, C> values = to_values(words[k][threadIdx.x]);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        (k < K ? elements[c].inputs[k < K ? k : 0] : elements[c].lagged) = values[c];
      }
    }
    visit(offset, elements);
    offset += path.stride;
  };
  int batch = 0;
  for (int64_t first = 0; first < path.count; first += kBatch) {
    if constexpr (Walk::kWide) {
      __syncwarp();  // all have taken what was where the next batch comes
    }
    send(batch == 0 ? kBatches - 1 : batch - 1, first + (kBatches - 1) * kBatch);
    __pipeline_wait_prior(kBatches - 1);
    if constexpr (Walk::kWide) {
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

// Of those that a thread has; -1 where there are none.
template <int C>
__device__ int64_t first_channel(const ScanExtent& extent) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * C;
  return channel < extent.outer * extent.inner ? channel : -1;
}

// blockIdx.y: the segment. `starts`, if it is not null, has the states that segments begin with.
template <class T, class F, size_t K, size_t R, class Walk>
__global__ void __launch_bounds__(kScanColumnsBlock) scan_columns_kernel(
    F f, ScanArrays<T, K, R> arrays, ScanExtent extent, int64_t segment_steps,
    const acc_t<T>* __restrict__ starts /* [segments, outer, inner] */) {
  using A = acc_t<T>;
  constexpr int C = Walk::kChannels;
  constexpr std::make_index_sequence<K> kInputs;
  const int64_t channel = first_channel<C>(extent);
  if (channel < 0) {
    return;
  }
  const ScanPath<F> path(extent, channel, blockIdx.y * segment_steps, segment_steps);
  A states[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    states[c] = starts != nullptr           ? starts[blockIdx.y * (extent.outer * extent.inner) + channel + c]
                : arrays.initial != nullptr ? static_cast<A>(arrays.initial[channel + c])
                                            : A(0);
  }
  walk<Walk, kLaggedOf<F>>(arrays, extent, path, [&](int64_t offset, const ScanElements<A, K>(&elements)[C]) {
    Values<A, C> outputs[R];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const A after = scan_next(f, states[c], elements[c], kInputs);
      const auto results = scan_results(f, states[c], after, elements[c], kInputs);
#pragma unroll
      for (size_t r = 0; r < R; ++r) {
        outputs[r][c] = results[static_cast<int>(r)];
      }
      states[c] = after;
    }
#pragma unroll
    for (size_t r = 0; r < R; ++r) {
      store(arrays.outputs[r] + offset, outputs[r]);
    }
  });
  if (arrays.last != nullptr && path.first + path.count == extent.steps) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      arrays.last[channel + c] = static_cast<T>(states[c]);
    }
  }
}

// The pieces of all segments but the last.
template <class T, class F, size_t K, size_t R, class Walk>
__global__ void __launch_bounds__(kScanColumnsBlock) scan_segments_kernel(
    F f, ScanArrays<T, K, R> arrays, ScanExtent extent, int64_t segment_steps,
    Piece<acc_t<T>>* __restrict__ pieces /* [segments - 1, outer, inner] */) {
  using A = acc_t<T>;
  constexpr int C = Walk::kChannels;
  const int64_t channel = first_channel<C>(extent);
  if (channel < 0) {
    return;
  }
  Piece<A> own[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    own[c] = Piece<A>::none();
  }
  walk<Walk, false>(
      arrays, extent, ScanPath<F>(extent, channel, blockIdx.y * segment_steps, segment_steps),
      [&](int64_t, const ScanElements<A, K>(&elements)[C]) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          own[c].append(f, elements[c]);
        }
      });
#pragma unroll
  for (int c = 0; c < C; ++c) {
    pieces[blockIdx.y * (extent.outer * extent.inner) + channel + c] = own[c];
  }
}

// The states between segments.
template <class T, class F, size_t K, size_t R>
__global__ void __launch_bounds__(kScanColumnsBlock) scan_starts_kernel(
    F f, ScanArrays<T, K, R> arrays, ScanExtent extent, int64_t segments, int64_t segment_steps,
    const Piece<acc_t<T>>* __restrict__ pieces, acc_t<T>* __restrict__ starts) {
  using A = acc_t<T>;
  constexpr std::make_index_sequence<K> kInputs;
  const int64_t channel = first_channel<1>(extent);
  if (channel < 0) {
    return;
  }
  const int64_t channels = extent.outer * extent.inner;
  A state = arrays.initial == nullptr ? A(0) : static_cast<A>(arrays.initial[channel]);
  starts[channel] = state;
#pragma unroll 8
  for (int64_t segment = 0; segment + 1 < segments; ++segment) {
    const Piece<A> piece = pieces[segment * channels + channel];
    if (piece.holds_for(state)) {
      state = piece(state);
    } else {
      const ScanPath<F> path(extent, channel, segment * segment_steps, segment_steps);
      for (int64_t i = 0; i < path.count; ++i) {
        ScanElements<A, K> elements;
#pragma unroll
        for (size_t k = 0; k < K; ++k) {
          elements.inputs[k] = static_cast<A>(arrays.inputs[k][path.offset + i * path.stride]);
        }
        state = scan_next(f, state, elements, kInputs);
      }
    }
    starts[(segment + 1) * channels + channel] = state;
  }
}

// How many segments time is cut into: enough for all multiprocessors where there are few threads, but long ones.
inline int64_t scan_segments(int64_t threads, int64_t steps) {
  constexpr int64_t kEnough = 48;  // on a multiprocessor
  constexpr int64_t kWanted = 512;
  constexpr int64_t kShortest = 64;
  constexpr int64_t kMost = 32768;
  if (threads >= kEnough * multiprocessors()) {
    return 1;
  }
  const int64_t wanted = ceil_div(kWanted * multiprocessors(), std::max<int64_t>(1, threads));
  return std::clamp<int64_t>(steps / kShortest, 1, std::min(wanted, kMost));
}

template <class T, class F, size_t K, size_t R, int C, bool Wide>
void launch_scan_columns(const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  using A = acc_t<T>;
  using Walk = ScanWalk<C, Wide>;
  const int64_t channels = extent.outer * extent.inner;
  const int64_t threads = channels / C;
  const int64_t most_segments = scan_segments(threads, extent.steps);
  const int64_t segment_steps = ceil_div(extent.steps, most_segments);
  const int64_t segments = most_segments == 1 ? 1 : ceil_div(extent.steps, segment_steps);
  const cudaStream_t stream = current_stream(like);
  const auto grid = [](int64_t threads, int64_t segments) {
    return dim3(static_cast<unsigned>(ceil_div(threads, kScanColumnsBlock)), static_cast<unsigned>(segments));
  };
  std::optional<Tensor> pieces;
  std::optional<Tensor> starts;
  A* states = nullptr;
  if (segments > 1) {
    pieces = new_empty(like, {(segments - 1) * channels * 2}, kDtypeOf<A>);
    starts = new_empty(like, {segments * channels}, kDtypeOf<A>);
    auto* const data = reinterpret_cast<Piece<A>*>(pieces->mutable_data_ptr<A>());
    states = starts->mutable_data_ptr<A>();
    scan_segments_kernel<T, F, K, R, Walk>
        <<<grid(threads, segments - 1), kScanColumnsBlock, 0, stream>>>(f, arrays, extent, segment_steps, data);
    CUDA_LAUNCH_CHECK();
    scan_starts_kernel<<<grid(channels, 1), kScanColumnsBlock, 0, stream>>>(
        f, arrays, extent, segments, segment_steps, static_cast<const Piece<A>*>(data), states);
    CUDA_LAUNCH_CHECK();
  }
  scan_columns_kernel<T, F, K, R, Walk><<<grid(threads, segments), kScanColumnsBlock, 0, stream>>>(
      f, arrays, extent, segment_steps, static_cast<const A*>(states));
  CUDA_LAUNCH_CHECK();
}

// Whether neighbours lie in one aligned word of so many bytes.
template <class T, size_t K, size_t R>
bool in_words(const ScanArrays<T, K, R>& arrays, int64_t inner, int64_t bytes) {
  return inner % (bytes / static_cast<int64_t>(sizeof(T))) == 0 && begin_at(bytes, arrays) &&
         reinterpret_cast<uintptr_t>(arrays.before_lagged) % bytes == 0;
}

// Picks how words are read.
template <class T, class F, size_t K, size_t R>
void launch_scan_columns(const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  constexpr int kWordChannels = sizeof(T) == 2 ? 2 : 1;
  const bool in_warps = extent.outer * extent.inner % (int64_t{kWarp} * kWordChannels) == 0;
  if (in_warps && in_words(arrays, extent.inner, kAccessBytes)) {
    launch_scan_columns<T, F, K, R, kWordChannels, true>(like, f, extent, arrays);
  } else if (in_words(arrays, extent.inner, kWordChannels * sizeof(T))) {
    launch_scan_columns<T, F, K, R, kWordChannels, false>(like, f, extent, arrays);
  } else {
    launch_scan_columns<T, F, K, R, 1, false>(like, f, extent, arrays);
  }
}

}  // namespace detail

}  // namespace extension_cpp::cuda
