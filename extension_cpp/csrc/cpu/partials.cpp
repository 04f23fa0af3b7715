#include "cpu/partials.h"

#include "cpu/clones.h"

#include <algorithm>

namespace extension_cpp::cpu::detail {

namespace {

constexpr int64_t kTile = 256;

// sums[j] = the sum over the parts of partials[part * stride + j].
template <class A>
CPU_CLONES void add_tile(int64_t parts, int64_t stride, int64_t width, const A* partials, A* sums) {
  double acc[kTile] = {};
  for (int64_t part = 0; part < parts; ++part) {
    const A* const in = partials + part * stride;
    for (int64_t j = 0; j < width; ++j) {
      acc[j] += static_cast<double>(in[j]);
    }
  }
  for (int64_t j = 0; j < width; ++j) {
    sums[j] = static_cast<A>(acc[j]);
  }
}

}  // namespace

template <class A>
void add_partials(
    int64_t parts, int64_t cols, const A* partials, const SumTarget<A>* sums, size_t num_sums, int64_t first) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, parts));
  const auto stride = static_cast<int64_t>(num_sums) * cols;
  parallel_for(0, cols, grain, [=](int64_t begin, int64_t end) {
    for (size_t k = 0; k < num_sums; ++k) {
      for (int64_t col = begin; col < end && sums[k].wanted(); col += kTile) {
        A tile[kTile];
        const int64_t width = std::min(kTile, end - col);
        add_tile(parts, stride, width, partials + static_cast<int64_t>(k) * cols + col, tile);
        sums[k].store(first + col, tile, width);
      }
    }
  });
}

template void add_partials(int64_t, int64_t, const float*, const SumTarget<float>*, size_t, int64_t);
template void add_partials(int64_t, int64_t, const double*, const SumTarget<double>*, size_t, int64_t);

}  // namespace extension_cpp::cpu::detail
