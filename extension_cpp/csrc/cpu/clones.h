// How loops are compiled on the CPU: once for each instruction set, and vectorised.
#pragma once

#include <cstdint>

// Compiles the function that it marks for AVX-512 and AVX2 with FMA and F16C besides the baseline; the loader picks
// one. Plain "avx2" would enable neither FMA nor F16C. Everything that the function calls must be inlined into it, or
// stays at the baseline. Needs ifunc (glibc) and a compiler that knows the names; the sanitizers run before ifuncs are
// resolved. Without optimisation nothing is vectorised: a debugger then finds each of them once, and what they call not
// inlined.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__CUDACC__)
#define CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_CLONES
#endif

// Of a function for some instruction set that calls what users write: all of it is inlined, however long.
#if defined(__GNUC__) && defined(__OPTIMIZE__)
#define CPU_FLATTEN __attribute__((flatten))
#else
#define CPU_FLATTEN
#endif

// Outputs never overlap inputs, which the compiler cannot know of pointers inside a functor.
#if defined(__clang__)
#define CPU_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CPU_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#else
#define CPU_INDEPENDENT_LOOP
#endif

// Not taken apart before it is vectorised.
#if defined(__GNUC__) && !defined(__clang__)
#define CPU_ROLLED_LOOP _Pragma("GCC unroll 1")
#else
#define CPU_ROLLED_LOOP
#endif

#if defined(__GNUC__) && defined(__OPTIMIZE__)
#define CPU_INLINE_LAMBDA __attribute__((always_inline))
#define CPU_INLINE CPU_INLINE_LAMBDA inline
#else
#define CPU_INLINE_LAMBDA
#define CPU_INLINE inline
#endif

namespace extension_cpp::cpu {

// Elements below which a second thread costs more than it brings (as at::internal::GRAIN_SIZE).
constexpr int64_t kGrain = 32768;

}  // namespace extension_cpp::cpu
