// outputs[i] = f(inputs[i]...) for tensors of any layout, on the CPU.
#pragma once

#include "cpu/clones.h"
#include "cpu/strided.h"
#include "dispatch.h"
#include "layout.h"
#include "values.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace extension_cpp::cpu {

namespace detail {

// Elements for which the loop has room to copy what does not lie in a row; with their copies they stay in the L1 cache.
constexpr int64_t kChunk = 512;

// The elements of one input, chunk by chunk, in a row: where they lie so already, there, else in a buffer. A row vector
// or a single number, which is the same in every chunk, is copied once.
template <class T, int K>
class Reader {
 public:
  Reader(const Indexing<K>& indexing, int k, const T* data) : indexing_(indexing), k_(k), data_(data) {
    for (int d = 1; d < indexing.dims; ++d) {
      same_in_rows_ = same_in_rows_ && indexing.strides[d][k] == 0;
    }
    same_everywhere_ = same_in_rows_ && indexing.strides[0][k] == 0;
  }

  // `place`: of the first element in its row; `offset`: of that element in this input.
  const T* read(int64_t begin, int64_t count, int64_t place, int64_t offset, T* buffer) {
    if (indexing_.linear[k_]) {
      return data_ + begin;
    }
    if (count <= held_ && (place == 0 || same_everywhere_)) {
      return buffer;
    }
    if (indexing_.strides[0][k_] == 1 && place + count <= indexing_.sizes[0].divisor()) {
      return data_ + offset;
    }
    if (same_everywhere_) {
      std::fill_n(buffer, kChunk, *data_);
      held_ = kChunk;
      return buffer;
    }
    gather(indexing_, k_, data_, begin, count, buffer);
    held_ = same_in_rows_ && place == 0 ? count : 0;
    return buffer;
  }

 private:
  const Indexing<K>& indexing_;
  int k_;
  const T* data_;
  bool same_in_rows_ = true;
  bool same_everywhere_ = false;
  int64_t held_ = 0;  // elements in the buffer that serve every chunk of the same start
};

// Whether the outputs lie in a row, as a matrix whose rows lie so in every input, too.
template <int K>
bool rows_in_place(const Indexing<K>& indexing) {
  bool in_place = indexing.dims <= 2 && indexing.linear[0];
  for (int k = 1; k < K; ++k) {
    in_place = in_place && indexing.strides[0][k] == 1;
  }
  return in_place;
}

template <class T, class F, class... Inputs, size_t... M>
CPU_INLINE void apply(
    const F& f, int64_t count, const std::array<T*, sizeof...(M)>& outputs, std::index_sequence<M...>,
    const Inputs*... inputs) {
  const F formula = f;  // nothing that the loop writes is part of it
  CPU_INDEPENDENT_LOOP
  for (int64_t j = 0; j < count; ++j) {
    const auto results = as_values(formula(static_cast<acc_t<T>>(inputs[j])...));
    ((outputs[M][j] = static_cast<T>(results[M])), ...);
  }
}

template <class T, size_t M, class F, size_t... I>
void elementwise(
    const F& f, const Indexing<1 + sizeof...(I)>& indexing, const std::array<T*, M>& outputs,
    const std::array<const T*, sizeof...(I)>& inputs, std::index_sequence<I...>) {
  constexpr size_t K = sizeof...(I);
  constexpr auto kOutputs = std::make_index_sequence<M>();
  const auto* const where = &indexing;
  const int64_t cols = indexing.sizes[0].divisor();
  const bool short_rows = indexing.dims > 1 && 2 * cols <= kChunk;
  const bool in_place = !short_rows && rows_in_place(indexing);
  parallel_for(0, indexing.numel, kGrain, [=](int64_t begin, int64_t end) CPU_CLONES {
    alignas(64) T buffers[K + M][kChunk];
    std::array<Reader<T, K + 1>, K> readers{Reader<T, K + 1>(*where, static_cast<int>(I) + 1, inputs[I])...};
    // Chunks end where rows do, so that as many operands as can be are read in place: several short rows, one row, or
    // equal parts of a long one.
    const int64_t parts = in_place ? 1 : (cols + kChunk - 1) / kChunk;
    const int64_t longest = short_rows ? kChunk / cols * cols : (cols + parts - 1) / parts;
    const auto& row_strides = where->strides[1];  // zeros, where there is one row
    int64_t row = in_place ? begin / cols : 0;
    int64_t place = in_place ? begin - row * cols : 0;
    while (begin < end) {
      std::array<T*, M> to = outputs;
      std::array<const T*, K> from;
      int64_t count = 0;
      if (in_place) {
        count = std::min(cols - place, end - begin);
        from = {(inputs[I] + row * row_strides[I + 1] + place)...};
        ++row;
        place = 0;
      } else {
        int64_t offsets[K + 1];
        const int64_t at = where->locate(begin, offsets);
        count = std::min({longest, short_rows && at == 0 ? longest : cols - at, end - begin});
        from = {readers[I].read(begin, count, at, offsets[I + 1], buffers[I])...};
      }
      for (size_t m = 0; m < M; ++m) {
        to[m] = where->linear[0] ? outputs[m] + begin : buffers[K + m];
      }
      apply(f, count, to, kOutputs, from[I]...);
      for (size_t m = 0; m < M && !where->linear[0]; ++m) {
        scatter(*where, to[m], begin, count, outputs[m]);
      }
      begin += count;
    }
  });
}

// Whether an input goes across the rows of the output: neighbours in the one lie far apart in the other. Copied chunk
// by chunk, a large one would come to the cache many times; torch copies it in tiles.
template <int K>
bool is_transposed(const Indexing<K>& indexing, int k) {
  const int64_t inner = indexing.strides[0][k];
  bool is = false;
  for (int d = 1; d < indexing.dims; ++d) {
    is = is || (indexing.strides[d][k] > 0 && indexing.strides[d][k] < inner);
  }
  return is && indexing.numel >= kGrain;
}

}  // namespace detail

// outputs[m][i] = result m of f(inputs[i]...) for every element of the outputs, to whose shape the inputs are
// broadcast; all of dtype T and of any layout, which is one for all outputs. f takes acc_t<T> and returns one, or
// Values. An output overlaps no input, unless it is exactly that input.
//
// There is one loop, over values that lie in a row, which the compiler vectorises; what does not lie so is copied to
// the cache first.
template <class T, size_t M, class F, class... Inputs>
void elementwise(const F& f, std::array<Tensor, M>& outputs, const Inputs&... inputs) {
  const auto indexing = make_indexing(outputs[0], inputs...);
  if (!indexing.fits) {
    on_contiguous_copies(
        [&](std::array<Tensor, M>& to, const auto&... from) { elementwise<T>(f, to, from...); }, outputs, inputs...);
    return;
  }
  if (indexing.numel == 0) {
    return;
  }
  bool any_transposed = false;
  for (int k = 1; k <= static_cast<int>(sizeof...(Inputs)); ++k) {
    any_transposed = any_transposed || detail::is_transposed(indexing, k);
  }
  if (any_transposed) {
    int k = 0;
    const std::array<Tensor, sizeof...(Inputs)> laid_out{
        (detail::is_transposed(indexing, ++k) ? with_layout_of(outputs[0], inputs) : inputs)...};
    std::apply([&](const auto&... from) { elementwise<T>(f, outputs, from...); }, laid_out);
    return;
  }
  std::array<T*, M> to;
  std::transform(
      outputs.begin(), outputs.end(), to.begin(), [](Tensor& t) { return t.template mutable_data_ptr<T>(); });
  detail::elementwise<T, M>(
      f, indexing, to, {inputs.template const_data_ptr<T>()...}, std::index_sequence_for<Inputs...>());
}

template <class T, class F, class... Inputs>
void elementwise(const F& f, Tensor& output, const Inputs&... inputs) {
  std::array<Tensor, 1> outputs{output};
  elementwise<T>(f, outputs, inputs...);
}

// f(i, col) for every element i = row * cols + col of a [rows, cols] matrix. Split by elements, not by rows: one long
// row is as parallel as many short ones.
template <class F>
void for_each_element(int64_t rows, int64_t cols, F f) {
  parallel_for(0, rows * cols, kGrain, [=](int64_t begin, int64_t end) CPU_CLONES {
    while (begin < end) {
      const int64_t first = begin % cols;
      const int64_t count = std::min(cols - first, end - begin);
      CPU_INDEPENDENT_LOOP
      for (int64_t j = 0; j < count; ++j) {
        f(begin + j, first + j);
      }
      begin += count;
    }
  });
}

}  // namespace extension_cpp::cpu
