// A row as the functors of rows.cuh see it.
#pragma once

#include "launch.cuh"
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

  // Segments of whole accesses that fit the registers of a block, of so many inputs. (Of float64 they do not, nor where
  // accesses to float32 are not aligned: these are read again for each pass. A little less for all took longer.)
  static Split even(int64_t cols, int64_t inputs = 1) {
    const int64_t segment = 8192 / inputs / kAccessBytes * kAccessBytes;
    return {std::max<int64_t>(1, ceil_div(cols, segment)), std::min(cols, segment)};
  }
};

namespace detail {

// Matrices of the rows, or one row for all.
template <class T, size_t K>
struct Inputs {
  const T* data[K];
  bool one_row[K] = {};
};

template <class T, size_t K>
Inputs<T, K> make_inputs(const std::array<const T*, K>& inputs) {
  Inputs<T, K> result;
  std::copy_n(inputs.begin(), K, result.data);
  return result;
}

// Where a row, or a segment of one, lies.
struct Span {
  int64_t row;
  int64_t segment;
  int64_t first_col;
  int64_t offset;  // of its first element in the matrix
  int64_t cols;
  // Elements that the row's first access starts before it: where rows are not whole accesses, those to an output that
  // begins at a 16-byte boundary stay aligned.
  int lead;
  bool exists;  // where there is no such row, a team only keeps the others company: cols is 0
};

// N elements of a row from column `col` of the span on, some of which may lie outside of it.
template <int N, bool Ragged, class Index>
struct Place {
  Index col;
  Index cols;

  // Of the v-th access of a thread.
  __device__ Place(const Span& span, Index access, int step, int v)
      : col(access * N - (Ragged ? span.lead : 0) + v * (step * N)), cols(static_cast<Index>(span.cols)) {}

  __device__ bool exists() const { return col < cols; }
  __device__ bool whole() const { return !Ragged || (col >= 0 && col <= cols - N); }
  __device__ bool holds(int n) const { return !Ragged || (col >= -n && col < cols - n); }
  __device__ int first() const { return col < 0 ? static_cast<int>(-col) : 0; }
  __device__ int last() const { return cols - col < N ? static_cast<int>(cols - col) : N; }
};

// Elements first ... last - 1 of N from any address of a T on: two aligned accesses, shifted together. Neither is to a
// word that holds none of them, so that nothing outside the tensor's pages is touched.
template <int N, class T>
__device__ Chunk<T, N> load_shifted(const T* address, int first, int last) {
  static_assert(sizeof(T) * N == kAccessBytes);
  constexpr int kSize = static_cast<int>(sizeof(T));
  const auto shift = static_cast<int>(reinterpret_cast<uintptr_t>(address) % kAccessBytes);
  const auto* const words = reinterpret_cast<const uint4*>(reinterpret_cast<uintptr_t>(address) - shift);
  const uint4 low = __ldg(words + (shift + first * kSize < kAccessBytes ? 0 : 1));
  const uint4 high = __ldg(words + (shift + last * kSize > kAccessBytes ? 1 : 0));
  return shift_together<T, N>(low, high, static_cast<unsigned>(shift));
}

// V accesses to each of K inputs, as they are in memory: every `step`th from the one called `access` on.
template <class T, int N, int V, bool Ragged, size_t K>
struct Kept {
  Chunk<T, N> chunks[K][V > 0 ? V : 1];

  template <class Index>
  __device__ void read(const Inputs<T, K>& inputs, const Span& span, int step, Index access) {
    for_each(
        inputs, span, step, access, [&](size_t k, int v, const T* address) { chunks[k][v] = load_chunk<N>(address); },
        [&](size_t k, int v, const Chunk<T, N>& chunk) { chunks[k][v] = chunk; });
  }

  // aligned(k, v, address) or shifted(k, v, chunk) for each access.
  template <class Index, class Aligned, class Shifted>
  __device__ static void for_each(
      const Inputs<T, K>& inputs, const Span& span, int step, Index access, const Aligned& aligned,
      const Shifted& shifted) {
    using Where = Place<N, Ragged, Index>;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      // Of the first access of this thread, from where the others are few instructions away.
      const T* const data =
          inputs.data[k] + (inputs.one_row[k] ? span.first_col : span.offset) + Where(span, access, 0, 0).col;
      const bool is_aligned = !Ragged || reinterpret_cast<uintptr_t>(data) % kAccessBytes == 0;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Where where(span, access, step, v);
        if (where.exists()) {
          const T* const address = data + v * (step * N);
          if (is_aligned) {
            aligned(k, v, address);
          } else if constexpr (Ragged) {
            shifted(k, v, load_shifted<N>(address, where.first(), where.last()));
          }
        }
      }
    }
  }
};

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

__device__ inline void load_shared(uint4& word, unsigned from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "r"(from)
               : "memory");
}

__device__ inline void load_shared(uint2& word, unsigned from) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(word.x), "=r"(word.y) : "r"(from) : "memory");
}

// Rows on their way to the registers, by way of shared memory, where each thread has slots of its own: two rows ahead,
// or one where there is no room for two. None ahead: rows are read when they are taken.
template <class T, int N, int V, bool Ragged, size_t K>
class Queue {
  using Chunks = Kept<T, N, V, Ragged, K>;
  using Word = typename Word<static_cast<int>(sizeof(T)) * N>::type;

 public:
  // Whether accesses are wide enough for copies that nobody waits for.
  static constexpr bool kMayRunAhead = sizeof(Word) >= 8;
  // Of shared memory, for each row and thread.
  static constexpr size_t kBytes = K * V * sizeof(Word);

  __device__ Queue(const void* shared, int ahead)
      : ahead_(ahead),
        stride_(blockDim.x * static_cast<unsigned>(sizeof(Word))),
        slot_(shared_address(shared) + threadIdx.x * static_cast<unsigned>(sizeof(Word))),
        other_(slot_ + (ahead == 2 ? static_cast<unsigned>(K) * V * stride_ : 0)) {}

  // Sends for a row; the order of calls is that of take().
  __device__ void send(const Inputs<T, K>& inputs, const Span& span, int lanes, int lane) {
    if constexpr (kMayRunAhead) {
      copy(inputs, span, lanes, lane);
    }
  }

  // The row `here`, which was sent for `ahead` calls before. Its slot is free for the next.
  __device__ void take(Chunks& chunks, const Inputs<T, K>& inputs, const Span& here, int lanes, int lane) {
    if constexpr (kMayRunAhead) {
      if (ahead_ > 0) {
        receive(chunks);
        return;
      }
    }
    chunks.read(inputs, here, lanes, lane);
  }

 private:
  __device__ void copy(const Inputs<T, K>& inputs, const Span& span, int lanes, int lane) {
    Chunks::for_each(
        inputs, span, lanes, lane, [&](size_t k, int v, const T* address) { copy_async<Word>(word(k, v), address); },
        [&](size_t k, int v, const Chunk<T, N>& chunk) {
          uint4 bits;
          memcpy(&bits, &chunk, sizeof(bits));
          store_shared(word(k, v), bits);
        });
    __pipeline_commit();
    const unsigned next = other_;
    other_ = slot_;
    slot_ = next;
  }

  __device__ void receive(Chunks& chunks) {
    if (ahead_ == 2) {
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        Word bits;
        load_shared(bits, word(k, v));
        memcpy(&chunks.chunks[k][v], &bits, sizeof(bits));
      }
    }
  }

  __device__ unsigned word(size_t k, int v) const { return slot_ + (static_cast<unsigned>(k) * V + v) * stride_; }

  int ahead_;
  unsigned stride_;
  unsigned slot_;
  unsigned other_;
};

template <class Column, int N, class = void>
struct has_aligned_at : std::false_type {};
template <class Column, int N>
struct has_aligned_at<Column, N, std::void_t<decltype(std::declval<const Column&>().template aligned_at<N>(0))>>
    : std::true_type {};

// What a functor sees of its row. K inputs; C column sums, which only kernels that keep the row can have.
template <class T, int N, int V, bool Ragged, size_t K, size_t C>
class Row {
 public:
  using A = acc_t<T>;
  using Sums = Values<A, N>[C > 0 ? C : 1][V > 0 ? V : 1];

  __device__ Row(
      const Inputs<T, K>& inputs, int64_t segments, const Span& span, const Kept<T, N, V, Ragged, K>& kept,
      Team<A>& team, Sums& sums)
      : inputs_(inputs), segments_(segments), span_(span), kept_(kept), team_(team), sums_(sums) {}

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
  __device__ A first(size_t k = 0) const {
    return span_.cols > 0 ? load<1>(inputs_.data[k] + (inputs_.one_row[k] ? span_.first_col : span_.offset))[0] : A(0);
  }

  // The sum over the row of f(inputs..., columns...): a number, or Values of up to four.
  //
  // A column operand has a method at<N>(col), as Parameter in parameter.cuh.
  template <class F, class... Columns>
  __device__ auto sum(const F& f, const Columns&... columns) {
    using R = decltype(call(f, std::declval<const Elements&>(), 0, columns.template at<N>(0)...));
    R total{};
    for_each(
        [&](int, const Where& where, const Elements& inputs, int n, const auto&... values) {
          const R term = call(f, inputs, n, values...);
          if (where.holds(n)) {
            total = plus(total, term);
          }
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
        [&](int, const Where& where, const Elements& inputs, int n, const auto&... values) {
          const A term = call(f, inputs, n, values...);
          if (where.holds(n)) {
            largest = Larger{}(largest, term);
          }
        },
        nothing(), columns...);
    return team_.all_reduce(largest, lowest, Larger{});
  }

  // output[row, col] = f(inputs..., columns...) for every element.
  template <class F, class... Columns>
  __device__ void write(T* output /* [rows, cols] */, const F& f, const Columns&... columns) {
    Values<A, N> result;
    for_each(
        [&](int, const Where&, const Elements& inputs, int n, const auto&... values) {
          result[n] = call(f, inputs, n, values...);
        },
        [&](const Where& where) { store_at(output, where, result); }, columns...);
  }

  // write(output, f, columns...) and add_to_columns(g). Of registers there are two passes: one needs more of them.
  template <class F, class G, class... Columns>
  __device__ void write_and_add_to_columns(T* output, const F& f, const G& g, const Columns&... columns) {
    write(output, f, columns...);
    add_to_columns(g);
  }

  // Adds f(inputs..., columns...), Values of C numbers, to the sums of the element's column.
  template <class F, class... Columns>
  __device__ void add_to_columns(const F& f, const Columns&... columns) {
    static_assert(C > 0 && V > 0, "launch_rows_and_column_sums");
    for_each(
        [&](int v, const Where&, const Elements& inputs, int n, const auto&... values) {
          add(v, n, call(f, inputs, n, values...));
        },
        nothing(), columns...);
  }

  // outputs[m][row, col] = result m of f(inputs...), WithSums, whose terms are added to the column's sums.
  template <class F, size_t M>
  __device__ void write_with_sums(const PointerArray<T, M>& outputs, const F& f) {
    Values<A, N> results[M];
    for_each(
        [&](int v, const Where&, const Elements& inputs, int n) {
          const auto values = call(f, inputs, n);
#pragma unroll
          for (size_t m = 0; m < M; ++m) {
            results[m][n] = values.results[static_cast<int>(m)];
          }
          add(v, n, values.terms);
        },
        [&](const Where& where) {
#pragma unroll
          for (size_t m = 0; m < M; ++m) {
            store_at(outputs.data[m], where, results[m]);
          }
        });
  }

 private:
  // Rows that are kept are short.
  using Index = std::conditional_t<(V > 0), int, int64_t>;
  using Where = Place<N, Ragged, Index>;

  struct Elements {
    Values<A, N> inputs[K];
  };

  __device__ static auto nothing() {
    return [](const Where&) {};
  }

  template <class F, size_t... I, class... Columns>
  __device__ static auto call(
      const F& f, const Elements& elements, int n, std::index_sequence<I...>, const Columns&... columns) {
    return f(elements.inputs[I][n]..., columns[n]...);
  }

  template <class F, class... Columns>
  __device__ static auto call(const F& f, const Elements& elements, int n, const Columns&... columns) {
    return call(f, elements, n, std::make_index_sequence<K>{}, columns...);
  }

  __device__ void add(int v, int n, const Values<A, static_cast<int>(C)>& terms) {
#pragma unroll
    for (size_t c = 0; c < C; ++c) {
      sums_[c][v][n] += terms[static_cast<int>(c)];
    }
  }

  __device__ void store_at(T* output, const Where& where, const Values<A, N>& values) const {
    T* const address = output + span_.offset + where.col;
    if (where.whole() && (!Ragged || reinterpret_cast<uintptr_t>(address) % kAccessBytes == 0)) {
      store(address, values);
      return;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (where.holds(n)) {
        address[n] = static_cast<T>(values[n]);
      }
    }
  }

  template <class Column>
  __device__ Values<A, N> column_at(const Column& column, const Where& where) const {
    const int64_t col = span_.first_col + where.col;
    if constexpr (!Ragged && detail::has_aligned_at<Column, N>::value) {
      return column.template aligned_at<N>(col);
    } else if (where.whole()) {
      return column.template at<N>(col);
    }
    Values<A, N> values{};
    const int last = where.last();
#pragma unroll 1
    for (int n = where.first(); n < last; ++n) {
      values[n] = column.template at<1>(col + n)[0];
    }
    return values;
  }

  // of(v, where, elements, n, columns...) for each element of an access, and then done(where).
  template <int U, class Of, class Done, class... Columns>
  __device__ void visit(
      int v, const Where& where, const Kept<T, N, U, Ragged, K>& kept, const Of& of, const Done& done,
      const Columns&... columns) const {
    Elements elements;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      elements.inputs[k] = to_values(kept.chunks[k][v]);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      of(v, where, elements, n, columns...);
    }
    done(where);
  }

  // visit() for every access to the row.
  template <class Of, class Done, class... Columns>
  __device__ void for_each(const Of& of, const Done& done, const Columns&... columns) {
    if constexpr (V > 0) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Where where(span_, team_.lane(), team_.lanes(), v);
        if (where.exists()) {
          visit(v, where, kept_, of, done, column_at(columns, where)...);
        }
      }
    } else {
      // What comes next is read before what is here is used.
      constexpr int U = 2;
      const int64_t step = int64_t{U} * team_.lanes();
      Kept<T, N, U, Ragged, K> next;
      int64_t access = team_.lane();
      next.read(inputs_, span_, team_.lanes(), access);
      for (; Where(span_, access, 0, 0).exists(); access += step) {
        const Kept<T, N, U, Ragged, K> here = next;
        next.read(inputs_, span_, team_.lanes(), access + step);
#pragma unroll
        for (int v = 0; v < U; ++v) {
          const Where where(span_, access, team_.lanes(), v);
          if (where.exists()) {
            visit(v, where, here, of, done, column_at(columns, where)...);
          }
        }
      }
    }
  }

  const Inputs<T, K>& inputs_;
  int64_t segments_;
  const Span& span_;
  const Kept<T, N, V, Ragged, K>& kept_;
  Team<A>& team_;
  Sums& sums_;
};

}  // namespace detail

}  // namespace extension_cpp::cuda
