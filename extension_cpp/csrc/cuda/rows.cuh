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
//       const A max = row.max([](A x) { return x; });
//       const A total = row.sum([=](A x) { return exp(x - max); });
//       row.write(output, [=](A x) { return exp(x - max) / total; });
//     }
//   };
//   cuda::launch_rows<T>(like, Softmax<T>{output}, std::array{input}, rows, cols);
//
// A short row is handled by part of a warp, a longer one by a block, which stays for many rows: while one is computed,
// the next two are on their way, and so is what row_values.h says belongs to them. A row too long for registers is read
// again for each pass. Accesses are of 16 bytes at any number of columns, but for short rows that are not whole
// accesses, and float64. A functor may also be given segments of rows (Split), so that few long rows fill the GPU, and
// leave partial results for a second launch. The order of additions depends on the shape, on how tensors are aligned
// and on the device: equal bits from run to run. benchmarks/NOTES.md says why it is done so.
#pragma once

#include "launch.cuh"
#include "parameter.cuh"
#include "partials.cuh"
#include "row.cuh"
#include "row_values.h"
#include "team.cuh"

#include <algorithm>
#include <array>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

using extension_cpp::detail::call_with_row_values;
using extension_cpp::detail::row_values;

// Accesses to a row that a thread keeps: few, so that many threads run at once and wait for memory together.
constexpr int kKeptAccesses = 4;

// The same of kernels that also sum columns, whose accumulators take registers: of elements as many for every type.
template <int N>
constexpr int kSummedAccesses = N == 1 ? 4 : 16 / N;

// Of a block; with it the compiler may give a thread 128 registers.
constexpr int kMaxThreads = 512;

// Of a block that keeps rows: 64 registers will do for one input in aligned accesses.
template <bool Ragged, size_t K>
constexpr int kMaxRowThreads = K == 1 && !Ragged ? 2 * kMaxThreads : kMaxThreads;

// batch x rows x cols.
struct Extent {
  int64_t batch;
  int64_t rows;
  int64_t cols;
};

__device__ inline void* shared_bytes() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}

// What a kernel goes through: whole rows, or all segments of them. Kernels of whole rows need not say where a segment
// lies, and have registers for it.
struct WholeRows {
  static constexpr bool kCut = false;

  int64_t count;
  int64_t cols;
};

struct Segments {
  static constexpr bool kCut = true;

  int64_t count;
  int64_t cols;  // of a row
  Split split;   // of few rows, hence into fewer than 2^31 segments
};

// How often one that takes every `step`th of `count` has its turn.
__device__ inline int turns(int64_t count, int64_t step) {
  return count > 0 ? static_cast<int>((count + step - 1) / step) : 0;
}

// The span of this index. Where there is none, the first row, so that what belongs to it may be read, with no columns.
template <int N, bool Ragged, class Grid>
__device__ Span span_at(const Grid& grid, int64_t index) {
  Span span;
  span.exists = index < grid.count;
  span.row = span.exists ? index : 0;
  span.segment = 0;
  span.first_col = 0;
  span.cols = grid.cols;
  if constexpr (Grid::kCut) {
    const auto whole = static_cast<unsigned>(span.row);
    const auto segments = static_cast<unsigned>(grid.split.segments);
    span.row = whole / segments;
    span.segment = whole - static_cast<unsigned>(span.row) * segments;
    span.first_col = span.segment * grid.split.segment_cols;
    const int64_t rest = grid.cols - span.first_col;
    span.cols = grid.split.segment_cols < rest ? grid.split.segment_cols : rest;
  }
  span.offset = span.row * grid.cols + span.first_col;
  span.cols = span.exists ? span.cols : 0;
  span.lead = Ragged ? static_cast<int>(span.offset) & (N - 1) : 0;
  return span;
}

// `ahead` is the number of rows that are on their way while one is computed; without Ahead, rows are read when it is
// their turn.
template <int N, int V, bool Ragged, bool Ahead, class Grid, class In, class F>
__global__ void __launch_bounds__(V > 0 ? kMaxRowThreads<Ragged, In::kCount> : kMaxThreads, V > 0 ? 1 : 2)
    rows_kernel(F f, In inputs, Grid grid, int lanes, int ahead) {
  using A = acc_t<typename In::Element>;
  __shared__ typename Team<A>::Shared shared;
  may_begin_next();
  wait_for_previous();
  Team<A> team(lanes, shared);
  const int teams = static_cast<int>(blockDim.x) / lanes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * teams;
  // Of this team. A block's rows are far apart, so that those that all blocks have at a time lie together in memory.
  const auto span_of = [&](int64_t k) { return span_at<N, Ragged>(grid, k + static_cast<int>(threadIdx.x) / lanes); };
  int64_t segments = 1;
  if constexpr (Grid::kCut) {
    segments = grid.split.segments;
  }

  typename Row<In, N, V, Ragged, 0>::Sums no_sums;
  int64_t k = static_cast<int64_t>(blockIdx.x) * teams;
  First<In> first(inputs, span_of(k));
  auto values = row_values(f, span_of(k).row);
  const auto compute = [&](const Kept<In, N, V, Ragged>& kept) {
    const Span span = span_of(k);
    k += step;
    // Sent for now, for to wait for them would cost a sixth of the time.
    const Span next = span_of(k);
    const First<In> next_first(inputs, next);
    const auto next_values = row_values(f, next.row);
    Row<In, N, V, Ragged, 0> row(inputs, segments, span, first, kept, team, no_sums);
    call_with_row_values(f, row, values);
    first = next_first;
    values = next_values;
  };
  if constexpr (Ahead) {
    Queue<In, N, V, Ragged> queue(shared_bytes(), ahead);
    const auto send = [&](int64_t at) {
      const Span span = span_of(at);
      queue.send(inputs, span, span.exists, lanes, team.lane());
    };
    for (int j = 0; j < ahead; ++j) {
      send(k + j * step);
    }
    while (k < grid.count) {
      Kept<In, N, V, Ragged> kept;
      queue.take(kept);
      send(k + ahead * step);
      compute(kept);
    }
  } else {
    while (k < grid.count) {
      Kept<In, N, V, Ragged> kept;
      if constexpr (V > 0) {
        kept.read(inputs, span_of(k), lanes, static_cast<KeptIndex<Ragged>>(team.lane()));
      }
      compute(kept);
    }
  }
}

// Adds up what groups of teams hold, of N numbers for each thread and access: for the first team of each group. Both
// are powers of two.
template <int N, int V, class A>
__device__ void sum_over_teams(Values<A, N> (&sums)[V], int lanes, int group, A* combined /* [V, N, blockDim.x] */) {
  for (int mask = lanes; mask < kWarp && mask < group; mask *= 2) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sums[v] = plus(sums[v], shuffle_xor(sums[v], mask));
    }
  }
  if (group <= kWarp) {
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  __syncthreads();  // what was here before has been read
#pragma unroll
  for (int j = 0; j < V * N; ++j) {
    combined[j * threads + thread] = sums[j / N][j % N];
  }
  for (int half = group / 2; half >= kWarp; half /= 2) {
    __syncthreads();
    if (thread % group < half) {
#pragma unroll
      for (int j = 0; j < V * N; ++j) {
        combined[j * threads + thread] += combined[j * threads + thread + half];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < V * N; ++j) {
    sums[j / N][j % N] = combined[j * threads + thread];
  }
}

// Blocks stay for many rows of one segment, each of which is read while the one before it is computed. A thread meets
// the same columns in every row, and keeps their sums: where rows are not whole accesses, those of a block are
// `classes` apart, and begin at the same place between two 16-byte boundaries.
//
// blockIdx.x: tiles, which are segments of matrices of the batch; blockIdx.y: the rows. row_teams of the block's teams
// share a tile.
//
// The row of 4095 elements takes an access more than that of 4096, hence 288 threads: two blocks of these shall run at
// once, too.
template <int N, int V, bool Ragged, bool Ahead, size_t C, class In, class F, class Out>
__global__ void __launch_bounds__(Ragged ? kMaxThreads + 2 * kWarp : kMaxThreads, 1) rows_and_column_sums_kernel(
    F f, In inputs, Extent extent, Split split, int lanes, int row_teams, int classes, int ahead,
    SumOutputs<Out, C> outputs, acc_t<typename In::Element>* __restrict__ partials /* [gridDim.y, C, batch * cols] */) {
  using A = acc_t<typename In::Element>;
  __shared__ typename Team<A>::Shared shared;
  may_begin_next();
  wait_for_previous();
  Team<A> team(lanes, shared);
  const int team_in_block = static_cast<int>(threadIdx.x) / lanes;
  const int row_team = team_in_block % row_teams;
  const int tiles_per_block = static_cast<int>(blockDim.x) / (lanes * row_teams);
  const int64_t own_tile = static_cast<int64_t>(blockIdx.x) * tiles_per_block + team_in_block / row_teams;
  const bool has_tile = own_tile < extent.batch * split.segments;
  const int64_t tile = has_tile ? own_tile : 0;
  const int64_t batch = split.segments == 1 ? tile : tile / split.segments;

  // The rows of all blocks at a time lie together.
  const int64_t first = static_cast<int64_t>(blockIdx.y / classes) * row_teams * classes + blockIdx.y % classes;
  const int64_t stride = static_cast<int64_t>(gridDim.y / classes) * row_teams;  // in rows of the block's class
  const int row_lead = Ragged && classes > 1 ? static_cast<int>((batch * extent.rows + first) * extent.cols % N) : 0;
  // Segments are cut where accesses are.
  Span span{};
  span.segment = tile - batch * split.segments;
  const int64_t begin = span.segment * split.segment_cols - row_lead;
  const int64_t end = begin + split.segment_cols;
  span.first_col = begin > 0 ? begin : 0;
  span.lead = static_cast<int>(span.first_col - begin);
  span.cols = (split.segments == 1 || end > extent.cols ? extent.cols : end) - span.first_col;
  const int64_t left = first < extent.rows ? (extent.rows - first + classes - 1) / classes : 0;
  const int all_turns = turns(left, stride);
  const int own_turns = has_tile ? turns(left - row_team, stride) : 0;
  const int64_t first_row = batch * extent.rows + (has_tile && left > 0 ? first : 0);
  const int64_t first_offset = first_row * extent.cols + span.first_col;
  const int64_t row_step = stride * classes;
  const int64_t offset_step = row_step * extent.cols;
  const auto begin_turn = [&](Span& at, int turn) {
    at.exists = turn < own_turns;
    at.cols = at.exists ? span.cols : 0;
    at.lead = at.exists ? span.lead : 0;
  };
  const auto move = [&](Span& at, int turn) {
    at.row += row_step;
    at.offset += offset_step;
    begin_turn(at, turn);
  };

  typename Row<In, N, V, Ragged, C>::Sums sums = {};
  span.row = first_row + row_team * classes;
  span.offset = first_offset + row_team * (classes * extent.cols);
  Span here = span;
  begin_turn(here, 0);
  // A team that has no row takes the block's first for reading what belongs to it.
  const auto row_here = [&] { return here.exists ? here.row : first_row; };
  auto values = row_values(f, row_here());
  int turn = 0;
  const auto compute = [&](const Kept<In, N, V, Ragged>& kept) {
    Span there = here;
    there.row = row_here();
    move(here, ++turn);
    const auto next_values = row_values(f, row_here());
    const First<In> first(inputs, there);
    Row<In, N, V, Ragged, C> row(inputs, split.segments, there, first, kept, team, sums);
    call_with_row_values(f, row, values);
    values = next_values;
  };
  if constexpr (Ahead) {
    Queue<In, N, V, Ragged> queue(shared_bytes(), ahead);
    Span next = here;
    int sent = 0;
    const auto send = [&] {
      queue.send(inputs, next, next.exists, lanes, team.lane());
      move(next, ++sent);
    };
    for (int k = 0; k < ahead; ++k) {
      send();
    }
    while (turn < all_turns) {
      Kept<In, N, V, Ragged> kept;
      queue.take(kept);
      send();
      compute(kept);
    }
  } else {
    while (turn < all_turns) {
      Kept<In, N, V, Ragged> kept;
      kept.read(inputs, here, lanes, static_cast<KeptIndex<Ragged>>(team.lane()));
      compute(kept);
    }
  }

#pragma unroll
  for (size_t c = 0; c < C; ++c) {
    if (row_teams > 1) {
      sum_over_teams(sums[c], lanes, lanes * row_teams, static_cast<A*>(shared_bytes()));
    }
    if (row_team != 0 || !has_tile) {
      continue;
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const Place<N, Ragged, KeptIndex<Ragged>> where(span, static_cast<KeptIndex<Ragged>>(team.lane()), lanes, v);
      if (where.exists()) {
        const int64_t col = batch * extent.cols + span.first_col + where.col;
#pragma unroll
        for (int n = 0; n < N; ++n) {
          if (!Ragged || where.holds(n)) {
            if (gridDim.y == 1) {
              outputs.store(c, col + n, sums[c][v][n]);
            } else {
              partials[(static_cast<int64_t>(blockIdx.y) * C + c) * extent.batch * extent.cols + col + n] =
                  sums[c][v][n];
            }
          }
        }
      }
    }
  }
}

// Threads for a row of `accesses`, `per_thread` of them each unless that takes more than max_lanes.
inline int row_lanes(int64_t accesses, int64_t per_thread, int max_lanes) {
  const int64_t wanted = std::max<int64_t>(1, ceil_div(accesses, per_thread));
  if (wanted > kWarp) {
    return static_cast<int>(std::min<int64_t>(ceil_div(wanted, kWarp) * kWarp, max_lanes));
  }
  int lanes = 1;
  while (lanes < wanted) {
    lanes *= 2;
  }
  return lanes;
}

// Calls launch(ahead): whether rows are sent for ahead. Not where accesses are too narrow, nor by threads that have a
// row each, which keep enough loads on their way without.
template <class In, int N, bool Ragged, class F>
auto with_ahead(int lanes, const F& launch) {
  if constexpr (!kMayRunAhead<In, N>) {
    return launch(std::false_type{});
  } else {
    if constexpr (!Ragged) {  // of which short rows are not whole accesses
      if (lanes == 1) {
        return launch(std::false_type{});
      }
    }
    return launch(std::true_type{});
  }
}

// Calls launch(N, ragged): with the width of the accesses, and whether some are not aligned or not whole. Of float64,
// and of rows that take no more than a few accesses of which two are not whole, single numbers will do.
template <class In, class F>
auto with_access_width(const In& inputs, int64_t cols, const F& launch) {
  using T = typename In::Element;
  if constexpr (std::is_same_v<T, double>) {
    return launch(std::integral_constant<int, 1>{}, std::false_type{});
  } else {
    constexpr std::integral_constant<int, kVector<T>> n;
    bool aligned = cols % n == 0;
    for (size_t k = 0; k < In::kCount; ++k) {
      aligned = aligned && is_aligned(inputs.data[k]);
    }
    if (!aligned && cols <= 64) {
      return launch(std::integral_constant<int, 1>{}, std::false_type{});
    }
    return aligned ? launch(n, std::false_type{}) : launch(n, std::true_type{});
  }
}

// Accesses to N elements that a row may take.
template <int N>
int64_t accesses_to(int64_t cols, bool ragged) {
  return ceil_div(cols + (ragged ? N - 1 : 0), N);
}

// Rows ahead, and the shared memory that they take.
struct QueueSize {
  int ahead;
  size_t bytes;
};

// Two rows ahead, or one, as a block may have memory, and at least what the kernel needs for other ends. None where a
// device has no memory for one.
template <class In, int N, int V, bool Ragged, class Kernel>
QueueSize queue_size(Kernel* kernel, int block, size_t least = 0) {
  constexpr size_t kAlways = 40 * 1024;  // of any device, besides what kernels have of their own
  constexpr size_t kOwn = 4 * 1024;      // more than that
  const size_t row_bytes = Queue<In, N, V, Ragged>::kBytes * block;
  if (std::max(2 * row_bytes, least) <= kAlways) {
    return {2, std::max(2 * row_bytes, least)};
  }
  int device = 0;
  int opt_in = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&opt_in, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const size_t most = opt_in - kOwn;
  // The same for every call: other threads may be launching this kernel for rows of another length.
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)));
  const int ahead = 2 * row_bytes <= most ? 2 : row_bytes <= most ? 1 : 0;
  return {ahead, std::max(ahead * row_bytes, least)};
}

// The width of a block of teams.
inline int block_of(int lanes) { return lanes <= kWarp ? kBlock : lanes; }

// False, and nothing done, where a device has no memory for a row ahead.
template <int N, int V, bool Ragged, bool Ahead, class In, class F, class Out, size_t C>
bool launch_column_sums(
    const Tensor& like, const F& f, const In& inputs, const Extent& extent, const Split& split, int lanes,
    const std::array<Out, C>& outputs) {
  using A = acc_t<typename In::Element>;
  const auto kernel = rows_and_column_sums_kernel<N, V, Ragged, Ahead, C, In, F, Out>;
  const int block = block_of(lanes);
  const int64_t teams = block / lanes;
  // Where there are few rows, a block takes several tiles.
  const int64_t tiles = extent.batch * split.segments;
  int64_t row_teams = teams;
  while (row_teams > 1 && 8 * row_teams > extent.rows && teams / row_teams < tiles) {
    row_teams /= 2;
  }
  const size_t least = row_teams > 1 ? sizeof(A) * N * V * block : 0;
  const auto queue = Ahead ? queue_size<In, N, V, Ragged>(kernel, block, least) : QueueSize{0, least};
  if (Ahead && queue.ahead == 0) {
    return false;
  }
  int resident = 1;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, block, queue.bytes));
  // Rows so many apart begin at the same place between two boundaries. Few rows are not worth it.
  int64_t classes = 1;
  while (Ragged && extent.rows >= 64 && classes * extent.cols % N != 0) {
    classes *= 2;
  }
  // As many blocks as run at once, yet several rows for each team.
  const int64_t blocks = ceil_div(tiles, teams / row_teams);
  const int64_t wanted = std::max<int64_t>(1, std::max(1, resident) * multiprocessors() / blocks);
  const int64_t useful = std::max<int64_t>(1, ceil_div(extent.rows, 4 * row_teams));
  const int64_t groups = std::clamp<int64_t>(std::min(wanted, useful) / classes, 1, kMaxGridY / classes);
  const int64_t parts = classes * groups;
  const int64_t size = extent.batch * extent.cols;
  std::optional<Tensor> partials;
  A* data = nullptr;
  if (parts > 1) {
    partials = new_empty(
        like, {parts, static_cast<int64_t>(C), size},
        std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float);
    data = partials->template mutable_data_ptr<A>();
  }
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
  launch_overlapped(
      kernel, grid, block, queue.bytes, current_stream(like), f, inputs, extent, split, lanes,
      static_cast<int>(row_teams), static_cast<int>(classes), queue.ahead,
      sum_outputs(outputs, std::make_index_sequence<C>{}), data);
  if (parts > 1) {
    launch_add_partials<A>(like, parts, size, data, outputs);
  }
  return true;
}

template <class In, class F, class Grid>
void launch_spans(const Tensor& like, const F& f, const In& inputs, const Grid& grid, int64_t span_cols) {
  with_access_width(inputs, grid.cols, [&](auto vector, auto ragged) {
    constexpr int N = decltype(vector)::value;
    constexpr bool kRagged = decltype(ragged)::value;
    const auto launch = [&](auto* kernel, int lanes, const QueueSize& queue) {
      const int block = block_of(lanes);
      const int64_t teams = block / lanes;
      // Blocks stay, as many as run at once.
      const int64_t blocks_at_once = int64_t{2 * kMaxThreads / block} * multiprocessors();
      const auto blocks = static_cast<unsigned>(std::min(ceil_div(grid.count, teams), blocks_at_once));
      launch_overlapped(kernel, blocks, block, queue.bytes, current_stream(like), f, inputs, grid, lanes, queue.ahead);
    };
    constexpr int V = kKeptAccesses;
    const int64_t accesses = accesses_to<N>(span_cols, kRagged);
    const int lanes = row_lanes(accesses, V, kMaxRowThreads<kRagged, In::kCount>);
    const auto launch_kept = [&](auto ahead) {
      const auto kernel = rows_kernel<N, V, kRagged, decltype(ahead)::value, Grid, In, F>;
      const QueueSize queue = ahead ? queue_size<In, N, V, kRagged>(kernel, block_of(lanes)) : QueueSize{0, 0};
      if (ahead && queue.ahead == 0) {
        return false;
      }
      launch(kernel, lanes, queue);
      return true;
    };
    if (accesses <= int64_t{lanes} * V && with_ahead<In, N, kRagged>(lanes, launch_kept)) {
      return;
    }
    launch(rows_kernel<N, 0, kRagged, false, Grid, In, F>, kMaxThreads, {0, 0});
  });
}

}  // namespace detail

// f(row) for every row of K inputs, [rows, cols] each. `like` gives device and stream.
template <class T, size_t K, class F>
void launch_rows(const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  if (rows > 0) {
    detail::launch_spans(like, f, detail::make_inputs(inputs), detail::WholeRows{rows, cols}, cols);
  }
}

// The same for every segment of every row.
template <class T, size_t K, class F>
void launch_segments(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const Split& split) {
  if (rows > 0) {
    const detail::Segments segments{rows * split.segments, cols, split};
    detail::launch_spans(like, f, detail::make_inputs(inputs), segments, split.segment_cols);
  }
}

// The segments of few long rows, to fill the GPU: fewer than so many for each multiprocessor. Of others none.
inline Split split_few_rows(int64_t rows, int64_t cols, int64_t per_multiprocessor = 1) {
  return rows < per_multiprocessor * multiprocessors() ? Split::even(cols) : Split::none(cols);
}

// launch_rows for a functor that calls row.add_to_columns: outputs[c][col] = the sum over the rows. Returns false, and
// does nothing, where rows are too long for that. An output is a pointer or a SumOutput.
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
  return detail::with_access_width(from, cols, [&](auto vector, auto ragged) {
    constexpr int N = decltype(vector)::value;
    constexpr int V = detail::kSummedAccesses<N>;
    const int64_t accesses = detail::accesses_to<N>(cols, ragged);
    const int lanes = detail::row_lanes(accesses, V, detail::kMaxThreads);
    if (accesses > int64_t{lanes} * V) {
      return false;
    }
    return detail::with_ahead<detail::Inputs<T, K>, N, decltype(ragged)::value>(lanes, [&](auto ahead) {
      return detail::launch_column_sums<N, V, decltype(ragged)::value, decltype(ahead)::value>(
          like, f, from, {1, rows, cols}, Split::none(cols), lanes, outputs);
    });
  });
}

}  // namespace extension_cpp::cuda
