// A row as the functors of rows.cuh see it.
#pragma once

#include "launch.cuh"
#include "parameter.cuh"
#include "row_values.h"
#include "team.cuh"
#include "vector.cuh"

#include <cuda_pipeline_primitives.h>

#include <array>
#include <cmath>
#include <utility>

namespace extension_cpp::cuda {

// Rows cut into segments of at most segment_cols columns, for functors that need to see no more than a segment.
struct Split {
  int64_t segments;
  int64_t segment_cols;

  static Split none(int64_t cols) { return {1, cols}; }

  // Segments of whole accesses that fit the registers of a block, of so many inputs. (A little less for all took
  // longer.)
  static Split even(int64_t cols, int64_t inputs = 1) {
    const int64_t segment = 8192 / inputs / kAccessBytes * kAccessBytes;
    return {std::max<int64_t>(1, ceil_div(cols, segment)), std::min(cols, segment)};
  }
};

namespace detail {

// Where a row, or a segment of one, lies.
struct Span {
  int64_t row;
  int64_t segment;
  int64_t first_col;
  int64_t offset;  // of its first element in the matrix
  int64_t cols;
  // Of ragged rows, which are not whole accesses: the elements before the first 16-byte boundary of an output that
  // begins at one. They, and those that are left after the last whole access, are the edges.
  int head;
  bool exists;  // where there is no such row, a team only keeps the others company: cols is 0
};

// Matrices of the rows.
template <class T, size_t K>
struct Inputs {
  using Element = T;
  static constexpr size_t kCount = K;

  const T* data[K];

  __device__ const T* row(size_t k, const Span& span) const { return data[k] + span.offset; }
};

template <class T, size_t K>
Inputs<T, K> make_inputs(const std::array<const T*, K>& inputs) {
  Inputs<T, K> result;
  std::copy_n(inputs.begin(), K, result.data);
  return result;
}

// Matrices of the rows, or one row for all.
template <class T, size_t K>
struct MixedInputs {
  using Element = T;
  static constexpr size_t kCount = K;

  const T* data[K];
  bool one_row[K];

  __device__ const T* row(size_t k, const Span& span) const {
    return data[k] + (one_row[k] ? span.first_col : span.offset);
  }
};

// Columns of a row that is kept: short.
template <int V>
using ColumnIndex = std::conditional_t<(V > 0), unsigned, int64_t>;

// The columns of a span that are in whole accesses; they begin at its head.
template <int N, bool Ragged>
__device__ int64_t whole_cols(const Span& span) {
  if constexpr (Ragged) {
    return span.cols > span.head ? (span.cols - span.head) / N * N : 0;
  } else {
    return span.cols;
  }
}

// The v-th whole access of a thread, which takes every `step`th from the one called `access` on.
template <int N, class Index>
struct Place {
  Index col;  // from the head on
  Index cols;

  __device__ Place(int64_t whole_cols, Index access, int step, int v)
      : col(access * N + static_cast<Index>(v * (step * N))), cols(static_cast<Index>(whole_cols)) {}

  __device__ bool exists() const { return col < cols; }
};

// The element of the edges that is a thread's: there are fewer than 2 N, for the first threads of a team.
template <int N>
struct EdgePlace {
  int64_t col;  // of the span
  bool is;

  __device__ EdgePlace(const Span& span, int lane)
      : col(lane < span.head ? lane : whole_cols<N, true>(span) + lane), is(lane < 2 * N && col < span.cols) {}
};

// The same address, as a register of its own: one instruction then leads from it to that of a column, instead of four
// that begin with the matrix.
template <class T>
__device__ T* in_register(T* address) {
  asm("" : "+l"(address));
  return address;
}

// V whole accesses to each of the inputs, as they are in memory: every `step`th from the one called `access` on.
template <class In, int N, int V, bool Ragged>
struct Kept {
  using T = typename In::Element;
  static constexpr size_t K = In::kCount;

  Chunk<T, N> chunks[K][V > 0 ? V : 1];

  template <class Index>
  __device__ void read(const In& inputs, const Span& span, int step, Index access) {
    for_each(
        inputs, span, step, access, [&](size_t k, int v, const T* address) { chunks[k][v] = load_chunk<N>(address); },
        [&](size_t k, int v, const Chunk<T, N>& chunk) { chunks[k][v] = chunk; });
  }

  // aligned(k, v, address) or shifted(k, v, chunk) for each access.
  template <class Index, class Aligned, class Shifted>
  __device__ static void for_each(
      const In& inputs, const Span& span, int step, Index access, const Aligned& aligned, const Shifted& shifted) {
    const int64_t cols = whole_cols<N, Ragged>(span);
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      const T* const row = in_register(inputs.row(k, span) + (Ragged ? span.head : 0));
      const bool is_aligned = !Ragged || reinterpret_cast<uintptr_t>(row) % kAccessBytes == 0;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Place<N, Index> where(cols, access, step, v);
        if (where.exists()) {
          if (is_aligned) {
            aligned(k, v, row + where.col);
          } else if constexpr (Ragged) {
            shifted(k, v, load_chunk_unaligned<N>(row + where.col));
          }
        }
      }
    }
  }
};

// The same of the edges.
template <class In, int N, bool Ragged>
struct KeptEdge {
  using T = typename In::Element;

  Chunk<T, 1> elements[In::kCount];

  __device__ KeptEdge(const In& inputs, const Span& span, int lane) {
    const EdgePlace<N> edge(span, lane);
    if (edge.is) {
#pragma unroll
      for (size_t k = 0; k < In::kCount; ++k) {
        elements[k] = load_chunk<1>(inputs.row(k, span) + edge.col);
      }
    }
  }
};

template <class In, int N>
struct KeptEdge<In, N, false> {
  __device__ KeptEdge(const In& /*inputs*/, const Span& /*span*/, int /*lane*/) {}
};

// What a thread keeps of P parameters, for the accesses that it has to every row.
template <class In, int N, int V, bool Ragged, int P>
class KeptColumns {
  using T = typename In::Element;

 public:
  using Raw = RawValues<T, N>;

  // `span` is that of the rows.
  __device__ void read(const RowColumns<Parameter<T>, P>& columns, const Span& span, int step, int lane) {
    all_ = true;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      parameters_[p] = columns.parameters[p];
      const T* data = parameters_[p]->same();
      all_ = all_ && data != nullptr;
      if (data == nullptr) {
        continue;
      }
      data += span.first_col;
      if constexpr (Ragged) {
        const EdgePlace<N> edge(span, lane);
        if (edge.is) {
          edge_[p] = load_chunk<1>(data + edge.col);
        }
        data += span.head;
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Place<N, unsigned> where(whole_cols<N, Ragged>(span), static_cast<unsigned>(lane), step, v);
        if (where.exists()) {
          if constexpr (Ragged) {
            raw_[p][v].chunks[0] = load_chunk_unaligned<N>(data + where.col);
          } else {
            raw_[p][v] = Stored<T>{data}.template raw<N>(where.col);
          }
        }
      }
    }
  }

  // Whether all of these are kept. (Compilers see which is which.)
  template <class... Columns>
  __device__ bool has(const Columns&... columns) const {
    return all_ && ((index(columns) < P) && ...);
  }

  // Those of one: for each access, and at the edge.
  struct Each {
    using IsKept = void;

    const Raw* raw;
    const Chunk<T, 1>* edge;
  };

  template <class Column>
  __device__ Each of(const Column& column) const {
    return {raw_[index(column)], &edge_[index(column)]};
  }

 private:
  template <class Column>
  __device__ int index(const Column& column) const {
    if constexpr (std::is_same_v<Column, Parameter<T>>) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        if (parameters_[p] == &column) {
          return p;
        }
      }
    }
    return P;
  }

  bool all_;
  const Parameter<T>* parameters_[P];
  Raw raw_[P][V];
  Chunk<T, 1> edge_[P];
};

// None.
template <class In, int N, int V, bool Ragged>
class KeptColumns<In, N, V, Ragged, 0> {};

// Whether a column operand is one of those: KeptColumns::Each.
template <class Column, class = void>
constexpr bool is_kept = false;
template <class Column>
constexpr bool is_kept<Column, typename Column::IsKept> = true;

// Shared memory by its own addresses, of 32 bits.
__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <class Word>
__device__ void copy_async(unsigned to, const void* from) {
  static_assert(sizeof(Word) == 8 || sizeof(Word) == kAccessBytes);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  // Older devices wait for it.
  *static_cast<Word*>(__cvta_shared_to_generic(to)) = *static_cast<const Word*>(from);
#else
  if constexpr (sizeof(Word) == kAccessBytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
  }
#endif
}

__device__ inline void store_shared(unsigned to, const uint4& word) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}

__device__ inline void store_shared(unsigned to, const uint2& word) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(word.x), "r"(word.y) : "memory");
}

__device__ inline void load_shared(uint4& word, unsigned from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "r"(from)
               : "memory");
}

__device__ inline void load_shared(uint2& word, unsigned from) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(word.x), "=r"(word.y) : "r"(from) : "memory");
}

// Accesses that are copied without waiting.
template <class In, int N>
constexpr bool kMayRunAhead = sizeof(typename In::Element) * N >= 8;

// Rows on their way to the registers, by way of shared memory, where each thread has slots of its own: two rows ahead,
// or one where there is no room for two. The slots of a warp lie together, so that those of a thread are constants
// apart and accesses meet no bank twice.
template <class In, int N, int V, bool Ragged>
class Queue {
  using T = typename In::Element;
  using Chunks = Kept<In, N, V, Ragged>;
  using Word = typename Word<static_cast<int>(sizeof(T)) * N>::type;

 public:
  // Of shared memory, for each row and thread.
  static constexpr size_t kBytes = In::kCount * V * sizeof(Word);

  __device__ Queue(const void* shared, int ahead) : ahead_(ahead) {
    const unsigned warp = threadIdx.x / kWarp;
    const unsigned lane = threadIdx.x % kWarp;
    slot_ = shared_address(shared) + warp * static_cast<unsigned>(kWarp * kBytes) +
            lane * static_cast<unsigned>(sizeof(Word));
    other_ = slot_ + (ahead == 2 ? blockDim.x * static_cast<unsigned>(kBytes) : 0);
  }

  // Sends for a row, if it exists; the order of calls is that of take().
  __device__ void send(const In& inputs, const Span& span, int lanes, int lane) {
    if (span.exists) {
      Chunks::for_each(
          inputs, span, lanes, static_cast<unsigned>(lane),
          [&](size_t k, int v, const T* address) { copy_async<Word>(word(k, v), address); },
          [&](size_t k, int v, const Chunk<T, N>& chunk) { store_shared(word(k, v), chunk.word); });
    }
    __pipeline_commit();
    const unsigned next = other_;
    other_ = slot_;
    slot_ = next;
  }

  // The row that was sent for `ahead` calls before. Its slot is free for the next.
  __device__ void take(Chunks& chunks) {
    if (ahead_ == 2) {
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
#pragma unroll
    for (size_t k = 0; k < In::kCount; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        load_shared(chunks.chunks[k][v].word, word(k, v));
      }
    }
  }

 private:
  __device__ unsigned word(size_t k, int v) const {
    return slot_ + (static_cast<unsigned>(k) * V + v) * static_cast<unsigned>(kWarp * sizeof(Word));
  }

  int ahead_;
  unsigned slot_;
  unsigned other_;
};

// The first element of each input's row.
template <class In>
struct First {
  using T = typename In::Element;

  Chunk<T, 1> elements[In::kCount] = {};

  __device__ First(const In& inputs, const Span& span) {
    if (span.cols > 0) {
#pragma unroll
      for (size_t k = 0; k < In::kCount; ++k) {
        elements[k] = load_chunk<1>(inputs.row(k, span));
      }
    }
  }

  __device__ acc_t<T> operator[](size_t k) const { return to_values(elements[k])[0]; }
};

// What a functor sees of its row. C column sums and P parameters in registers, which only kernels whose threads meet
// the same columns in every row can have.
template <class In, int N, int V, bool Ragged, size_t C, int P>
class Row {
  using T = typename In::Element;
  static constexpr size_t K = In::kCount;
  using Chunks = Kept<In, N, V, Ragged>;
  using Edge = KeptEdge<In, N, Ragged>;

 public:
  using A = acc_t<T>;
  // For each access, and then for the edge.
  static constexpr int kEdge = V > 0 ? V : 1;
  using Sums = Values<A, N>[C > 0 ? C : 1][kEdge + (Ragged ? 1 : 0)];
  using Columns = KeptColumns<In, N, V, Ragged, P>;

  __device__ Row(
      const In& inputs, int64_t segments, const Span& span, const First<In>& first, const Chunks& kept,
      const Edge& edge, const Columns& columns, Team<A>& team, Sums& sums)
      : inputs_(inputs),
        segments_(segments),
        span_(span),
        first_(first),
        kept_(kept),
        edge_(edge),
        columns_(columns),
        team_(team),
        sums_(sums) {}

  // Always of an existing row, so that statistics may be read without asking.
  __device__ int64_t index() const { return span_.row; }
  // Of the segment, in a [rows, segments] matrix.
  __device__ int64_t segment_index() const { return span_.row * segments_ + span_.segment; }
  // Elements of the row, or of the segment.
  __device__ int64_t cols() const { return span_.cols; }
  // True for one thread of each row: it writes what there is one of.
  __device__ bool leader() const { return span_.exists && team_.lane() == 0; }

  // Whether it is so of any row that this one keeps step with: what calls sum() or max() under a condition asks here,
  // for they have to be called for all of these.
  __device__ bool any(bool is) const { return team_.lanes() < kWarp ? __any_sync(0xffffffffu, is) : is; }

  // The first element of input k; 0 of a row that has none.
  __device__ A first(size_t k = 0) const { return first_[k]; }

  // The sum over the row of f(inputs..., columns...): a number, or Values of up to four.
  //
  // A column operand has a method at<N>(col), as Parameter in parameter.cuh.
  template <class F, class... Columns>
  __device__ auto sum(const F& f, const Columns&... columns) {
    using R = decltype(call(f, std::declval<const Elements<N>&>(), 0, columns.template at<N>(0)...));
    R total{};
    for_each(
        [&](int, const auto& inputs, int n, const auto&... values) {
          total = plus(total, call(f, inputs, n, values...));
        },
        nothing(), columns...);
    return team_.all_reduce(total, R{}, Plus{});
  }

  // The largest f(inputs..., columns...) of the row; NaN if there is one.
  template <class F, class... Columns>
  __device__ A max(const F& f, const Columns&... columns) {
    const A lowest = -static_cast<A>(INFINITY);
    A largest = lowest;
    for_each(
        [&](int, const auto& inputs, int n, const auto&... values) {
          largest = Larger{}(largest, call(f, inputs, n, values...));
        },
        nothing(), columns...);
    return team_.all_reduce(largest, lowest, Larger{});
  }

  // output[row, col] = f(inputs..., columns...) for every element.
  template <class F, class... Columns>
  __device__ void write(T* output /* [rows, cols] */, const F& f, const Columns&... columns) {
    T* const to = in_register(at_head(output));
    Values<A, N> result;
    for_each(
        [&](int, const auto& inputs, int n, const auto&... values) { result[n] = call(f, inputs, n, values...); },
        [&](auto count, auto col) { store_at<count>(to + col, result); }, columns...);
  }

  // write(output, f, columns...) and add_to_columns(g), in one pass.
  template <class F, class G, class... Columns>
  __device__ void write_and_add_to_columns(T* output, const F& f, const G& g, const Columns&... columns) {
    T* const to = in_register(at_head(output));
    Values<A, N> result;
    for_each(
        [&](int v, const auto& inputs, int n, const auto&... values) {
          result[n] = call(f, inputs, n, values...);
          add(v, n, call(g, inputs, n));
        },
        [&](auto count, auto col) { store_at<count>(to + col, result); }, columns...);
  }

  // Adds f(inputs..., columns...), Values of C numbers, to the sums of the element's column.
  template <class F, class... Columns>
  __device__ void add_to_columns(const F& f, const Columns&... columns) {
    static_assert(C > 0 && V > 0, "launch_rows_and_column_sums");
    for_each(
        [&](int v, const auto& inputs, int n, const auto&... values) { add(v, n, call(f, inputs, n, values...)); },
        nothing(), columns...);
  }

  // outputs[m][row, col] = result m of f(inputs...), WithSums, whose terms are added to the column's sums.
  template <class F, size_t M>
  __device__ void write_with_sums(const PointerArray<T, M>& outputs, const F& f) {
    Values<A, N> results[M];
    for_each(
        [&](int v, const auto& inputs, int n) {
          const auto values = call(f, inputs, n);
#pragma unroll
          for (size_t m = 0; m < M; ++m) {
            results[m][n] = values.results[static_cast<int>(m)];
          }
          add(v, n, values.terms);
        },
        [&](auto count, auto col) {
#pragma unroll
          for (size_t m = 0; m < M; ++m) {
            store_at<count>(at_head(outputs.data[m]) + col, results[m]);
          }
        });
  }

 private:
  using Index = ColumnIndex<V>;
  using Where = Place<N, Index>;

  template <int M>
  struct Elements {
    Values<A, M> inputs[K];
  };

  __device__ static auto nothing() {
    return [](auto, auto) {};
  }

  template <int M, class F, size_t... I, class... Columns>
  __device__ static auto call(
      const F& f, const Elements<M>& elements, int n, std::index_sequence<I...>, const Columns&... columns) {
    return f(elements.inputs[I][n]..., columns[n]...);
  }

  template <int M, class F, class... Columns>
  __device__ static auto call(const F& f, const Elements<M>& elements, int n, const Columns&... columns) {
    return call(f, elements, n, std::make_index_sequence<K>{}, columns...);
  }

  // v: which access of the thread, or kEdge.
  __device__ void add(int v, int n, const Values<A, static_cast<int>(C)>& terms) {
#pragma unroll
    for (size_t c = 0; c < C; ++c) {
      sums_[c][v][n] += terms[static_cast<int>(c)];
    }
  }

  // Where the span's columns begin in an output, apart from those before the head.
  __device__ T* at_head(T* output) const { return output + (span_.offset + (Ragged ? span_.head : 0)); }

  // The first M of the values, in one access where it is aligned.
  template <int M>
  __device__ static void store_at(T* address, const Values<A, N>& values) {
    if (M == N && (!Ragged || reinterpret_cast<uintptr_t>(address) % kAccessBytes == 0)) {
      store(address, values);
    } else {
#pragma unroll
      for (int n = 0; n < M; ++n) {
        address[n] = static_cast<T>(values[n]);
      }
    }
  }

  // The values of a column operand at an access, as they are in memory if that is known. Those that are kept come as
  // they are.
  template <class Column>
  __device__ auto column_at(const Column& column, int v, const Where& where) const {
    if constexpr (is_kept<Column>) {
      return column.raw[v];
    } else if constexpr (Ragged) {
      return column.template at<N>(span_.head + where.col);
    } else {
      return column.template raw<N>(where.col);
    }
  }

  template <class Column>
  __device__ Values<A, 1> edge_column(const Column& column, int64_t col) const {
    if constexpr (is_kept<Column>) {
      return to_values(*column.edge);
    } else {
      return column.template at<1>(col);
    }
  }

  // of(v, elements, n, values...) for each element of an access, and then done(M, col): their number, and the first of
  // them, from the head on.
  template <int M, class Get, class Of, class Done, class Col, class... Columns>
  __device__ static void visit(
      int v, Col col, const Get& get, const Of& of, const Done& done, const Columns&... values) {
    Elements<M> elements;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      elements.inputs[k] = to_values(get(k));
    }
#pragma unroll
    for (int n = 0; n < M; ++n) {
      of(v, elements, n, values...);
    }
    done(std::integral_constant<int, M>{}, col);
  }

  // visit() for U accesses from the one called `access` on, those that exist.
  template <int U, class Of, class Done, class... Columns>
  __device__ void visit_all(
      Index access, const Kept<In, N, U, Ragged>& kept, const Of& of, const Done& done,
      const Columns&... columns) const {
    const int64_t cols = whole_cols<N, Ragged>(span_);
#pragma unroll
    for (int v = 0; v < U; ++v) {
      const Where here(cols, access, team_.lanes(), v);
      if (here.exists()) {
        with_column_values(
            [&](const auto&... values) {
              visit<N>(v, here.col, [&](size_t k) { return kept.chunks[k][v]; }, of, done, values...);
            },
            raw_columns(column_at(columns, v, here)...));
      }
    }
  }

  // The same for the edge.
  template <class Of, class Done, class... Columns>
  __device__ void visit_edge(const Of& of, const Done& done, const Columns&... columns) const {
    if constexpr (Ragged) {
      const EdgePlace<N> here(span_, team_.lane());
      if (here.is) {
        visit<1>(
            kEdge, here.col - span_.head, [&](size_t k) { return edge_.elements[k]; }, of, done,
            edge_column(columns, here.col)...);
      }
    }
  }

  // visit() for every access to the row.
  template <class Of, class Done, class... Columns>
  __device__ void for_each(const Of& of, const Done& done, const Columns&... columns) {
    if constexpr (P > 0 && sizeof...(Columns) > 0) {
      if (columns_.has(columns...)) {
        visit_all(static_cast<Index>(team_.lane()), kept_, of, done, columns_.of(columns)...);
        visit_edge(of, done, columns_.of(columns)...);
        return;
      }
    }
    with_kinds(
        [&](const auto&... kinds) {
          if constexpr (V > 0) {
            visit_all(static_cast<Index>(team_.lane()), kept_, of, done, kinds...);
          } else {
            // What comes next is read before what is here is used.
            constexpr int U = 2;
            const int64_t cols = whole_cols<N, Ragged>(span_);
            const int64_t step = int64_t{U} * team_.lanes();
            Kept<In, N, U, Ragged> next;
            int64_t access = team_.lane();
            next.read(inputs_, span_, team_.lanes(), access);
            for (; Where(cols, access, 0, 0).exists(); access += step) {
              const Kept<In, N, U, Ragged> here = next;
              next.read(inputs_, span_, team_.lanes(), access + step);
              visit_all(access, here, of, done, kinds...);
            }
          }
          visit_edge(of, done, kinds...);
        },
        span_.first_col, columns...);
  }

  const In& inputs_;
  int64_t segments_;
  const Span& span_;
  const First<In>& first_;
  const Chunks& kept_;
  const Edge& edge_;
  const Columns& columns_;
  Team<A>& team_;
  Sums& sums_;
};

}  // namespace detail

}  // namespace extension_cpp::cuda
