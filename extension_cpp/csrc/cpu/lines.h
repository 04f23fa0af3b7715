// Lines of the cache, and arrays that begin at one: vectors that lie across two are slow to store.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

namespace extension_cpp::cpu {

// Bytes that come together.
constexpr int64_t kLineBytes = 64;

struct FreeLines {
  void operator()(void* lines) const { ::operator delete(lines, std::align_val_t(kLineBytes)); }
};

template <class A>
using Lines = std::unique_ptr<A[], FreeLines>;

// Of `count` elements, which are not set to anything.
template <class A>
Lines<A> new_lines(int64_t count) {
  static_assert(std::is_trivial_v<A>);
  return Lines<A>(static_cast<A*>(::operator new(sizeof(A) * count, std::align_val_t(kLineBytes))));
}

// As many elements as fill the lines that `count` of them need.
template <class A>
int64_t whole_lines(int64_t count) {
  constexpr int64_t kLine = kLineBytes / sizeof(A);
  return (count + kLine - 1) / kLine * kLine;
}

}  // namespace extension_cpp::cpu
