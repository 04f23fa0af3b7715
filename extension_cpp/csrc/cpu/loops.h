// Loops over contiguous tensors on the CPU: parallel, and compiled once for each instruction set.
#pragma once

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

// sums[k][col] = sum over rows of what f(i, col, acc) adds to acc[k], where i = row * cols + col.
//
// Row blocks and column tiles have fixed sizes, so that the order of the additions depends on the shape alone, not on
// the number of threads: equal bits from run to run. Blocks are short, which also keeps the rounding error down.
template <class A, size_t K, class Out, class F>
void column_sums(int64_t rows, int64_t cols, F f, std::array<Out*, K> sums) {
  constexpr int64_t kTile = 256;
  constexpr int64_t kBlock = 512;
  const int64_t tiles = (cols + kTile - 1) / kTile;
  const int64_t blocks = (rows + kBlock - 1) / kBlock;
  // partial sums, [blocks, K, cols]
  const std::unique_ptr<A[]> buffer(new A[blocks * K * cols]);
  A* const partials = buffer.get();

  parallel_for(
      0, blocks * tiles, std::max<int64_t>(1, kGrain / (kBlock * kTile)), [=](int64_t begin, int64_t end) CPU_CLONES {
        for (int64_t job = begin; job < end; ++job) {
          const int64_t block = job / tiles;
          const int64_t first_col = job % tiles * kTile;
          const int64_t width = std::min(kTile, cols - first_col);
          const int64_t last_row = std::min((block + 1) * kBlock, rows);
          A acc[K][kTile] = {};
          for (int64_t row = block * kBlock; row < last_row; ++row) {
            CPU_INDEPENDENT_LOOP
            for (int64_t j = 0; j < width; ++j) {
              A terms[K] = {};
              f(row * cols + first_col + j, first_col + j, terms);
              for (size_t k = 0; k < K; ++k) {
                acc[k][j] += terms[k];
              }
            }
          }
          for (size_t k = 0; k < K; ++k) {
            std::copy_n(acc[k], width, partials + (block * K + k) * cols + first_col);
          }
        }
      });

  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, blocks));
  parallel_for(0, cols, grain, [=](int64_t begin, int64_t end) CPU_CLONES {
    for (size_t k = 0; k < K; ++k) {
      for (int64_t first_col = begin; first_col < end; first_col += kTile) {
        const int64_t width = std::min(kTile, end - first_col);
        A acc[kTile] = {};
        for (int64_t block = 0; block < blocks; ++block) {
          const A* const in = partials + (block * K + k) * cols + first_col;
          for (int64_t j = 0; j < width; ++j) {
            acc[j] += in[j];
          }
        }
        for (int64_t j = 0; j < width; ++j) {
          sums[k][first_col + j] = static_cast<Out>(acc[j]);
        }
      }
    }
  });
}

}  // namespace extension_cpp::cpu
