// Scans with channels inside, of few channels or of any number and alignment: a warp has a few steps of neighbouring
// channels, in registers. The warps of a block follow each other in time; they are a tile. Where time takes several,
// tiles hand the states on as those of long rows do (scan_row_tiles.cuh), each channel for itself: all is read once.
#pragma once

#include "kept.cuh"
#include "launch.cuh"
#include "scan_path.cuh"
#include "scan_piece.cuh"
#include "scan_told.cuh"
#include "vector.cuh"

#include <algorithm>
#include <optional>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

constexpr int kColumnTileWarps = 8;
constexpr int kColumnTileThreads = kColumnTileWarps * kWarp;
constexpr int kColumnTeams = 4;  // of a block, where one warp has all steps

// Of a thread, which reads so many arrays.
template <class T, size_t Arrays>
constexpr int kColumnTileSteps = (sizeof(T) == 8 ? 8 : 16) * (sizeof(T) * Arrays <= 4 ? 2 : 1);

// Blocks at once, for which there are registers.
template <class T, size_t Arrays, int C>
constexpr int kColumnTileBlocks = sizeof(T) == 2 ? (Arrays > 2 && C == 1 ? 3 : 2)
                                  : Arrays > 2   ? 2
                                                 : 3;

// What tiles tell those that come after them.
template <class A>
struct ToldOfChannels {
  Told<Piece<A>>* pieces;  // [tiles, channels]
  Told<A>* states;         // [tiles, channels], after the tile
};

// Of a block: of warps and their channels, C for each lane.
template <class A, int C>
struct ColumnTileShared {
  Piece<A> pieces[2][kColumnTileWarps][C][kWarp];
  A states[C][kWarp];
  bool hold[C][kWarp];
};

// Which tile a thread is of, and which channels it has.
template <int C>
struct ColumnTilePlace {
  int64_t tile = 0;
  int64_t channel;  // the first of C
  bool exist;       // the channels; else the last ones are read once more
  int lane;
  int warp;

  __device__ ColumnTilePlace(int64_t channels, int64_t tiles, int warps) : lane(threadIdx.x % kWarp) {
    warp = warps == 1 ? 0 : threadIdx.x / kWarp;
    int64_t group = blockIdx.x;  // of the channels of a warp
    if (tiles > 1) {
      // All channels in turn. A block waits for those before it: see tile_of_block() (scan_row_tiles.cuh).
      const unsigned groups = static_cast<unsigned>((channels + C * kWarp - 1) / (C * kWarp));
      tile = blockIdx.x / groups;
      group = blockIdx.x % groups;
    } else if (warps == 1) {
      group = group * kColumnTeams + threadIdx.x / kWarp;
    }
    channel = (group * kWarp + lane) * C;
    exist = channel < channels;
    channel = exist ? channel : channels - C;
  }
};

// Neighbouring channels of one step, as a thread keeps them: two as they are in memory, one as it is computed with.
template <class T, int C>
using KeptChannels = std::conditional_t<C == 1, Values<acc_t<T>, C>, Chunk<T, C>>;

template <int C, class T>
__device__ KeptChannels<T, C> load_kept(const T* address) {
  if constexpr (C == 1) {
    return load<C>(address);
  } else {
    return load_chunk<C>(address);
  }
}

template <class A>
__device__ Values<A, 1> numbers(const Values<A, 1>& kept) {
  return kept;
}

template <class T, int C>
__device__ Values<acc_t<T>, C> numbers(Chunk<T, C> kept) {
  asm volatile("" : "+r"(kept.word));  // converted for each pass: the numbers of all steps do not fit
  return to_values(kept);
}

// The steps of a thread, in registers.
template <class T, class F, size_t K, size_t Arrays, int C>
class ColumnSteps {
  using A = acc_t<T>;
  static constexpr bool kLagged = kLaggedOf<F>;
  static constexpr int kSteps = kColumnTileSteps<T, Arrays>;

 public:
  template <size_t R>
  __device__ ColumnSteps(const ScanArrays<T, K, R>& arrays, const ScanExtent& extent, const ScanPath<F>& path)
      : count_(static_cast<int>(path.count)),
        first_in_memory_(kReverseOf<F> ? (path.ends(extent) ? count_ - 1 : kSteps) : (path.first == 0 ? 0 : kSteps)) {
    if constexpr (kLagged) {
      if (arrays.before_lagged != nullptr) {
        before_lagged_ = load_kept<C>(arrays.before_lagged + path.channel);
      }
    }
    if (count_ == 0) {
      return;
    }
    int64_t offset = path.offset;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        kept_[s][k] = load_kept<C>(arrays.inputs[k] + offset);
      }
      if constexpr (kLagged) {
        const int64_t lag = min(s, count_ - 1) == first_in_memory_ ? 0 : extent.inner;
        kept_[s][K] = load_kept<C>(arrays.lagged + (offset - lag));
      }
      offset += s + 1 < count_ ? path.stride : 0;  // the last one again, without a question about each load
    }
  }

  // visit(elements of the channels) for each step; without a question about each where there are all.
  template <class Visit>
  __device__ void for_each(const Visit& visit) const {
    if (count_ == kSteps) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        visit_step(s, visit);
      }
    } else {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (s < count_) {
          visit_step(s, visit);
        }
      }
    }
  }

 private:
  template <class Visit>
  __device__ void visit_step(int s, const Visit& visit) const {
    ScanElements<A, K> elements[C];
#pragma unroll
    for (size_t k = 0; k < Arrays; ++k) {
      set_elements(elements, k, numbers(k == K && s == first_in_memory_ ? before_lagged_ : kept_[s][k]));
    }
    visit(elements);
  }

  int count_;            // of all lanes
  int first_in_memory_;  // of the scan, if this thread has it: its lagged entry is before_lagged_
  KeptChannels<T, C> kept_[kSteps][Arrays];
  KeptChannels<T, C> before_lagged_{};
};

// From the states that the scan begins with to those that a tile begins with. Every thread of the tile gets those of
// its channels.
template <class A, int C>
__device__ void go_to_tile(
    Values<A, C>& states, const ToldOfChannels<A>& told, int64_t channels, const ColumnTilePlace<C>& here,
    int tiles_of_warp, ColumnTileShared<A, C>& shared) {
  if (here.tile == 0) {
    return;
  }
  // All warps but one wait for the pieces of the tiles before in their group, the last for the states before the group.
  constexpr int kWaiting = kColumnTileWarps - 1;
  const int64_t tiles_of_group = int64_t{kWaiting} * tiles_of_warp;
  const int64_t group = here.tile / tiles_of_group * tiles_of_group;
  if (here.warp == kWaiting) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      shared.states[c][here.lane] =
          group > 0 ? wait_for(told.states[(group - 1) * channels + here.channel + c]) : states[c];
    }
  } else {
    const int64_t first = group + here.warp * tiles_of_warp;
    const int64_t end = min(first + tiles_of_warp, here.tile);
    Piece<A> all[C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      all[c] = Piece<A>::none();
    }
    constexpr int kAtOnce = 2;  // more take registers that the steps have
    for (int64_t tile = first; tile < end; tile += kAtOnce) {
      Piece<A> pieces[kAtOnce][C];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
          for (int c = 0; c < C; ++c) {
            pieces[k][c] = Piece<A>::none();
            if (tile + k < end) {
              const bool is_there = told.pieces[(tile + k) * channels + here.channel + c].read(pieces[k][c]);
              there = there && is_there;
            }
          }
        }
      } while (!there);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          all[c] = chain(all[c], pieces[k][c]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < C; ++c) {
      shared.pieces[1][here.warp][c][here.lane] = all[c];
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < C; ++c) {
    Piece<A> before = shared.pieces[1][0][c][here.lane];
#pragma unroll
    for (int w = 1; w < kWaiting; ++w) {
      before = chain(before, shared.pieces[1][w][c][here.lane]);
    }
    const A base = shared.states[c][here.lane];
    states[c] =
        before.holds_for(base) ? before(base) : wait_for(told.states[(here.tile - 1) * channels + here.channel + c]);
  }
}

// From the states that a tile begins with to those that a warp begins with. `before`: the pieces of the warps before;
// `total`: of all. Returns the states after the tile.
template <class T, class F, size_t K, size_t Arrays, int C, class A = acc_t<T>>
__device__ Values<A, C> go_to_warp(
    Values<A, C>& states, const F& f, const ColumnSteps<T, F, K, Arrays, C>& steps, const Piece<A> (&before)[C],
    const Piece<A> (&total)[C], const ColumnTilePlace<C>& here, int warps, ColumnTileShared<A, C>& shared) {
  const Values<A, C> before_tile = states;
  Values<A, C> after_tile;
  bool hold[C];
  bool all_hold = true;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    hold[c] = before[c].holds_for(states[c]) && total[c].holds_for(states[c]);
    all_hold = all_hold && hold[c];
    after_tile[c] = total[c](states[c]);
    states[c] = before[c](states[c]);
  }
  if (__syncthreads_or(!all_hold) == 0) {
    return after_tile;
  }
  // A channel's state goes from warp to warp, step by step, if the piece of any of them does not hold.
  if (here.warp == 0) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      shared.hold[c][here.lane] = true;
      shared.states[c][here.lane] = before_tile[c];
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < C; ++c) {
    if (!hold[c]) {
      shared.hold[c][here.lane] = false;
    }
  }
  for (int w = 0; w < warps; ++w) {
    __syncthreads();
    if (w == here.warp) {
      Values<A, C> next;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        next[c] = shared.states[c][here.lane];
        states[c] = shared.hold[c][here.lane] ? states[c] : next[c];
      }
      steps.for_each([&](const ScanElements<A, K>(&elements)[C]) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          next[c] = scan_next(f, next[c], elements[c], std::make_index_sequence<K>());
        }
      });
#pragma unroll
      for (int c = 0; c < C; ++c) {
        shared.states[c][here.lane] = next[c];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < C; ++c) {
    after_tile[c] = shared.hold[c][here.lane] ? after_tile[c] : shared.states[c][here.lane];
  }
  return after_tile;
}

// C channels for each lane, of one step in one word. Each warp that waits puts the pieces of `tiles_of_warp` earlier
// tiles together.
template <class T, class F, size_t K, size_t R, size_t Arrays, int C>
__global__ void __launch_bounds__(kColumnTileThreads, kColumnTileBlocks<T, Arrays, C>) scan_column_tiles_kernel(
    F f, ScanArrays<T, K, R> arrays, ScanExtent extent, int warps, int64_t tiles, int tiles_of_warp,
    ToldOfChannels<acc_t<T>> told) {
  wait_for_previous();
  using A = acc_t<T>;
  constexpr int S = kColumnTileSteps<T, Arrays>;
  __shared__ ColumnTileShared<A, C> shared;
  const int64_t channels = extent.outer * extent.inner;
  const ColumnTilePlace<C> here(channels, tiles, warps);
  const ScanPath<F> path(extent, here.channel, (here.tile * warps + here.warp) * S, S);
  const ColumnSteps<T, F, K, Arrays, C> steps(arrays, extent, path);
  Values<A, C> states{};
  if (arrays.initial != nullptr) {
    states = load<C>(arrays.initial + here.channel);
  }

  if (warps > 1) {
    Piece<A> own[C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      own[c] = Piece<A>::none();
    }
    steps.for_each([&](const ScanElements<A, K>(&elements)[C]) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        own[c].append(f, elements[c]);
      }
    });
    Piece<A> before[C];
    Piece<A> total[C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      shared.pieces[0][here.warp][c][here.lane] = own[c];
      before[c] = Piece<A>::none();
      total[c] = Piece<A>::none();
    }
    __syncthreads();
    for (int w = 0; w < warps; ++w) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        if (w == here.warp) {
          before[c] = total[c];
        }
        total[c] = chain(total[c], shared.pieces[0][w][c][here.lane]);
      }
    }
    const bool tells = tiles > 1 && here.warp == 0 && here.exist;
    const int64_t of_told = here.tile * channels + here.channel;
    if (tiles > 1) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        if (tells) {
          told.pieces[of_told + c].tell(total[c]);
        }
      }
      go_to_tile(states, told, channels, here, tiles_of_warp, shared);
    }
    const Values<A, C> after_tile = go_to_warp(states, f, steps, before, total, here, warps, shared);
    if (tells) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        told.states[of_told + c].tell(after_tile[c]);
      }
    }
  }

  T* outputs[R];
#pragma unroll
  for (size_t r = 0; r < R; ++r) {
    outputs[r] = in_register(arrays.outputs[r] + path.offset);  // offsets of steps are not kept from the loads on
  }
  steps.for_each([&](const ScanElements<A, K>(&elements)[C]) {
    Values<A, C> written[R];
    take_step(f, states, elements, written);
#pragma unroll
    for (size_t r = 0; r < R; ++r) {
      if (here.exist) {
        store(outputs[r], written[r]);
      }
      outputs[r] += path.stride;
    }
  });
  if (here.exist && arrays.last != nullptr && path.ends(extent)) {
    store(arrays.last + here.channel, states);
  }
}

template <class T, class F, size_t K, size_t R, int C>
void launch_scan_column_tiles(
    const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  using A = acc_t<T>;
  constexpr size_t kArrays = kArraysOf<F, K>;
  const int64_t channels = extent.outer * extent.inner;
  const int64_t across = ceil_div(channels, int64_t{C} * kWarp);
  const int64_t in_time = std::max<int64_t>(ceil_div(extent.steps, int64_t{kColumnTileSteps<T, kArrays>}), 1);  // warps
  const int64_t warps = std::min<int64_t>(in_time, kColumnTileWarps);  // all, if there is more than one tile
  const int64_t tiles = ceil_div(in_time, warps);
  const int tiles_of_warp = tiles > 1024 ? 8 : 2;  // groups wait for each other: of many tiles they are larger
  std::optional<Tensor> scratch;
  ToldOfChannels<A> told{};
  if (tiles > 1) {
    const int64_t count = tiles * channels;
    const int64_t bytes = count * static_cast<int64_t>(sizeof(*told.pieces) + sizeof(*told.states));
    scratch = nothing_told(like, bytes);
    told.pieces = reinterpret_cast<Told<Piece<A>>*>(scratch->mutable_data_ptr<uint8_t>());
    told.states = reinterpret_cast<Told<A>*>(told.pieces + count);
  }
  const int64_t blocks = warps == 1 ? ceil_div(across, int64_t{kColumnTeams}) : across * tiles;
  const int64_t threads = kWarp * (warps == 1 ? int64_t{kColumnTeams} : warps);
  launch_overlapped(
      scan_column_tiles_kernel<T, F, K, R, kArrays, C>, static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
      0, current_stream(like), f, arrays, extent, static_cast<int>(warps), tiles, tiles_of_warp, told);
}

template <class T, class F, size_t K, size_t R>
void launch_scan_column_tiles(
    const Tensor& like, const F& f, const ScanExtent& extent, const ScanArrays<T, K, R>& arrays) {
  if constexpr (sizeof(T) == 2) {
    if (channels_in_words(arrays, extent.inner, 2 * sizeof(T))) {
      launch_scan_column_tiles<T, F, K, R, 2>(like, f, extent, arrays);
      return;
    }
  }
  launch_scan_column_tiles<T, F, K, R, 1>(like, f, extent, arrays);
}

}  // namespace detail

}  // namespace extension_cpp::cuda
