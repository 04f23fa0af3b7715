// Operands of which some are transposed with respect to the output, or that broadcast in more than two dimensions: tile
// by tile.
//
// The columns of a tile lie along the innermost dimension of the outputs, its rows along the one in which transposed
// inputs are contiguous; the other dimensions only say where a tile is. A transposed input goes through shared memory:
// all of its tile is read, each column in accesses of 16 bytes, before a row of it is used.
#pragma once

#include "indexing.h"
#include "launch.cuh"
#include "operands.cuh"
#include "vector.cuh"

#include <algorithm>
#include <array>

namespace extension_cpp::cuda::detail {

// Rows of the outputs come in whole cache lines: 8 threads each.
constexpr int kTileWords = 8;

template <class T>
constexpr int kTileCols = kTileWords * kVector<T>;

// As few as there is work for all threads, and words for a row of columns in shared memory: to wait for a smaller tile
// takes less time.
template <class T>
constexpr int kTileRows = std::max(kBlock / kTileWords, kVector<T>* kTileWords);

template <class T>
constexpr int kTileChunks = kTileRows<T> * kTileWords / kBlock;  // of each operand and thread

template <class T>
constexpr int kTileBytes = kTileRows<T> * kTileWords * kAccessBytes;

// What a block may have without asking for more.
constexpr int64_t kMostTileBytes = 48 * 1024;

struct TileInput {
  const char* data;
  unsigned col_bytes;  // from column to column; 0: one value for a whole row
  unsigned row_bytes;
  int place;  // of its tile in shared memory; -1: not transposed
};

template <size_t K>
struct Tiles {
  // Dimension 0 is that of the columns, 1 that of the rows.
  Indexing<1 + K> indexing;
  Divider along_cols;  // tiles
  Divider along_rows;
  int before;  // elements, as elements_before
  // Where rows start anywhere between two 16-byte boundaries, so do the columns of a tile in each of them: up to `skew`
  // columns before its first, and it has fewer, for all to lie in what is read of a transposed input.
  int skew;
  int cols;
  TileInput inputs[K];
};

// Where a block's tile begins, `skew` columns before first_col.
template <class T, size_t K>
struct TilePlace {
  unsigned first_col;
  unsigned first_row;
  unsigned out_row_stride;
  int64_t output;  // in elements
  const char* data[K];

  __device__ TilePlace(const Tiles<K>& tiles, unsigned tile_rows, unsigned tile_cols, int skew) {
    const auto& indexing = tiles.indexing;
    auto tile = static_cast<int>(blockIdx.x);
    const auto next = [&](const Divider& size) {
      const int outer = size.divide_small(tile);
      const int place = tile - outer * static_cast<int>(size.divisor());
      tile = outer;
      return place;
    };
    first_col = next(tiles.along_cols) * tile_cols;
    first_row = next(tiles.along_rows) * tile_rows;
    out_row_stride = static_cast<unsigned>(indexing.strides[1][0]);
    output = uint64_t{first_row} * out_row_stride + first_col - skew;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      const TileInput& input = tiles.inputs[k];
      data[k] = input.data + uint64_t{first_col} * input.col_bytes + uint64_t{first_row} * input.row_bytes;
    }
#pragma unroll 1
    for (int d = 2; d < indexing.dims; ++d) {
      const int place = next(indexing.sizes[d]);
      output += place * indexing.strides[d][0];
#pragma unroll
      for (size_t k = 0; k < K; ++k) {
        data[k] += place * indexing.strides[d][1 + k] * static_cast<int>(sizeof(T));
      }
    }
  }
};

// Where the 16 bytes of a row stand within a column of a tile in shared memory, for columns of one group of N: so that
// columns N apart find those of one row in different banks.
inline __device__ unsigned place_in_column(unsigned row_word, unsigned group) {
  return (row_word ^ group % kTileWords) * kAccessBytes;
}

// Of half types, in accesses of 16 bytes. Four blocks on a multiprocessor, for some to load while others compute; more
// operands would not have the registers.
template <class F, class T, size_t M, size_t K>
__global__ void __launch_bounds__(kBlock, K <= 3 ? 4 : 1)
    tile_kernel(F f, const Tiles<K> tiles, PointerArray<T, M> outputs) {
  constexpr int N = kVector<T>;
  constexpr int kSize = sizeof(T);
  constexpr int kColWords = kTileRows<T> / N;  // of a column in shared memory
  constexpr int kNextRow = kBlock / kTileWords;
  constexpr int kNextCol = kBlock / kColWords;
  constexpr int kColBytes = kColWords * kAccessBytes;
  static_assert(kColWords >= kTileWords, "place_in_column stays within the column");
  extern __shared__ uint4 tile_memory[];
  wait_for_previous();

  // The tile begins `skew` columns before first_col, which may be before the tensors; inputs' data begin there, too.
  const TilePlace<T, K> place(tiles, kTileRows<T>, static_cast<unsigned>(tiles.cols), tiles.skew);
  const auto out_row_stride = place.out_row_stride;
  const int64_t output = place.output;
  const auto& data = place.data;
  const int before_first = tiles.skew - static_cast<int>(place.first_col);  // columns of the tile that are not there
  const int cols = static_cast<int>(tiles.indexing.sizes[0].divisor()) + before_first;
  const int rows = static_cast<int>(tiles.indexing.sizes[1].divisor() - place.first_row);

  // The columns [begin, end) of those from own_col on of the rows own_row + kNextRow * u, aligned in the outputs.
  const unsigned thread = threadIdx.x;
  const int lane = static_cast<int>(thread % kTileWords);
  const int own_row = static_cast<int>(thread / kTileWords);
  int own_col[kTileChunks<T>];
  int begin[kTileChunks<T>];
  int end[kTileChunks<T>];
#pragma unroll
  for (int u = 0; u < kTileChunks<T>; ++u) {
    const int row = own_row + kNextRow * u;
    const unsigned from_boundary = static_cast<unsigned>(tiles.before + tiles.skew) + static_cast<unsigned>(output) +
                                   static_cast<unsigned>(row) * out_row_stride;
    own_col[u] = tiles.skew - static_cast<int>(from_boundary % N) + lane * N;
    begin[u] = max(before_first - own_col[u], 0);
    end[u] = row < rows && lane * N < tiles.cols ? min(cols - own_col[u], N) : 0;
  }

  // Asks for the pieces of 16 bytes that hold elements of the tensor, and for no others: they may be nobody's.
  Requested requested[K][kTileChunks<T>];
  const int word = static_cast<int>(thread % kColWords);
  const int word_col = static_cast<int>(thread / kColWords);
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const TileInput& input = tiles.inputs[k];
    if (input.place >= 0) {
      const int there = min(rows - word * N, N);
#pragma unroll
      for (int u = 0; u < kTileChunks<T>; ++u) {
        const int col = word_col + kNextCol * u;
        const char* const address =
            data[k] + uint64_t{static_cast<unsigned>(col)} * input.col_bytes + word * kAccessBytes;
        const bool asked = there > 0 && col >= before_first && col < cols;
        const auto misaligned = static_cast<int>(misalignment(address));
        requested[k][u] = request(address, asked, asked && misaligned > kAccessBytes - there * kSize);
      }
    } else {
#pragma unroll
      for (int u = 0; u < kTileChunks<T>; ++u) {
        const char* const address = data[k] + uint64_t{static_cast<unsigned>(own_col[u])} * input.col_bytes +
                                    uint64_t{static_cast<unsigned>(own_row + kNextRow * u)} * input.row_bytes;
        const bool asked = begin[u] < end[u];
        const auto misaligned = static_cast<int>(misalignment(address));
        const bool one = input.col_bytes == 0;
        requested[k][u] = request(
            address, asked && (one || misaligned < kAccessBytes - begin[u] * kSize),
            asked && !one && misaligned > kAccessBytes - end[u] * kSize);
      }
    }
  }

  Packed packed[kTileChunks<T>][K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const TileInput& input = tiles.inputs[k];
    char* const to = reinterpret_cast<char*>(tile_memory) + input.place * kTileBytes<T>;
#pragma unroll
    for (int u = 0; u < kTileChunks<T>; ++u) {
      packed[u][k] = receive<kSize>(requested[k][u], input.col_bytes == 0);
      if (input.place >= 0) {
        const unsigned (&w)[4] = packed[u][k].words;
        const unsigned col = word_col + kNextCol * u;
        *reinterpret_cast<uint4*>(to + (col * kColBytes + place_in_column(word, col / N))) =
            make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
  __syncthreads();

#pragma unroll
  for (int u = 0; u < kTileChunks<T>; ++u) {
    if (begin[u] >= end[u]) {
      continue;
    }
    const unsigned row = own_row + kNextRow * u;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      const TileInput& input = tiles.inputs[k];
      if (input.place >= 0) {
        // Of the columns from own_col on, which lie in one group of N or in two: bit n of `beyond` says in which. The
        // two places are made opaque, or each element would have its own computed.
        const unsigned col = own_col[u];
        const unsigned beyond = ((1u << N) - 1) << (N - col % N);
        const unsigned from = input.place * kTileBytes<T> + col * kColBytes + row % N * kSize;
        unsigned group = from + place_in_column(row / N, col / N);
        unsigned next_group = from + place_in_column(row / N, col / N + 1);
        asm("" : "+r"(group), "+r"(next_group));
        packed[u][k] = pack_elements<T>([&](int n) {
          const unsigned place = (beyond >> n) & 1 ? next_group : group;
          return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(tile_memory) + place + n * kColBytes);
        });
      }
    }
    const int64_t i = output + own_col[u] + uint64_t{row} * out_row_stride;
    store_results(f, packed[u], outputs, i, begin[u], end[u]);
  }
}

// Elements of four bytes and more, one by one: neighbouring threads have neighbours, which the memory serves together,
// wherever rows begin. (Of half types there would be twice as many for each byte.) A tile has as many rows as
// a transposed operand has elements in a cache line; in shared memory its columns are a word further apart than they
// are long, so that the elements of a row are in different banks.
template <class T>
constexpr int kElementTileRows = 128 / static_cast<int>(sizeof(T));
constexpr int kElementTileCols = 64;
template <class T>
constexpr int kElementTilePitch = kElementTileRows<T> + 1;
template <class T>
constexpr int kTileElements = kElementTileCols * kElementTilePitch<T>;

template <class F, class T, size_t M, size_t K>
__global__ void __launch_bounds__(kBlock, K <= 3 ? 4 : 2)
    element_tile_kernel(F f, const Tiles<K> tiles, PointerArray<T, M> outputs) {
  using A = acc_t<T>;
  constexpr int kRows = kElementTileRows<T>;
  constexpr int kNextRow = kBlock / kElementTileCols;
  constexpr int kNextCol = kBlock / kRows;
  constexpr int kElements = kRows / kNextRow;  // of each operand and thread
  static_assert(kElements == kElementTileCols / kNextCol);
  extern __shared__ uint4 tile_memory[];
  wait_for_previous();

  const TilePlace<T, K> place(tiles, kRows, kElementTileCols, 0);
  const int cols = static_cast<int>(tiles.indexing.sizes[0].divisor() - place.first_col);
  const int rows = static_cast<int>(tiles.indexing.sizes[1].divisor() - place.first_row);
  const auto thread = static_cast<int>(threadIdx.x);
  // What a thread reads of a transposed input, and of others, as it writes outputs.
  const int col_to_turn = thread / kRows;
  const int row_to_turn = thread % kRows;
  const int col = thread % kElementTileCols;
  const int row = thread / kElementTileCols;
  const int there = col < cols ? (rows - row + kNextRow - 1) / kNextRow : 0;
  const int there_to_turn = row_to_turn < rows ? (cols - col_to_turn + kNextCol - 1) / kNextCol : 0;

  Chunk<T, 1> elements[K][kElements];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const TileInput& input = tiles.inputs[k];
    const bool turn = input.place >= 0;
    const char* address = place.data[k] + uint64_t{input.col_bytes} * (turn ? col_to_turn : col) +
                          uint64_t{input.row_bytes} * (turn ? row_to_turn : row);
    const uint64_t step = turn ? uint64_t{input.col_bytes} * kNextCol : uint64_t{input.row_bytes} * kNextRow;
    const int count = turn ? there_to_turn : there;
#pragma unroll
    for (int u = 0; u < kElements; ++u) {
      if (u < count) {
        elements[k][u] = load_chunk<1>(reinterpret_cast<const T*>(address));
      }
      address += step;
    }
  }
  using Element = decltype(Chunk<T, 1>::word);
  auto* const turned = reinterpret_cast<Element*>(tile_memory);
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    if (tiles.inputs[k].place >= 0) {
      const int to = tiles.inputs[k].place * kTileElements<T> + col_to_turn * kElementTilePitch<T> + row_to_turn;
#pragma unroll
      for (int u = 0; u < kElements; ++u) {
        turned[to + u * kNextCol * kElementTilePitch<T>] = elements[k][u].word;
      }
    }
  }
  __syncthreads();

  int64_t i = place.output + uint64_t{place.out_row_stride} * row + col;
#pragma unroll
  for (int u = 0; u < kElements; ++u) {
    if (u >= there) {
      break;
    }
    Values<A, 1> inputs[K];
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      const int at = tiles.inputs[k].place;
      if (at >= 0) {
        elements[k][u].word = turned[at * kTileElements<T> + col * kElementTilePitch<T> + row + u * kNextRow];
      }
      inputs[k] = to_values(elements[k][u]);
    }
    Values<A, 1> results[M];
    apply_formula(f, inputs, results, std::make_index_sequence<K>());
#pragma unroll
    for (size_t m = 0; m < M; ++m) {
      store(outputs.data[m] + i, results[m]);
    }
    i += uint64_t{place.out_row_stride} * kNextRow;
  }
}

// Tiles of which every access is whole and aligned, in all operands: what is left to ask is where the tensor ends. Of
// float32 they are larger, though smaller ones are waited for less: what a thread does once is for four accesses.
constexpr int kWholeTile = 64;  // rows, and columns
template <class T>
constexpr int kWholeTileBytes = kWholeTile * kWholeTile * static_cast<int>(sizeof(T));
template <class T>
constexpr int kWholeTileChunks = kWholeTileBytes<T> / kAccessBytes / kBlock;  // of each operand and thread

// As many at once as have the registers for what K operands have on its way, of which half types have half as much.
template <class T, size_t K>
constexpr int kWholeTileBlocks = K > 3 ? 1 : ((sizeof(T) == 2 ? 6 : 4) - (K == 3 ? 1 : 0));

template <class F, class T, size_t M, size_t K>
__global__ void __launch_bounds__(kBlock, kWholeTileBlocks<T, K>)
    whole_tile_kernel(F f, const Tiles<K> tiles, PointerArray<T, M> outputs) {
  constexpr int N = kVector<T>;
  constexpr int kSize = sizeof(T);
  constexpr int kChunks = kWholeTileChunks<T>;
  constexpr unsigned kColWords = kWholeTile / N;  // of a column in shared memory
  constexpr unsigned kColBytes = kColWords * kAccessBytes;
  constexpr unsigned kNextCol = kBlock / kColWords;
  // A warp takes 8 accesses of each of 4 rows: read from transposed tiles, their elements lie in different banks.
  constexpr unsigned kNextRow = kBlock / kTileWords;
  constexpr int kParts = kWholeTile / (kTileWords * N);
  static_assert(kColWords >= kTileWords && kParts * static_cast<int>(kWholeTile / kNextRow) == kChunks);
  extern __shared__ uint4 tile_memory[];
  wait_for_previous();

  const TilePlace<T, K> place(tiles, kWholeTile, kWholeTile, 0);
  const auto cols = static_cast<unsigned>(tiles.indexing.sizes[0].divisor()) - place.first_col;
  const auto rows = static_cast<unsigned>(tiles.indexing.sizes[1].divisor()) - place.first_row;

  const unsigned thread = threadIdx.x;
  const unsigned word = thread % kColWords;
  const unsigned word_col = thread / kColWords;
  const auto own_row = [=](int u) { return thread / kTileWords + u / kParts * kNextRow; };
  const auto own_col = [=](int u) { return (thread % kTileWords + u % kParts * kTileWords) * N; };
  uint4 words[kChunks][K];
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    const TileInput& input = tiles.inputs[k];
    const auto read = [&](int u, unsigned row, unsigned col) {
      words[u][k] = make_uint4(0, 0, 0, 0);
      if (row < rows && col < cols) {
        const char* const address = place.data[k] + uint64_t{col} * input.col_bytes + uint64_t{row} * input.row_bytes;
        words[u][k] = __ldg(reinterpret_cast<const uint4*>(address));
      }
    };
    if (input.place >= 0) {
#pragma unroll
      for (int u = 0; u < kChunks; ++u) {
        read(u, word * N, word_col + kNextCol * u);
      }
    } else {
#pragma unroll
      for (int u = 0; u < kChunks; ++u) {
        read(u, own_row(u), own_col(u));
      }
    }
  }
#pragma unroll
  for (size_t k = 0; k < K; ++k) {
    if (tiles.inputs[k].place >= 0) {
      char* const to = reinterpret_cast<char*>(tile_memory) + tiles.inputs[k].place * kWholeTileBytes<T>;
#pragma unroll
      for (int u = 0; u < kChunks; ++u) {
        const unsigned col = word_col + kNextCol * u;
        *reinterpret_cast<uint4*>(to + col * kColBytes + place_in_column(word, col / N)) = words[u][k];
      }
    }
  }
  __syncthreads();

#pragma unroll
  for (int u = 0; u < kChunks; ++u) {
    const unsigned row = own_row(u);
    const unsigned col = own_col(u);
    if (row >= rows || col >= cols) {
      continue;
    }
    Packed packed[K];
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      const int at = tiles.inputs[k].place;
      if (at >= 0) {
        const char* const from = reinterpret_cast<const char*>(tile_memory) + at * kWholeTileBytes<T> +
                                 col * kColBytes + place_in_column(row / N, col / N) + row % N * kSize;
        packed[k] = pack_elements<T>([&](int n) { return *reinterpret_cast<const T*>(from + n * kColBytes); });
      } else {
        memcpy(packed[k].words, &words[u][k], sizeof(uint4));
      }
    }
    store_results(f, packed, outputs, place.output + uint64_t{row} * place.out_row_stride + col, 0, N);
  }
}

// Whether tiles are the way, and then the kernel's launch. All outputs lie alike between 16-byte boundaries.
template <class F, class T, size_t M, size_t K>
bool launch_tiles(
    const F& f, const Indexing<1 + K>& indexing, const PointerArray<T, M>& outputs,
    const std::array<const T*, K>& inputs, cudaStream_t stream) {
  constexpr int N = kVector<T>;
  constexpr int64_t kSize = sizeof(T);
  if (indexing.dims < 2 || indexing.strides[0][0] != 1) {
    return false;
  }
  // Rows: where transposed inputs are contiguous, else a dimension that fills a tile.
  int row_dim = 0;
  for (size_t k = 1; k <= K; ++k) {
    for (int d = 1; d < indexing.dims && indexing.strides[0][k] > 1; ++d) {
      if (row_dim == 0 && indexing.strides[d][k] == 1) {
        row_dim = d;
      }
    }
  }
  if (row_dim == 0) {
    const auto fill = [&](int d) { return std::min<int64_t>(indexing.sizes[d].divisor(), kTileRows<T>); };
    row_dim = 1;
    for (int d = 2; d < indexing.dims; ++d) {
      row_dim = fill(d) > fill(row_dim) ? d : row_dim;
    }
  }
  Tiles<K> tiles{indexing};
  std::swap(tiles.indexing.sizes[1], tiles.indexing.sizes[row_dim]);
  std::swap(tiles.indexing.strides[1], tiles.indexing.strides[row_dim]);

  tiles.before = elements_before(outputs.data[0]);
  bool aligned = tiles.before == 0;
  for (int d = 1; d < indexing.dims; ++d) {
    aligned = aligned && indexing.strides[d][0] % N == 0;
  }
  constexpr bool kByElements = kSize >= 4;
  tiles.skew = aligned || kByElements ? 0 : N - 1;
  tiles.cols = aligned ? kTileCols<T> : kTileCols<T> - N;

  int transposed = 0;
  bool whole = aligned && indexing.sizes[0].divisor() % N == 0 && tiles.indexing.sizes[1].divisor() % N == 0;
  bool fits = tiles.indexing.strides[1][0] < kMost;
  for (size_t k = 0; k < K; ++k) {
    const int64_t col_stride = tiles.indexing.strides[0][1 + k];
    const int64_t row_stride = tiles.indexing.strides[1][1 + k];
    fits = fits && (col_stride <= 1 || row_stride == 1) && std::max(col_stride, row_stride) < kMost / kSize;
    whole = whole && col_stride != 0 && is_aligned(inputs[k]) && (col_stride == 1 ? row_stride : col_stride) % N == 0;
    for (int d = 2; d < indexing.dims; ++d) {
      whole = whole && tiles.indexing.strides[d][1 + k] % N == 0;
    }
    tiles.inputs[k] = {
        reinterpret_cast<const char*>(inputs[k] - tiles.skew * col_stride), static_cast<unsigned>(col_stride * kSize),
        static_cast<unsigned>(row_stride * kSize), col_stride > 1 ? transposed++ : -1};
  }
  const int64_t cols = indexing.sizes[0].divisor();
  const int64_t rows = tiles.indexing.sizes[1].divisor();
  const auto launch = [&](auto* kernel, int64_t tile_rows, int64_t tile_cols, int64_t tile_bytes) {
    const int64_t along_cols = ceil_div(cols + tiles.skew, tile_cols);
    const int64_t along_rows = ceil_div(rows, tile_rows);
    const int64_t blocks = indexing.numel / (cols * rows) * along_cols * along_rows;
    // Less than an eighth of a tile full is slower than one element after the other.
    if (transposed * tile_bytes > kMostTileBytes || blocks > kMaxGridX ||
        blocks * tile_rows * tile_cols > 8 * indexing.numel) {
      return false;
    }
    tiles.along_cols = Divider(along_cols);
    tiles.along_rows = Divider(along_rows);
    launch_overlapped(
        kernel, static_cast<unsigned>(blocks), kBlock, transposed * tile_bytes, stream, f, tiles, outputs);
    return true;
  };
  if (!fits || std::max(cols, rows) >= kMost) {
    return false;
  }
  // (Of float64 no block may have two such tiles.)
  if constexpr (kSize <= 4) {
    if (whole && launch(whole_tile_kernel<F, T, M, K>, kWholeTile, kWholeTile, kWholeTileBytes<T>)) {
      return true;
    }
  }
  if constexpr (kByElements) {
    return launch(element_tile_kernel<F, T, M, K>, kElementTileRows<T>, kElementTileCols, kTileElements<T> * kSize);
  } else {
    return launch(tile_kernel<F, T, M, K>, kTileRows<T>, tiles.cols, kTileBytes<T>);
  }
}

}  // namespace extension_cpp::cuda::detail
