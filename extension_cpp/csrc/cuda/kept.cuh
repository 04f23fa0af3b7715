// What a thread keeps of rows, and of columns.
#pragma once

#include "ahead.cuh"
#include "parameter.cuh"
#include "request.cuh"
#include "row_values.h"
#include "span.cuh"
#include "vector.cuh"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace extension_cpp::cuda {

namespace detail {

using extension_cpp::detail::NoRowElements;
using extension_cpp::detail::slot_at;
using extension_cpp::detail::Slots;

// The same address, as a register of its own: one instruction then leads from it to that of a column, instead of four
// that begin with the matrix.
template <class T>
__device__ T* in_register(T* address) {
  asm("" : "+l"(address));
  return address;
}

// use(k, v, row, where) for V whole accesses to each of the inputs: every `step`th from the one called `access` on.
// `row` is where the whole accesses begin.
template <int N, int V, Fit Rows, class In, class Index, class Use>
__device__ void for_each_access(const In& inputs, const Span& span, int step, Index access, const Use& use) {
  if (kFull<Rows> && !span.exists) {
    return;
  }
  const int64_t cols = whole_cols<N, Rows>(span);
#pragma unroll
  for (size_t k = 0; k < In::kCount; ++k) {
    const auto* const row = in_register(inputs.row(k, span) + (kRagged<Rows> ? span.head : 0));
#pragma unroll
    for (int v = 0; v < V; ++v) {
      use(k, v, row, Place<N, V, Index, Rows>(cols, access, step, v));
    }
  }
}

// Of these accesses those that exist, as they are in memory.
template <class In, int N, int V>
struct Kept {
  using T = typename In::Element;

  Chunk<T, N> chunks[In::kCount][V > 0 ? V : 1];

  __device__ const Chunk<T, N>& chunk(size_t k, int v) const { return chunks[k][v]; }
};

// Whether an access to rows may be two aligned words, and a shift. Those to full rows are aligned.
template <class In, Fit Rows>
constexpr bool kShifts = kRagged<Rows> ? In::kMayShift : Rows == Fit::kWhole && !In::kAtBoundaries;

// Whether accesses may be two words each, or have edges beside them, which leaves fewer registers.
template <class In, Fit Rows>
constexpr bool kTight = kRagged<Rows> || kShifts<In, Rows>;

// The same on their way.
template <class In, int N, int V, Fit Rows, bool Shifts = kShifts<In, Rows>>
class Awaited {
  static_assert(kRagged<Rows> || In::kAtBoundaries, "aligned");

 public:
  template <class Index>
  __device__ void ask(const In& inputs, const Span& span, int step, Index access) {
    for_each_access<N, V, Rows>(inputs, span, step, access, [&](size_t k, int v, const auto* row, const auto& where) {
      if (where.exists()) {
        kept_.chunks[k][v] = load_chunk<N>(row + where.col);
      }
    });
  }

  __device__ Kept<In, N, V> arrived() const { return kept_; }

 private:
  Kept<In, N, V> kept_;
};

// Of accesses that need not be aligned.
template <class In, int N, int V, Fit Rows>
class Awaited<In, N, V, Rows, true> {
  using T = typename In::Element;

 public:
  template <class Index>
  __device__ void ask(const In& inputs, const Span& span, int step, Index access) {
    for_each_access<N, V, Rows>(inputs, span, step, access, [&](size_t k, int v, const T* row, const auto& where) {
      requested_[k][v] = request_access(row + where.col, where.exists());
    });
  }

  __device__ Kept<In, N, V> arrived() const {
    Kept<In, N, V> kept;
#pragma unroll
    for (size_t k = 0; k < In::kCount; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        kept.chunks[k][v] = receive_chunk<T, N>(requested_[k][v]);
      }
    }
    return kept;
  }

 private:
  Requested requested_[In::kCount][V > 0 ? V : 1];
};

// The same of the edges.
template <class In, int N, Fit Rows>
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
struct KeptEdge<In, N, Fit::kWhole> {
  __device__ KeptEdge(const In& /*inputs*/, const Span& /*span*/, int /*lane*/) {}
};

template <class In, int N>
struct KeptEdge<In, N, Fit::kFull> : KeptEdge<In, N, Fit::kWhole> {
  using KeptEdge<In, N, Fit::kWhole>::KeptEdge;
};

// P parameters that a functor names.
template <class T, int P>
class NamedColumns {
 public:
  // Whether all of these are kept that are parameters. (Compilers see which is which.)
  template <class... Columns>
  __device__ bool has(const Columns&... columns) const {
    return all_ && ((is_at_hand<Columns> || is_of_elements<Columns> || index(columns) < P) && ...);
  }

 protected:
  // read(p, data) for those that are in memory in the rows' type.
  template <class Read>
  __device__ void read_each(const RowColumns<Parameter<T>, P>& columns, const Read& read) {
    all_ = true;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      parameters_[p] = columns.parameters[p];
      const T* const data = parameters_[p]->same();
      all_ = all_ && data != nullptr;
      if (data != nullptr) {
        read(p, data);
      }
    }
  }

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

 private:
  bool all_;
  const Parameter<T>* parameters_[P];
};

// What a thread keeps of them, for the accesses that it has to every row: as numbers to compute with.
template <class In, int N, int V, Fit Rows, int P>
class KeptColumns : public NamedColumns<typename In::Element, P> {
  using T = typename In::Element;

 public:
  static constexpr int kCount = P;

  // `span` is that of the rows.
  __device__ void read(const RowColumns<Parameter<T>, P>& columns, const Span& span, int step, int lane) {
    this->read_each(columns, [&](int p, const T* data) {
      data += span.first_col;
      if constexpr (kRagged<Rows>) {
        const EdgePlace<N> edge(span, lane);
        if (edge.is) {
          edge_[p] = load_chunk<1>(data + edge.col);
        }
        data += span.head;
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Place<N, V, unsigned, Rows> where(whole_cols<N, Rows>(span), static_cast<unsigned>(lane), step, v);
        if (where.exists()) {
          if constexpr (kRagged<Rows>) {
            values_[p][v] = load_unaligned<N>(data + where.col);
          } else {
            values_[p][v] = column_values(Stored<T>{data}.template raw<N>(where.col));
          }
        }
      }
    });
  }

  // Those of one: for each access, and at the edge.
  struct Each {
    using IsAtHand = void;

    const Values<acc_t<T>, N>* values;
    const Chunk<T, 1>* edge;

    __device__ const Values<acc_t<T>, N>& at_access(int v) const { return values[v]; }
    __device__ Values<acc_t<T>, 1> at_edge() const { return to_values(*edge); }
  };

  template <class Column>
  __device__ Each of(const Column& column) const {
    return {values_[this->index(column)], &edge_[this->index(column)]};
  }

 private:
  Values<acc_t<T>, N> values_[P][V];
  Chunk<T, 1> edge_[P];
};

// The same of one full row, as they are in memory, on their way while the row is reduced.
template <class In, int N, int V, int P>
class AwaitedColumns : public NamedColumns<typename In::Element, P> {
  using T = typename In::Element;
  using Raw = RawValues<T, N>;

 public:
  static constexpr int kCount = P;

  __device__ void ask(const RowColumns<Parameter<T>, P>& columns, const Span& span, int step, int lane) {
    this->read_each(columns, [&](int p, const T* data) {
      const Stored<T> stored{data + span.first_col};
#pragma unroll
      for (int v = 0; v < V; ++v) {
        raw_[p][v] = stored.template raw<N>(Place<N, V, unsigned, Fit::kFull>(0, lane, step, v).col);
      }
    });
  }

  struct Each {
    using IsAtHand = void;

    const Raw* raw;

    __device__ const Raw& at_access(int v) const { return raw[v]; }
  };

  template <class Column>
  __device__ Each of(const Column& column) const {
    return {raw_[this->index(column)]};
  }

 private:
  Raw raw_[P][V];
};

// None.
struct NoColumns {
  static constexpr int kCount = 0;
};
template <class In, int N, int V, Fit Rows>
class KeptColumns<In, N, V, Rows, 0> : public NoColumns {};
template <class In, int N, int V>
class AwaitedColumns<In, N, V, 0> : public NoColumns {};

// Registers for the elements that a thread reads of one row.
template <class U, int N, int V>
constexpr int kElementRegisters = V * std::max(1, N* static_cast<int>(sizeof(U)) / 4);

// Of named tensors the first that take no more registers than that for a row, of which a thread has two.
constexpr int kMostElementRegisters = 8;

// What a thread reads of one row, a row ahead, of the tensors of other types that a functor names. Of ragged rows,
// which have edges besides, and of what takes too many registers, nothing: that is sent for to the L2 cache.
template <int N, int V, Fit Rows, class Named>
class RowElementsRead;

template <int N, int V, Fit Rows, class... U>
class RowElementsRead<N, V, Rows, RowElements<U...>> {
  template <size_t M>
  static constexpr bool reads() {
    constexpr int kRegisters[] = {kElementRegisters<U, N, V>...};
    int total = 0;
    for (size_t m = 0; m <= M; ++m) {
      total += kRegisters[m];
    }
    return !kRagged<Rows> && total <= kMostElementRegisters;
  }

 public:
  // Whether elements of the type may be among them.
  template <class E>
  static constexpr bool kMayHave = (std::is_same_v<E, U> || ...);

  __device__ RowElementsRead(const RowElements<U...>& named, const Span& span, int step, int lane) : named_(named) {
    read_each(span, step, lane, std::index_sequence_for<U...>{});
  }

  // Those of the tensor that is this member of the functor, if it is among them.
  template <bool Whole, class E>
  __device__ NamedElements<E, Whole, N, V> of(
      const PerElement<E>& member, const OfElements<E, Whole>& in_memory) const {
    NamedElements<E, Whole, N, V> elements{in_memory};
    find(member, elements, std::index_sequence_for<U...>{});
    return elements;
  }

  __device__ RowElementsRead& operator=(const RowElementsRead& next) {
    read_ = next.read_;
    return *this;
  }

 private:
  template <size_t... M>
  __device__ void read_each(const Span& span, int step, int lane, std::index_sequence<M...>) {
    (read<M>(slot_at<M>(named_)->at(span.row, span.first_col, span.offset), span, step, lane), ...);
  }

  template <size_t M, class E>
  __device__ void read(const E* row, const Span& span, int step, int lane) {
    if constexpr (reads<M>()) {
      if (kFull<Rows> && !span.exists) {
        return;
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Place<N, V, unsigned, Rows> where(whole_cols<N, Rows>(span), static_cast<unsigned>(lane), step, v);
        if (where.exists()) {
          slot_at<M>(read_).accesses[v] = load_element_words<N>(row + where.col);
        }
      }
    } else if (lane == 0) {
      send_for(row, span.cols);
    }
  }

  template <class E, class Found, size_t... M>
  __device__ void find(const PerElement<E>& member, Found& elements, std::index_sequence<M...>) const {
    (find_at<M, U>(member, elements), ...);
  }

  template <size_t M, class OfM, class E, class Found>
  __device__ void find_at(const PerElement<E>& member, Found& elements) const {
    if constexpr (reads<M>() && std::is_same_v<OfM, E>) {
      if (slot_at<M>(named_) == &member) {
        elements.read = slot_at<M>(read_);
        elements.is_read = true;
      }
    }
  }

  RowElements<U...> named_;
  Slots<std::index_sequence_for<U...>, ReadElements<U, N, V>...> read_;
};

// None are named.
template <int N, int V, Fit Rows>
class RowElementsRead<N, V, Rows, NoRowElements> {
 public:
  template <class E>
  static constexpr bool kMayHave = false;

  __device__ RowElementsRead(const NoRowElements& /*none*/, const Span& /*span*/, int /*step*/, int /*lane*/) {}
};

// What a thread has computed of its row, V accesses and perhaps an edge, as a column operand.
template <class A, int N, int V, Fit Rows>
struct KeptResults {
  using IsAtHand = void;

  Values<A, N> results[V + (kRagged<Rows> ? 1 : 0)];

  __device__ const Values<A, N>& at_access(int v) const { return results[v]; }
  __device__ Values<A, 1> at_edge() const { return {{results[V][0]}}; }
};

}  // namespace detail

}  // namespace extension_cpp::cuda
