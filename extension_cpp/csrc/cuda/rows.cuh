// Row kernels: reduce each row of a [rows, cols] matrix, then write one result per element.
//
// A functor says what happens to one row; the kernel lends it the row, read once and kept in registers:
//
//   template <class T>
//   struct Softmax {
//     static constexpr bool kKeep = true;  // passes over the row more than once
//     T* __restrict__ output;              // [rows, cols]
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
// A short row is handled by part of a warp, a longer one by a block; one too long for the registers is read again for
// each pass. Without kKeep there is one pass to make, and rows of any length stream through. A functor may also be
// given segments of rows (Split), so that few long rows fill the GPU, and leave partial results for a second launch.
// The order of additions depends on the shape alone: equal bits from run to run.
#pragma once

#include "columns.cuh"
#include "launch.cuh"
#include "vector.cuh"

#include <array>
#include <cmath>
#include <type_traits>

namespace extension_cpp::cuda {

// An optional parameter with one value per column, which may be wider than the inputs.
template <class T>
struct Parameter {
  using A = acc_t<T>;

  const T* narrow = nullptr;
  const A* wide = nullptr;
  A otherwise;

  // `parameter` is contiguous.
  Parameter(const std::optional<Tensor>& parameter, A otherwise) : otherwise(otherwise) {
    if (!parameter.has_value()) {
      return;
    }
    if (parameter->element_size() == sizeof(A)) {
      wide = parameter->template const_data_ptr<A>();
    } else {
      narrow = parameter->template const_data_ptr<T>();
    }
  }

  template <int N>
  __device__ Values<A, N> at(int64_t col) const {
    Values<A, N> result;
    if (wide != nullptr) {
      load_into(result, wide + col);
    } else if (narrow != nullptr) {
      load_into(result, narrow + col);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        result[k] = otherwise;
      }
    }
    return result;
  }

 private:
  template <class U, int N>
  __device__ static void load_into(Values<A, N>& result, const U* address) {
    constexpr int kStep = N < kVector<U> ? N : kVector<U>;
    if (reinterpret_cast<uintptr_t>(address) % (kStep * sizeof(U)) == 0) {
#pragma unroll
      for (int first = 0; first < N; first += kStep) {
        const auto part = load<kStep>(address + first);
#pragma unroll
        for (int k = 0; k < kStep; ++k) {
          result[first + k] = part[k];
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        result[k] = load<1>(address + k)[0];
      }
    }
  }
};

// Rows cut into segments of at most segment_cols columns, for functors that need to see no more than a segment.
struct Split {
  int64_t segments;
  int64_t segment_cols;

  static Split none(int64_t cols) { return {1, cols}; }

  // Segments that fit the registers of a block.
  static Split even(int64_t cols) {
    constexpr int64_t kSegment = 8192;
    return {std::max<int64_t>(1, ceil_div(cols, kSegment)), std::min(cols, kSegment)};
  }
};

namespace detail {

// Of a block; with it the compiler may give a thread 128 registers.
constexpr int kMaxRowThreads = 512;
// Accesses of a row that a thread keeps in registers. Few threads with much of the row each wait less for one another:
// of 1, 2, 4 and 8 this was the fastest for the layer norm on an H100.
constexpr int kKeptAccesses = 8;
// Of kernels that also sum columns, whose accumulators take registers.
constexpr int kMaxRowColumnThreads = 512;
// A reduction along a row has at most this many results.
constexpr int kMaxResults = 4;

template <class A>
__device__ A plus(A a, A b) {
  return a + b;
}

template <class A, int K>
__device__ Values<A, K> plus(const Values<A, K>& a, const Values<A, K>& b) {
  Values<A, K> result;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    result[k] = a[k] + b[k];
  }
  return result;
}

struct Plus {
  template <class R>
  __device__ R operator()(const R& a, const R& b) const {
    return plus(a, b);
  }
};

struct Larger {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a > b || a != a ? a : b;  // NaN wins
  }
};

template <class A>
__device__ A shuffle_xor(A value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

template <class A, int K>
__device__ Values<A, K> shuffle_xor(const Values<A, K>& value, int mask) {
  Values<A, K> result;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    result[k] = __shfl_xor_sync(0xffffffffu, value[k], mask);
  }
  return result;
}

// The threads that share a row: a power of two up to a warp, or all warps of a block. Every thread of the block makes
// the same calls: shuffles name the whole warp, barriers wait for the whole block.
template <class A>
class Team {
 public:
  struct Shared {
    A results[2][kWarp * kMaxResults];
  };

  __device__ Team(int lanes, Shared& shared)
      : lanes_(lanes), lane_(static_cast<int>(threadIdx.x) % lanes), shared_(shared) {}

  __device__ int lanes() const { return lanes_; }
  __device__ int lane() const { return lane_; }

  // The same bits for every thread: both sides of a pair add the same two numbers.
  template <class R, class Op>
  __device__ R all_reduce(R value, R identity, Op op) {
    static_assert(sizeof(R) <= kMaxResults * sizeof(A));
    for (int mask = (lanes_ < kWarp ? lanes_ : kWarp) / 2; mask > 0; mask /= 2) {
      value = op(value, shuffle_xor(value, mask));
    }
    if (lanes_ > kWarp) {
      R* const results = reinterpret_cast<R*>(shared_.results[turn_]);
      // Two buffers in turn: a thread that is ahead writes the one that nobody reads any more.
      turn_ ^= 1;
      const int warp_lane = lane_ % kWarp;
      if (warp_lane == 0) {
        results[lane_ / kWarp] = value;
      }
      __syncthreads();
      value = warp_lane < lanes_ / kWarp ? results[warp_lane] : identity;
      for (int mask = kWarp / 2; mask > 0; mask /= 2) {
        value = op(value, shuffle_xor(value, mask));
      }
    }
    return value;
  }

 private:
  int lanes_;
  int lane_;
  int turn_ = 0;
  Shared& shared_;
};

template <class T, size_t K>
struct Inputs {
  const T* data[K];
};

template <class T, size_t K, size_t... I>
Inputs<T, K> make_inputs(const std::array<const T*, K>& inputs, std::index_sequence<I...>) {
  return {{inputs[I]...}};
}

// Where a row, or a segment of one, lies.
struct Span {
  int64_t row;
  int64_t segment;
  int64_t first_col;
  int64_t cols;
  bool exists;  // where there is no such row, a team only keeps the others company: cols is 0

  // The index counts segments; end > 0 is the first that is not there.
  __device__ Span(int64_t index, int64_t end, int64_t row_cols, const Split& split) : exists(index < end) {
    index = exists ? index : end - 1;
    row = split.segments == 1 ? index : index / split.segments;
    segment = split.segments == 1 ? 0 : index % split.segments;
    first_col = segment * split.segment_cols;
    const int64_t rest = row_cols - first_col;
    cols = !exists ? 0 : split.segment_cols < rest ? split.segment_cols : rest;
  }
};

// V chunks of N elements of each of K inputs, as they are in memory. V == 0: nothing is kept.
template <class T, int N, int V, size_t K>
struct Kept {
  Chunk<T, N> chunks[K][V > 0 ? V : 1];

  __device__ void read(const Inputs<T, K>& inputs, int64_t row_cols, const Span& span, int lanes, int lane) {
    const int64_t base = span.row * row_cols + span.first_col;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int col = (lane + v * lanes) * N;
        if (col < span.cols) {
          chunks[k][v] = load_chunk<N>(inputs.data[k] + base + col);
        }
      }
    }
  }
};

// What a functor sees of its row. K inputs; C column sums, which only kernels that keep the row can have.
template <class T, int N, int V, size_t K, size_t C>
class Row {
 public:
  using A = acc_t<T>;
  using Sums = Values<A, N>[C > 0 ? C : 1][V > 0 ? V : 1];

  __device__ Row(
      const Inputs<T, K>& inputs, int64_t row_cols, const Split& split, const Span& span, const Kept<T, N, V, K>& kept,
      Team<A>& team, Sums& sums)
      : inputs_(inputs), row_cols_(row_cols), split_(split), span_(span), kept_(kept), team_(team), sums_(sums) {}

  // Always of an existing row, so that statistics may be read without asking.
  __device__ int64_t index() const { return span_.row; }
  // Of the segment, in a [rows, segments] matrix.
  __device__ int64_t segment_index() const { return span_.row * split_.segments + span_.segment; }
  // Elements of the row, or of the segment.
  __device__ int64_t cols() const { return span_.cols; }
  // True for one thread of each row: it writes what there is one of.
  __device__ bool leader() const { return span_.exists && team_.lane() == 0; }

  // The sum over the row of f(inputs..., columns...): a number, or Values of up to four.
  //
  // A column operand has a method at<N>(col), as Parameter above.
  template <class F, class... Columns>
  __device__ auto sum(const F& f, const Columns&... columns) {
    using R = decltype(call(f, std::declval<const Elements&>(), 0, columns.template at<N>(0)...));
    R total{};
    for_each(
        [&](int, int64_t, const Elements& inputs, const auto&... values) {
#pragma unroll
          for (int n = 0; n < N; ++n) {
            total = plus(total, call(f, inputs, n, values...));
          }
        },
        columns...);
    return team_.all_reduce(total, R{}, Plus{});
  }

  // The largest f(inputs..., columns...) of the row; NaN if there is one.
  template <class F, class... Columns>
  __device__ A max(const F& f, const Columns&... columns) {
    const A lowest = -static_cast<A>(INFINITY);
    A largest = lowest;
    for_each(
        [&](int, int64_t, const Elements& inputs, const auto&... values) {
#pragma unroll
          for (int n = 0; n < N; ++n) {
            largest = Larger{}(largest, call(f, inputs, n, values...));
          }
        },
        columns...);
    return team_.all_reduce(largest, lowest, Larger{});
  }

  // output[row, col] = f(inputs..., columns...) for every element. `output` is 16-byte aligned, as every fresh tensor
  // is.
  template <class F, class... Columns>
  __device__ void write(T* output /* [rows, cols] */, const F& f, const Columns&... columns) {
    T* const out = output + span_.row * row_cols_ + span_.first_col;
    for_each(
        [&](int, int64_t col, const Elements& inputs, const auto&... values) {
          Values<A, N> result;
#pragma unroll
          for (int n = 0; n < N; ++n) {
            result[n] = call(f, inputs, n, values...);
          }
          store(out + col, result);
        },
        columns...);
  }

  // Adds f(inputs..., columns...), Values of C numbers, to the sums of the element's column.
  template <class F, class... Columns>
  __device__ void add_to_columns(const F& f, const Columns&... columns) {
    static_assert(C > 0 && V > 0, "launch_rows_and_column_sums");
    for_each(
        [&](int v, int64_t, const Elements& inputs, const auto&... values) {
#pragma unroll
          for (int n = 0; n < N; ++n) {
            const Values<A, static_cast<int>(C)> terms = call(f, inputs, n, values...);
#pragma unroll
            for (size_t c = 0; c < C; ++c) {
              sums_[c][v][n] += terms[static_cast<int>(c)];
            }
          }
        },
        columns...);
  }

 private:
  struct Elements {
    Values<A, N> inputs[K];
  };

  template <class F, size_t... I, class... Columns>
  __device__ static auto call(
      const F& f, const Elements& elements, int n, std::index_sequence<I...>, const Columns&... columns) {
    return f(elements.inputs[I][n]..., columns[n]...);
  }

  template <class F, class... Columns>
  __device__ static auto call(const F& f, const Elements& elements, int n, const Columns&... columns) {
    return call(f, elements, n, std::make_index_sequence<K>{}, columns...);
  }

  // g(v, col, elements, columns...) for every chunk; col counts from the start of the segment.
  template <class G, class... Columns>
  __device__ void for_each(const G& g, const Columns&... columns) {
    if constexpr (V > 0) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int col = (team_.lane() + v * team_.lanes()) * N;
        if (col < span_.cols) {
          Elements elements;
#pragma unroll
          for (size_t k = 0; k < K; ++k) {
            elements.inputs[k] = to_values(kept_.chunks[k][v]);
          }
          g(v, static_cast<int64_t>(col), elements, columns.template at<N>(span_.first_col + col)...);
        }
      }
    } else {
      const int64_t base = span_.row * row_cols_ + span_.first_col;
#pragma unroll 4
      for (int64_t col = int64_t{team_.lane()} * N; col < span_.cols; col += int64_t{team_.lanes()} * N) {
        Elements elements;
#pragma unroll
        for (size_t k = 0; k < K; ++k) {
          elements.inputs[k] = load<N>(inputs_.data[k] + base + col);
        }
        g(0, col, elements, columns.template at<N>(span_.first_col + col)...);
      }
    }
  }

  const Inputs<T, K>& inputs_;
  int64_t row_cols_;
  const Split& split_;
  const Span& span_;
  const Kept<T, N, V, K>& kept_;
  Team<A>& team_;
  Sums& sums_;
};

template <int N, int V, class T, size_t K, class F>
__global__ void __launch_bounds__(kMaxRowThreads)
    rows_kernel(F f, Inputs<T, K> inputs, int64_t rows, int64_t cols, Split split, int lanes) {
  __shared__ typename Team<acc_t<T>>::Shared shared;
  Team<acc_t<T>> team(lanes, shared);
  const int teams = static_cast<int>(blockDim.x) / lanes;
  const int team_in_block = static_cast<int>(threadIdx.x) / lanes;
  const int64_t end = rows * split.segments;
  const int64_t step = static_cast<int64_t>(gridDim.x) * teams;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * teams; first < end; first += step) {
    const Span span(first + team_in_block, end, cols, split);
    Kept<T, N, V, K> kept;
    kept.read(inputs, cols, span, lanes, team.lane());
    typename Row<T, N, V, K, 0>::Sums no_sums;
    Row<T, N, V, K, 0> row(inputs, cols, split, span, kept, team, no_sums);
    f(row);
  }
}

// Blocks stay for many neighbouring rows, each of which is read while the one before it is computed. A thread meets the
// same columns in every row, and keeps their sums.
template <int N, int V, size_t C, class T, size_t K, class F>
__global__ void __launch_bounds__(kMaxRowColumnThreads) rows_and_column_sums_kernel(
    F f, Inputs<T, K> inputs, int64_t rows, int64_t cols, int64_t rows_per_block, int lanes,
    acc_t<T>* __restrict__ partials /* [gridDim.x, C, cols] */) {
  using A = acc_t<T>;
  __shared__ typename Team<A>::Shared shared;
  Team<A> team(lanes, shared);
  const int teams = static_cast<int>(blockDim.x) / lanes;
  const int team_in_block = static_cast<int>(threadIdx.x) / lanes;
  const Split split{1, cols};
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;

  typename Row<T, N, V, K, C>::Sums sums = {};
  Kept<T, N, V, K> next;
  next.read(inputs, cols, Span(begin + team_in_block, end, cols, split), lanes, team.lane());
  for (int64_t first = begin; first < end; first += teams) {
    const Span span(first + team_in_block, end, cols, split);
    const Kept<T, N, V, K> kept = next;
    next.read(inputs, cols, Span(first + teams + team_in_block, end, cols, split), lanes, team.lane());
    Row<T, N, V, K, C> row(inputs, cols, split, span, kept, team, sums);
    f(row);
  }

  __shared__ A combined[kBlock * N];
#pragma unroll
  for (size_t c = 0; c < C; ++c) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      Values<A, N> sum = sums[c][v];
      if (lanes <= kWarp) {  // the block, of kBlock threads, has several teams
        for (int mask = lanes; mask < kWarp; mask *= 2) {
          sum = plus(sum, shuffle_xor(sum, mask));
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
          combined[n * kBlock + threadIdx.x] = sum[n];
        }
        for (int half = kBlock / 2; half >= kWarp; half /= 2) {
          __syncthreads();
          if (threadIdx.x < half) {
#pragma unroll
            for (int n = 0; n < N; ++n) {
              combined[n * kBlock + threadIdx.x] += combined[n * kBlock + threadIdx.x + half];
            }
          }
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
          sum[n] = combined[n * kBlock + threadIdx.x];
        }
        __syncthreads();  // before the next round writes what others have yet to read
      }
      const int64_t col = (int64_t{team.lane()} + int64_t{v} * lanes) * N;
      if (team_in_block == 0 && col < cols) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          partials[(static_cast<int64_t>(blockIdx.x) * C + c) * cols + col + n] = sum[n];
        }
      }
    }
  }
}

// Threads for a row of `chunks` accesses, `per_thread` of them each unless that takes more than max_lanes.
inline int row_lanes(int64_t chunks, int64_t per_thread, int max_lanes) {
  const int64_t wanted = std::max<int64_t>(1, ceil_div(chunks, per_thread));
  if (wanted > kWarp) {
    return static_cast<int>(std::min<int64_t>(ceil_div(wanted, kWarp) * kWarp, max_lanes));
  }
  int lanes = 1;
  while (lanes < wanted) {
    lanes *= 2;
  }
  return lanes;
}

// Calls launch with the width of the accesses. Of float64 single numbers will do: fewer kernels to compile.
template <class T, size_t K, class F>
auto with_access_width(const std::array<const T*, K>& inputs, int64_t cols, const F& launch) {
  if constexpr (!std::is_same_v<T, double>) {
    if (cols % kVector<T> == 0 && std::all_of(inputs.begin(), inputs.end(), [](const T* p) { return is_aligned(p); })) {
      return launch(std::integral_constant<int, kVector<T>>{});
    }
  }
  return launch(std::integral_constant<int, 1>{});
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
  const auto launch = [&](auto vector, auto kept, int lanes) {
    const int block = lanes <= kWarp ? kBlock : lanes;
    const auto blocks = static_cast<unsigned>(std::min(ceil_div(count, block / lanes), kMaxGridX));
    detail::rows_kernel<decltype(vector)::value, decltype(kept)::value, T, K>
        <<<blocks, block, 0, current_stream(like)>>>(
            f, detail::make_inputs(inputs, std::make_index_sequence<K>{}), rows, cols, split, lanes);
    CUDA_LAUNCH_CHECK();
  };
  detail::with_access_width(inputs, cols, [&](auto vector) {
    constexpr int N = decltype(vector)::value;
    const int64_t chunks = ceil_div(split.segment_cols, N);
    if constexpr (F::kKeep) {
      constexpr int V = detail::kKeptAccesses;
      const int lanes = detail::row_lanes(chunks, V, detail::kMaxRowThreads);
      if (chunks <= int64_t{lanes} * V) {
        launch(vector, std::integral_constant<int, V>{}, lanes);
        return;
      }
    }
    const int lanes = detail::row_lanes(chunks, 4, F::kKeep ? detail::kMaxRowThreads : 2 * kBlock);
    launch(vector, std::integral_constant<int, 0>{}, lanes);
  });
}

template <class T, size_t K, class F>
void launch_rows(const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols) {
  launch_rows(like, f, inputs, rows, cols, Split::none(cols));
}

// launch_rows for a functor that calls row.add_to_columns: outputs[c][col] = the sum over the rows. Returns false, and
// does nothing, where rows are too long for that. An output is a pointer or a SumOutput.
template <class T, size_t K, class F, class Out, size_t C>
bool launch_rows_and_column_sums(
    const Tensor& like, const F& f, const std::array<const T*, K>& inputs, int64_t rows, int64_t cols,
    const std::array<Out, C>& outputs) {
  using A = acc_t<T>;
  if (cols == 0) {
    return true;
  }
  if (rows == 0) {
    launch_add_partials<A>(like, 0, cols, static_cast<const A*>(nullptr), outputs);
    return true;
  }
  return detail::with_access_width(inputs, cols, [&](auto vector) {
    constexpr int N = decltype(vector)::value;
    // Inputs, the inputs that come next, and the sums share the registers.
    constexpr int V = std::is_same_v<T, double> ? 4 : N == 1 ? 8 : 16 / N;
    const int64_t chunks = ceil_div(cols, N);
    const int lanes = detail::row_lanes(chunks, V, detail::kMaxRowColumnThreads);
    if (chunks > int64_t{lanes} * V) {
      return false;
    }
    const auto kernel = detail::rows_and_column_sums_kernel<N, V, C, T, K, F>;
    const int block = lanes <= kWarp ? kBlock : lanes;
    int resident = 1;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, block, 0));
    // As many blocks as run at once, yet several rows for each.
    const int64_t teams = block / lanes;
    const int64_t blocks_wanted =
        std::min(int64_t{std::max(1, resident)} * multiprocessors(), ceil_div(rows, 4 * teams));
    const int64_t rows_per_block = ceil_div(ceil_div(rows, blocks_wanted), teams) * teams;
    const int64_t blocks = ceil_div(rows, rows_per_block);
    Tensor partials = new_empty(
        like, {blocks, static_cast<int64_t>(C), cols},
        std::is_same_v<A, double> ? ScalarType::Double : ScalarType::Float);
    A* const data = partials.template mutable_data_ptr<A>();
    kernel<<<static_cast<unsigned>(blocks), block, 0, current_stream(like)>>>(
        f, detail::make_inputs(inputs, std::make_index_sequence<K>{}), rows, cols, rows_per_block, lanes, data);
    CUDA_LAUNCH_CHECK();
    launch_add_partials<A>(like, blocks, cols, data, outputs);
    return true;
  });
}

}  // namespace extension_cpp::cuda
