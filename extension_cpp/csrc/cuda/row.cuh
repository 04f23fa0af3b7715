// A row as the functors of rows.cuh see it.
#pragma once

#include "launch.cuh"
#include "parameter.cuh"
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

// Columns of a row that is kept: short, and from 0 on where no access starts before the row.
template <bool Ragged>
using KeptIndex = std::conditional_t<Ragged, int, unsigned>;

// N elements of a row from column `col` of the span on, some of which may lie outside of it.
template <int N, bool Ragged, class Index>
struct Place {
  Index col;
  Index cols;

  // Of the v-th access of a thread.
  __device__ Place(const Span& span, Index access, int step, int v)
      : col(access * N - (Ragged ? span.lead : 0) + static_cast<Index>(v * (step * N))),
        cols(static_cast<Index>(span.cols)) {}

  __device__ bool exists() const { return col < cols; }
  // Of ragged rows:
  __device__ bool whole() const { return col >= 0 && col <= cols - N; }
  __device__ bool holds(int n) const { return col >= -n && col < cols - n; }
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

// V accesses to each of the inputs, as they are in memory: every `step`th from the one called `access` on.
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
    using Where = Place<N, Ragged, Index>;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      const T* const row = inputs.row(k, span);
      const bool is_aligned =
          !Ragged || reinterpret_cast<uintptr_t>(row + Where(span, access, 0, 0).col) % kAccessBytes == 0;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Where where(span, access, step, v);
        if (where.exists()) {
          const T* const address = row + where.col;
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

// Rows on their way to the registers, by way of shared memory, where each thread has slots of its own: two rows ahead,
// or one where there is no room for two. The slots of a warp lie together, so that those of a thread are constants
// apart and accesses meet no bank twice.
template <class In, int N>
constexpr bool kMayRunAhead = sizeof(typename In::Element) * N >= 8;  // of accesses that are copied without waiting

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
  __device__ void send(const In& inputs, const Span& span, bool exists, int lanes, int lane) {
    if (exists) {
      Chunks::for_each(
          inputs, span, lanes, static_cast<KeptIndex<Ragged>>(lane),
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

// What a functor sees of its row. C column sums, which only kernels that keep the row can have.
template <class In, int N, int V, bool Ragged, size_t C>
class Row {
  using T = typename In::Element;
  static constexpr size_t K = In::kCount;
  using Chunks = Kept<In, N, V, Ragged>;

 public:
  using A = acc_t<T>;
  using Sums = Values<A, N>[C > 0 ? C : 1][V > 0 ? V : 1];

  __device__ Row(
      const In& inputs, int64_t segments, const Span& span, const First<In>& first, const Chunks& kept, Team<A>& team,
      Sums& sums)
      : inputs_(inputs), segments_(segments), span_(span), first_(first), kept_(kept), team_(team), sums_(sums) {}

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
    using R = decltype(call(f, std::declval<const Elements&>(), 0, columns.template at<N>(0)...));
    R total{};
    for_each(
        [&](int, const auto& holds, const Elements& inputs, int n, const auto&... values) {
          const R term = call(f, inputs, n, values...);
          if (holds(n)) {
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
        [&](int, const auto& holds, const Elements& inputs, int n, const auto&... values) {
          const A term = call(f, inputs, n, values...);
          if (holds(n)) {
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
        [&](int, const auto&, const Elements& inputs, int n, const auto&... values) {
          result[n] = call(f, inputs, n, values...);
        },
        [&](const Where& where, const auto& holds) { store_at(output, where, holds, result); }, columns...);
  }

  // write(output, f, columns...) and add_to_columns(g): in one pass, but of ragged rows, which have no registers for
  // it.
  template <class F, class G, class... Columns>
  __device__ void write_and_add_to_columns(T* output, const F& f, const G& g, const Columns&... columns) {
    if constexpr (Ragged) {
      write(output, f, columns...);
      add_to_columns(g);
      return;
    }
    Values<A, N> result;
    for_each(
        [&](int v, const auto&, const Elements& inputs, int n, const auto&... values) {
          result[n] = call(f, inputs, n, values...);
          add(v, n, call(g, inputs, n));
        },
        [&](const Where& where, const auto& holds) { store_at(output, where, holds, result); }, columns...);
  }

  // Adds f(inputs..., columns...), Values of C numbers, to the sums of the element's column.
  template <class F, class... Columns>
  __device__ void add_to_columns(const F& f, const Columns&... columns) {
    static_assert(C > 0 && V > 0, "launch_rows_and_column_sums");
    for_each(
        [&](int v, const auto&, const Elements& inputs, int n, const auto&... values) {
          add(v, n, call(f, inputs, n, values...));
        },
        nothing(), columns...);
  }

  // outputs[m][row, col] = result m of f(inputs...), WithSums, whose terms are added to the column's sums.
  template <class F, size_t M>
  __device__ void write_with_sums(const PointerArray<T, M>& outputs, const F& f) {
    Values<A, N> results[M];
    for_each(
        [&](int v, const auto&, const Elements& inputs, int n) {
          const auto values = call(f, inputs, n);
#pragma unroll
          for (size_t m = 0; m < M; ++m) {
            results[m][n] = values.results[static_cast<int>(m)];
          }
          add(v, n, values.terms);
        },
        [&](const Where& where, const auto& holds) {
#pragma unroll
          for (size_t m = 0; m < M; ++m) {
            store_at(outputs.data[m], where, holds, results[m]);
          }
        });
  }

 private:
  using Index = std::conditional_t<(V > 0), KeptIndex<Ragged>, int64_t>;
  using Where = Place<N, Ragged, Index>;

  struct Elements {
    Values<A, N> inputs[K];
  };

  __device__ static auto nothing() {
    return [](const Where&, const auto&) {};
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

  // Which of the elements of an access are in the row: all of them, or only some.
  struct All {
    __device__ constexpr bool operator()(int /*n*/) const { return true; }
  };
  struct Some {
    const Where& where;
    __device__ bool operator()(int n) const { return where.holds(n); }
  };

  template <class Holds>
  __device__ void store_at(T* output, const Where& where, const Holds& holds, const Values<A, N>& values) const {
    T* const address = output + span_.offset + where.col;
    if constexpr (!Ragged) {
      store(address, values);
    } else if (std::is_same_v<Holds, All> && reinterpret_cast<uintptr_t>(address) % kAccessBytes == 0) {
      store(address, values);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (holds(n)) {
          address[n] = static_cast<T>(values[n]);
        }
      }
    }
  }

  template <class Holds, class Column>
  __device__ Values<A, N> column_at(const Column& column, const Where& where, const Holds& holds) const {
    if constexpr (std::is_same_v<Holds, All>) {
      return column.template at<N>(where.col);
    } else {
      Values<A, N> values{};
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (holds(n)) {
          values[n] = column.template at<1>(where.col + n)[0];
        }
      }
      return values;
    }
  }

  // of(v, holds, elements, n, values...) for each element of an access, and then done(where, holds).
  template <int U, class Holds, class Of, class Done, class... Columns>
  __device__ static void visit(
      int v, const Where& where, const Holds& holds, const Kept<In, N, U, Ragged>& kept, const Of& of, const Done& done,
      const Columns&... values) {
    Elements elements;
#pragma unroll
    for (size_t k = 0; k < K; ++k) {
      elements.inputs[k] = to_values(kept.chunks[k][v]);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      of(v, holds, elements, n, values...);
    }
    done(where, holds);
  }

  // visit() for U accesses from the one called `access` on, those that exist.
  template <int U, class Of, class Done, class... Columns>
  __device__ void visit_all(
      Index access, const Kept<In, N, U, Ragged>& kept, const Of& of, const Done& done,
      const Columns&... columns) const {
    const auto where = [&](int v) { return Where(span_, access, team_.lanes(), v); };
    if constexpr (Ragged) {
#pragma unroll
      for (int v = 0; v < U; ++v) {
        const Where here = where(v);
        if (!here.exists()) {
          continue;
        }
        if (here.whole()) {
          visit(v, here, All{}, kept, of, done, column_at(columns, here, All{})...);
        } else {
          visit(v, here, Some{here}, kept, of, done, column_at(columns, here, Some{here})...);
        }
      }
    } else {
      const auto read = [&](const Where& here) { return raw_columns(columns.template raw<N>(here.col)...); };
      const auto compute = [&](int v, const Where& here, const auto& raw) {
        with_column_values([&](const auto&... values) { visit(v, here, All{}, kept, of, done, values...); }, raw);
      };
      // Of floats there are registers to read the columns of an access while the one before is computed.
      if constexpr (N <= 4) {
        if (!where(0).exists()) {
          return;
        }
        auto next = read(where(0));
#pragma unroll
        for (int v = 0; v < U; ++v) {
          const Where here = where(v);
          const auto raw = next;
          if (v + 1 < U) {
            const Where after = where(v + 1);
            next = read(after.exists() ? after : where(0));
          }
          if (here.exists()) {
            compute(v, here, raw);
          }
        }
      } else {
#pragma unroll
        for (int v = 0; v < U; ++v) {
          const Where here = where(v);
          if (here.exists()) {
            compute(v, here, read(here));
          }
        }
      }
    }
  }

  // visit() for every access to the row.
  template <class Of, class Done, class... Columns>
  __device__ void for_each(const Of& of, const Done& done, const Columns&... columns) {
    with_kinds(
        [&](const auto&... kinds) {
          if constexpr (V > 0) {
            visit_all(static_cast<Index>(team_.lane()), kept_, of, done, kinds...);
          } else {
            // What comes next is read before what is here is used.
            constexpr int U = 2;
            const int64_t step = int64_t{U} * team_.lanes();
            Kept<In, N, U, Ragged> next;
            int64_t access = team_.lane();
            next.read(inputs_, span_, team_.lanes(), access);
            for (; Where(span_, access, 0, 0).exists(); access += step) {
              const Kept<In, N, U, Ragged> here = next;
              next.read(inputs_, span_, team_.lanes(), access + step);
              visit_all(access, here, of, done, kinds...);
            }
          }
        },
        span_.first_col, columns...);
  }

  const In& inputs_;
  int64_t segments_;
  const Span& span_;
  const First<In>& first_;
  const Chunks& kept_;
  Team<A>& team_;
  Sums& sums_;
};

}  // namespace detail

}  // namespace extension_cpp::cuda
