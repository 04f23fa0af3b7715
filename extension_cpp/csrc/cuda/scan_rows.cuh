// Scans whose time is contiguous: a warp, or a block, for each row, which it has in registers while it scans. Long rows
// are cut into tiles, each a block's, that hand the state on as they go (a chained scan): all is read once. A tile
// waits for the pieces of those before it in its group, which need nothing but their own reads, and for the state at
// the end of the group before. That is more than "decoupled look-back" waits for, and unlike there it does not depend
// on who comes first what is added to what.
#pragma once

#include "ahead.cuh"
#include "launch.cuh"
#include "scan_piece.cuh"
#include "scan_told.cuh"
#include "vector.cuh"

#include <algorithm>
#include <numeric>
#include <optional>

namespace extension_cpp::cuda {

namespace detail {

constexpr int kScanTeams = 4;  // of a block for several rows, a warp each

// The tile of a block: Accesses of a thread to each array that is read, at most. Registers suffice for Blocks of these
// at once. Rows that Few of them, or fewer, have just no room for get a warp more in each (RoomyTile), of as many
// blocks at once as warps suffice for.
template <int Accesses, int Warps, int Blocks, int Few = 1>
struct ScanTileOf {
  static constexpr int kAccesses = Accesses;
  static constexpr int kWarps = Warps;
  static constexpr int kThreads = Warps * kWarp;
  static constexpr int kBlocks = Blocks;
  static constexpr int kFew = Few;
};

// Of two arrays that are read, and of three. Which is fastest was found by trying; benchmarks/NOTES.md has what they
// gave.
template <class T, size_t Arrays>
struct ScanTile;
template <>
struct ScanTile<double, 2> : ScanTileOf<4, 8, 2, 0> {};
template <>
struct ScanTile<double, 3> : ScanTileOf<2, 8, 2, 0> {};
template <>
struct ScanTile<float, 2> : ScanTileOf<4, 8, 3, 4> {};
template <>
struct ScanTile<float, 3> : ScanTileOf<2, 8, 4> {};
template <>
struct ScanTile<Half, 2> : ScanTileOf<2, 8, 4> {};
template <>
struct ScanTile<Half, 3> : ScanTileOf<2, 8, 3> {};
template <>
struct ScanTile<BFloat16, 2> : ScanTileOf<4, 4, 6, 4> {};
template <>
struct ScanTile<BFloat16, 3> : ScanTileOf<2, 8, 4, 4> {};

// That of a functor.
template <class T, class F, size_t K>
using ScanTileFor = ScanTile<T, std::clamp<size_t>(kArraysOf<F, K>, 2, 3)>;

template <class Tile>
using RoomyTile = ScanTileOf<Tile::kAccesses, Tile::kWarps + 1, Tile::kWarps * Tile::kBlocks / (Tile::kWarps + 1)>;

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

// How accesses to rows lie: whole and aligned; else they begin at the boundaries of what is written, so that the first
// and the last of a row hold others' steps as well. Inputs lie alike, or apart: then each access takes its steps from
// two aligned words, of which the second is the first of the next thread in memory. Or what is written is whole and
// aligned, and inputs alone lie apart.
enum class RowsLie { kWhole, kAlike, kApart, kInputsApart };

// Whether all steps of an access are the row's.
constexpr bool is_whole(RowsLie lie) { return lie == RowsLie::kWhole || lie == RowsLie::kInputsApart; }

// Whether accesses to inputs are put together of two words.
constexpr bool is_apart(RowsLie lie) { return lie == RowsLie::kApart || lie == RowsLie::kInputsApart; }

// Where they are, the second words take registers, and so does the question which steps are the row's.
template <class Tile, RowsLie Lie>
constexpr int kScanBlocks =
    is_apart(Lie) && Tile::kBlocks > (is_whole(Lie) ? 4 : 3) ? Tile::kBlocks - 1 : Tile::kBlocks;

// N neighbouring steps of a row as they are in memory. At its ends some are steps of others, or of nobody.
template <class T, size_t K, int N, bool Lagged, RowsLie Lie>
class ScanAccess {
  using A = acc_t<T>;
  static constexpr bool kWhole = is_whole(Lie);

 public:
  static constexpr size_t kArrays = K + (Lagged ? 1 : 0);

  // From column `start` on: a negative one where the first access begins before the row, which begins at `offset`.
  // Where arrays lie apart, all but their words, which read_words() has.
  template <size_t R, class Index>
  __device__ void read(const ScanArrays<T, K, R>& arrays, int64_t row, int64_t offset, Index cols, Index start) {
    begin_ = kWhole ? 0 : static_cast<int>(max(-start, Index{0}));
    end_ = static_cast<int>(min(cols - start, static_cast<Index>(N)));
    if constexpr (!is_apart(Lie)) {
#pragma unroll
      for (size_t k = 0; k < kArrays; ++k) {
        chunks_[k] = load_chunk<N>(array(arrays, k) + offset + start);  // which holds a step of the row at least
      }
    }
    if constexpr (Lagged) {
      const T* const before = start > 0                         ? arrays.lagged + offset + (start - 1)
                              : arrays.before_lagged == nullptr ? nullptr
                                                                : arrays.before_lagged + row;
      before_ = before == nullptr ? Chunk<T, 1>{} : load_chunk<1>(before);
    }
  }

  // The aligned words in which accesses begin that lie apart, or, `next`, those after them: where they hold a step of
  // the row. Lanes that have no access may have a word that others need.
  template <size_t R, class Index>
  __device__ void read_words(
      const ScanArrays<T, K, R>& arrays, int64_t offset, Index cols, Index start, bool next = false) {
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      const T* const row = array(arrays, k) + offset;
      const Index from = start - static_cast<Index>(misalignment(row + start) / sizeof(T)) + (next ? N : 0);
      chunks_[k] = from > -N && from < cols ? load_chunk<N>(row + from) : Chunk<T, N>{};
    }
  }

  // Both words of an access that is whole, the second in `after`: from `begin` on, where a row's steps are.
  template <size_t R>
  __device__ void read_both_words(const ScanArrays<T, K, R>& arrays, int64_t begin, ScanAccess& after) {
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      const T* const address = array(arrays, k) + begin;
      const unsigned misaligned = misalignment(address) / sizeof(T);
      const T* const word = address - misaligned;
      chunks_[k] = load_chunk<N>(word);
      after.chunks_[k] = load_chunk<N>(word + (misaligned == 0 ? 0 : N));  // what comes after may be nobody's
    }
  }

  // Makes steps of an access of its words and the next ones in memory, which are those of the next lane. Lanes are
  // first and last by memory. If the warp has more, the last lane gets what the first has in `after`, its next access;
  // else what it has itself there, which other lanes need not have.
  template <bool Reverse, size_t R>
  __device__ void shift(
      const ScanArrays<T, K, R>& arrays, int64_t offset, int lane, const ScanAccess& after, bool has_more) {
    constexpr int kFirst = Reverse ? kWarp - 1 : 0;
    constexpr int kLast = Reverse ? 0 : kWarp - 1;
    const int next_lane = (lane + (Reverse ? kWarp - 1 : 1)) % kWarp;
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      const uint4 own = chunks_[k].word;
      const uint4 ahead = after.chunks_[k].word;
      uint4 next = shuffle(pick(has_more && lane == kFirst, ahead, own), next_lane);
      next = pick(!has_more && lane == kLast, ahead, next);
      chunks_[k].word = taken_from<sizeof(T)>(own, next, misalignment(array(arrays, k) + offset));
    }
  }

  // Of its words and those that this lane has in `after`.
  template <size_t R>
  __device__ void shift(const ScanArrays<T, K, R>& arrays, int64_t offset, const ScanAccess& after) {
#pragma unroll
    for (size_t k = 0; k < kArrays; ++k) {
      chunks_[k].word =
          taken_from<sizeof(T)>(chunks_[k].word, after.chunks_[k].word, misalignment(array(arrays, k) + offset));
    }
  }

  // visit(n, elements) for each of the steps, in the order of the scan; n is constant to the compiler. Whether a step
  // is the row's is asked of each, or, of accesses that are whole, of none: for those there is code of its own.
  template <bool Reverse, bool OfEach, class Visit>
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
    const auto visit_own = [&](int n, bool is_first) {
      ScanElements<A, K> elements;
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        elements.inputs[k] = inputs[k][n];
      }
      if constexpr (Lagged) {
        elements.lagged = is_first ? to_values(before_)[0] : lagged[n > 0 ? n - 1 : 0];
      }
      visit(n, elements);
    };
    if (kWhole || (!OfEach && end_ - begin_ == N)) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int n = Reverse ? N - 1 - i : i;
        visit_own(n, n == 0);
      }
      return;
    }
    if constexpr (!kWhole) {  // else nvcc warns of a loop that nothing comes to
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int n = Reverse ? N - 1 - i : i;
        if (n >= begin_ && n < end_) {
          visit_own(n, n == 0 || n == begin_);
        }
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

  // To where the access begins in an output.
  __device__ void write(T* address, const Values<A, N>& values) const {
    if (kWhole || (end_ - begin_ == N && is_aligned(address))) {
      store(address, values);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (n >= begin_ && n < end_) {
          address[n] = static_cast<T>(values[n]);
        }
      }
    }
  }

 private:
  template <size_t R>
  __device__ static const T* array(const ScanArrays<T, K, R>& arrays, size_t k) {
    return k < K ? arrays.inputs[k < K ? k : 0] : arrays.lagged;
  }

  __device__ static uint4 pick(bool first, const uint4& a, const uint4& b) {
    return {first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w};
  }

  // Of a second word: of all types but the smallest the last bytes are never taken.
  __device__ static uint4 shuffle(const uint4& word, int lane) {
    return {
        __shfl_sync(kAllLanes, word.x, lane), __shfl_sync(kAllLanes, word.y, lane),
        __shfl_sync(kAllLanes, word.z, lane), sizeof(T) == 2 ? __shfl_sync(kAllLanes, word.w, lane) : 0};
  }

  Chunk<T, N> chunks_[kArrays];
  Chunk<T, 1> before_;
  int begin_ = 0;  // of the row's own steps
  int end_ = 0;
};

// Reads the accesses of a thread to a row that begins at `offset` and has so many, the first of them and every 32nd
// from there on. start_of(access) is the column where one begins.
template <bool Reverse, RowsLie Lie, int V, class Access, class Arrays, class Index, class StartOf>
__device__ void read_accesses(
    Access (&here)[V], const Arrays& arrays, int64_t row, int64_t offset, Index cols, Index first, Index accesses,
    const StartOf& start_of) {
  // A single access leaves registers for its second words, too, which are in the cache.
  constexpr bool kBothWords = is_apart(Lie) && is_whole(Lie) && V == 1;
  constexpr bool kWords = is_apart(Lie) && !kBothWords;
  if constexpr (kWords) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      here[v].read_words(arrays, offset, cols, start_of(first + v * kWarp));
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Index access = first + v * kWarp;
    if (access < accesses) {
      here[v].read(arrays, row, offset, cols, start_of(access));
      if constexpr (kBothWords) {
        Access after;
        here[v].read_both_words(arrays, offset + start_of(access), after);
        here[v].shift(arrays, offset + start_of(access), after);
      }
    }
  }
  if constexpr (kWords && V == 1) {
    Access after;
    after.read_words(arrays, offset, cols, start_of(first), true);
    here[0].shift(arrays, offset + start_of(first), after);
  } else if constexpr (kWords) {
    // The next words after the last access of the warp in memory, by its lane.
    constexpr int kLast = Reverse ? 0 : V - 1;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Access beyond;
    if (lane == (Reverse ? 0 : kWarp - 1)) {
      beyond.read_words(arrays, offset, cols, start_of(first + kLast * kWarp), true);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int v = Reverse ? V - 1 - i : i;  // those that hand words on are not shifted yet
      const int64_t begin = offset + start_of(first + v * kWarp);
      if (v == kLast) {
        here[v].template shift<Reverse>(arrays, begin, lane, beyond, false);
      } else {
        here[v].template shift<Reverse>(arrays, begin, lane, here[Reverse ? v - 1 : v + 1], true);
      }
    }
  }
}

// Columns of the accesses to a row that begin at boundaries, at most. The first row begins `misaligned` bytes after
// one.
template <class T>
int64_t cols_from_boundaries(int64_t cols, int64_t misaligned) {
  const int64_t apart = std::gcd<int64_t>(cols, kVector<T>);  // places where rows begin
  const int64_t most = kVector<T> - apart + misaligned / static_cast<int64_t>(sizeof(T)) % apart;
  return most + cols;
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

// What a block has whose tiles are of several warps.
struct TilePlace {
  int64_t row;
  int64_t tile;
};

// Of all rows in turn. A block waits for those before it: they begin in the order of their numbers, on which CUB
// relies, too. (To draw numbers instead takes a trip to memory before the first read.)
__device__ inline TilePlace tile_of_block(int64_t block, int64_t rows, int64_t tiles) {
  return tiles > 1 ? TilePlace{block % rows, block / rows} : TilePlace{block, 0};
}

// Whether blocks send for the tiles of those that come later: of rows that are not whole accesses, and of rows of
// several tiles. Tiles of fewer warps than there is room for, inputs that lie apart and, forward, rows of few whole
// tiles are slower by it (benchmarks/NOTES.md).
template <class Tile, RowsLie Lie, bool Lagged>
bool sends_for_tiles(int64_t warps, int64_t tiles) {
  if (is_apart(Lie) || warps < Tile::kWarps) {
    return false;
  }
  return Lie == RowsLie::kAlike || tiles > (Lagged ? 1 : 3);
}

// How far ahead, and of how many bytes at least: found by trying, as those of rows (ahead.cuh), from which they differ.
constexpr int64_t kTileAheadBytes = 10 << 19;
constexpr int64_t kLeastSentForTiles = 32 << 20;

// Sends for the tile, of so many steps, of the block that comes `ahead` blocks later.
template <bool Reverse, bool Lagged, class T, size_t K, size_t R>
__device__ void send_for_tile(
    const ScanArrays<T, K, R>& arrays, int64_t rows, int64_t cols, int64_t tiles, int64_t steps, int ahead) {
  const int64_t block = int64_t{blockIdx.x} + ahead;
  if (block >= gridDim.x) {
    return;
  }
  const TilePlace place = tile_of_block(block, rows, tiles);
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

// V accesses a thread, one behind the other for a warp, and `warps` of these: a tile of a row. A block has one; or,
// where rows are OneWarp, a warp each of several rows, whose columns are counted in fewer bits. `ahead`: 0, or how many
// blocks later that one comes whose tile it sends for.
template <class T, class F, size_t K, size_t R, class Tile, int V, bool OneWarp, RowsLie Lie>
__global__ void __launch_bounds__(Tile::kThreads, kScanBlocks<Tile, Lie>) scan_rows_kernel(
    F f, ScanArrays<T, K, R> arrays, int64_t rows, int64_t cols_of_row, int warps, int64_t tiles, int ahead,
    ToldOfTile<acc_t<T>>* told /* [rows, tiles] */) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  constexpr bool kReverse = kReverseOf<F>;
  constexpr std::make_index_sequence<K> kInputs;
  __shared__ ScanShared<A, Tile::kWarps> shared;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  using Index = std::conditional_t<OneWarp, int, int64_t>;
  if constexpr (OneWarp) {
    warps = 1;
    tiles = 1;
  }
  auto [row, tile] = tile_of_block(blockIdx.x, rows, tiles);
  // No other rows are of one warp. Where they are asked nonetheless, compilers order differently what comes after, by
  // which half types and double gain, and float loses (benchmarks/NOTES.md).
  constexpr bool kAsks = !std::is_same_v<T, float> && Lie != RowsLie::kAlike;
  const bool one_warp = OneWarp || (kAsks && warps == 1);
  if (one_warp) {
    row = row * kScanTeams + threadIdx.x / kWarp;
    if (row >= rows) {
      return;
    }
  }
  const int warp = one_warp ? 0 : static_cast<int>(threadIdx.x) / kWarp;
  const int64_t offset = row * cols_of_row;
  const auto cols = static_cast<Index>(cols_of_row);
  // Steps of the first access that are not the row's.
  const int head = is_whole(Lie) ? 0 : static_cast<int>(misalignment(arrays.outputs[0] + offset) / sizeof(T));
  const Index accesses = (head + cols + N - 1) / N;
  const Index first_access = static_cast<Index>((tile * warps + warp) * V) * kWarp + lane;
  const auto start_of = [&](Index access) { return (kReverse ? accesses - 1 - access : access) * N - head; };
  using Access = ScanAccess<T, K, N, kLaggedOf<F>, Lie>;
  // Of rows of a warp each has some that are not whole, and goes both ways; with a lagged array that is slower, too.
  constexpr bool kOfEach = V <= 2 || kLaggedOf<F>;
  // Where they lie apart, with both ways here, too, float32 has a hundred bytes put aside instead of fifty.
  constexpr bool kOfEachInTurn = kOfEach || is_apart(Lie);
  Access here[V];
  read_accesses<kReverse, Lie>(here, arrays, row, offset, cols, first_access, accesses, start_of);
  if constexpr (!is_apart(Lie) && !OneWarp) {
    if (ahead > 0 && threadIdx.x == 0) {
      send_for_tile<kReverse, kLaggedOf<F>>(
          arrays, rows, cols, tiles, static_cast<int64_t>(warps) * (V * kWarp * N), ahead);
    }
  }
  const A initial = arrays.initial == nullptr ? A(0) : static_cast<A>(arrays.initial[row]);

  // The pieces before each access, of the warp.
  Piece<A> before[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    before[v] = Piece<A>::none();
    if (first_access + v * kWarp < accesses) {
      here[v].template for_each<kReverse, kOfEach>([&](int, const auto& elements) { before[v].append(f, elements); });
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
    before[v] = v == 0 ? previous : chain(total, previous);
    total = v == 0 ? last : chain(total, last);
  }

  // And of the warps before.
  Piece<A> warps_before = Piece<A>::none();
  if constexpr (!OneWarp) {
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
  ToldOfTile<A>* const told_of_row = told + row * tiles;
  if (tiles > 1) {
    if (threadIdx.x == 0) {
      told_of_row[tile].piece.tell(total);
    }
    // A constant is faster where accesses are whole. (Tiles of w warps instead of W are fewer than W / (W - w), so that
    // all are of one group, and none is the last thread's.)
    const unsigned group_size = is_whole(Lie) ? Tile::kThreads : warps * kWarp;
    state = state_before_tile(told_of_row, tile, initial, warps, group_size, shared);
  }

  A states[V];
  bool holds = true;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Piece<A> all_before = OneWarp ? before[v] : chain(warps_before, before[v]);
    states[v] = all_before(state);
    holds = holds && (first_access + v * kWarp >= accesses || all_before.holds_for(state));
  }
  holds = holds && total.holds_for(state);
  const bool one_by_one = OneWarp ? __any_sync(kAllLanes, !holds) != 0 : __syncthreads_or(!holds) != 0;
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
                here[v].template for_each<kReverse, kOfEachInTurn>(
                    [&](int, const auto& elements) { after = scan_next(f, after, elements, kInputs); });
              }
            }
            state = __shfl_sync(kAllLanes, after, turn);
          }
        }
      }
      if constexpr (!OneWarp) {
        if (w == warp && lane == 0) {
          shared.state = state;
        }
        __syncthreads();
        state = shared.state;
        __syncthreads();
      }
    }
  }
  if (tiles > 1 && threadIdx.x == 0) {
    told_of_row[tile].state.tell(state);
  }

#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Index access = first_access + v * kWarp;
    if (access < accesses) {
      Values<A, N> outputs[R];
      A now = states[v];
      here[v].template for_each<kReverse, kOfEach>([&](int n, const auto& elements) {
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
        here[v].write(arrays.outputs[r] + offset + start_of(access), outputs[r]);
      }
      if (access == accesses - 1 && arrays.last != nullptr) {
        arrays.last[row] = static_cast<T>(now);
      }
    }
  }
}

// Whether a few tiles of so many columns have room for those of a row, but not for those of the accesses to it.
inline bool is_just_too_long(int64_t cols, int64_t most, int64_t tile, int64_t few) {
  return ceil_div(cols, tile) <= few && ceil_div(cols, tile) < ceil_div(most, tile);
}

// `most`: columns of the accesses to a row, at most.
template <class T, class F, size_t K, size_t R, class Tile, int V, bool OneWarp, RowsLie Lie>
void launch_scan_rows(
    const Tensor& like, const F& f, int64_t rows, int64_t cols, int64_t most, const ScanArrays<T, K, R>& arrays) {
  using Told = ToldOfTile<acc_t<T>>;
  constexpr int64_t kPerWarp = int64_t{kWarp} * kVector<T> * V;
  const int64_t tiles = ceil_div(most, Tile::kWarps * kPerWarp);
  const int64_t warps = ceil_div(ceil_div(most, tiles), kPerWarp);  // tiles are alike; of several, more than one
  const cudaStream_t stream = current_stream(like);
  std::optional<Tensor> scratch;
  Told* told = nullptr;
  if (tiles > 1) {
    const int64_t bytes = rows * tiles * static_cast<int64_t>(sizeof(Told));
    scratch = nothing_told(like, bytes);
    told = reinterpret_cast<Told*>(scratch->mutable_data_ptr<uint8_t>());
  }
  const int64_t blocks = OneWarp ? ceil_div(rows, kScanTeams) : rows * tiles;
  const int64_t threads = kWarp * (OneWarp ? kScanTeams : warps);
  constexpr auto kArrayBytes = static_cast<int64_t>(sizeof(T) * kArraysOf<F, K>);
  const int ahead = sends_for_tiles<Tile, Lie, kLaggedOf<F>>(warps, tiles)
                        ? blocks_ahead(blocks, warps * kPerWarp * kArrayBytes, kLeastSentForTiles, kTileAheadBytes)
                        : 0;
  scan_rows_kernel<T, F, K, R, Tile, V, OneWarp, Lie>
      <<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(
          f, arrays, rows, cols, static_cast<int>(warps), tiles, ahead, told);
  CUDA_LAUNCH_CHECK();
}

template <class T, class F, size_t K, size_t R, RowsLie Lie>
void launch_scan_rows(
    const Tensor& like, const F& f, int64_t rows, int64_t cols, int64_t most, const ScanArrays<T, K, R>& arrays) {
  using Tile = ScanTileFor<T, F, K>;
  constexpr int64_t kPerWarp = int64_t{kWarp} * kVector<T>;
  constexpr int V = Tile::kAccesses;
  if constexpr (Lie == RowsLie::kAlike && Tile::kFew > 0) {
    if (is_just_too_long(cols, most, Tile::kWarps * V * kPerWarp, Tile::kFew)) {
      launch_scan_rows<T, F, K, R, RoomyTile<Tile>, V, false, Lie>(like, f, rows, cols, most, arrays);
      return;
    }
  }
  if (most <= kPerWarp) {
    launch_scan_rows<T, F, K, R, Tile, 1, true, Lie>(like, f, rows, cols, most, arrays);
  } else if (most <= 2 * kPerWarp) {
    launch_scan_rows<T, F, K, R, Tile, 2, true, Lie>(like, f, rows, cols, most, arrays);
  } else if (most <= V * kPerWarp) {
    launch_scan_rows<T, F, K, R, Tile, V, true, Lie>(like, f, rows, cols, most, arrays);
  } else {
    launch_scan_rows<T, F, K, R, Tile, V, false, Lie>(like, f, rows, cols, most, arrays);
  }
}

template <class T, class F, size_t K, size_t R>
void launch_scan_rows(const Tensor& like, const F& f, int64_t rows, int64_t cols, const ScanArrays<T, K, R>& arrays) {
  const int64_t misaligned = misalignment(arrays.outputs[0]);
  const int64_t most = cols_from_boundaries<T>(cols, misaligned);
  if (cols % kVector<T> == 0 && begin_at(kAccessBytes, arrays)) {
    launch_scan_rows<T, F, K, R, RowsLie::kWhole>(like, f, rows, cols, cols, arrays);
    return;
  }
  if constexpr (sizeof(T) < sizeof(double)) {  // of double the backward takes 1.2 to 1.3 times as long so
    if (cols % kVector<T> == 0 && std::all_of(arrays.outputs, arrays.outputs + R, is_aligned)) {
      launch_scan_rows<T, F, K, R, RowsLie::kInputsApart>(like, f, rows, cols, cols, arrays);
      return;
    }
  }
  if (begin_after(misaligned, kAccessBytes, arrays)) {
    launch_scan_rows<T, F, K, R, RowsLie::kAlike>(like, f, rows, cols, most, arrays);
  } else {
    launch_scan_rows<T, F, K, R, RowsLie::kApart>(like, f, rows, cols, most, arrays);
  }
}

}  // namespace detail

}  // namespace extension_cpp::cuda
