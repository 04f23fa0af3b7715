// A formula for every element of large matrices, whose results are written, summed over rows or columns, or several of
// that at once: the backward of what broadcasts. Elements as they are, too, which sum_columns.cuh says when.
//
// A warp has a strip of the columns, an access of which is a lane's, and takes rows in turn, several at a time. Sums of
// columns stay in registers; of a row, the lanes of a warp bring theirs together, and leave one number for each strip.
// Where rows are not whole accesses, a warp takes those that begin at the same place between two boundaries: in all of
// them a lane has the same columns, in whole, aligned accesses, but for the ends of the row. No atomics: equal bits
// from run to run.
#pragma once

#include "launch.cuh"
#include "matrix_view.h"
#include "operands.cuh"
#include "partials.cuh"
#include "sum_dims.h"
#include "sum_output.cuh"
#include "team.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

constexpr int kMatrixSumThreads = 128;
constexpr int kSumWarps = kMatrixSumThreads / kWarp;

// Blocks that a multiprocessor shall run at once, and rows that a warp takes at a time, of K inputs.
template <class T>
constexpr int kMatrixSumBlocks = sizeof(T) == 2 ? 4 : 5;
template <class T, size_t K>
constexpr int kRowsAtOnce = (sizeof(T) == 2 ? 4 : 2) * (K == 1 ? 2 : 1);

// Batches of rows at whose ends a warp looks at a time.
constexpr int kEndTurns = 8;

// Whether rows that are not whole accesses may be taken: of several inputs that are wider than halves this gains
// nothing.
template <class T, size_t K>
constexpr bool kTakesEnds = sizeof(T) == 2 || K == 1;

// Columns of a strip.
template <class T>
constexpr int kSumStripCols = kWarp * kVector<T>;

// Of each result, what every warp of a block has of each column; of the ends of rows, what every lane has.
template <class T, size_t M>
using SumsOfWarps = acc_t<T>[M][kSumWarps][kSumStripCols<T>];

// What a lane does with an input: it loads an access of each row, keeps what it has of every row, or asks for the
// number of each row.
enum class Reads { kAccess, kKept, kNumber };

template <class T>
struct StripInput {
  const T* data;
  Reads reads;
  bool one_number;  // of what is kept
};

template <class T>
struct StripResult {
  T* whole;            // [rows of all matrices, cols], or null
  acc_t<T>* row_sums;  // [rows of all matrices, strips, and one for the ends of rows], or null
  bool sums_columns;
};

template <class T, size_t K, size_t M>
struct StripOperands {
  StripInput<T> inputs[K];
  StripResult<T> results[M];
};

// How far it is from matrix to matrix in what is kept of each of K inputs. (The last parameter of the kernel: among the
// others it would move them off the boundaries from which several are read at once.)
template <size_t K>
struct StripSteps {
  int64_t of[K];
};

// Rows every 2^class_bits-th of which begins at the same place between two boundaries, the first one `misaligned`
// elements behind one.
struct StripRows {
  int rows;
  int64_t cols;
  int class_bits;
  int misaligned;
  int strips;        // of whole accesses
  int strip_groups;  // of blocks that share the rows of a class in a strip
  int end_groups;    // and what lies at the ends of rows; 0: nothing
};

// Where what belongs to the matrix of a block lies, blockIdx.y, if there are Several that follow one another. (What
// knows of one alone has registers for it.)
template <bool Several>
struct OfMatrix {
  __device__ static auto rows_before(const StripRows& grid) {
    if constexpr (Several) {
      return int64_t{blockIdx.y} * grid.rows;
    } else {
      return 0;
    }
  }
  // Elements of what has so many for each.
  __device__ static int64_t elements_before(int64_t of_each) { return Several ? blockIdx.y * of_each : 0; }

  // In [parts, M, matrices, cols].
  template <size_t M>
  __device__ static int64_t partial_sum_at(const StripRows& grid, int64_t part, size_t m, int64_t col) {
    const int64_t cols = Several ? gridDim.y * grid.cols : grid.cols;
    return detail::partial_sum_at<M>(part, m, cols, elements_before(grid.cols) + col);
  }
};

// Those of a block: of a class, every `groups`th batch.
template <int N>
struct RowsOfClass {
  int bits;
  int first;  // the class
  int count;  // of the class
  int group;
  int groups;
  int head;  // elements of a row before the first whole access
  int tail;  // and behind the last one
  int64_t accesses;

  // `share`: of classes x groups; `rows_before`: of other matrices.
  template <class Rows>
  __device__ RowsOfClass(const StripRows& grid, int share, int groups, Rows rows_before)
      : bits(grid.class_bits),
        first(share & ((1 << bits) - 1)),
        count((grid.rows - first + (1 << bits) - 1) >> bits),
        group(share >> bits),
        groups(groups),
        head(static_cast<int>(-(grid.misaligned + (rows_before + first) * (grid.cols % N)) & (N - 1))),
        tail(static_cast<int>((grid.cols - head) & (N - 1))),
        accesses((grid.cols - head) / N) {}

  __device__ int row(int index) const { return first + (index << bits); }

  // What the share of the class is called that is another group's.
  __device__ int64_t share_of(int other) const { return first + (int64_t{other} << bits); }
};

// One element, and zeros: no part of a word is left to what was there, for which compilers would wait.
template <int N, class T>
__device__ Chunk<T, N> chunk_of_first(T number) {
  unsigned words[sizeof(T) * N / sizeof(unsigned)] = {};
  memcpy(words, &number, sizeof(number));
  Chunk<T, N> chunk;
  memcpy(&chunk.word, words, sizeof(words));
  return chunk;
}

// The first element, N times.
template <class T, int N>
__device__ Chunk<T, N> repeated(const Chunk<T, N>& chunk) {
  T elements[N];
  memcpy(elements, &chunk.word, sizeof(elements));
#pragma unroll
  for (T& element : elements) {
    element = elements[0];
  }
  Chunk<T, N> repeated;
  memcpy(&repeated.word, elements, sizeof(elements));
  return repeated;
}

// The sum over a warp of each of R numbers, which are lost: that of number `lane / (kWarp / R)`. Every step halves the
// numbers that a lane has, as long as there are several.
template <int R, class A>
__device__ A sum_of_rows(A (&numbers)[R], int lane) {
  int mask = kWarp / 2;
#pragma unroll
  for (int left = R; left > 1; left /= 2, mask /= 2) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int r = 0; r < R / 2; ++r) {
      if (r < left / 2) {
        const A other = shuffle_xor(upper ? numbers[r] : numbers[r + left / 2], mask);
        numbers[r] = (upper ? numbers[r + left / 2] : numbers[r]) + other;
      }
    }
  }
#pragma unroll
  for (; mask > 0; mask /= 2) {
    numbers[0] += shuffle_xor(numbers[0], mask);
  }
  return numbers[0];
}

// What a lane has of inputs that are the same in every row: its columns, or one number in all of them.
template <bool Several, int N, class T, size_t K, size_t M>
__device__ void load_kept(
    Chunk<T, N> (&kept)[K], const StripOperands<T, K, M>& operands, const StripSteps<K>& steps, int64_t col,
    bool exists) {
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const StripInput<T>& input = operands.inputs[k];
    T elements[N] = {};
    if (input.reads == Reads::kKept && exists) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        elements[n] = input.data[OfMatrix<Several>::elements_before(steps.of[k]) + (input.one_number ? 0 : col + n)];
      }
    }
    memcpy(&kept[k].word, elements, sizeof(kept[k].word));
  }
}

// The whole accesses of a strip.
template <bool Several, class T, class F, size_t K, size_t M>
__device__ void sum_strip(
    const F& f, const StripOperands<T, K, M>& operands, const StripSteps<K>& steps, const StripRows& grid,
    acc_t<T>* __restrict__ partials /* [classes * strip_groups, M, matrices * cols] */, SumsOfWarps<T, M>& of_warps) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  constexpr int kRows = kRowsAtOnce<T, K>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto share = static_cast<int>(blockIdx.x) / grid.strips;
  const int strip = static_cast<int>(blockIdx.x) - share * grid.strips;
  const auto rows_before = OfMatrix<Several>::rows_before(grid);
  const RowsOfClass<N> rows(grid, share, grid.strip_groups, rows_before);
  const int shares_of_row = grid.strips + (grid.end_groups > 0 ? 1 : 0);
  const int64_t access = int64_t{strip} * kWarp + lane;
  const bool exists = access < rows.accesses;
  const int64_t first_col = rows.head + access * N;
  Chunk<T, N> kept[K];
  load_kept<Several>(kept, operands, steps, first_col, exists);
  Values<A, N> sums[M] = {};
  const auto on_rows = [&](int index, auto count) {
    constexpr int R = decltype(count)::value;
    const auto first_row = rows_before + rows.row(index);
    const int64_t at = int64_t{first_row} * grid.cols + first_col;
    const int64_t step = grid.cols << rows.bits;
    Chunk<T, N> chunks[R][K];
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      const StripInput<T>& input = operands.inputs[k];
      if (input.reads == Reads::kAccess && exists) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          chunks[r][k] = load_chunk<N>(input.data + at + r * step);
        }
      } else if (input.reads == Reads::kNumber) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          chunks[r][k] = chunk_of_first<N>(__ldg(input.data + first_row + (r << rows.bits)));
        }
      } else {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          chunks[r][k] = kept[k];
        }
      }
    }
    A of_rows[M][R] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) {
      Values<A, N> values[K];
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        const bool is_number = operands.inputs[k].reads == Reads::kNumber;
        values[k] = to_values(is_number ? repeated(chunks[r][k]) : chunks[r][k]);
      }
      Values<A, N> made[M];
      apply_formula(f, values, made, std::make_index_sequence<K>{});
#pragma unroll
      for (size_t m = 0; m < M; ++m) {
        // Added up where that is wanted: of a formula that computes, instructions are what memory leaves no room for.
        const StripResult<T>& result = operands.results[m];
        if (result.sums_columns) {
          sums[m] = plus(sums[m], made[m]);
        }
        if (result.whole != nullptr && exists) {
          store(result.whole + at + r * step, made[m]);
        }
        if (result.row_sums != nullptr) {
          A of_row = made[m][0];
#pragma unroll
          for (int n = 1; n < N; ++n) {
            of_row += made[m][n];
          }
          of_rows[m][r] = exists ? of_row : A(0);
        }
      }
    }
#pragma unroll
    for (size_t m = 0; m < M; ++m) {
      if (operands.results[m].row_sums != nullptr) {
        const A sum = sum_of_rows(of_rows[m], lane);
        constexpr int kLanes = kWarp / R;
        if (lane % kLanes == 0) {
          operands.results[m].row_sums[int64_t{rows_before + rows.row(index + lane / kLanes)} * shares_of_row + strip] =
              sum;
        }
      }
    }
  };
  const int step = rows.groups * kSumWarps * kRows;
  for (int index = (rows.group * kSumWarps + warp) * kRows; index < rows.count; index += step) {
    if (index + kRows <= rows.count) {
      on_rows(index, std::integral_constant<int, kRows>());
    } else {
      for (int rest = index; rest < rows.count; ++rest) {
        on_rows(rest, std::integral_constant<int, 1>());
      }
    }
  }

  const int64_t strip_col = int64_t{strip} * kSumStripCols<T>;
#pragma unroll
  for (size_t m = 0; m < M; ++m) {
    if (operands.results[m].sums_columns) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        of_warps[m][warp][lane * N + n] = sums[m][n];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (size_t m = 0; m < M; ++m) {
    if (operands.results[m].sums_columns) {
      for (int c = static_cast<int>(threadIdx.x); c < kSumStripCols<T>; c += kMatrixSumThreads) {
        if (strip_col + c < rows.accesses * N) {
          A total = 0;
#pragma unroll
          for (int w = 0; w < kSumWarps; ++w) {
            total += of_warps[m][w][c];
          }
          partials[OfMatrix<Several>::template partial_sum_at<M>(grid, share, m, rows.head + strip_col + c)] = total;
        }
      }
    }
  }
}

// The elements before the first whole access of each row, and behind the last one: a lane for each.
template <bool Several, class T, class F, size_t K, size_t M>
__device__ void sum_ends(
    const F& f, const StripOperands<T, K, M>& operands, const StripSteps<K>& steps, const StripRows& grid, int share,
    acc_t<T>* __restrict__ partials /* [classes * strip_groups, M, matrices * cols] */, SumsOfWarps<T, M>& of_warps) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  constexpr int kLanes = 2 * N;  // for a row
  constexpr int kRows = kWarp / kLanes;
  constexpr int kTurns = kEndTurns;  // that are loaded for at once
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto rows_before = OfMatrix<Several>::rows_before(grid);
  const RowsOfClass<N> rows(grid, share, grid.end_groups, rows_before);
  const int place = lane % N;
  const bool behind = (lane & N) != 0;
  const bool exists = place < (behind ? rows.tail : rows.head);
  const int64_t col = behind ? grid.cols - rows.tail + place : place;
  Values<A, static_cast<int>(M)> sums{};
  constexpr int kBatch = kRows * kTurns;
  for (int begin = (rows.group * kSumWarps + warp) * kBatch; begin < rows.count;
       begin += rows.groups * kSumWarps * kBatch) {
    T elements[kTurns][K] = {};
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int index = begin + turn * kRows + lane / kLanes;
      const int64_t row = rows_before + rows.row(index);
      if (exists && index < rows.count) {
#pragma unroll
        for (size_t k = 0; k < K; ++k) {
          const StripInput<T>& input = operands.inputs[k];
          const int64_t kept = OfMatrix<Several>::elements_before(steps.of[k]) + (input.one_number ? 0 : col);
          elements[turn][k] = input.data
                                  [input.reads == Reads::kAccess   ? row * grid.cols + col
                                   : input.reads == Reads::kNumber ? row
                                                                   : kept];
        }
      }
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int index = begin + turn * kRows + lane / kLanes;
      const bool here = exists && index < rows.count;
      Values<A, 1> values[K];
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        values[k][0] = static_cast<A>(elements[turn][k]);
      }
      Values<A, 1> made[M];
      apply_formula(f, values, made, std::make_index_sequence<K>{});
#pragma unroll
      for (size_t m = 0; m < M; ++m) {
        const StripResult<T>& result = operands.results[m];
        A of_row = here ? made[m][0] : A(0);
        sums[static_cast<int>(m)] += of_row;
        if (here && result.whole != nullptr) {
          result.whole[int64_t{rows_before + rows.row(index)} * grid.cols + col] = static_cast<T>(of_row);
        }
        if (result.row_sums != nullptr) {
#pragma unroll
          for (int mask = kLanes / 2; mask > 0; mask /= 2) {
            of_row += shuffle_xor(of_row, mask);
          }
          if (lane % kLanes == 0 && index < rows.count) {
            result.row_sums[int64_t{rows_before + rows.row(index)} * (grid.strips + 1) + grid.strips] = of_row;
          }
        }
      }
    }
  }
#pragma unroll
  for (size_t m = 0; m < M; ++m) {
    of_warps[m][warp][lane] = sums[static_cast<int>(m)];
  }
  __syncthreads();
  if (warp > 0 || lane >= kLanes || !exists) {
    return;
  }
#pragma unroll
  for (size_t m = 0; m < M; ++m) {
    if (operands.results[m].sums_columns) {
      A total = 0;
      for (int w = 0; w < kSumWarps; ++w) {
        for (int other = lane; other < kWarp; other += kLanes) {
          total += of_warps[m][w][other];
        }
      }
      for (int other = rows.group; other < grid.strip_groups; other += rows.groups) {
        const int64_t at = OfMatrix<Several>::template partial_sum_at<M>(grid, rows.share_of(other), m, col);
        partials[at] = other == rows.group ? total : A(0);
      }
    }
  }
}

// Blocks for every strip and share of the rows, and then for the ends.
template <bool Several, class T, class F, size_t K, size_t M>
__global__ void __launch_bounds__(kMatrixSumThreads, kMatrixSumBlocks<T>) matrix_sums_kernel(
    F f, StripOperands<T, K, M> operands, StripRows grid,
    acc_t<T>* __restrict__ partials /* [classes * strip_groups, M, matrices * cols] */, StripSteps<K> steps) {
  __shared__ SumsOfWarps<T, M> of_warps;
  may_begin_next();
  wait_for_previous();
  const int of_strips = (grid.strips * grid.strip_groups) << grid.class_bits;
  const auto block = static_cast<int>(blockIdx.x);
  if (block < of_strips) {
    sum_strip<Several>(f, operands, steps, grid, partials, of_warps);
  } else if constexpr (kTakesEnds<T, K>) {
    sum_ends<Several>(f, operands, steps, grid, block - of_strips, partials, of_warps);
  }
}

template <bool Several, class T, class F, size_t K, size_t M>
bool launch_strips_and_ends(
    const Tensor& like, const F& f, const Matrices& matrices, const std::array<PlacedInput<T>, K>& inputs,
    const std::array<PlacedResult<T>, M>& results) {
  using A = acc_t<T>;
  constexpr int N = kVector<T>;
  const auto [count, rows, cols] = matrices;
  constexpr int64_t kLeastCols = kSumStripCols<T> / 2;
  constexpr int64_t kLeastRows = 128;
  constexpr int64_t kLeastElements = int64_t{1} << 18;
  if (cols < kLeastCols || rows < kLeastRows || count * rows * cols < kLeastElements || count > kMaxGridY) {
    return false;
  }
  const void* first = nullptr;
  bool alike = true;
  const auto meet = [&](const void* data) {
    first = first == nullptr ? data : first;
    alike = alike && misalignment(data) == misalignment(first);
  };
  StripOperands<T, K, M> operands{};
  StripSteps<K> steps{};
  for (size_t k = 0; k < K; ++k) {
    const PlacedInput<T>& input = inputs[k];
    const bool whole = input.place.is_whole(cols);
    if (whole) {
      meet(input.data);
    }
    operands.inputs[k] = {
        input.data,
        whole                     ? Reads::kAccess
        : input.place.is_column() ? Reads::kNumber
                                  : Reads::kKept,
        input.place.is_number()};
    steps.of[k] = input.place.matrix_stride;
  }
  for (const PlacedResult<T>& result : results) {
    if (result.whole != nullptr) {
      meet(result.whole);
    }
  }
  if (!alike || first == nullptr) {
    return false;
  }
  const auto misaligned = static_cast<int>(misalignment(first) / sizeof(T));
  const int bits = period_bits_of_rows(cols, N);
  const int64_t classes = int64_t{1} << bits;
  const bool ragged = classes > 1 || misaligned > 0;
  if (ragged && !kTakesEnds<T, K>) {
    return false;
  }
  const auto kernel = matrix_sums_kernel<Several, T, F, K, M>;
  const int64_t resident = resident_blocks(kernel, kMatrixSumThreads, 0);
  const int64_t rows_of_class = ceil_div(rows, classes);
  const int64_t strips = ceil_div(cols / N, kWarp);
  // As many turns for what lies at the ends as for the strips.
  constexpr int64_t kBatch = int64_t{kRowsAtOnce<T, K>} * kSumWarps;
  constexpr int64_t kEndBatch = int64_t{kEndTurns * kWarp / (2 * N)} * kSumWarps;
  const int64_t for_class = resident / (classes * count);  // of a matrix
  // Wider types lose where blocks for every strip of every class are more than run at once.
  if (ragged && sizeof(T) > 2 && strips > for_class) {
    return false;
  }
  const int64_t for_ends = ragged ? 1 + for_class * kBatch / (kBatch + strips * kEndBatch) : 0;
  const int64_t groups = std::clamp((for_class - for_ends) / strips, int64_t{1}, ceil_div(rows_of_class, kBatch));
  const int64_t end_groups = std::min(for_ends, groups);
  const int64_t parts = classes * groups;
  const int64_t blocks = strips * parts + end_groups * classes;
  if (blocks > kMaxGridX || rows > kMaxGridX - kBatch * classes * groups) {
    return false;
  }

  std::array<std::optional<Tensor>, M> row_sums;
  std::array<SumOutput<T>, M> columns;
  bool sums_columns = false;
  for (size_t m = 0; m < M; ++m) {
    StripResult<T>& result = operands.results[m];
    columns[m] = results[m].columns;
    result.whole = results[m].whole;
    result.sums_columns = columns[m].is_wanted();
    sums_columns = sums_columns || result.sums_columns;
    if (results[m].rows.tensor != nullptr) {
      row_sums[m] = new_empty(like, {count * rows, strips + (ragged ? 1 : 0)}, kDtypeOf<A>);
      result.row_sums = row_sums[m]->template mutable_data_ptr<A>();
    }
  }
  std::optional<Tensor> partials;
  if (sums_columns) {
    partials = new_empty(like, {parts, static_cast<int64_t>(M), count * cols}, kDtypeOf<A>);
  }
  A* const data = sums_columns ? partials->template mutable_data_ptr<A>() : nullptr;
  const StripRows grid{
      static_cast<int>(rows),      cols, bits, misaligned, static_cast<int>(strips), static_cast<int>(groups),
      static_cast<int>(end_groups)};
  const dim3 all(static_cast<unsigned>(blocks), static_cast<unsigned>(count));
  launch_overlapped(kernel, all, kMatrixSumThreads, 0, current_stream(like), f, operands, grid, data, steps);
  if (sums_columns) {
    launch_add_partials<A>(like, parts, count * cols, data, columns);
  }
  sum_parts_of_rows(row_sums, results);
  return true;
}

}  // namespace detail

// results[m] of f(inputs[row, col]...) for every element of matrices, of which there is one unless there MayBeSeveral,
// written or summed. False, and nothing done, of small matrices, of few columns or rows, where what is whole does not
// lie alike between the boundaries of accesses, of wider types whose rows are not whole accesses, where that gains
// nothing, and of formulas that would take more registers.
template <bool MayBeSeveral = false, class T, class F, size_t K, size_t M>
bool launch_matrix_sums(
    const Tensor& like, const F& f, const Matrices& matrices, const std::array<PlacedInput<T>, K>& inputs,
    const std::array<PlacedResult<T>, M>& results) {
  if constexpr (K > 3 || M > 3 || extension_cpp::detail::kWorkOf<F> > 0) {
    return false;
  } else {
    if constexpr (MayBeSeveral) {
      if (matrices.count > 1) {
        return detail::launch_strips_and_ends<true>(like, f, matrices, inputs, results);
      }
    }
    return detail::launch_strips_and_ends<false>(like, f, matrices, inputs, results);
  }
}

}  // namespace extension_cpp::cuda
