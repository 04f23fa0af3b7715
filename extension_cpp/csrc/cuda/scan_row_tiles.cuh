// Scans of rows too long for a block: they are cut into tiles, each a block's, that hand the state on as they go (a
// chained scan): all is read once. A tile waits for the pieces of those before it in its group, which need nothing but
// their own reads, and for the state at the end of the group before. That is more than "decoupled look-back" waits for,
// and unlike there it does not depend on who comes first what is added to what.
#pragma once

#include "ahead.cuh"
#include "launch.cuh"
#include "scan_piece.cuh"
#include "scan_row_access.cuh"
#include "scan_told.cuh"
#include "vector.cuh"

#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

// The block of a tile, by the number of arrays that are read.
template <class T, size_t Arrays>
constexpr ScanBlock scan_tile() {
  if constexpr (std::is_same_v<T, Half>) {
    return {2, 8, Arrays == 2 ? 4 : 3};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return Arrays == 2 ? ScanBlock{4, 4, 6} : ScanBlock{2, 8, 4};
  } else if constexpr (std::is_same_v<T, float>) {
    return Arrays == 2 ? ScanBlock{4, 8, 3} : ScanBlock{2, 8, 4};
  } else {
    return {Arrays == 2 ? 4 : 2, 8, 2};
  }
}

// What a tile tells those that come after it.
template <class A>
struct ToldOfTile {
  Told<Piece<A>> piece;
  Told<A> state;  // after it
};

template <class A, int Warps>
struct ScanShared {
  Piece<A> pieces[2][Warps];
  A state;
};

// How many blocks of tiles at once. Second words take registers, and so does the question which steps are the row's.
template <RowsLie Lie>
constexpr int tile_blocks(ScanBlock tile) {
  return is_apart(Lie) && tile.blocks > (is_whole(Lie) ? 4 : 3) ? tile.blocks - 1 : tile.blocks;
}

// The state that a tile begins with. `tiles` are those of its row, of `warps` each; as many as it has threads, or all
// of the row, are a group.
template <class A, int Warps>
__device__ A state_before_tile(
    const ToldOfTile<A>* tiles, int64_t tile, A initial, int warps, unsigned group_size, ScanShared<A, Warps>& shared) {
  if (tile == 0) {
    return initial;
  }
  // The last thread has no piece to wait for. (Tiles are fewer than 2^31, as blocks are.)
  const int64_t group = static_cast<int64_t>(static_cast<unsigned>(tile) / group_size) * group_size;
  const int thread = static_cast<int>(threadIdx.x);
  Piece<A> piece = Piece<A>::none();
  if (group + thread < tile) {
    piece = wait_for(tiles[group + thread].piece);
  } else if (thread == warps * kWarp - 1) {
    shared.state = group == 0 ? initial : wait_for(tiles[group - 1].state);
  }
  __syncwarp();
  piece = scan_warp(piece, thread % kWarp);
  if (thread % kWarp == kWarp - 1) {
    shared.pieces[1][thread / kWarp] = piece;
  }
  __syncthreads();
  Piece<A> before = shared.pieces[1][0];
#pragma unroll
  for (int w = 1; w < Warps; ++w) {
    if (w < warps) {
      before = chain(before, shared.pieces[1][w]);
    }
  }
  const A base = shared.state;
  if (before.holds_for(base)) {
    return before(base);
  }
  __syncthreads();
  if (thread == 0) {
    shared.state = wait_for(tiles[tile - 1].state);
  }
  __syncthreads();
  return shared.state;
}

// Which tile a block has.
struct TilePlace {
  int64_t row;
  int64_t tile;
};

// Of all rows in turn. A block waits for those before it: they begin in the order of their numbers, on which CUB
// relies, too. (To draw numbers instead takes a trip to memory before the first read.)
__device__ inline TilePlace tile_of_block(int64_t block, int64_t rows) { return {block % rows, block / rows}; }

// Whether blocks send for the tiles of those that come later. Tiles of fewer warps than there is room for, inputs that
// lie apart and, forward, rows of up to three whole tiles are slower by it (benchmarks/NOTES.md).
template <RowsLie Lie, bool Lagged>
bool sends_for_tiles(int64_t warps, int64_t most_warps, int64_t tiles) {
  if (is_apart(Lie) || warps < most_warps) {
    return false;
  }
  return Lie == RowsLie::kAlike || Lagged || tiles > 3;
}

// How far ahead, and of how many bytes at least: found by trying, as those of rows (ahead.cuh), from which they differ.
constexpr int64_t kTileAheadBytes = 10 << 19;
constexpr int64_t kLeastSentForTiles = 32 << 20;

// Sends for the tile, of so many steps, of the block that comes `ahead` blocks later.
template <bool Reverse, bool Lagged, class T, size_t K, size_t R>
__device__ void send_for_tile(const ScanArrays<T, K, R>& arrays, int64_t rows, int64_t cols, int64_t steps, int ahead) {
  const int64_t block = int64_t{blockIdx.x} + ahead;
  if (block >= gridDim.x) {
    return;
  }
  const TilePlace place = tile_of_block(block, rows);
  const int64_t begin = place.tile * steps;
  const int64_t count = min(steps, cols - begin);
  const int64_t offset = place.row * cols + (Reverse ? cols - begin - count : begin);
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    send_for(arrays.inputs[k] + offset, count);
  }
  if constexpr (Lagged) {
    send_for(arrays.lagged + offset, count);
  }
}

// A tile of a row is a block's, of `warps`. `ahead`: 0, or how many blocks later that one comes whose tile it sends
// for.
template <class T, class F, size_t K, size_t R, int V, int Warps, int Blocks, RowsLie Lie>
__global__ void __launch_bounds__(Warps* kWarp, Blocks) scan_tiles_kernel(
    F f, ScanArrays<T, K, R> arrays, int64_t rows, int64_t cols, int warps, int64_t tiles, int ahead,
    ToldOfTile<acc_t<T>>* told /* [rows, tiles] */) {
  wait_for_previous();
  using A = acc_t<T>;
  __shared__ ScanShared<A, Warps> shared;
  // Tiles have several warps. Where that is asked nonetheless, compilers order differently what comes after, by which
  // half types and double gain, and float loses (benchmarks/NOTES.md).
  constexpr bool kAsks = !std::is_same_v<T, float> && Lie == RowsLie::kWhole;
  const int warp = kAsks && warps == 1 ? 0 : static_cast<int>(threadIdx.x) / kWarp;
  const auto [row, tile] = tile_of_block(blockIdx.x, rows);
  WarpOfRow<T, F, K, R, V, Lie, int64_t> here(f, arrays, row, cols, tile * warps + warp);
  if constexpr (!is_apart(Lie)) {
    if (ahead > 0 && threadIdx.x == 0) {
      send_for_tile<kReverseOf<F>, kLaggedOf<F>>(
          arrays, rows, cols, static_cast<int64_t>(warps) * (V * kWarp * kVector<T>), ahead);
    }
  }
  const A initial = here.initial();
  const Piece<A> own = here.scan();
  if (threadIdx.x % kWarp == 0) {
    shared.pieces[0][warp] = own;
  }
  __syncthreads();
  Piece<A> total = Piece<A>::none();
  Piece<A> warps_before = Piece<A>::none();
  for (int w = 0; w < warps; ++w) {
    if (w == warp) {
      warps_before = total;
    }
    total = chain(total, shared.pieces[0][w]);
  }

  ToldOfTile<A>* const told_of_row = told + row * tiles;
  if (threadIdx.x == 0) {
    told_of_row[tile].piece.tell(total);
  }
  // A constant is faster where accesses are whole. (Tiles of w warps instead of W are fewer than W / (W - w), so that
  // all are of one group, and none is the last thread's.)
  const unsigned group_size = is_whole(Lie) ? Warps * kWarp : warps * kWarp;
  A state = state_before_tile(told_of_row, tile, initial, warps, group_size, shared);
  A states[V];
  bool holds = total.holds_for(state);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Piece<A> all_before = chain(warps_before, here.before(v));
    states[v] = all_before(state);
    holds = holds && (!here.has(v) || all_before.holds_for(state));
  }
  if (__syncthreads_or(!holds) == 0) {
    state = total(state);
  } else {
    state = here.step_through_block(state, states, shared.state);
  }
  if (threadIdx.x == 0) {
    told_of_row[tile].state.tell(state);
  }
  here.write(states);
}

// `most`: columns of the accesses to a row, at most.
template <RowsLie Lie, class T, class F, size_t K, size_t R>
void launch_scan_tiles(
    const Tensor& like, const F& f, int64_t rows, int64_t cols, int64_t most, const ScanArrays<T, K, R>& arrays) {
  constexpr ScanBlock kTile = scan_tile<T, kArraysReadOf<F, K>>();
  using Told = ToldOfTile<acc_t<T>>;
  constexpr int64_t kPerWarp = int64_t{kWarp} * kVector<T> * kTile.accesses;
  const int64_t tiles = ceil_div(most, kTile.warps * kPerWarp);
  const int64_t warps = ceil_div(ceil_div(most, tiles), kPerWarp);  // tiles are alike
  Tensor scratch = nothing_told(like, rows * tiles * static_cast<int64_t>(sizeof(Told)));
  auto* const told = reinterpret_cast<Told*>(scratch.mutable_data_ptr<uint8_t>());
  const int64_t blocks = rows * tiles;
  constexpr auto kArrayBytes = static_cast<int64_t>(sizeof(T) * kArraysOf<F, K>);
  const int ahead = sends_for_tiles<Lie, kLaggedOf<F>>(warps, kTile.warps, tiles)
                        ? blocks_ahead(blocks, warps * kPerWarp * kArrayBytes, kLeastSentForTiles, kTileAheadBytes)
                        : 0;
  launch_overlapped(
      scan_tiles_kernel<T, F, K, R, kTile.accesses, kTile.warps, tile_blocks<Lie>(kTile), Lie>,
      static_cast<unsigned>(blocks), static_cast<unsigned>(warps * kWarp), 0, current_stream(like), f, arrays, rows,
      cols, static_cast<int>(warps), tiles, ahead, told);
}

}  // namespace detail

}  // namespace extension_cpp::cuda
