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
// the next two are on their way. A row too long for registers is read again for each pass. Accesses are of 16 bytes at
// any number of columns, but for short rows that are not whole accesses, and float64. A functor may also be given
// segments of rows (Split), so that few long rows fill the GPU, and leave partial results for a second launch. The
// order of additions depends on the shape, on how tensors are aligned and on the device: equal bits from run to run.
// benchmarks/NOTES.md says why it is done so.
#pragma once

#include "launch.cuh"
#include "parameter.cuh"
#include "partials.cuh"
#include "row.cuh"
#include "team.cuh"

#include <algorithm>
#include <array>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

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

// Spans are all segments of rows, in their order.
struct SpanGrid {
  int64_t count;
  int64_t cols;  // of a row
  Split split;
};

// The spans of a team, one after the other: every `step`th of a block's, which are `count` from `begin` on.
template <int N, bool Ragged>
class Spans {
 public:
  __device__ Spans(const SpanGrid& grid, int64_t begin, int count, int first, int step)
      : grid_(grid), begin_(begin), offset_((begin + first) * grid.cols), count_(count), i_(first), step_(step) {}

  __device__ Span operator*() const {
    Span span;
    span.exists = i_ < count_;
    // A team that has none takes the block's first span for reading what belongs to its row.
    const int i = span.exists ? i_ : 0;
    span.row = begin_ + i;
    span.segment = 0;
    span.first_col = 0;
    span.offset = offset_;
    span.cols = grid_.cols;
    if (grid_.split.segments != 1) {
      // Few rows are cut, into fewer than 2^31 segments.
      const auto index = static_cast<unsigned>(span.row);
      const auto segments = static_cast<unsigned>(grid_.split.segments);
      span.row = index / segments;
      span.segment = index % segments;
      span.first_col = span.segment * grid_.split.segment_cols;
      span.offset = span.row * grid_.cols + span.first_col;
      const int64_t rest = grid_.cols - span.first_col;
      span.cols = grid_.split.segment_cols < rest ? grid_.split.segment_cols : rest;
    }
    span.cols = span.exists ? span.cols : 0;
    span.lead = Ragged && span.exists ? static_cast<int>(span.offset) & (N - 1) : 0;
    return span;
  }

  __device__ Spans& operator++() {
    i_ += step_;
    offset_ += step_ * grid_.cols;
    return *this;
  }

 private:
  const SpanGrid& grid_;
  int64_t begin_;
  int64_t offset_;  // of whole rows
  int count_;
  int i_;
  int step_;
};

template <int N, int V, bool Ragged, class T, size_t K, class F>
__global__ void __launch_bounds__(V > 0 ? kMaxRowThreads<Ragged, K> : kMaxThreads, V > 0 ? 1 : 2)
    rows_kernel(F f, Inputs<T, K> inputs, SpanGrid grid, int lanes, int spans_per_team, int ahead) {
  __shared__ typename Team<acc_t<T>>::Shared shared;
  Team<acc_t<T>> team(lanes, shared);
  const int teams = static_cast<int>(blockDim.x) / lanes;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * teams * spans_per_team;
  const int64_t most = static_cast<int64_t>(teams) * spans_per_team;
  const int count = static_cast<int>(grid.count - begin < most ? grid.count - begin : most);
  Spans<N, Ragged> here(grid, begin, count, static_cast<int>(threadIdx.x) / lanes, teams);

  typename Row<T, N, V, Ragged, K, 0>::Sums no_sums;
  const auto compute = [&](const Kept<T, N, V, Ragged, K>& kept) {
    const Span span = *here;
    Row<T, N, V, Ragged, K, 0> row(inputs, grid.split.segments, span, kept, team, no_sums);
    f(row);
    ++here;
  };
  if constexpr (V > 0) {
    Queue<T, N, V, Ragged, K> queue(shared_bytes(), ahead);
    Spans<N, Ragged> next = here;
    for (int k = 0; k < ahead; ++k) {
      queue.send(inputs, *next, lanes, team.lane());
      ++next;
    }
    for (int first = 0; first < count; first += teams) {
      Kept<T, N, V, Ragged, K> kept;
      queue.take(kept, inputs, *here, lanes, team.lane());
      if (ahead > 0) {
        queue.send(inputs, *next, lanes, team.lane());
        ++next;
      }
      compute(kept);
    }
  } else {
    for (int first = 0; first < count; first += teams) {
      compute({});
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
template <int N, int V, bool Ragged, size_t C, class T, size_t K, class F, class Out>
__global__ void __launch_bounds__(Ragged ? kMaxThreads + 2 * kWarp : kMaxThreads, 1) rows_and_column_sums_kernel(
    F f, Inputs<T, K> inputs, Extent extent, Split split, int lanes, int row_teams, int classes, int64_t rows_per_block,
    int ahead, SumOutputs<Out, C> outputs, acc_t<T>* __restrict__ partials /* [gridDim.y, C, batch * cols] */) {
  using A = acc_t<T>;
  __shared__ typename Team<A>::Shared shared;
  Team<A> team(lanes, shared);
  const int team_in_block = static_cast<int>(threadIdx.x) / lanes;
  const int row_team = team_in_block % row_teams;
  const int tiles_per_block = static_cast<int>(blockDim.x) / (lanes * row_teams);
  const int64_t own_tile = static_cast<int64_t>(blockIdx.x) * tiles_per_block + team_in_block / row_teams;
  const bool has_tile = own_tile < extent.batch * split.segments;
  const int64_t tile = has_tile ? own_tile : 0;
  const int64_t batch = split.segments == 1 ? tile : tile / split.segments;

  const int64_t first = static_cast<int64_t>(blockIdx.y / classes) * rows_per_block * classes + blockIdx.y % classes;
  const int row_lead = Ragged && classes > 1 ? static_cast<int>((batch * extent.rows + first) * extent.cols % N) : 0;
  // Segments are cut where accesses are.
  Span span;
  span.segment = tile - batch * split.segments;
  const int64_t begin = span.segment * split.segment_cols - row_lead;
  const int64_t end = begin + split.segment_cols;
  span.first_col = begin > 0 ? begin : 0;
  span.lead = static_cast<int>(span.first_col - begin);
  span.cols = (split.segments == 1 || end > extent.cols ? extent.cols : end) - span.first_col;
  const int64_t left = first < extent.rows ? (extent.rows - first + classes - 1) / classes : 0;
  const int turns = static_cast<int>(left < rows_per_block ? left : rows_per_block);
  const int count = has_tile ? turns : 0;
  const int64_t first_row = batch * extent.rows + (count > 0 ? first : 0);
  const int64_t first_offset = first_row * extent.cols + span.first_col;
  const int row_step = row_teams * classes;
  const int64_t offset_step = row_step * extent.cols;
  const auto move = [&](Span& at, int k) {
    at.row += row_step;
    at.offset += offset_step;
    at.exists = k < count;
    at.cols = at.exists ? span.cols : 0;
    at.lead = at.exists ? span.lead : 0;
  };

  typename Row<T, N, V, Ragged, K, C>::Sums sums = {};
  Queue<T, N, V, Ragged, K> queue(shared_bytes(), ahead);
  span.row = first_row + row_team * classes;
  span.offset = first_offset + row_team * (classes * extent.cols);
  Span here = span;
  here.exists = row_team < count;
  here.cols = here.exists ? span.cols : 0;
  here.lead = here.exists ? span.lead : 0;
  Span next = here;
  int sent = row_team;
  for (int k = 0; k < ahead; ++k) {
    queue.send(inputs, next, lanes, team.lane());
    move(next, sent += row_teams);
  }
  for (int k = row_team; k - row_team < turns;) {
    Kept<T, N, V, Ragged, K> kept;
    queue.take(kept, inputs, here, lanes, team.lane());
    if (ahead > 0) {
      queue.send(inputs, next, lanes, team.lane());
      move(next, sent += row_teams);
    }
    // A team that has no row takes the block's first for reading what belongs to it.
    Span there = here;
    there.row = here.exists ? here.row : first_row;
    Row<T, N, V, Ragged, K, C> row(inputs, split.segments, there, kept, team, sums);
    f(row);
    move(here, k += row_teams);
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
      const Place<N, Ragged, int> where(span, team.lane(), lanes, v);
      if (where.exists()) {
        const int64_t col = batch * extent.cols + span.first_col + where.col;
#pragma unroll
        for (int n = 0; n < N; ++n) {
          if (where.holds(n)) {
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

// Calls launch(N, ragged): with the width of the accesses, and whether some are not aligned or not whole. Of float64,
// and of rows that take no more than a few accesses of which two are not whole, single numbers will do.
template <class T, size_t K, class F>
auto with_access_width(const Inputs<T, K>& inputs, int64_t cols, const F& launch) {
  if constexpr (std::is_same_v<T, double>) {
    return launch(std::integral_constant<int, 1>{}, std::false_type{});
  } else {
    constexpr std::integral_constant<int, kVector<T>> n;
    bool aligned = cols % n == 0;
    for (size_t k = 0; k < K; ++k) {
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

// Two rows ahead, one or none, as a block may have memory, and at least what the kernel needs for other ends. Threads
// that have a row each keep enough loads on their way without.
template <class Queue, class Kernel>
QueueSize queue_size(Kernel* kernel, int block, int lanes, size_t least = 0) {
  if (!Queue::kMayRunAhead || lanes == 1) {
    return {0, least};
  }
  constexpr size_t kAlways = 40 * 1024;  // of any device, besides what kernels have of their own
  constexpr size_t kOwn = 4 * 1024;      // more than that
  const size_t row_bytes = Queue::kBytes * block;
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

template <int N, int V, bool Ragged, class T, size_t K, class F, class Out, size_t C>
void launch_column_sums(
    const Tensor& like, const F& f, const Inputs<T, K>& inputs, const Extent& extent, const Split& split, int lanes,
    const std::array<Out, C>& outputs) {
  using A = acc_t<T>;
  const auto kernel = rows_and_column_sums_kernel<N, V, Ragged, C, T, K, F, Out>;
  const int block = block_of(lanes);
  const int64_t teams = block / lanes;
  // Where there are few rows, a block takes several tiles.
  const int64_t tiles = extent.batch * split.segments;
  int64_t row_teams = teams;
  while (row_teams > 1 && 8 * row_teams > extent.rows && teams / row_teams < tiles) {
    row_teams /= 2;
  }
  const size_t least = row_teams > 1 ? sizeof(A) * N * V * block : 0;
  const auto queue = queue_size<Queue<T, N, V, Ragged, K>>(kernel, block, lanes, least);
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
  const int64_t rows_per_block = ceil_div(ceil_div(ceil_div(extent.rows, classes), groups), row_teams) * row_teams;
  const int64_t parts = classes * ceil_div(ceil_div(extent.rows, classes), rows_per_block);
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
  kernel<<<grid, block, queue.bytes, current_stream(like)>>>(
      f, inputs, extent, split, lanes, static_cast<int>(row_teams), static_cast<int>(classes), rows_per_block,
      queue.ahead, sum_outputs(outputs, std::make_index_sequence<C>{}), data);
  CUDA_LAUNCH_CHECK();
  if (parts > 1) {
    launch_add_partials<A>(like, parts, size, data, outputs);
  }
}

}  // namespace detail

// f(row) for every row of K inputs, [rows, cols] each, or for every segment. `like` gives device and stream.
template <class T, size_t K, class F>
void launch_rows(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const Split& split) {
  const int64_t count = rows * split.segments;
  if (count == 0) {
    return;
  }
  const auto from = detail::make_inputs(inputs);
  detail::with_access_width(from, cols, [&](auto vector, auto ragged) {
    constexpr int N = decltype(vector)::value;
    constexpr bool kRagged = decltype(ragged)::value;
    const auto launch = [&](auto kept, int lanes) {
      constexpr int V = decltype(kept)::value;
      const auto kernel = detail::rows_kernel<N, V, kRagged, T, K, F>;
      const int block = detail::block_of(lanes);
      const int64_t teams = block / lanes;
      detail::QueueSize queue{1, 0};
      if constexpr (V > 0) {
        queue = detail::queue_size<detail::Queue<T, N, V, kRagged, K>>(kernel, block, lanes);
      }
      // Blocks stay, as many as run at once.
      const int64_t blocks_at_once = int64_t{2 * detail::kMaxThreads / block} * multiprocessors();
      const int64_t per_team = std::max(ceil_div(count, blocks_at_once * teams), ceil_div(count, kMaxGridX));
      const auto blocks = static_cast<unsigned>(ceil_div(count, per_team * teams));
      kernel<<<blocks, block, queue.bytes, current_stream(like)>>>(
          f, from, {count, cols, split}, lanes, static_cast<int>(per_team), queue.ahead);
      CUDA_LAUNCH_CHECK();
    };
    constexpr int V = detail::kKeptAccesses;
    const int64_t accesses = detail::accesses_to<N>(split.segment_cols, ragged);
    const int lanes = detail::row_lanes(accesses, V, detail::kMaxRowThreads<kRagged, K>);
    if (accesses <= int64_t{lanes} * V) {
      launch(std::integral_constant<int, V>{}, lanes);
    } else {
      launch(std::integral_constant<int, 0>{}, detail::kMaxThreads);
    }
  });
}

template <class T, size_t K, class F>
void launch_rows(const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  launch_rows(like, f, inputs, rows, cols, Split::none(cols));
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
    detail::launch_column_sums<N, V, decltype(ragged)::value>(
        like, f, from, {1, rows, cols}, Split::none(cols), lanes, outputs);
    return true;
  });
}

}  // namespace extension_cpp::cuda
