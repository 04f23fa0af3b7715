// Arithmetic on sizes and strides: where an elementwise operator writes its output, and how a loop finds element i of
// operands that broadcast. Free of torch, so that tests/test_index_math.py compiles it by itself, without a GPU.
#pragma once

#include "host_device.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace extension_cpp {

// Shape and strides of a tensor, in elements.
struct Geometry {
  int64_t dim;
  const int64_t* sizes;
  const int64_t* strides;
};

// The dimensions from the outermost to the innermost in memory where the elements lie densely in some order of the
// dimensions, else nothing. Strides of size-1 dimensions, which may be anything, place these dimensions and decide
// nothing else.
inline std::vector<int64_t> dense_order(const Geometry& tensor) {
  std::vector<int64_t> order(tensor.dim);
  std::iota(order.begin(), order.end(), 0);
  const auto dense = [&] {
    int64_t expected = 1;
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
      if (tensor.sizes[*d] != 1) {
        if (tensor.strides[*d] != expected) {
          return false;
        }
        expected *= tensor.sizes[*d];
      }
    }
    return true;
  };
  // Contiguous first, as torch: a tensor that is contiguous and channels-last at once counts as contiguous.
  if (std::find(tensor.sizes, tensor.sizes + tensor.dim, 0) != tensor.sizes + tensor.dim || dense()) {
    return order;
  }
  std::stable_sort(
      order.begin(), order.end(), [&](int64_t a, int64_t b) { return tensor.strides[a] > tensor.strides[b]; });
  return dense() ? order : std::vector<int64_t>{};
}

// Strides of the output of an elementwise operator: the layout of the dense operands of its shape where they agree on
// one, else contiguous. extension_cpp/layout.py says the same to fake tensors.
inline std::vector<int64_t> elementwise_strides(
    int64_t dim, const int64_t* sizes, const Geometry* operands, size_t num_operands) {
  std::vector<int64_t> order;
  for (size_t k = 0; k < num_operands; ++k) {
    const Geometry& operand = operands[k];
    if (operand.dim != dim || !std::equal(sizes, sizes + dim, operand.sizes)) {
      continue;
    }
    std::vector<int64_t> other = dense_order(operand);
    if (order.empty()) {
      order = std::move(other);
    } else if (!other.empty()) {
      const auto without_ones = [&](std::vector<int64_t> dims) {
        dims.erase(std::remove_if(dims.begin(), dims.end(), [&](int64_t d) { return sizes[d] == 1; }), dims.end());
        return dims;
      };
      if (without_ones(order) != without_ones(other)) {
        order.clear();
        break;
      }
    }
  }
  if (order.empty()) {
    order.resize(dim);
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<int64_t> strides(dim);
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = stride;
    stride *= std::max<int64_t>(sizes[*d], 1);
  }
  return strides;
}

// Whether no two elements share memory, as far as strides that nest tell. (Strides that interleave without meeting, a
// rarity made by as_strided, count as overlapping.)
inline bool is_non_overlapping(const Geometry& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int64_t d = 0; d < tensor.dim; ++d) {
    if (tensor.sizes[d] == 0) {
      return true;
    }
    if (tensor.sizes[d] != 1) {
      dims.emplace_back(tensor.strides[d], tensor.sizes[d]);
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t last = 0;  // the largest offset that the dimensions so far reach
  for (const auto& [stride, size] : dims) {
    if (stride <= last) {
      return false;
    }
    last += stride * (size - 1);
  }
  return true;
}

namespace detail {

struct Term {
  int64_t stride, max;
};

// Whether sum_t stride_t * k_t == target for some 0 <= k_t <= max_t. Strides descend, so that few k are left to try at
// each term; `budget` bounds the exotic cases.
inline bool reaches(const Term* terms, size_t num_terms, int64_t target, int& budget) {
  if (target == 0 || --budget < 0) {
    return true;
  }
  if (target < 0 || num_terms == 0) {
    return false;
  }
  int64_t rest = 0;
  for (size_t t = 1; t < num_terms; ++t) {
    rest += terms[t].stride * terms[t].max;
  }
  for (int64_t k = std::min(terms[0].max, target / terms[0].stride); k >= 0; --k) {
    const int64_t left = target - k * terms[0].stride;
    if (left > rest) {
      return false;
    }
    if (reaches(terms + 1, num_terms - 1, left, budget)) {
      return true;
    }
  }
  return false;
}

}  // namespace detail

// Whether a byte belongs to both tensors, whose elements are of so many bytes; exact, but for layouts so exotic that
// the search is given up (then true).
inline bool share_memory(
    const void* data_a, const Geometry& a, int64_t bytes_a, const void* data_b, const Geometry& b, int64_t bytes_b) {
  // An element i of a and an element j of b meet where data_a + sum stride_a * i == data_b + sum stride_b * j, to
  // within an element. With size - 1 - j in the place of j all terms are positive.
  int64_t target = static_cast<int64_t>(reinterpret_cast<intptr_t>(data_b) - reinterpret_cast<intptr_t>(data_a));
  std::vector<detail::Term> terms{{1, bytes_a - 1 + bytes_b - 1}};
  target += bytes_b - 1;
  for (const Geometry* tensor : {&a, &b}) {
    for (int64_t d = 0; d < tensor->dim; ++d) {
      const detail::Term term{tensor->strides[d] * (tensor == &a ? bytes_a : bytes_b), tensor->sizes[d] - 1};
      if (term.max < 0) {
        return false;
      }
      if (term.max == 0 || term.stride == 0) {
        continue;
      }
      if (tensor == &b) {
        target += term.stride * term.max;
      }
      const auto same =
          std::find_if(terms.begin(), terms.end(), [&](const detail::Term& t) { return t.stride == term.stride; });
      if (same == terms.end()) {
        terms.push_back(term);
      } else {
        same->max += term.max;
      }
    }
  }
  std::sort(
      terms.begin(), terms.end(), [](const detail::Term& x, const detail::Term& y) { return x.stride > y.stride; });
  // All but the bytes within an element go by multiples.
  int64_t step = 0;
  for (const detail::Term& term : terms) {
    step = term.stride == 1 ? step : std::gcd(step, term.stride);
  }
  if (step > 0 && target % step > terms.back().max) {
    return false;
  }
  int budget = 10000;
  return detail::reaches(terms.data(), terms.size(), target, budget);
}

// Division by a number known beforehand. Below 2^32 a multiplication does it: quotient = (n + n * m / 2^32) >> s with
// s = ceil(log2(divisor)) and m = ceil(2^32 * (2^s - divisor) / divisor). A 64-bit division costs a GPU some hundred
// instructions.
class Divider {
 public:
  Divider() = default;
  explicit Divider(int64_t divisor) : divisor_(divisor) {
    if (divisor >> 31 == 0) {
      const uint64_t small = static_cast<uint64_t>(divisor);
      while ((uint64_t{1} << shift_) < small) {
        ++shift_;
      }
      multiplier_ = static_cast<uint32_t>(((((uint64_t{1} << shift_) - small) << 32) + small - 1) / small);
      limit_bits_ = 32;
    }
  }

  HOST_DEVICE int64_t divisor() const { return divisor_; }

  HOST_DEVICE int64_t divide(int64_t n) const {
    if (n >> limit_bits_ == 0) {
      const uint64_t m = static_cast<uint64_t>(n);
      return static_cast<int64_t>((m + (m * multiplier_ >> 32)) >> shift_);
    }
    return n / divisor_;
  }

  // The same where both numbers are below 2^31: three instructions, and no code for the rest.
  HOST_DEVICE int divide_small(int n) const {
    const uint32_t m = static_cast<uint32_t>(n);
    return static_cast<int>((m + static_cast<uint32_t>(uint64_t{m} * multiplier_ >> 32)) >> shift_);
  }

 private:
  int64_t divisor_ = 1;
  uint32_t multiplier_ = 0;
  int16_t shift_ = 0;
  int16_t limit_bits_ = 0;  // n below 2^limit_bits takes the fast way
};

constexpr int kMaxDims = 16;

// How element i of an elementwise loop is found in each of `num` operands, the output being operand 0. Dimensions go in
// the order of the output's strides, innermost first, so that a dense output is written from its first byte to its
// last; neighbours that are one dimension for all operands are merged.
struct MergedDims {
  int dims = 0;
  int64_t numel = 1;
  bool fits = true;  // false: more than kMaxDims dimensions are left, and nothing else holds
};

// Sizes of operands are those of the output or 1, and may lack leading dimensions.
inline MergedDims merge_dims(
    const Geometry* operands, int num,
    Divider* sizes,    // [kMaxDims]
    int64_t* strides,  // [kMaxDims, num], 0 along a dimension in which the operand is broadcast
    bool* linear) {    // [num], whether element i lies at offset i
  MergedDims merged;
  const Geometry& output = operands[0];
  for (int64_t d = 0; d < output.dim; ++d) {
    merged.numel *= output.sizes[d];
  }
  if (merged.numel == 0) {
    return merged;
  }
  // Fewer than 64 dimensions are larger than 1. Insertion sort, in place: the operators of small tensors take little
  // longer than an allocation.
  int64_t order[64];
  int ordered = 0;
  for (int64_t d = output.dim - 1; d >= 0; --d) {
    if (output.sizes[d] != 1) {
      int at = ordered++;
      for (; at > 0 && output.strides[order[at - 1]] > output.strides[d]; --at) {
        order[at] = order[at - 1];
      }
      order[at] = d;
    }
  }

  int64_t extent[kMaxDims];
  int64_t* next = strides;  // [num], those of the dimension that comes next
  for (int j = 0; j < ordered; ++j) {
    const int64_t d = order[j];
    const auto along = [&](int k) {
      const int64_t own = d - (output.dim - operands[k].dim);
      return own < 0 || operands[k].sizes[own] == 1 ? 0 : operands[k].strides[own];
    };
    bool merges = merged.dims > 0;
    for (int k = 0; k < num && merges; ++k) {
      merges = along(k) == (next - num)[k] * extent[merged.dims - 1];
    }
    if (merges) {
      extent[merged.dims - 1] *= output.sizes[d];
    } else if (merged.dims == kMaxDims) {
      merged.fits = false;
      return merged;
    } else {
      extent[merged.dims++] = output.sizes[d];
      for (int k = 0; k < num; ++k) {
        *next++ = along(k);
      }
    }
  }
  if (merged.dims == 0) {  // one element
    extent[0] = 1;
    std::fill_n(strides, num, 1);
    merged.dims = 1;
  }
  std::fill_n(linear, num, true);
  int64_t expected = 1;
  for (int d = 0; d < merged.dims; ++d) {
    sizes[d] = Divider(extent[d]);
    for (int k = 0; k < num; ++k) {
      linear[k] = linear[k] && strides[d * num + k] == expected;
    }
    expected *= extent[d];
  }
  return merged;
}

// The same of K operands, in one piece, which travels to the GPU.
template <int K>
struct Indexing : MergedDims {
  Divider sizes[kMaxDims];
  int64_t strides[kMaxDims][K] = {};
  bool linear[K] = {};

  Indexing() = default;

  explicit Indexing(const std::array<Geometry, K>& operands) {
    static_cast<MergedDims&>(*this) = merge_dims(operands.data(), K, sizes, strides[0], linear);
  }

  bool all_linear() const {
    return std::all_of(linear, linear + K, [](bool is) { return is; });
  }

  // Offsets of element i in each operand; returns its place along the innermost dimension.
  HOST_DEVICE int64_t locate(int64_t i, int64_t (&offsets)[K]) const {
    for (int k = 0; k < K; ++k) {
      offsets[k] = 0;
    }
    int64_t first = 0;
#ifdef __CUDACC__  // nvcc would unroll it: twice the kernel, fewer blocks on a multiprocessor
#pragma unroll 1
#endif
    for (int d = 0; d < dims; ++d) {
      const int64_t outer = d + 1 < dims ? sizes[d].divide(i) : 0;
      const int64_t place = i - outer * sizes[d].divisor();
      for (int k = 0; k < K; ++k) {
        offsets[k] += place * strides[d][k];
      }
      if (d == 0) {
        first = place;
      }
      i = outer;
    }
    return first;
  }
};

}  // namespace extension_cpp
