// What row loops are compiled for. Compilers make vectors of them, for each instruction set; of Half alone they would
// not, whose elements are loaded and stored by blocks.
#pragma once

#include "cpu/blocks.h"
#include "cpu/clones.h"
#include "dispatch.h"

#include <type_traits>

namespace extension_cpp::cpu::detail {

// Any: by CPU_CLONES the loader picks one.
struct EachIsa {};

template <class Isa>
constexpr bool kIsaHasBlocks = !std::is_same_v<Isa, EachIsa> && !std::is_same_v<Isa, Scalar>;

// use(isa), of the instruction set that rows of T are worked on with.
template <class T, class Use>
void with_row_isa(const Use& use) {
  if constexpr (std::is_same_v<T, Half>) {
    with_blocks(use, [&] { use(Scalar()); });
  } else {
    use(EachIsa());
  }
}

// body(isa), compiled for it. What it captures is copied, so that nothing that loops write is part of it. It is not
// always inlined itself (clones.h): compilers look at what such a function calls too late to inline that here.

// Static, as are the operators' own functions: gcc 14 fails to clone what other files could share.
template <class Body>
CPU_CLONES CPU_FLATTEN static void compiled_for(EachIsa isa, const Body& body) {
  const Body own = body;
  own(isa);
}

template <class Body>
CPU_FLATTEN void compiled_for(Scalar isa, const Body& body) {
  const Body own = body;
  own(isa);
}

#if HAS_BLOCKS

template <class Body>
CPU_AVX512 CPU_FLATTEN void compiled_for(Avx512 isa, const Body& body) {
  const Body own = body;
  own(isa);
}

template <class Body>
CPU_AVX2 CPU_FLATTEN void compiled_for(Avx2 isa, const Body& body) {
  const Body own = body;
  own(isa);
}

#endif

// body(isa), compiled for the instruction set that rows of T are worked on with.
template <class T, class Body>
void for_row_isa(const Body& body) {
  with_row_isa<T>([&](auto isa) { compiled_for(isa, body); });
}

}  // namespace extension_cpp::cpu::detail
