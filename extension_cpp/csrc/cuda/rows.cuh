// Row kernels: reduce each row of a [rows, cols] matrix, then write one result per element.
//
// A functor says what happens to one row; the kernel lends it the row, read once and kept in registers:
//
//   template <class T>
//   struct Softmax {
//     T* __restrict__ output;  // [rows, cols]
//
//     template <class Row>
//     __device__ void operator()(Row& row) const {
//       using A = acc_t<T>;
//       const A max = row.max();
//       const A total = row.sum([=](A x) { return exp(x - max); });
//       row.write(output, [=](A x) { return exp(x - max) / total; });
//     }
//   };
//   cuda::launch_rows<T>(like, Softmax<T>{output}, std::array{input}, rows, cols);
//
// A short row is handled by part of a warp, a longer one by several warps; there are so many of them that one computes
// while others wait for memory, and of large tensors that are written each block sends for what one of the next will
// read. A row too long for the registers of a block is shared by the blocks of a cluster (compute capability 9.0), or
// read again for each pass. Kernels that sum columns as well keep the sums in registers, hence their blocks stay for
// many rows: while one is computed, the next two are on their way, and so is what row_values.h says belongs to them.
// Accesses are of 16 bytes, but for float64, and for float32 and short rows of half types that are not whole accesses
// or not aligned. A functor may also be given segments of rows (Split), so that few long rows fill the GPU, and leave
// partial results for a second launch. The order of additions depends on the shape, on how tensors are aligned and on
// the device: equal bits from run to run. (Of the sums of columns of shared rows it depends on how many clusters this
// very device has room for.) benchmarks/NOTES.md says why it is done so.
#pragma once

#include "ahead.cuh"
#include "launch.cuh"
#include "parameter.cuh"
#include "partials.cuh"
#include "queue.cuh"
#include "row.cuh"
#include "row_values.h"
#include "span.cuh"
#include "team.cuh"

#include <algorithm>
#include <array>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

using extension_cpp::detail::call_with_row_values;
using extension_cpp::detail::NoRowValues;
using extension_cpp::detail::row_elements;
using extension_cpp::detail::row_values;
using extension_cpp::detail::RowColumnsOf;
using extension_cpp::detail::RowElementsOf;
using extension_cpp::detail::RowValuesOf;
using extension_cpp::detail::writes_rows;

// Bytes of a row, or of as much of several inputs, that a thread keeps: few, so that many threads run at once and wait
// for memory together. Of long rows, and of many short ones, twice as many.
constexpr int kKeptBytes = 64;

// Accesses of N elements to each of K inputs. (Single half numbers are of short rows.)
template <class T, int N, size_t K>
constexpr int kKeptAccesses = N * sizeof(T) < 4 ? 4 : std::max(1, kKeptBytes / static_cast<int>(N * sizeof(T) * K));

// The same of kernels that also have C sums for each column, whose accumulators take registers: of elements as many for
// every type. F is the functor, whose values for a row take some, too.
template <class T, int N, size_t C, class F>
constexpr int summed_accesses() {
  constexpr size_t kHeld = C + (std::is_same_v<typename RowValuesOf<F>::type, NoRowValues> ? 0 : 1);
  if (N == 1) {
    return sizeof(T) == 4 ? 8 : 4;
  }
  return std::max(1, (kHeld > 3 ? 8 : 16) / N);
}

// Of a block; with it the compiler may give a thread of one that stays 128 registers, of one that only reads 64.
constexpr int kMaxThreads = 512;

// Of blocks that keep a row, and of those that keep a long one, in 64 registers a thread.
constexpr int kMaxRowThreads = 256;
constexpr int kMaxLongRowThreads = 1024;

// Of rows of up to so many bytes in an input the L2 cache has what is read again, if a multiprocessor has one at a
// time; to share them takes longer.
constexpr int64_t kCachedRowBytes = 128 * 1024;

// The same of one input whose accesses are two words and a shift, for which reading again takes longer.
constexpr int64_t kCachedShiftedRowBytes = 104 * 1024;

// Rows from so many bytes on are not read again one by one.
constexpr int64_t kLongestRowBytes = 8 << 20;

// Of a block of several teams that does not stay. (Of one that stays, kBlock.)
constexpr int kRowBlock = 128;
static_assert(std::max(kBlock, kRowBlock) / (2 * kWarp) <= kMaxTeams);

// Whether a functor calls row.sum(), once, and asks nothing else of its row, which need not be kept then.
template <class F, class = void>
constexpr bool sums_elements = false;
template <class F>
constexpr bool sums_elements<F, std::enable_if_t<F::kSumsElements>> = true;

// The largest block, of teams of up to so many threads.
template <int Threads>
constexpr int kLargestBlock = std::max(Threads, kRowBlock);

// Blocks that the compiler shall let run at once. Of a short row of one input, 48 registers will do; with 40 there are
// too few, which costs a tenth. Of full rows that are written, column operands of several accesses are on their way at
// a time, and a sum of rows that are not kept needs next to none.
template <int N, int V, Fit Rows, int Threads, class In, class F>
constexpr int row_blocks() {
  const bool next_to_none = V == 0 && sums_elements<F>;
  constexpr bool kShort = V * N * static_cast<int>(sizeof(typename In::Element)) <= kKeptBytes;
  const bool few_registers = Threads <= kMaxRowThreads && In::kCount == 1 && kShort && !(kFull<Rows> && writes_rows<F>);
  const int threads = next_to_none ? 2048 : few_registers ? 1280 : 1024;
  return std::min(threads, kMostThreads) / kLargestBlock<Threads>;
}

// Blocks of kMaxThreads that the compiler shall let run at once, of kernels that sum columns: two, or four of kBlock,
// of those that read one input for one sum and write nothing. (Of whole accesses that are not sent for ahead, which are
// of short rows, there are more registers in a thread's loads.)
template <bool Ahead, int N, size_t C, class In, class F>
constexpr int kColumnSumBlocks = In::kCount == 1 && C == 1 && !writes_rows<F> && (Ahead || N == 1) ? 2 : 1;

// batch x rows x cols.
struct Extent {
  int64_t batch;
  int64_t rows;
  int64_t cols;
};

// Where they do not begin at a multiple of 128 bytes, copies from memory take a tenth longer.
__device__ inline void* shared_bytes() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return bytes;
}

// What a kernel goes through: whole rows, or all segments of them. Kernels of whole rows need not say where a segment
// lies, and have registers for it.
struct WholeRows {
  static constexpr bool kCut = false;
  static constexpr bool kShared = false;

  int64_t count;
  int64_t cols;
};

template <bool Shared>
struct Cut {
  static constexpr bool kCut = true;
  static constexpr bool kShared = Shared;

  int64_t count;
  int64_t cols;  // of a row
  Split split;   // into fewer than 2^31 segments, which are of thousands of elements
  // Of rows so long that what belongs to their columns would leave the L2 cache before the next one comes, how many:
  // the first segments of all come together, then the second ones. 0: row by row.
  int64_t rows_together = 0;
  bool from_end = false;
};
using Segments = Cut<false>;
// Those of a row are of the blocks of a cluster, which share it.
using SharedRows = Cut<true>;

// How often one that takes every `step`th of `count` has its turn.
__device__ inline int turns(int64_t count, int64_t step) {
  return count > 0 ? static_cast<int>((count + step - 1) / step) : 0;
}

// The elements of a row that come before the first of an access, by the offset of its first. Accesses begin at
// boundaries of what a functor writes, which begins at one; where it writes no rows, at those of its first input.
template <int N, class F, class In>
__device__ int head_of(const In& inputs, int64_t offset) {
  auto at = static_cast<unsigned>(offset);
  if constexpr (!writes_rows<F>) {
    at += misalignment(inputs.data[0]) / static_cast<unsigned>(sizeof(typename In::Element));
  }
  return static_cast<int>(-at & (N - 1));
}

// The span of this index. Where there is none, the first row, so that what belongs to it may be read, with no columns.
template <int N, Fit Rows, class F, class In, class Grid>
__device__ Span span_at(const In& inputs, const Grid& grid, int64_t index) {
  Span span;
  span.matrix = 0;
  span.exists = index < grid.count;
  span.row = span.exists ? index : 0;
  span.segment = 0;
  span.first_col = 0;
  span.cols = grid.cols;
  if constexpr (Grid::kCut) {
    auto whole = static_cast<unsigned>(span.row);
    if (grid.from_end && span.exists) {
      whole = static_cast<unsigned>(grid.count - 1) - whole;
    }
    const bool by_columns = !Grid::kShared && grid.rows_together > 0;
    const auto divisor = static_cast<unsigned>(by_columns ? grid.rows_together : grid.split.segments);
    const unsigned quotient = whole / divisor;
    const unsigned remainder = whole - quotient * divisor;
    span.row = by_columns ? remainder : quotient;
    span.segment = by_columns ? quotient : remainder;
    span.first_col = span.segment * grid.split.segment_cols;
    const int64_t rest = grid.cols - span.first_col;
    span.cols = grid.split.segment_cols < rest ? grid.split.segment_cols : rest;
  }
  span.offset = span.row * grid.cols + span.first_col;
  span.cols = span.exists ? span.cols : 0;
  span.head = kRagged<Rows> ? head_of<N, F>(inputs, span.offset) : 0;
  return span;
}

// Whether blocks send for the rows of those that come: where rows are written, whose memory waits while teams compute,
// and read once.
template <int V, class Grid, class F>
constexpr bool kSendsAhead = V > 0 && !Grid::kCut && writes_rows<F>;

// How many parameters that a functor names are asked for before a full row of several inputs is reduced: all, where
// they take, with the inputs, no more than half of a thread's 64 registers. (Of one input compilers move them behind
// the reduction, or put aside what they displace, which takes up to a quarter longer.)
template <class In, int N, int V, Fit Rows, class F>
constexpr int columns_ahead() {
  constexpr int kNamed = RowColumnsOf<F>::type::kCount;
  constexpr int kInputs = static_cast<int>(In::kCount);
  constexpr int kBytes = (kInputs + kNamed) * V * N * static_cast<int>(sizeof(typename In::Element));
  return kFull<Rows> && kInputs > 1 && kBytes <= 2 * kKeptBytes ? kNamed : 0;
}

// Sends for the rows of the block that comes `ahead` blocks later.
template <class In>
__device__ void send_for_rows(const In& inputs, const WholeRows& grid, int ahead) {
  const int64_t first = (int64_t{blockIdx.x} + ahead) * blockDim.y;
  const int64_t rows = grid.count - first < blockDim.y ? grid.count - first : blockDim.y;
#pragma unroll
  for (size_t k = 0; k < In::kCount; ++k) {
    if (rows > 0) {
      send_for(inputs.data[k] + first * grid.cols, rows * grid.cols);
    }
  }
}

// A team for each span, of which a block has blockDim.y. V accesses to each input are kept, or none. Threads is the
// largest team. `ahead` is of kernels that kSendsAhead: 0 for none.
template <int N, int V, Fit Rows, int Threads, class Grid, class In, class F>
__global__ void __launch_bounds__(kLargestBlock<Threads>, (row_blocks<N, V, Rows, Threads, In, F>()))
    rows_kernel(F f, In inputs, Grid grid, int ahead) {
  using A = acc_t<typename In::Element>;
  using TeamHere = Team<A, Grid::kShared, Threads, kRowBlock / (2 * kWarp)>;
  __shared__ typename TeamHere::Shared shared;
  may_begin_next();
  wait_for_previous();
  const auto lanes = static_cast<int>(blockDim.x);
  TeamHere team(lanes, static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.y), shared);
  const Span span = span_at<N, Rows, F>(inputs, grid, int64_t{blockIdx.x} * blockDim.y + threadIdx.y);
  int64_t segments = 1;
  if constexpr (Grid::kCut) {
    segments = grid.split.segments;
  }
  const First<In> first(inputs, span, Grid::kShared);
  const auto values = row_values(f, span.row);
  Awaited<In, N, V, Rows> awaited;
  if constexpr (V > 0) {
    awaited.ask(inputs, span, lanes, static_cast<unsigned>(team.lane()));
  }
  using Columns = AwaitedColumns<In, N, V, columns_ahead<In, N, V, Rows, F>()>;
  Columns columns;
  if constexpr (Columns::kCount > 0) {
    columns.ask(f.row_columns(), span, lanes, team.lane());
  }
  if constexpr (kSendsAhead<V, Grid, F>) {
    if (ahead > 0 && threadIdx.x == 0 && threadIdx.y == 0) {
      send_for_rows(inputs, grid, ahead);
    }
  }
  const KeptEdge<In, N, Rows> edge(inputs, span, team.lane());
  const Kept<In, N, V> kept = awaited.arrived();
  using RowHere = Row<In, N, V, Rows, 0, TeamHere, Grid::kShared, Kept<In, N, V>, Columns>;
  typename RowHere::Sums no_sums;
  team.wait_for_others();
  const RowElementsRead<N, V, Rows, NoRowElements> none_read({}, span, lanes, team.lane());
  RowHere row(inputs, segments, grid.cols, span, first, kept, edge, columns, none_read, team, no_sums);
  call_with_row_values(f, row, values);
}

// Adds up what the teams of a warp hold that belong to one group: for each of them.
template <int N, int V, class A>
__device__ void sum_over_teams_of_warp(Values<A, N> (&sums)[V], int lanes, int group) {
  for (int mask = lanes; mask < kWarp && mask < group; mask *= 2) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sums[v] = plus(sums[v], shuffle_xor(sums[v], mask));
    }
  }
}

// The sums of M neighbouring columns over `count` vectors of `length`.
template <int M, class A>
__device__ Values<A, M> sum_of_vectors(const A* first, int count, int length) {
  using Word = typename Word<static_cast<int>(sizeof(A)) * M>::type;
  Values<A, M> sum{};
#pragma unroll 4
  for (int k = 0; k < count; ++k) {
    Values<A, M> values;
    memcpy(&values, reinterpret_cast<const Word*>(first + k * length), sizeof(Word));
    sum = plus(sum, values);
  }
  return sum;
}

// What a functor reads for each row besides its inputs, of the rows that a team takes in turn: each lane of a warp
// reads for another turn, long before it comes.
template <class F>
class RowValuesAhead {
  using Values = decltype(row_values(std::declval<const F&>(), int64_t{}));
  static constexpr bool kNone = std::is_same_v<Values, NoRowValues>;

 public:
  // `width`: of the lanes of a team in a warp. row_of(turn) may be asked for any turn.
  template <class RowOf>
  __device__ RowValuesAhead(const F& f, int width, const RowOf& row_of)
      : f_(f), width_(width), now_(row_values(f, row_of(own_turn(0)))), next_(row_values(f, row_of(own_turn(width)))) {}

  // Of the turns from 0 on, one after the other; the whole warp calls together.
  template <class RowOf>
  __device__ Values at(int turn, const RowOf& row_of) {
    if constexpr (kNone) {
      return {};
    } else {
      const int lane = turn & (width_ - 1);
      if (lane == 0 && turn > 0) {
        now_ = next_;
        next_ = row_values(f_, row_of(own_turn(turn + width_)));
      }
      unsigned words[(sizeof(Values) + sizeof(unsigned) - 1) / sizeof(unsigned)];
      memcpy(words, &now_, sizeof(Values));
#pragma unroll
      for (unsigned& word : words) {
        word = __shfl_sync(0xffffffffu, word, lane, width_);
      }
      Values values;
      memcpy(&values, words, sizeof(Values));
      return values;
    }
  }

 private:
  __device__ int own_turn(int first) const { return first + (static_cast<int>(threadIdx.x) & (width_ - 1)); }

  const F& f_;
  int width_;
  Values now_;
  Values next_;
};

// Which rows of which tile are a thread's: a tile is a segment of the rows of one matrix of the batch.
struct Portion {
  int64_t batch;
  bool exists;
  int row_team;  // of those that share the tile in a block
  int64_t first_row;
  Span span;  // of the segment: no row yet, and so no offset
};

template <int N, Fit Rows, class F, class In>
__device__ Portion portion_of(
    const In& inputs, const Extent& extent, const Split& split, int lanes, int row_teams, int classes, int thread) {
  Portion portion;
  const int team = thread / lanes;
  const int tiles_per_block = static_cast<int>(blockDim.x) / (lanes * row_teams);
  const int64_t own_tile = static_cast<int64_t>(blockIdx.x) * tiles_per_block + team / row_teams;
  portion.row_team = team % row_teams;
  portion.exists = own_tile < extent.batch * split.segments;
  const int64_t tile = portion.exists ? own_tile : 0;
  portion.batch = extent.batch == 1 ? 0 : split.segments == 1 ? tile : tile / split.segments;
  // The rows of all blocks at a time lie together.
  portion.first_row = static_cast<int64_t>(blockIdx.y / classes) * row_teams * classes + blockIdx.y % classes;
  Span& span = portion.span;
  span = {};
  span.matrix = portion.batch;
  span.segment = tile - portion.batch * split.segments;
  // Segments are cut where accesses are. (Where rows begin at different places, no place is better than another.)
  const int head = kRagged<Rows> && classes * extent.cols % N == 0
                       ? head_of<N, F>(inputs, (portion.batch * extent.rows + portion.first_row) * extent.cols)
                       : 0;
  const int64_t begin = span.segment * split.segment_cols + head;
  const int64_t end = begin + split.segment_cols;
  span.first_col = span.segment > 0 ? begin : 0;
  span.cols = end < extent.cols ? end - span.first_col : extent.cols - span.first_col;
  span.cols = span.cols > 0 ? span.cols : 0;  // the one before it may end a row
  span.head = static_cast<int>(begin - span.first_col);
  return portion;
}

// Blocks stay for many rows of one segment, each of which is read while the one before it is computed. A thread meets
// the same columns in every row, and keeps their sums: where rows are not whole accesses, those of a block are
// `classes` apart, and begin at the same place between two 16-byte boundaries.
//
// blockIdx.x: tiles, which are segments of matrices of the batch; blockIdx.y: the rows. row_teams of the block's teams
// share a tile. Shares: the tiles of a row are of the blocks of a cluster, which reduce it together.
template <int N, int V, Fit Rows, bool Ahead, bool Shares, size_t C, class In, class F, class Out>
__global__ void __launch_bounds__(kMaxThreads, kColumnSumBlocks<Ahead, N, C, In, F>) rows_and_column_sums_kernel(
    F f, In inputs, Extent extent, Split split, int lanes, int row_teams, int classes, int rows_in_shared,
    SumOutputs<Out, C> outputs, acc_t<typename In::Element>* __restrict__ partials /* [gridDim.y, C, batch * cols] */) {
  static_assert(Ahead || !Shares);
  using A = acc_t<typename In::Element>;
  using TeamHere = Team<A, Shares>;
  __shared__ typename TeamHere::Shared shared;
  may_begin_next();
  wait_for_previous();
  const int team_in_block = static_cast<int>(threadIdx.x) / lanes;
  TeamHere team(lanes, static_cast<int>(threadIdx.x) - team_in_block * lanes, team_in_block, shared);
  const auto own_portion = [&](int thread) {
    return portion_of<N, Rows, F>(inputs, extent, split, lanes, row_teams, classes, thread);
  };
  const Portion own = own_portion(static_cast<int>(threadIdx.x));
  const int64_t first = own.first_row;
  const int64_t stride = static_cast<int64_t>(gridDim.y / classes) * row_teams;  // in rows of the block's class
  Span span = own.span;
  const int64_t left = first < extent.rows ? (extent.rows - first + classes - 1) / classes : 0;
  const int all_turns = turns(left, stride);
  const int own_turns = own.exists ? turns(left - own.row_team, stride) : 0;
  const int64_t first_row = own.batch * extent.rows + (own.exists && left > 0 ? first : 0);
  const int64_t row_step = stride * classes;
  const int64_t offset_step = row_step * extent.cols;
  const auto begin_turn = [&](Span& at, int turn) {
    at.exists = turn < own_turns;
    at.cols = at.exists ? span.cols : 0;
  };
  const auto move = [&](Span& at, int turn) {
    at.offset += offset_step;
    begin_turn(at, turn);
  };

  using RowColumns = typename RowColumnsOf<F>::type;
  using KeptHere = std::conditional_t<Ahead, KeptInShared<In, N, V>, Kept<In, N, V>>;
  using Columns = KeptColumns<In, N, V, Rows, RowColumns::kCount>;
  using Read = RowElementsRead<N, V, Rows, typename RowElementsOf<F>::type>;
  using RowHere = Row<In, N, V, Rows, C, TeamHere, Shares, KeptHere, Columns, Read>;
  typename RowHere::Sums sums = {};
  span.row = first_row + own.row_team * classes;
  span.offset = span.row * extent.cols + span.first_col;
  Span here = span;
  begin_turn(here, 0);
  // A team that has no row takes the block's first for reading what belongs to it.
  const auto row_of = [&](int turn) { return turn < own_turns ? span.row + turn * row_step : first_row; };
  RowValuesAhead values(f, lanes < kWarp ? lanes : kWarp, row_of);
  Columns columns;
  if constexpr (RowColumns::kCount > 0) {
    columns.read(f.row_columns(), span, lanes, team.lane());
  }
  KeptEdge<In, N, Rows> edge(inputs, here, team.lane());
  const auto named = row_elements(f);
  Read read(named, here, lanes, team.lane());
  int turn = 0;
  const auto compute = [&](const KeptHere& kept) {
    Span there = here;
    there.row = row_of(turn);
    const auto values_here = values.at(turn, row_of);
    move(here, ++turn);
    const KeptEdge<In, N, Rows> next_edge(inputs, here, team.lane());
    Span ahead = here;
    ahead.row = row_of(turn);
    const Read next_read(named, ahead, lanes, team.lane());
    const First<In> first_elements(inputs, there, Shares);
    RowHere row(inputs, split.segments, extent.cols, there, first_elements, kept, edge, columns, read, team, sums);
    call_with_row_values(f, row, values_here);
    edge = next_edge;
    read = next_read;
  };
  if constexpr (Ahead) {
    Queue<In, N, V, Rows> queue(shared_bytes(), rows_in_shared, lanes);
    Span next = here;
    int sent = 0;
    const auto send = [&] {
      queue.send(inputs, next, team.lane(), sent < rows_in_shared);
      move(next, ++sent);
    };
    for (int k = 1; k < rows_in_shared; ++k) {
      send();
    }
    team.wait_for_others();
    while (turn < all_turns) {
      send();
      compute(queue.take(inputs, here, turn < rows_in_shared));
    }
  } else {
    const auto lane = static_cast<unsigned>(team.lane());
    Awaited<In, N, V, Rows> next;
    next.ask(inputs, here, lanes, lane);
    while (turn < all_turns) {
      const Kept<In, N, V> kept = next.arrived();
      Span after = here;
      move(after, turn + 1);
      next.ask(inputs, after, lanes, lane);
      compute(kept);
    }
  }

  // Worked out once more, or it would be kept in registers all the while. (Of ragged and shared rows that is more work,
  // and it is kept.)
  int thread = static_cast<int>(threadIdx.x);
  if constexpr (!kRagged<Rows> && !Shares) {
    asm volatile("" : "+r"(thread));
  }
  const Portion portion = own_portion(thread);
  const int64_t cols = whole_cols<N, Rows>(portion.span);
  // Of partial sums as many in an access as lie between boundaries for certain: single ones of threads whose columns
  // lie apart would be transactions of their own.
  constexpr int M = kRagged<Rows> || N < kVector<A> ? 1 : kVector<A>;
  // Sum c of columns col ... col + M - 1.
  const auto put = [&](size_t c, int64_t col, const Values<A, M>& values) {
    const int64_t at = portion.batch * extent.cols + portion.span.first_col + col;
    if (gridDim.y > 1) {
      store(partials + (static_cast<int64_t>(blockIdx.y) * C + c) * extent.batch * extent.cols + at, values);
      return;
    }
#pragma unroll
    for (int k = 0; k < M; ++k) {
      outputs.store(c, at + k, values[k]);
    }
  };
  // The teams that share a tile, or warps of them, each have a vector of sums, which they add up together.
  const int group = lanes * row_teams;
  const int unit = lanes < kWarp ? kWarp : lanes;
  const int lane = thread % lanes;
  // Those of one unit go the same way where threads' columns do not begin at boundaries: each number that they store
  // would be a transaction.
  if (group < unit || (group == unit && !kRagged<Rows>)) {
#pragma unroll
    for (size_t c = 0; c < C; ++c) {
      sum_over_teams_of_warp(sums[c], lanes, group);
      if (portion.row_team != 0 || !portion.exists) {
        continue;
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Place<N, V, unsigned, Rows> where(cols, static_cast<unsigned>(lane), lanes, v);
        if (where.exists()) {
#pragma unroll
          for (int n = 0; n < N; n += M) {
            Values<A, M> some;
#pragma unroll
            for (int k = 0; k < M; ++k) {
              some[k] = sums[c][v][n + k];
            }
            put(c, portion.span.head + where.col + n, some);
          }
        }
      }
      if constexpr (kRagged<Rows>) {
        const EdgePlace<N> at_edge(portion.span, lane);
        if (at_edge.is) {
          put(c, at_edge.col, {sums[c][RowHere::kEdge][0]});
        }
      }
    }
    return;
  }
  const int whole = lanes * V * N;
  const int length = whole + (kRagged<Rows> ? lanes : 0);
  A* const vectors = static_cast<A*>(shared_bytes());
  constexpr int kStored = N < kVector<A> ? N : kVector<A>;
  using StoredWord = typename Word<static_cast<int>(sizeof(A)) * kStored>::type;
#pragma unroll
  for (size_t c = 0; c < C; ++c) {
    sum_over_teams_of_warp(sums[c], lanes, group);
    __syncthreads();  // what was here before has been read
    if (thread % unit < lanes) {
      A* const vector = vectors + thread / unit * length;
#pragma unroll
      for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int n = 0; n < N; n += kStored) {
          auto* const to = reinterpret_cast<StoredWord*>(vector + (v * lanes + lane) * N + n);
          memcpy(to, &sums[c][v][n], sizeof(StoredWord));
        }
      }
      if constexpr (kRagged<Rows>) {
        vector[whole + lane] = sums[c][RowHere::kEdge][0];
      }
    }
    __syncthreads();
    if (!portion.exists) {
      continue;
    }
    const int units = group / unit;
    const int in_group = thread % group;
    const A* const first_vector = vectors + thread / group * units * length;
    for (int col = in_group * M; col < whole && col < cols; col += group * M) {
      put(c, portion.span.head + col, sum_of_vectors<M>(first_vector + col, units, length));
    }
    if constexpr (kRagged<Rows>) {
      if (in_group < lanes) {
        const EdgePlace<N> at_edge(portion.span, in_group);
        if (at_edge.is) {
          put(c, at_edge.col, sum_of_vectors<1>(first_vector + whole + in_group, units, length));
        }
      }
    }
  }
}

// Threads for a row of `accesses`, `per_thread` of them each unless that takes more than max_lanes. A power of two up
// to a warp, or whole warps.
inline int row_lanes(int64_t accesses, int64_t per_thread, int max_lanes, int least = 1) {
  const int64_t wanted = std::max<int64_t>(1, ceil_div(accesses, per_thread));
  if (wanted > kWarp) {
    return static_cast<int>(std::min<int64_t>(ceil_div(wanted, kWarp) * kWarp, max_lanes));
  }
  int lanes = least;
  while (lanes < wanted) {
    lanes *= 2;
  }
  return lanes;
}

// The least for rows in accesses to N elements: the edges of ragged ones have a thread for each element.
template <int N, Fit Rows>
constexpr int kLeastLanes = kRagged<Rows> ? 2 * N : 1;

// Calls launch(ahead): whether rows are sent for ahead. Not where accesses are too narrow, nor by threads that have a
// row each, which keep enough loads on their way without.
template <class In, int N, Fit Rows, class F>
auto with_ahead(int lanes, const F& launch) {
  if constexpr (!kMayRunAhead<In, N>) {
    return launch(std::false_type{});
  } else {
    if constexpr (!kRagged<Rows>) {  // of which short rows are not whole accesses
      if (lanes == 1) {
        return launch(std::false_type{});
      }
    }
    return launch(std::true_type{});
  }
}

// Columns of rows that take no more than a few accesses, of which two may not be whole.
constexpr int64_t kFewCols = 64;

// Calls launch(N, fit, inputs): with the width of the accesses, kRagged where some are not aligned or not whole, else
// kWhole, and the inputs as kernels take them. Of float64, where there shall be none that are ragged, and of rows of up
// to kFewCols columns that are not aligned, accesses are to single numbers. `from_boundaries`: whether the accesses to
// what is written begin at boundaries; where nothing is, those to the first input, which alone never MayShift. With
// WholeMayShift, longer rows that are written and whole accesses are kWhole, whether inputs are aligned or to be
// shifted.
template <bool MayBeRagged, bool MayShift, bool WholeMayShift, class F, class In, class Launch>
auto with_access_width(const In& inputs, int64_t cols, bool from_boundaries, const Launch& launch) {
  using T = typename In::Element;
  if constexpr (std::is_same_v<T, double>) {
    return launch(std::integral_constant<int, 1>{}, FitConstant<Fit::kWhole>{}, inputs);
  } else {
    constexpr std::integral_constant<int, kVector<T>> n;
    const bool whole = cols % n == 0;
    const unsigned boundary = writes_rows<F> ? 0 : misalignment(inputs.data[0]);
    bool aligned = whole;
    bool at_boundaries = whole || from_boundaries;
    for (size_t k = 0; k < In::kCount; ++k) {
      const unsigned misaligned = misalignment(inputs.data[k]);
      aligned = aligned && misaligned == 0;
      at_boundaries = at_boundaries && (misaligned == boundary || inputs.is_one_row(k));
    }
    if (aligned) {
      return launch(n, FitConstant<Fit::kWhole>{}, inputs);
    }
    if constexpr (MayBeRagged) {
      if (cols > kFewCols) {
        if constexpr (WholeMayShift && writes_rows<F>) {
          if (whole) {
            return launch(n, FitConstant<Fit::kWhole>{}, inputs.shifted());
          }
        }
        if constexpr (MayShift) {
          if (!at_boundaries) {
            return launch(n, FitConstant<Fit::kRagged>{}, inputs.shifted());
          }
        }
        return launch(n, FitConstant<Fit::kRagged>{}, inputs);
      }
    }
    return launch(std::integral_constant<int, 1>{}, FitConstant<Fit::kWhole>{}, inputs);
  }
}

// Rows in shared memory, and what they take of it.
struct QueueSize {
  int rows;
  size_t bytes;
};

// Three rows, or as many as a block may have memory for, and at least what the kernel needs for other ends. Of long
// rows two: no more need be on its way. None where a device has no memory for one.
template <class In, int N, int V, Fit Rows, class Kernel>
QueueSize queue_size(Kernel* kernel, int block, size_t least) {
  constexpr size_t kAlways = 40 * 1024;  // of any device, besides what kernels have of their own
  constexpr size_t kOwn = 6 * 1024;      // more than that
  constexpr size_t kEnough = 56 * 1024;  // for kBlock threads
  constexpr size_t kWarpBytes = Queue<In, N, V, Rows>::kWarpBytes;
  constexpr int kRows = 3 * kWarpBytes * (kBlock / kWarp) <= kEnough ? 3 : 2;
  const size_t row_bytes = kWarpBytes * (block / kWarp);
  if (std::max(kRows * row_bytes, least) <= kAlways) {
    return {kRows, std::max(kRows * row_bytes, least)};
  }
  const size_t most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kOwn;
  // The same for every call: other threads may be launching this kernel for rows of another length.
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)));
  const int rows = static_cast<int>(std::min<size_t>(kRows, most / row_bytes));
  return {rows, std::max(rows * row_bytes, least)};
}

// Whether column sums of ragged rows begin each row at a boundary. Few rows are not worth it.
inline bool begin_at_boundaries(const Extent& extent) { return extent.rows >= 64; }

// with_access_width() for column sums.
template <class F, class In, class Launch>
auto with_access_width_for_sums(const In& inputs, const Extent& extent, const Launch& launch) {
  constexpr bool kMayBeRagged = sizeof(typename In::Element) == 2;
  return with_access_width<kMayBeRagged, true, false, F>(inputs, extent.cols, begin_at_boundaries(extent), launch);
}

// Teams of a block that has `threads`, or as many as one team has.
inline int teams_of(int threads, int lanes) { return std::max(1, threads / lanes); }

// Rows of each team: four, for which its sums are worth their while, and fewer where with four not even about every
// second multiprocessor would have a block. `blocks` are those of all columns.
inline int64_t rows_of_teams(int64_t rows, int64_t row_teams, int64_t blocks) {
  const int64_t least = ceil_div(multiprocessors(), 2 * blocks);
  return std::clamp<int64_t>(ceil_div(rows, row_teams * least), 1, 4);
}

// False, and nothing done, where a device has no memory for a row, or, for rows that segments share, no clusters.
template <int N, int V, Fit Rows, bool Ahead, bool Shares, class In, class F, class Out, size_t C>
bool launch_column_sums(
    const Tensor& like, const F& f, const In& inputs, const Extent& extent, const Split& split, int lanes,
    const std::array<Out, C>& outputs) {
  using A = acc_t<typename In::Element>;
  // Shared rows have kernels for full ones. Others gain nothing by them.
  if constexpr (Rows == Fit::kWhole && N > 1 && Shares) {
    const int64_t whole = int64_t{lanes} * V * N;
    if (split.segment_cols == whole && extent.cols % whole == 0) {
      return launch_column_sums<N, V, Fit::kFull, Ahead, Shares>(like, f, inputs, extent, split, lanes, outputs);
    }
  }
  const auto kernel = rows_and_column_sums_kernel<N, V, Rows, Ahead, Shares, C, In, F, Out>;
  const int teams = Shares ? 1 : teams_of(kBlock, lanes);
  const int block = teams * lanes;
  // Where there are few rows, a block takes several tiles.
  const int64_t tiles = extent.batch * split.segments;
  int64_t row_teams = teams;
  while (row_teams > 1 && 8 * row_teams > extent.rows && teams / row_teams < tiles) {
    row_teams /= 2;
  }
  const size_t least = row_teams > 1 || kRagged<Rows> ? sizeof(A) * N * (V + (kRagged<Rows> ? 1 : 0)) * block : 0;
  const auto queue = Ahead ? queue_size<In, N, V, Rows>(kernel, block, least) : QueueSize{0, least};
  if (Ahead && queue.rows == 0) {
    return false;
  }
  const int cluster = Shares ? static_cast<int>(split.segments) : 1;
  const int64_t resident = Shares ? resident_clusters(kernel, cluster, block, queue.bytes) * cluster
                                  : std::max<int64_t>(1, resident_blocks(kernel, block, queue.bytes));
  if (resident == 0) {
    return false;
  }
  // Rows so many apart begin at the same place between two boundaries.
  const bool by_class = kRagged<Rows> && begin_at_boundaries(extent);
  const int64_t classes = by_class ? int64_t{1} << period_bits_of_rows(extent.cols, N) : 1;
  // As many blocks as run at once, yet several rows for each team.
  const int64_t blocks = ceil_div(tiles, teams / row_teams);
  const int64_t wanted = std::max<int64_t>(1, resident / blocks);
  const int64_t useful = ceil_div(extent.rows, rows_of_teams(extent.rows, row_teams, blocks) * row_teams);
  const int64_t groups = std::clamp<int64_t>(std::min(wanted, useful) / classes, 1, kMaxGridY / classes);
  const int64_t parts = classes * groups;
  const int64_t size = extent.batch * extent.cols;
  std::optional<Tensor> partials;
  A* data = nullptr;
  if (parts > 1) {
    partials = new_empty(like, {parts, static_cast<int64_t>(C), size}, kDtypeOf<A>);
    data = partials->template mutable_data_ptr<A>();
  }
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
  launch_clusters(
      kernel, cluster, grid, block, queue.bytes, current_stream(like), f, inputs, extent, split, lanes,
      static_cast<int>(row_teams), static_cast<int>(classes), queue.rows,
      sum_outputs(outputs, std::make_index_sequence<C>{}), data);
  if (parts > 1) {
    launch_add_partials<A>(like, parts, size, data, outputs);
  }
  return true;
}

// Of which rows there are kernels: of any length, or no longer than the registers of a block keep, or of these whole,
// aligned accesses, which callers see to.
enum class Lengths { kAll, kKept, kKeptWhole };

// False, and nothing done, for other rows.
template <Lengths kLengths = Lengths::kAll, class Matrices, class F, class Grid>
bool launch_spans(const Tensor& like, const F& f, const Matrices& matrices, const Grid& grid, int64_t span_cols) {
  using T = typename Matrices::Element;
  constexpr bool kShift = writes_rows<F> || Matrices::kCount > 1;
  const auto by_width = [&](auto width, auto fit, const auto& inputs) {
    using In = std::decay_t<decltype(inputs)>;
    constexpr int N = decltype(width)::value;
    constexpr Fit kFit = decltype(fit)::value;
    constexpr int V = kKeptAccesses<T, N, In::kCount>;
    const int64_t accesses = ceil_div(span_cols, N);
    const auto launch = [&](auto* kernel, int lanes, const auto& spans, int cluster = 1) {
      const int teams = teams_of(kRowBlock, lanes);
      const dim3 block(static_cast<unsigned>(lanes), static_cast<unsigned>(teams));
      const auto blocks = static_cast<unsigned>(ceil_div(spans.count, teams));
      const int64_t bytes_of_block = teams * span_cols * In::kCount * static_cast<int64_t>(sizeof(T));
      constexpr int64_t kLeast = kRagged<kFit> ? kLeastOfRaggedRows : kLeastSentForAhead;
      const int ahead = blocks_ahead(blocks, bytes_of_block, kLeast);
      launch_clusters(kernel, cluster, blocks, block, 0, current_stream(like), f, inputs, spans, ahead);
    };
    const auto is_full = [&](int kept, int lanes) {
      return accesses == int64_t{kept} * lanes && grid.cols % (accesses * N) == 0;
    };
    // Of half types large teams of one input gain less by full rows than they lose with fewer blocks at once, unless
    // all rows run at once.
    constexpr bool kCrowded = sizeof(T) == 2 && In::kCount == 1 && writes_rows<F>;
    const auto is_crowded = [&](int lanes) {
      return kCrowded && lanes > kRowBlock && grid.count * lanes > int64_t{1024} * multiprocessors();
    };
    // V accesses a thread.
    const auto launch_kept = [&](auto kept, auto threads, int lanes) {
      constexpr int kKept = decltype(kept)::value;
      constexpr int kThreads = decltype(threads)::value;
      if constexpr (!kTight<In, kFit> && N > 1 && !(kCrowded && kThreads > kMaxRowThreads)) {
        if (is_full(kKept, lanes) && !is_crowded(lanes)) {
          if constexpr (kThreads == kMaxRowThreads && std::is_same_v<Grid, WholeRows>) {
            if (lanes <= kWarp) {
              launch(rows_kernel<N, kKept, Fit::kFull, kWarp, Grid, In, F>, lanes, grid);
              return;
            }
          }
          launch(rows_kernel<N, kKept, Fit::kFull, kThreads, Grid, In, F>, lanes, grid);
          return;
        }
      }
      launch(rows_kernel<N, kKept, kFit, kThreads, Grid, In, F>, lanes, grid);
    };
    // Of full rows that a warp has room for, twice as many accesses in half the threads take less, where there are
    // enough of these on each multiprocessor; of half types, where all of them run at once.
    constexpr int kMany = 2 * V;
    constexpr bool kRoom = kMany * In::kCount * kAccessBytes <= 2 * kKeptBytes;
    if constexpr (
        !kTight<In, kFit> && N > 1 && std::is_same_v<Grid, WholeRows> && writes_rows<F> && kRoom && !kCrowded) {
      const int lanes = row_lanes(accesses, kMany, kMaxRowThreads);
      if (lanes <= kWarp && is_full(kMany, lanes)) {
        const int64_t threads = grid.count * lanes / multiprocessors();
        if (threads >= 512 && (sizeof(T) > 2 || threads <= 1024)) {
          launch(rows_kernel<N, kMany, Fit::kFull, kWarp, Grid, In, F>, lanes, grid);
          return true;
        }
      }
    }
    if constexpr (!kTight<In, kFit> && N > 1) {
      const auto launch_short = [&](auto kept) {
        constexpr int kKept = decltype(kept)::value;
        if (accesses > int64_t{kMaxRowThreads} * kKept) {
          return false;
        }
        constexpr std::integral_constant<int, kMaxRowThreads> threads;
        launch_kept(kept, threads, row_lanes(accesses, kKept, kMaxRowThreads));
        return true;
      };
      // Rows that are reduced more than once and not written, of more than a warp: so, too, there are fewer threads
      // that wait for each other.
      if constexpr (In::kCount == 1 && std::is_same_v<Grid, WholeRows> && !writes_rows<F> && !sums_elements<F>) {
        if (accesses > int64_t{kWarp} * V && launch_short(std::integral_constant<int, kMany>())) {
          return true;
        }
      }
      if (launch_short(std::integral_constant<int, V>())) {
        return true;
      }
    }
    // Of ragged rows that are written, of rows that may have to be shifted, and of single numbers, there are no
    // registers for more.
    constexpr bool kPlain = !kTight<In, kFit> || (!writes_rows<F> && In::kCount == 1);
    constexpr int kMore = kPlain && N > 1 ? kMany : V;
    constexpr int kThreads = kPlain && !sums_elements<F> ? kMaxLongRowThreads : kMaxThreads;
    if (accesses <= int64_t{kThreads} * kMore) {
      launch_kept(
          std::integral_constant<int, kMore>(), std::integral_constant<int, kThreads>(),
          row_lanes(accesses, kMore, kThreads, kLeastLanes<N, kFit>));
      return true;
    }
    if constexpr (kLengths == Lengths::kAll) {
      // (A functor that writes no rows mostly makes one pass.)
      constexpr int64_t kMostShared = int64_t{kMaxClusterBlocks} * kMaxThreads * kMore;
      constexpr int64_t kCached = kShifts<In, kFit> && In::kCount == 1 ? kCachedShiftedRowBytes : kCachedRowBytes;
      if constexpr (
          kFit != Fit::kRagged && N > 1 && writes_rows<F> && std::is_same_v<Grid, WholeRows> &&
          kMostShared * kAccessBytes > kCached) {
        const auto kernel = rows_kernel<N, kMore, Fit::kWhole, kMaxThreads, SharedRows, In, F>;
        const int64_t blocks = ceil_div(accesses, int64_t{kMaxThreads} * kMore);
        if (accesses * kAccessBytes > kCached && accesses <= kMostShared &&
            resident_clusters(kernel, static_cast<int>(blocks), kMaxThreads, 0) > 0) {
          const int64_t each = ceil_div(accesses, blocks);
          const Split split = Split::of(grid.cols, each * N);
          launch(
              kernel, row_lanes(each, kMore, kMaxThreads), SharedRows{grid.count * split.segments, grid.cols, split},
              static_cast<int>(split.segments));
          return true;
        }
      }
      if constexpr (N > 1 || sizeof(T) == sizeof(double)) {
        // Of several inputs one row at a time, so that the L2 cache still has what is read again.
        constexpr int kRereading = In::kCount > 1 ? kThreads : kMaxThreads;
        launch(rows_kernel<N, 0, kFit, kRereading, Grid, In, F>, kRereading, grid);
      }
      return true;
    }
    return false;
  };
  if constexpr (kLengths == Lengths::kKeptWhole) {
    constexpr std::integral_constant<int, std::is_same_v<T, double> ? 1 : kVector<T>> n;  // as with_access_width()
    return by_width(n, FitConstant<Fit::kWhole>{}, matrices);
  } else {
    return with_access_width<true, kShift, true, F>(matrices, grid.cols, true, by_width);
  }
}

}  // namespace detail

// f(row) for every row of K inputs, [rows, cols] each. `like` gives device and stream.
template <class T, size_t K, class F>
void launch_rows(const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  if (rows > 0) {
    detail::launch_spans(like, f, detail::make_inputs(inputs), detail::WholeRows{rows, cols}, cols);
  }
}

// The same for rows that a block has registers for. False, and nothing done, for longer ones.
template <detail::Lengths kLengths = detail::Lengths::kKept, class T, size_t K, class F>
bool launch_kept_rows(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  return rows == 0 ||
         detail::launch_spans<kLengths>(like, f, detail::make_inputs(inputs), detail::WholeRows{rows, cols}, cols);
}

// The same for every segment of every row. `again`: of inputs that were read a moment ago, of whose end the L2 cache
// still has some.
template <class T, size_t K, class F>
void launch_segments(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const Split& split, bool again = false) {
  if (rows > 0) {
    const bool together = again && cols * static_cast<int64_t>(sizeof(T)) >= detail::kLongestRowBytes;
    const detail::Segments segments{rows * split.segments, cols, split, together ? rows : 0, again};
    detail::launch_spans(like, f, detail::make_inputs(inputs), segments, split.segment_cols);
  }
}

// The segments of few long rows, to fill the GPU: fewer than so many for each multiprocessor. Of others none.
inline Split split_few_rows(int64_t rows, int64_t cols, int64_t per_multiprocessor = 1) {
  return rows < per_multiprocessor * multiprocessors() ? Split::even(cols) : Split::none(cols);
}

// The same for a sum. Not so many that it takes long to add up theirs.
inline Split split_for_sums(int64_t rows, int64_t cols, int64_t element_bytes) {
  constexpr int64_t kMost = 16384;
  constexpr int64_t kLongBytes = 64 << 10;
  const Split split = split_few_rows(rows, cols, 4);
  const bool too_many = split.segments > 1 && rows * split.segments > kMost;
  return too_many ? Split::of(cols, kLongBytes / element_bytes) : split;
}

// launch_rows for a functor that calls row.add_to_columns: outputs[c][col] = the sum over the rows. Returns false, and
// does nothing, where rows are too long for that, or a device has too little memory. An output is a pointer or
// a SumOutput.
template <class T, size_t K, class F, class Out, size_t C>
bool launch_rows_and_column_sums(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const std::array<Out, C>& outputs) {
  if (cols == 0) {
    return true;
  }
  if (rows == 0) {
    launch_add_partials<acc_t<T>>(like, 0, cols, static_cast<const acc_t<T>*>(nullptr), outputs);
    return true;
  }
  const auto from = detail::make_inputs(inputs);
  const detail::Extent extent{1, rows, cols};
  return detail::with_access_width_for_sums<F>(from, extent, [&](auto vector, auto fit, const auto& in) {
    using In = std::decay_t<decltype(in)>;
    constexpr int N = decltype(vector)::value;
    constexpr detail::Fit kFit = decltype(fit)::value;
    constexpr int V = detail::summed_accesses<T, N, C, F>();
    const int64_t accesses = ceil_div(cols, N);
    const int64_t longest = int64_t{detail::kMaxThreads} * V;
    // Two blocks at once, for one to compute while the other waits, do more than a large one. Few rows would not keep
    // all multiprocessors busy so.
    if constexpr (kFit != detail::Fit::kRagged && N > 1) {
      const int64_t blocks = std::max<int64_t>(2, ceil_div(accesses, longest));
      const bool many = rows * blocks >= 4 * multiprocessors();
      if (accesses > int64_t{kBlock} * V && blocks <= detail::kMaxClusterBlocks && many) {
        const int64_t each = ceil_div(accesses, blocks);
        const int lanes = detail::row_lanes(each, V, detail::kMaxThreads);
        if (detail::launch_column_sums<N, V, detail::Fit::kWhole, true, true>(
                like, f, in, extent, Split::of(cols, each * N), lanes, outputs)) {
          return true;
        }
      }
    }
    if (accesses > longest) {
      return false;
    }
    const int lanes = detail::row_lanes(accesses, V, detail::kMaxThreads, detail::kLeastLanes<N, kFit>);
    return detail::with_ahead<In, N, kFit>(lanes, [&](auto ahead) {
      return detail::launch_column_sums<N, V, kFit, decltype(ahead)::value, false>(
          like, f, in, extent, Split::none(cols), lanes, outputs);
    });
  });
}

}  // namespace extension_cpp::cuda
