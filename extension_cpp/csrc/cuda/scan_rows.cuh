// Scans whose time is contiguous: a warp has a row, or a block, in registers while it scans. What is too long for a
// block goes by tiles (scan_row_tiles.cuh).
#pragma once

#include "launch.cuh"
#include "scan_piece.cuh"
#include "scan_row_access.cuh"
#include "scan_row_tiles.cuh"
#include "vector.cuh"

#include <algorithm>
#include <numeric>
#include <type_traits>

namespace extension_cpp::cuda {

namespace detail {

constexpr int kScanTeams = 4;  // of a block for several rows, a warp each

// Rows that a warp has each. (Unasked, compilers take more registers where some accesses are not whole.)
template <class T, class F, size_t K, size_t R, int V, RowsLie Lie>
__global__ void __launch_bounds__(kScanTeams* kWarp, Lie == RowsLie::kAlike ? 6 : 0)
    scan_warps_kernel(F f, ScanArrays<T, K, R> arrays, int64_t rows, int64_t cols) {
  wait_for_previous();
  using A = acc_t<T>;
  const int64_t row = int64_t{blockIdx.x} * kScanTeams + threadIdx.x / kWarp;
  if (row >= rows) {
    return;
  }
  WarpOfRow<T, F, K, R, V, Lie, int> here(f, arrays, row, cols, 0);
  const A initial = here.initial();
  const bool holds = here.scan().holds_for(initial);
  A states[V];
  here.set_states(initial, states, holds);
  here.write(states);
}

// Rows that a block has each, whose warps learn of each other at one barrier. Where the pieces up to each warp hold, a
// warp begins with the state that they give, and steps through its own accesses only if the pieces of these do not
// hold; else all warps step through the row in turn.
template <class T, class F, size_t K, size_t R, int V, int Warps, int Blocks, RowsLie Lie>
__global__ void __launch_bounds__(Warps* kWarp, std::min(Blocks, kMostThreads / (Warps * kWarp)))
    scan_blocks_kernel(F f, ScanArrays<T, K, R> arrays, int64_t cols) {
  wait_for_previous();
  using A = acc_t<T>;
  __shared__ Piece<A> pieces[Warps];
  __shared__ A handed_on;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  WarpOfRow<T, F, K, R, V, Lie, int> here(f, arrays, blockIdx.x, cols, warp);
  const A initial = here.initial();
  const Piece<A> own = here.scan();
  if (lane == 0) {
    pieces[warp] = own;
  }
  __syncthreads();
  // Those up to each warp, in the first lanes: the same in all warps.
  const bool is_warp = lane < static_cast<int>(blockDim.x) / kWarp;
  const Piece<A> up_to = scan_warp<Warps>(is_warp ? pieces[lane] : Piece<A>::none(), lane);
  const Piece<A> before = from_lane(up_to, max(warp - 1, 0));
  A states[V];
  if (__all_sync(kAllLanes, !is_warp || up_to.holds_for(initial))) {
    here.set_states(warp == 0 ? initial : before(initial), states);
  } else {
    here.step_through_block(initial, states, handed_on);
  }
  here.write(states);
}

// Of rows that a block has each: a smaller one, and a larger one for longer rows, or none, which has no warps. Rows
// that begin within an access may have one more than their steps fill, and a warp for it.
struct ScanBlocks {
  ScanBlock small;
  ScanBlock large;
};

template <class T, size_t Arrays, RowsLie Lie>
constexpr ScanBlocks scan_blocks() {
  constexpr bool kWhole = is_whole(Lie);
  constexpr int kMore = kWhole ? 0 : 1;
  if constexpr (sizeof(T) == sizeof(double)) {
    return Arrays == 2 && kWhole ? ScanBlocks{{2, 16, 2}, {4, 16, 2}} : ScanBlocks{{2, 32, 1}, {}};
  } else if constexpr (std::is_same_v<T, Half>) {
    return Arrays == 3 ? ScanBlocks{{1, 8 + kMore, 5}, {1, 16 + kMore, 3}}
           : kWhole    ? ScanBlocks{{2, 32, 1}, {}}
                       : ScanBlocks{{2, 17, 2}, {}};
  } else if constexpr (Arrays == 2) {
    return kWhole ? ScanBlocks{{1, 8, 6}, {4, 32, 1}} : ScanBlocks{{1, 9, 5}, {4, 9, 3}};
  } else {
    constexpr int kLarge = Lie == RowsLie::kWhole && std::is_same_v<T, float> ? 3 : 2;
    return {{1, 16 + kMore, 3}, {2, 16 + kMore, kLarge}};
  }
}

template <int V, RowsLie Lie, class T, class F, size_t K, size_t R>
void launch_scan_warps(const Tensor& like, const F& f, int64_t rows, int64_t cols, const ScanArrays<T, K, R>& arrays) {
  launch_overlapped(
      scan_warps_kernel<T, F, K, R, V, Lie>, static_cast<unsigned>(ceil_div(rows, kScanTeams)), kScanTeams * kWarp, 0,
      current_stream(like), f, arrays, rows, cols);
}

// Returns false where rows are too long. `most`: columns of the accesses to a row, at most.
template <int V, int Warps, int Blocks, RowsLie Lie, class T, class F, size_t K, size_t R>
bool launch_scan_blocks(
    const Tensor& like, const F& f, int64_t rows, int64_t cols, int64_t most, const ScanArrays<T, K, R>& arrays) {
  if constexpr (Warps > 0) {
    const int64_t warps = ceil_div(most, int64_t{kWarp} * kVector<T> * V);
    if (warps <= Warps) {
      launch_overlapped(
          scan_blocks_kernel<T, F, K, R, V, Warps, Blocks, Lie>, static_cast<unsigned>(rows),
          static_cast<unsigned>(warps * kWarp), 0, current_stream(like), f, arrays, cols);
      return true;
    }
  }
  return false;
}

template <RowsLie Lie, class T, class F, size_t K, size_t R>
void launch_scan_rows(
    const Tensor& like, const F& f, int64_t rows, int64_t cols, int64_t most, const ScanArrays<T, K, R>& arrays) {
  constexpr int64_t kPerWarp = int64_t{kWarp} * kVector<T>;
  constexpr ScanBlocks kBlocks = scan_blocks<T, kArraysReadOf<F, K>, Lie>();
  constexpr ScanBlock kSmall = kBlocks.small;
  constexpr ScanBlock kLarge = kBlocks.large;
  if (most <= kPerWarp) {
    launch_scan_warps<1, Lie>(like, f, rows, cols, arrays);
  } else if (most <= 2 * kPerWarp) {
    launch_scan_warps<2, Lie>(like, f, rows, cols, arrays);
  } else if (
      !launch_scan_blocks<kSmall.accesses, kSmall.warps, kSmall.blocks, Lie>(like, f, rows, cols, most, arrays) &&
      !launch_scan_blocks<kLarge.accesses, kLarge.warps, kLarge.blocks, Lie>(like, f, rows, cols, most, arrays)) {
    launch_scan_tiles<Lie>(like, f, rows, cols, most, arrays);
  }
}

// Columns of the accesses to a row that begin at boundaries, at most. The first row begins `misaligned` bytes after
// one.
template <class T>
int64_t cols_from_boundaries(int64_t cols, int64_t misaligned) {
  const int64_t apart = std::gcd<int64_t>(cols, kVector<T>);  // places where rows begin
  const int64_t most = kVector<T> - apart + misaligned / static_cast<int64_t>(sizeof(T)) % apart;
  return most + cols;
}

template <class T, class F, size_t K, size_t R>
void launch_scan_rows(const Tensor& like, const F& f, int64_t rows, int64_t cols, const ScanArrays<T, K, R>& arrays) {
  const int64_t misaligned = misalignment(arrays.outputs[0]);
  const int64_t most = cols_from_boundaries<T>(cols, misaligned);
  if (cols % kVector<T> == 0 && begin_at(kAccessBytes, arrays)) {
    launch_scan_rows<RowsLie::kWhole>(like, f, rows, cols, cols, arrays);
    return;
  }
  if constexpr (sizeof(T) < sizeof(double)) {  // of double the backward takes 1.2 to 1.3 times as long so
    if (cols % kVector<T> == 0 && std::all_of(arrays.outputs, arrays.outputs + R, is_aligned)) {
      launch_scan_rows<RowsLie::kInputsApart>(like, f, rows, cols, cols, arrays);
      return;
    }
  }
  if (begin_after(misaligned, kAccessBytes, arrays)) {
    launch_scan_rows<RowsLie::kAlike>(like, f, rows, cols, most, arrays);
  } else {
    launch_scan_rows<RowsLie::kApart>(like, f, rows, cols, most, arrays);
  }
}

}  // namespace detail

}  // namespace extension_cpp::cuda
