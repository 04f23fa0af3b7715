// Scans on CUDA. The functors are those of scan.h.
//
// What steps in a row make of a state is a factor times the state, plus a term; and so is what two such pieces make of
// it, one after the other. That shares a channel's steps out between threads, which scan the pieces and then go through
// their own steps. Where a piece is not finite, because a value is not or by an overflow that no state need have
// seen, the state goes from thread to thread instead.
//
// - Time contiguous: a warp, or a block, for each row, which it has in registers while it scans. Long rows are cut
//   into tiles, each a block's, that hand the state on as they go (a chained scan): all is read once. A tile waits for
//   the pieces of those before it in its group, which need nothing but their own reads, and for the state at the end
//   of the group before. That is more than "decoupled look-back" waits for, and unlike there it does not depend on who
//   comes first what is added to what.
// - Channels inside: a thread for each word of channels, which goes through time with a ring of steps on their way. Of
//   few channels, time is cut into segments: their pieces first, then the states between them, then the results.
#pragma once

#include "launch.cuh"
#include "scan_arrays.h"
#include "vector.cuh"

#include <algorithm>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

using extension_cpp::detail::scan_factor;
using extension_cpp::detail::scan_next;
using extension_cpp::detail::scan_results;
using extension_cpp::detail::ScanElements;

constexpr unsigned kAllLanes = 0xffffffffu;

// Steps in a row: what they make of a state is factor * state + term.
template <class A>
struct Piece {
  A factor;
  A term;

  // Of no steps.
  __device__ static Piece none() { return {A(1), A(0)}; }

  __device__ A operator()(A state) const { return factor * state + term; }

  // Whether that is what the steps make of the state one by one. NaN stays NaN.
  __device__ bool holds_for(A state) const {
    return isnan(state) || (isfinite(state) && isfinite(factor) && isfinite(term));
  }

  template <class F, size_t K>
  __device__ void append(const F& f, const ScanElements<A, K>& elements) {
    constexpr std::make_index_sequence<K> kInputs;
    term = scan_next(f, term, elements, kInputs);
    factor *= scan_factor(f, elements, kInputs);
  }
};

template <class A>
__device__ Piece<A> chain(const Piece<A>& first, const Piece<A>& second) {
  return {first.factor * second.factor, second.factor * first.term + second.term};
}

// Of each lane, the pieces up to its own.
template <class A>
__device__ Piece<A> scan_warp(Piece<A> piece, int lane) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const Piece<A> before{
        __shfl_up_sync(kAllLanes, piece.factor, distance), __shfl_up_sync(kAllLanes, piece.term, distance)};
    if (lane >= distance) {
      piece = chain(before, piece);
    }
  }
  return piece;
}

template <class A>
__device__ Piece<A> from_lane(const Piece<A>& piece, int lane) {
  return {__shfl_sync(kAllLanes, piece.factor, lane), __shfl_sync(kAllLanes, piece.term, lane)};
}

// ----- time contiguous

constexpr int kScanWarps = 8;  // of a block for one row
constexpr int kScanTeams = 4;  // of a block for several rows, a warp each
constexpr int kScanThreads = kScanWarps * kWarp;

// Accesses of a thread to each array. With more than two, registers do not suffice for numbers of float64, nor for
// those of float16 on their way to float32.
template <class T>
constexpr int kScanAccesses = std::is_same_v<T, float> || std::is_same_v<T, BFloat16> ? 4 : 2;

// Blocks that the compiler shall let run at once, of so many arrays that are read: what they have on their way is about
// the same.
template <size_t Arrays>
constexpr int kScanBlocks = Arrays <= 2 ? 3 : 2;

// The tiles of rows, and what they tell each other. `flags` says of each what is there.
template <class A>
struct TileChain {
  static constexpr int kPiece = 1;
  static constexpr int kState = 2;

  int64_t tiles;     // of a row; one has no need of the rest
  int* flags;        // [rows, tiles]
  Piece<A>* pieces;  // [rows, tiles]
  A* states;         // [rows, tiles], after a tile

  __device__ void tell(int64_t tile, int what) const {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flags + tile), "r"(what) : "memory");
  }

  __device__ void wait_for(int64_t tile, int what) const {
    int there = 0;
    while (true) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(flags + tile) : "memory");
      if (there >= what) {
        return;
      }
      __nanosleep(32);
    }
  }

  __device__ void tell_piece(int64_t tile, const Piece<A>& piece) const {
    pieces[tile] = piece;
    tell(tile, kPiece);
  }

  __device__ void tell_state(int64_t tile, A state) const {
    states[tile] = state;
    tell(tile, kState);
  }

  __device__ Piece<A> piece_of(int64_t tile) const {
    wait_for(tile, kPiece);
    return {__ldcg(&pieces[tile].factor), __ldcg(&pieces[tile].term)};
  }

  __device__ A state_after(int64_t tile) const {
    wait_for(tile, kState);
    return __ldcg(states + tile);
  }
};

template <class A>
struct ScanShared {
  Piece<A> pieces[2][kScanWarps];
  A state;
};

// N neighbouring steps of a row as they are in memory; fewer at its end, unless rows are Whole.
template <class T, size_t K, int N, bool Lagged, bool Whole>
class ScanAccess {
  using A = acc_t<T>;

 public:
  template <size_t R>
  __device__ void read(const ScanArrays<T, K, R>& arrays, int64_t row, int64_t cols, int64_t start) {
    count_ = static_cast<int>(min(cols - start, static_cast<int64_t>(N)));
    const int64_t offset = row * cols + start;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      chunks_[k] = read_chunk(arrays.inputs[k] + offset);
    }
    if constexpr (Lagged) {
      chunks_[K] = read_chunk(arrays.lagged + offset);
      const T* const before = start > 0                         ? arrays.lagged + (offset - 1)
                              : arrays.before_lagged == nullptr ? nullptr
                                                                : arrays.before_lagged + row;
      before_ = before == nullptr ? Chunk<T, 1>{} : load_chunk<1>(before);
    }
  }

  // visit(n, elements) for each of the steps, in the order of the scan; n is constant to the compiler.
  template <bool Reverse, class Visit>
  __device__ void for_each(const Visit& visit) const {
    Values<A, N> inputs[K];
    Values<A, N> lagged;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      inputs[k] = to_values(chunks_[k]);
    }
    if constexpr (Lagged) {
      lagged = to_values(chunks_[K]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int n = Reverse ? N - 1 - i : i;
      if (Whole || n < count_) {
        ScanElements<A, K> elements;
#pragma unroll
        for (size_t k = 0; k < K; ++k) {
          elements.inputs[k] = inputs[k][n];
        }
        if constexpr (Lagged) {
          elements.lagged = n > 0 ? lagged[n > 0 ? n - 1 : 0] : to_values(before_)[0];
        }
        visit(n, elements);
      }
    }
  }

  // What was made of the steps so far is not kept in registers for the next visit.
  __device__ void forget() {
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      uint4& word = chunks_[k].word;
      asm("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w));
    }
  }

  __device__ void write(T* address, const Values<A, N>& values) const {
    if (Whole || (count_ == N && is_aligned(address))) {
      store(address, values);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (n < count_) {
          address[n] = static_cast<T>(values[n]);
        }
      }
    }
  }

 private:
  __device__ Chunk<T, N> read_chunk(const T* address) const {
    if constexpr (Whole) {
      return load_chunk<N>(address);
    } else {
      if (count_ == N) {
        return load_chunk_unaligned<N>(address);
      }
      T elements[N];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        elements[n] = n < count_ ? address[n] : T();
      }
      Chunk<T, N> chunk;
      memcpy(&chunk, elements, sizeof(chunk));
      return chunk;
    }
  }

  Chunk<T, N> chunks_[K + (Lagged ? 1 : 0)];
  Chunk<T, 1> before_;
  int count_ = 0;
};

// The state that a tile begins with.
template <class A>
__device__ A
state_before_tile(const TileChain<A>& chain_of_tiles, int64_t first, int64_t tile, A initial, ScanShared<A>& shared) {
  if (tile == 0) {
    return initial;
  }
  // As many as the block has threads are a group. The last thread has no piece to wait for.
  const int64_t group = tile / kScanThreads * kScanThreads;
  const int thread = static_cast<int>(threadIdx.x);
  Piece<A> piece = Piece<A>::none();
  if (group + thread < tile) {
    piece = chain_of_tiles.piece_of(first + group + thread);
  } else if (thread == kScanThreads - 1) {
    shared.state = group == 0 ? initial : chain_of_tiles.state_after(first + group - 1);
  }
  __syncwarp();
  piece = scan_warp(piece, thread % kWarp);
  if (thread % kWarp == kWarp - 1) {
    shared.pieces[1][thread / kWarp] = piece;
  }
  __syncthreads();
  Piece<A> before = shared.pieces[1][0];
#pragma unroll
  for (int w = 1; w < kScanWarps; ++w) {
    before = chain(before, shared.pieces[1][w]);
  }
  const A base = shared.state;
  if (before.holds_for(base)) {
    return before(base);
  }
  __syncthreads();
  if (thread == 0) {
    shared.state = chain_of_tiles.state_after(first + tile - 1);
  }
  __syncthreads();
  return shared.state;
}

// V accesses a thread, one behind the other for a warp, and `warps` of these: a tile of a row. A block has one, or a
// warp each of several rows.
template <class T, class F, size_t K, size_t R, int V, bool Whole>
__global__ void __launch_bounds__(kScanThreads, kScanBlocks<K + (F::kLagged ? 1 : 0)>) scan_rows_kernel(
    F f, ScanArrays<T, K, R> arrays, int64_t rows, int64_t cols, int warps, TileChain<acc_t<T>> tile_chain) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  constexpr bool kReverse = F::kReverse;
  constexpr std::make_index_sequence<K> kInputs;
  __shared__ ScanShared<A> shared;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = warps == 1 ? 0 : static_cast<int>(threadIdx.x) / kWarp;

  int64_t row = blockIdx.x;
  int64_t tile = 0;
  if (tile_chain.tiles > 1) {
    // Of all rows in turn. A block waits for those before it: they begin in the order of their numbers, on which CUB
    // relies, too. (To draw numbers instead takes a trip to memory before the first read.)
    tile = row / rows;
    row %= rows;
  } else if (warps == 1) {
    row = row * kScanTeams + threadIdx.x / kWarp;
    if (row >= rows) {
      return;
    }
  }

  const int64_t accesses = (cols + N - 1) / N;
  const int64_t first_access = ((tile * warps + warp) * V) * kWarp + lane;
  const auto start_of = [&](int64_t access) { return (kReverse ? accesses - 1 - access : access) * N; };
  ScanAccess<T, K, N, F::kLagged, Whole> here[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int64_t access = first_access + v * kWarp;
    if (access < accesses) {
      here[v].read(arrays, row, cols, start_of(access));
    }
  }
  const A initial = arrays.initial == nullptr ? A(0) : static_cast<A>(arrays.initial[row]);

  // The pieces before each access, of the warp.
  Piece<A> before[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    before[v] = Piece<A>::none();
    if (first_access + v * kWarp < accesses) {
      here[v].template for_each<kReverse>([&](int, const auto& elements) { before[v].append(f, elements); });
      here[v].forget();
    }
  }
  Piece<A> total = Piece<A>::none();
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Piece<A> up_to = scan_warp(before[v], lane);
    const Piece<A> last = from_lane(up_to, kWarp - 1);
    Piece<A> previous = from_lane(up_to, lane == 0 ? 0 : lane - 1);
    if (lane == 0) {
      previous = Piece<A>::none();
    }
    before[v] = chain(total, previous);
    total = chain(total, last);
  }

  // And of the warps before.
  Piece<A> warps_before = Piece<A>::none();
  if (warps > 1) {
    if (lane == 0) {
      shared.pieces[0][warp] = total;
    }
    __syncthreads();
    total = Piece<A>::none();
    for (int w = 0; w < warps; ++w) {
      if (w == warp) {
        warps_before = total;
      }
      total = chain(total, shared.pieces[0][w]);
    }
  }

  A state = initial;
  const int64_t first_tile = row * tile_chain.tiles;
  if (tile_chain.tiles > 1) {
    if (threadIdx.x == 0) {
      tile_chain.tell_piece(first_tile + tile, total);
    }
    state = state_before_tile(tile_chain, first_tile, tile, initial, shared);
  }

  A states[V];
  bool holds = true;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Piece<A> all_before = chain(warps_before, before[v]);
    states[v] = all_before(state);
    holds = holds && (first_access + v * kWarp >= accesses || all_before.holds_for(state));
  }
  holds = holds && total.holds_for(state);
  const bool one_by_one = warps > 1 ? __syncthreads_or(!holds) != 0 : __any_sync(kAllLanes, !holds) != 0;
  if (!one_by_one) {
    state = total(state);
  } else {
    for (int w = 0; w < warps; ++w) {
      if (w == warp) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          for (int turn = 0; turn < kWarp; ++turn) {
            A after = state;
            if (turn == lane) {
              states[v] = state;
              if (first_access + v * kWarp < accesses) {
                here[v].template for_each<kReverse>(
                    [&](int, const auto& elements) { after = scan_next(f, after, elements, kInputs); });
              }
            }
            state = __shfl_sync(kAllLanes, after, turn);
          }
        }
      }
      if (warps > 1) {
        if (w == warp && lane == 0) {
          shared.state = state;
        }
        __syncthreads();
        state = shared.state;
        __syncthreads();
      }
    }
  }
  if (tile_chain.tiles > 1 && threadIdx.x == 0) {
    tile_chain.tell_state(first_tile + tile, state);
  }

#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int64_t access = first_access + v * kWarp;
    if (access < accesses) {
      Values<A, N> outputs[R];
      A now = states[v];
      here[v].template for_each<kReverse>([&](int n, const auto& elements) {
        const A after = scan_next(f, now, elements, kInputs);
        const auto results = scan_results(f, now, after, elements, kInputs);
#pragma unroll
        for (size_t r = 0; r < R; ++r) {
          outputs[r][n] = results[static_cast<int>(r)];
        }
        now = after;
      });
#pragma unroll
      for (size_t r = 0; r < R; ++r) {
        here[v].write(arrays.outputs[r] + (row * cols + start_of(access)), outputs[r]);
      }
      if (access == accesses - 1 && arrays.last != nullptr) {
        arrays.last[row] = static_cast<T>(now);
      }
    }
  }
}

// Of a kernel's scratch memory.
inline int64_t align(int64_t bytes) { return ceil_div(bytes, kAccessBytes) * kAccessBytes; }

template <class T, class F, size_t K, size_t R, int V, bool Whole>
void launch_scan_rows(const Tensor& like, const F& f, int64_t rows, int64_t cols, const ScanArrays<T, K, R>& arrays) {
  using A = acc_t<T>;
  constexpr int64_t kPerWarp = int64_t{kWarp} * kVector<T> * V;
  const int64_t warps = std::min<int64_t>(ceil_div(cols, kPerWarp), kScanWarps);
  TileChain<A> tiles{ceil_div(cols, warps * kPerWarp), nullptr, nullptr, nullptr};
  const int64_t count = rows * tiles.tiles;
  const cudaStream_t stream = current_stream(like);
  std::optional<Tensor> scratch;
  if (tiles.tiles > 1) {
    const int64_t flags = align(count * sizeof(int));
    const int64_t pieces = align(count * sizeof(Piece<A>));
    const int64_t states = align(count * sizeof(A));
    scratch = new_empty(like, {(flags + pieces + states) / static_cast<int64_t>(sizeof(int32_t))}, ScalarType::Int);
    auto* const bytes = reinterpret_cast<unsigned char*>(scratch->mutable_data_ptr<int32_t>());
    tiles.flags = reinterpret_cast<int*>(bytes);
    tiles.pieces = reinterpret_cast<Piece<A>*>(bytes + flags);
    tiles.states = reinterpret_cast<A*>(bytes + flags + pieces);
    CUDA_CHECK(cudaMemsetAsync(bytes, 0, flags, stream));
  }
  const int64_t blocks = warps == 1 ? ceil_div(rows, kScanTeams) : count;
  const int64_t threads = kWarp * (warps == 1 ? kScanTeams : warps);
  scan_rows_kernel<T, F, K, R, V, Whole><<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(
      f, arrays, rows, cols, static_cast<int>(warps), tiles);
  CUDA_LAUNCH_CHECK();
}

template <class T, class F, size_t K, size_t R, bool Whole>
void launch_scan_rows(const Tensor& like, const F& f, int64_t rows, int64_t cols, const ScanArrays<T, K, R>& arrays) {
  constexpr int kMost = kScanAccesses<T>;
  constexpr int64_t kPerWarp = int64_t{kWarp} * kVector<T>;
  if (cols <= kPerWarp) {
    launch_scan_rows<T, F, K, R, 1, Whole>(like, f, rows, cols, arrays);
  } else if (kMost == 2 || cols <= 2 * kPerWarp) {
    launch_scan_rows<T, F, K, R, 2, Whole>(like, f, rows, cols, arrays);
  } else {
    launch_scan_rows<T, F, K, R, kMost, Whole>(like, f, rows, cols, arrays);
  }
}

// Whether all arrays of all steps begin at a multiple of so many bytes.
template <class T, size_t K, size_t R>
bool begin_at(int64_t bytes, const ScanArrays<T, K, R>& arrays) {
  const auto begins = [=](const T* data) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; };
  return begins(arrays.lagged) && std::all_of(arrays.inputs, arrays.inputs + K, begins) &&
         std::all_of(arrays.outputs, arrays.outputs + R, begins);
}

template <class T, size_t K, size_t R>
bool whole_accesses(const ScanArrays<T, K, R>& arrays, int64_t cols) {
  return cols % kVector<T> == 0 && begin_at(kAccessBytes, arrays);
}

// ----- channels inside

constexpr int kScanColumnsBlock = 64;

// Steps that a thread has on their way, of so many bytes each in registers: of 32768 channels a multiprocessor has 250.
template <size_t Bytes>
constexpr int kScanAhead = 384 / static_cast<int>(Bytes);

// Rows of no more steps, time contiguous, are gone through by a thread each.
constexpr int64_t kShortScan = 16;

// Which steps a thread goes through: a segment of time, of C neighbouring channels.
template <class F>
struct ScanPath {
  int64_t channel;  // [outer, inner]
  int64_t offset;   // of the first step, in [outer, steps, inner]
  int64_t stride;   // from step to step
  int64_t first;    // in the order of the scan
  int64_t count;

  __device__ ScanPath(const ScanExtent& extent, int64_t first_channel, int64_t segment, int64_t segment_steps)
      : channel(first_channel),
        stride(F::kReverse ? -extent.inner : extent.inner),
        first(segment * segment_steps),
        count(min(segment_steps, extent.steps - first)) {
    const int64_t outer = channel / extent.inner;
    const int64_t t = F::kReverse ? extent.steps - 1 - first : first;
    offset = (outer * extent.steps + t) * extent.inner + (channel - outer * extent.inner);
  }
};

// visit(offset, elements of C channels) for each step of a path.
template <int C, bool Lagged, class T, class F, size_t K, size_t R, class Visit>
__device__ void walk(
    const ScanArrays<T, K, R>& arrays, const ScanExtent& extent, const ScanPath<F>& path, const Visit& visit) {
  using A = acc_t<T>;
  constexpr size_t kArrays = K + (Lagged ? 1 : 0);
  constexpr int kAhead = kScanAhead<kArrays * std::max(sizeof(T) * C, sizeof(unsigned))>;
  Chunk<T, C> ring[kArrays][kAhead];
  const auto read = [&](int slot, int64_t i) {
    const int64_t offset = path.offset + i * path.stride;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      ring[k][slot] = load_chunk<C>(arrays.inputs[k] + offset);
    }
    if constexpr (Lagged) {
      const int64_t t = F::kReverse ? extent.steps - 1 - (path.first + i) : path.first + i;
      const T* const before = t > 0                             ? arrays.lagged + (offset - extent.inner)
                              : arrays.before_lagged == nullptr ? nullptr
                                                                : arrays.before_lagged + path.channel;
      ring[K][slot] = before == nullptr ? Chunk<T, C>{} : load_chunk<C>(before);
    }
  };
#pragma unroll
  for (int slot = 0; slot < kAhead; ++slot) {
    if (slot < path.count) {
      read(slot, slot);
    }
  }
  for (int64_t i = 0; i < path.count; i += kAhead) {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      if (i + slot < path.count) {
        ScanElements<A, K> elements[C];
#pragma unroll
        for (size_t k = 0; k < kArrays; ++k) {
          const Values<A, C> values = to_values(ring[k][slot]);
#pragma unroll
          for (int c = 0; c < C; ++c) {
            (k < K ? elements[c].inputs[k < K ? k : 0] : elements[c].lagged) = values[c];
          }
        }
        if (i + slot + kAhead < path.count) {
          read(slot, i + slot + kAhead);
        }
        visit(path.offset + (i + slot) * path.stride, elements);
      }
    }
  }
}

// The channels of a thread, which come in groups of C; -1 where there are none.
template <int C>
__device__ int64_t first_channel(const ScanExtent& extent) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * C;
  return channel < extent.outer * extent.inner ? channel : -1;
}

// blockIdx.y: the segment. `starts`, if it is not null, has the states that segments begin with.
template <class T, class F, size_t K, size_t R, int C>
__global__ void __launch_bounds__(kScanColumnsBlock) scan_columns_kernel(
    F f, ScanArrays<T, K, R> arrays, ScanExtent extent, int64_t segment_steps,
    const acc_t<T>* __restrict__ starts /* [segments, outer, inner] */) {
  using A = acc_t<T>;
  constexpr std::make_index_sequence<K> kInputs;
  const int64_t channel = first_channel<C>(extent);
  if (channel < 0) {
    return;
  }
  const ScanPath<F> path(extent, channel, blockIdx.y, segment_steps);
  A states[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    states[c] = starts != nullptr           ? starts[blockIdx.y * (extent.outer * extent.inner) + channel + c]
                : arrays.initial != nullptr ? static_cast<A>(arrays.initial[channel + c])
                                            : A(0);
  }
  walk<C, F::kLagged>(arrays, extent, path, [&](int64_t offset, const ScanElements<A, K>(&elements)[C]) {
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
template <class T, class F, size_t K, size_t R, int C>
__global__ void __launch_bounds__(kScanColumnsBlock) scan_segments_kernel(
    F f, ScanArrays<T, K, R> arrays, ScanExtent extent, int64_t segment_steps,
    Piece<acc_t<T>>* __restrict__ pieces /* [segments - 1, outer, inner] */) {
  using A = acc_t<T>;
  const int64_t channel = first_channel<C>(extent);
  if (channel < 0) {
    return;
  }
  Piece<A> own[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    own[c] = Piece<A>::none();
  }
  walk<C, false>(
      arrays, extent, ScanPath<F>(extent, channel, blockIdx.y, segment_steps),
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
      const ScanPath<F> path(extent, channel, segment, segment_steps);
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
  constexpr int64_t kEnough = 64;  // on a multiprocessor
  constexpr int64_t kWanted = 512;
  constexpr int64_t kShortest = 64;
  constexpr int64_t kMost = 32768;
  if (threads >= kEnough * multiprocessors()) {
    return 1;
  }
  const int64_t wanted = ceil_div(kWanted * multiprocessors(), std::max<int64_t>(1, threads));
  return std::clamp<int64_t>(steps / kShortest, 1, std::min(wanted, kMost));
}

template <class T, class F, size_t K, size_t R, int C>
void launch_scan_columns(const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  using A = acc_t<T>;
  const int64_t channels = extent.outer * extent.inner;
  const int64_t most_segments = scan_segments(channels / C, extent.steps);
  const int64_t segment_steps = ceil_div(extent.steps, most_segments);
  const int64_t segments = most_segments == 1 ? 1 : ceil_div(extent.steps, segment_steps);
  const auto blocks = static_cast<unsigned>(ceil_div(channels / C, kScanColumnsBlock));
  const cudaStream_t stream = current_stream(like);
  std::optional<Tensor> pieces;
  std::optional<Tensor> starts;
  A* states = nullptr;
  if (segments > 1) {
    pieces = new_empty(like, {(segments - 1) * channels * 2}, kDtypeOf<A>);
    starts = new_empty(like, {segments * channels}, kDtypeOf<A>);
    auto* const data = reinterpret_cast<Piece<A>*>(pieces->mutable_data_ptr<A>());
    states = starts->mutable_data_ptr<A>();
    scan_segments_kernel<T, F, K, R, C>
        <<<dim3(blocks, static_cast<unsigned>(segments - 1)), kScanColumnsBlock, 0, stream>>>(
            f, arrays, extent, segment_steps, data);
    CUDA_LAUNCH_CHECK();
    scan_starts_kernel<<<static_cast<unsigned>(ceil_div(channels, kScanColumnsBlock)), kScanColumnsBlock, 0, stream>>>(
        f, arrays, extent, segments, segment_steps, static_cast<const Piece<A>*>(data), states);
    CUDA_LAUNCH_CHECK();
  }
  scan_columns_kernel<T, F, K, R, C><<<dim3(blocks, static_cast<unsigned>(segments)), kScanColumnsBlock, 0, stream>>>(
      f, arrays, extent, segment_steps, static_cast<const A*>(states));
  CUDA_LAUNCH_CHECK();
}

// Whether neighbours lie in one aligned word.
template <class T, size_t K, size_t R>
bool in_words(const ScanArrays<T, K, R>& arrays, int64_t inner, int64_t channels_in_word) {
  const int64_t bytes = channels_in_word * sizeof(T);
  return inner % channels_in_word == 0 && begin_at(bytes, arrays) &&
         reinterpret_cast<uintptr_t>(arrays.before_lagged) % bytes == 0;
}

}  // namespace detail

// The scan of f along time. `like` gives device, stream and allocator.
template <class T, class F, size_t K, size_t R>
void launch_scan(const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  constexpr int kWordChannels = sizeof(T) == 2 ? 2 : 1;
  if (extent.inner == 1 && extent.steps > detail::kShortScan) {
    if (detail::whole_accesses(arrays, extent.steps)) {
      detail::launch_scan_rows<T, F, K, R, true>(like, f, extent.outer, extent.steps, arrays);
    } else {
      detail::launch_scan_rows<T, F, K, R, false>(like, f, extent.outer, extent.steps, arrays);
    }
  } else if (detail::in_words(arrays, extent.inner, kWordChannels)) {
    detail::launch_scan_columns<T, F, K, R, kWordChannels>(like, f, extent, arrays);
  } else {
    detail::launch_scan_columns<T, F, K, R, 1>(like, f, extent, arrays);
  }
}

}  // namespace extension_cpp::cuda
