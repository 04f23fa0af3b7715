// Loops over tensors on the CPU: parallel, and compiled once for each instruction set.
#pragma once

#include "dispatch.h"
#include "layout.h"
#include "torch_abi.h"

#include <algorithm>
#include <array>
#include <memory>

// Compiles the function that it marks for AVX-512 and AVX2 with FMA and F16C besides the baseline; the loader picks
// one. Plain "avx2" would enable neither FMA nor F16C. Everything that the function calls must be inlined into it, or
// stays at the baseline. Needs ifunc (glibc) and a compiler that knows the names; the sanitizers run before ifuncs are
// resolved.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__CUDACC__)
#define CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_CLONES
#endif

// Outputs never overlap inputs, which the compiler cannot know of pointers inside a functor.
#if defined(__clang__)
#define CPU_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CPU_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#else
#define CPU_INDEPENDENT_LOOP
#endif

namespace extension_cpp::cpu {

// Elements below which a second thread costs more than it brings (as at::internal::GRAIN_SIZE).
constexpr int64_t kGrain = 32768;

namespace detail {

// Elements that a loop over operands of any layout handles at a time; with their copies they stay in the L1 cache.
constexpr int64_t kChunk = 512;

// visit(at, offset, width) for every piece of a row among elements begin ... begin + count - 1 of operand k: the
// elements from begin + at on lie from `offset` on.
template <int K, class Visit>
void visit_rows(const Indexing<K>& indexing, int k, int64_t begin, int64_t count, const Visit& visit) {
  int64_t place[kMaxDims];
  int64_t offset = 0;
  for (int d = 0; d < indexing.dims; ++d) {
    const int64_t outer = indexing.sizes[d].divide(begin);
    place[d] = begin - outer * indexing.sizes[d].divisor();
    offset += place[d] * indexing.strides[d][k];
    begin = outer;
  }
  for (int64_t at = 0; at < count;) {
    const int64_t width = std::min(indexing.sizes[0].divisor() - place[0], count - at);
    visit(at, offset, width);
    at += width;
    offset -= place[0] * indexing.strides[0][k];
    place[0] = 0;
    for (int d = 1; d < indexing.dims; ++d) {  // carry
      offset += indexing.strides[d][k];
      if (++place[d] < indexing.sizes[d].divisor()) {
        break;
      }
      offset -= place[d] * indexing.strides[d][k];
      place[d] = 0;
    }
  }
}

// Elements begin ... begin + count - 1 of operand k, in a row: where they lie so already, there, else in `buffer`.
template <class T, int K>
const T* gather(const Indexing<K>& indexing, int k, const T* data, int64_t begin, int64_t count, T* buffer) {
  if (indexing.linear[k]) {
    return data + begin;
  }
  const int64_t stride = indexing.strides[0][k];
  int64_t offsets[K];
  if (stride == 1 && indexing.locate(begin, offsets) + count <= indexing.sizes[0].divisor()) {
    return data + offsets[k];
  }
  visit_rows(indexing, k, begin, count, [=](int64_t at, int64_t offset, int64_t width) {
    if (stride == 0) {
      const T value = data[offset];
      for (int64_t j = 0; j < width; ++j) {
        buffer[at + j] = value;
      }
    } else {
      for (int64_t j = 0; j < width; ++j) {
        buffer[at + j] = data[offset + j * stride];
      }
    }
  });
  return buffer;
}

template <class T, int K>
void scatter(const Indexing<K>& indexing, const T* values, int64_t begin, int64_t count, T* output) {
  const int64_t stride = indexing.strides[0][0];
  visit_rows(indexing, 0, begin, count, [=](int64_t at, int64_t offset, int64_t width) {
    for (int64_t j = 0; j < width; ++j) {
      output[offset + j * stride] = values[at + j];
    }
  });
}

template <class T, class F, class... Inputs>
inline __attribute__((always_inline)) void apply(const F& f, int64_t count, T* output, const Inputs*... inputs) {
  CPU_INDEPENDENT_LOOP
  for (int64_t j = 0; j < count; ++j) {
    output[j] = static_cast<T>(f(static_cast<acc_t<T>>(inputs[j])...));
  }
}

template <class T, class F, size_t... I>
void elementwise(
    const F& f, const Indexing<1 + sizeof...(I)>& indexing, T* output, std::array<const T*, sizeof...(I)> inputs,
    std::index_sequence<I...>) {
  constexpr size_t K = sizeof...(I);
  const int64_t step = indexing.all_linear() ? indexing.numel : kChunk;
  const auto* const where = &indexing;
  parallel_for(0, indexing.numel, kGrain, [=](int64_t begin, int64_t end) CPU_CLONES {
    alignas(64) T buffers[K + 1][kChunk];
    for (; begin < end; begin += step) {
      const int64_t count = std::min(step, end - begin);
      T* const to = where->linear[0] ? output + begin : buffers[K];
      apply(f, count, to, gather<T>(*where, static_cast<int>(I) + 1, inputs[I], begin, count, buffers[I])...);
      if (!where->linear[0]) {
        scatter(*where, to, begin, count, output);
      }
    }
  });
}

}  // namespace detail

// output[i] = f(inputs[i]...) for every element of the output, to whose shape the inputs are broadcast; all of dtype T
// and of any layout. f takes and returns acc_t<T>. The output overlaps no input, unless it is exactly that input.
//
// There is one loop, over values that lie in a row, which the compiler vectorises; chunks that do not lie so are copied
// to the cache first.
template <class T, class F, class... Inputs>
void elementwise(const F& f, Tensor& output, const Inputs&... inputs) {
  const auto indexing = make_indexing(output, inputs...);
  if (!indexing.fits) {
    on_contiguous_copies([&](Tensor& to, const auto&... from) { elementwise<T>(f, to, from...); }, output, inputs...);
  } else if (indexing.numel > 0) {
    detail::elementwise<T>(
        f, indexing, output.mutable_data_ptr<T>(), {inputs.template const_data_ptr<T>()...},
        std::index_sequence_for<Inputs...>());
  }
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

// sums[k][col] = the sum of partials[part, k, col] over the parts; in float64, which costs nothing here and keeps the
// rounding error of long columns as small as that of short ones.
template <class A, size_t K, class Out>
void add_partials(int64_t parts, int64_t cols, const A* partials /* [parts, K, cols] */, std::array<Out*, K> sums) {
  constexpr int64_t kTile = 256;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, parts));
  parallel_for(0, cols, grain, [=](int64_t begin, int64_t end) CPU_CLONES {
    for (size_t k = 0; k < K; ++k) {
      for (int64_t first_col = begin; first_col < end; first_col += kTile) {
        const int64_t width = std::min(kTile, end - first_col);
        double acc[kTile] = {};
        for (int64_t part = 0; part < parts; ++part) {
          const A* const in = partials + (part * K + k) * cols + first_col;
          for (int64_t j = 0; j < width; ++j) {
            acc[j] += static_cast<double>(in[j]);
          }
        }
        for (int64_t j = 0; j < width; ++j) {
          sums[k][first_col + j] = static_cast<Out>(static_cast<A>(acc[j]));
        }
      }
    }
  });
}

// For each matrix of a [batch, rows, cols] tensor: sums[k][b * cols + col] = sum over its rows of what
// f(i, row, col, acc) adds to acc[k], where i = row * cols + col and row counts through the whole batch.
//
// Row blocks and column tiles have fixed sizes, so that the order of the additions depends on the shape alone, not on
// the number of threads: equal bits from run to run. Blocks are short, which also keeps the rounding error down.
template <class A, size_t K, class Out, class F>
void column_sums(int64_t batch, int64_t rows, int64_t cols, F f, std::array<Out*, K> sums) {
  constexpr int64_t kTile = 256;
  constexpr int64_t kBlock = 512;
  const int64_t tiles = (cols + kTile - 1) / kTile;
  const int64_t blocks = std::max<int64_t>(1, (rows + kBlock - 1) / kBlock);
  // partial sums, [batch, blocks, K, cols]
  const std::unique_ptr<A[]> buffer(blocks == 1 ? nullptr : new A[batch * blocks * K * cols]);
  A* const partials = buffer.get();
  const int64_t job_size = std::max<int64_t>(1, std::min(kBlock, rows) * std::min(kTile, cols));

  parallel_for(
      0, batch * blocks * tiles, std::max<int64_t>(1, kGrain / job_size), [=](int64_t begin, int64_t end) CPU_CLONES {
        for (int64_t job = begin; job < end; ++job) {
          const int64_t b = job / (blocks * tiles);
          const int64_t block = job / tiles % blocks;
          const int64_t first_col = job % tiles * kTile;
          const int64_t width = std::min(kTile, cols - first_col);
          const int64_t last_row = std::min((block + 1) * kBlock, rows);
          A acc[K][kTile];
          for (size_t k = 0; k < K; ++k) {
            std::fill_n(acc[k], width, A(0));
          }
          for (int64_t row = b * rows + block * kBlock; row < b * rows + last_row; ++row) {
            CPU_INDEPENDENT_LOOP
            for (int64_t j = 0; j < width; ++j) {
              A terms[K] = {};
              f(row * cols + first_col + j, row, first_col + j, terms);
              for (size_t k = 0; k < K; ++k) {
                acc[k][j] += terms[k];
              }
            }
          }
          for (size_t k = 0; k < K; ++k) {
            if (partials == nullptr) {
              for (int64_t j = 0; j < width; ++j) {
                sums[k][b * cols + first_col + j] = static_cast<Out>(acc[k][j]);
              }
            } else {
              std::copy_n(acc[k], width, partials + ((b * blocks + block) * K + k) * cols + first_col);
            }
          }
        }
      });

  for (int64_t b = 0; partials != nullptr && b < batch; ++b) {
    std::array<Out*, K> outputs = sums;
    for (Out*& output : outputs) {
      output += b * cols;
    }
    add_partials<A>(blocks, cols, partials + b * blocks * K * cols, outputs);
  }
}

}  // namespace extension_cpp::cpu
