// Lines of the cache, and arrays that begin at one: vectors that lie across two are slow to store.
#pragma once

#include "cpu/clones.h"

#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

namespace extension_cpp::cpu {

// Bytes that come together.
constexpr int64_t kLineBytes = 64;

// What a line is sent for. (For x86 without PRFCHW compilers make the same of both.)
constexpr int kToRead = 0;
constexpr int kToWrite = 1;

// The caches that a line is sent for to, as compilers count them.
constexpr int kFirstLevel = 3;
constexpr int kSecondLevel = 2;

// Bytes ahead of a loop that reads and writes, at which lines are sent for; of one that reads alone.
constexpr int64_t kBytesAhead = 2048;
constexpr int64_t kBytesFarAhead = 4096;

// Sends for the lines of kCount elements that lie `ahead` bytes behind these. There may be nothing, which does no
// harm.
template <int64_t kCount, int kPurpose, int kLevel = kFirstLevel, class T>
CPU_INLINE void send_for(const T* elements, int64_t ahead) {
  const auto address = reinterpret_cast<uintptr_t>(elements) + ahead;
  for (int64_t byte = 0; byte < kCount * static_cast<int64_t>(sizeof(T)); byte += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + byte), kPurpose, kLevel);
  }
}

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
