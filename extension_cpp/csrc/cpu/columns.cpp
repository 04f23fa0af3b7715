#include "cpu/columns.h"

#include "cpu/lines.h"
#include "cpu/partials.h"
#include "few.h"

namespace extension_cpp::cpu::detail {

namespace {

// What the stack has room for.
constexpr size_t kFew = 4;
template <class A>
using FewSums = extension_cpp::detail::Few<A, kFew * kTileCols<A>>;
template <class A>
using FewPointers = extension_cpp::detail::Few<A*, kFew>;

int64_t rows_of_block(int64_t tile_width) {
  return tile_width <= kNarrowTile ? kBlockRows : kBlockRows * kNarrowTile / tile_width;
}

}  // namespace

template <class A>
void column_sums(
    int64_t batch, int64_t rows, int64_t cols, ColumnTiles tiles, TileLoop<A> loop, const void* f,
    const SumTarget<A>* sums, size_t num_sums) {
  const int64_t block_rows = rows_of_block(tiles.width);
  const int64_t blocks = std::max<int64_t>(1, (rows + block_rows - 1) / block_rows);
  const auto num = static_cast<int64_t>(num_sums);
  // partial sums, [batch, blocks, num_sums, cols]
  const Lines<A> buffer = blocks == 1 ? Lines<A>() : new_lines<A>(batch * blocks * num * cols);
  A* const partials = buffer.get();
  const int64_t job_size = std::max<int64_t>(1, std::min(block_rows, rows) * std::min(tiles.width, cols));

  parallel_for(
      0, batch * blocks * tiles.count, std::max<int64_t>(1, kGrain / job_size), [=](int64_t begin, int64_t end) {
        FewSums<A> values(num_sums * tiles.width);
        FewPointers<A> tile_sums(num_sums);
        for (int64_t job = begin; job < end; ++job) {
          const int64_t b = job / (blocks * tiles.count);
          const int64_t block = job / tiles.count % blocks;
          const int64_t first_row = block * block_rows;
          const int64_t first_col = job % tiles.count * tiles.width;
          const int64_t width = std::min(tiles.width, cols - first_col);
          for (int64_t k = 0; k < num; ++k) {
            A* const place = partials == nullptr ? values.data() + k * tiles.width
                                                 : partials + ((b * blocks + block) * num + k) * cols + first_col;
            tile_sums.data()[k] = sums[k].wanted() ? place : nullptr;
          }
          loop(f, {b * rows + first_row, std::min(block_rows, rows - first_row), first_col, width}, tile_sums.data());
          for (int64_t k = 0; partials == nullptr && k < num; ++k) {
            sums[k].store(b * cols + first_col, tile_sums.data()[k], width);
          }
        }
      });

  for (int64_t b = 0; partials != nullptr && b < batch; ++b) {
    add_partials(blocks, cols, partials + b * blocks * num * cols, sums, num_sums, b * cols);
  }
}

template void column_sums(
    int64_t, int64_t, int64_t, ColumnTiles, TileLoop<float>, const void*, const SumTarget<float>*, size_t);
template void column_sums(
    int64_t, int64_t, int64_t, ColumnTiles, TileLoop<double>, const void*, const SumTarget<double>*, size_t);

}  // namespace extension_cpp::cpu::detail
