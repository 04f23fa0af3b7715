// A few elements, as a rule on the stack.
#pragma once

#include <cstddef>
#include <memory>

namespace extension_cpp::detail {

// Uninitialised.
template <class T, size_t N>
class Few {
 public:
  explicit Few(size_t size) : size_(size) {
    if (size > N) {
      heap_.reset(new T[size]);
    }
  }

  T* data() { return heap_ ? heap_.get() : stack_; }
  const T* data() const { return heap_ ? heap_.get() : stack_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  T stack_[N];
  std::unique_ptr<T[]> heap_;
};

}  // namespace extension_cpp::detail
