// The layer norm as a norm of norms.h.
#pragma once

#include "elementary.h"
#include "norms.h"

#include <cmath>

namespace extension_cpp {

// How the elements of a row lie about a number near their mean.
template <class A>
struct Deviations {
  A center;
  A residue;  // the average deviation, hence center + residue is the mean
  A square;   // the average of their squares

  // Infinite where the squares of finite numbers overflow, whatever rounding left of the average.
  HOST_DEVICE A variance() const {
    return std::isinf(square) && std::isfinite(residue) ? square : square - residue * residue;
  }

  // `each` is the share of an element in an average.
  HOST_DEVICE static Deviations of(A center, const Values<A, 2>& sums, A each) {
    return {center, sums[0] * each, sums[1] * each};
  }

  // Rounding leaves something of the average where the row holds an infinity.
  HOST_DEVICE static A mean_of(A center, A residue) { return std::isinf(center) ? center : center + residue; }

  // Of a row in one pass: about its first element, which seldom lies far from the others. Where it does, so that the
  // squares would cancel or overflow, once more about the mean. (Shifted data: Chan, Golub and LeVeque, Algorithms for
  // Computing the Sample Variance, 1983.)
  template <class Row>
  HOST_DEVICE static Deviations of(Row& row, A each) {
    const auto about = [&](A center) {
      const auto sums = row.sum([=](A x) {
        const A deviation = x - center;
        return Values<A, 2>{deviation, deviation * deviation};
      });
      return of(center, sums, each);
    };
    const A first = row.first();
    const Deviations result = about(std::isfinite(first) ? first : A(0));
    const A far = result.residue * result.residue;
    const bool again = !(std::isfinite(result.square) & (far <= A(4) * (result.square - far)));
    if (row.any(again)) {
      // About 0 where the difference of large numbers overflowed.
      const Deviations better = about(std::isfinite(result.residue) ? result.center + result.residue : A(0));
      return again ? better : result;
    }
    return result;
  }
};

// The mean of a row is held as two numbers, its float and what rounding took from it. Without the second, a row with
// mean 10000 and standard deviation 1 would be off by 0.0005 in float32.
template <class A>
struct LayerNorm {
  static constexpr int kSaved = 2;  // mean and rstd
  static constexpr int kParts = 3;
  static constexpr int kParameters = 2;

  A center;
  A residue;
  A rstd;

  HOST_DEVICE static LayerNorm of(const Deviations<A>& deviations, A eps) {
    const A variance = deviations.variance();
    return {deviations.center, deviations.residue, math::rsqrt((variance < A(0) ? A(0) : variance) + eps)};
  }

  template <class Row>
  HOST_DEVICE static LayerNorm of(Row& row, A each, A eps) {
    return of(Deviations<A>::of(row, each), eps);
  }

  // Center and residue of the segment, and the sum of the squared deviations from their sum.
  template <class Row>
  HOST_DEVICE static Values<A, 3> parts_of(Row& row) {
    const auto deviations = Deviations<A>::of(row, average(A(1), row.cols()));
    return {deviations.center, deviations.residue, deviations.variance() * static_cast<A>(row.cols())};
  }

  template <class Row>
  HOST_DEVICE static LayerNorm of_parts(Row& row, const SegmentSizes<A>& sizes, A eps) {
    const A center = average(
        row.sum([](A center, A residue, A, A size) { return Deviations<A>::mean_of(center, residue) * size; }, sizes),
        sizes.cols);
    const auto deviations = row.sum(
        [=](A segment_center, A residue, A squares, A size) {
          const A deviation = (segment_center - center) + residue;
          return Values<A, 2>{size * deviation, squares + size * (deviation * deviation)};
        },
        sizes);
    return of(Deviations<A>::of(center, deviations, average(A(1), sizes.cols)), eps);
  }

  HOST_DEVICE Values<A, 2> saved() const { return {Deviations<A>::mean_of(center, residue), rstd}; }
  HOST_DEVICE A normalize(A x) const { return (x - center) * rstd - residue * rstd; }

  // With d = input - mean and g = grad_output * weight:
  //   grad_input = rstd * (g - average(g)) - d * rstd^3 * average(g * d)
  //   grad_weight = sum over rows of grad_output * rstd * d, grad_bias = sum over rows of grad_output
  struct Grad {
    static constexpr int kSums = 2;

    A mean;
    A rstd;
    A scale;   // rstd; 0 in a row of one column, where g - average(g) is 0, and rstd would enlarge a rounding error
    A offset;  // scale * average(g)
    A slope;   // rstd^3 * average(g * d)

    HOST_DEVICE static Grad of(const Values<A, 2>& saved) { return {saved[0], saved[1]}; }

    HOST_DEVICE Grad with(const Values<A, 2>& sums, A each) const {
      const A scale = each == A(1) ? A(0) : rstd;
      // Of a variance that is infinite, rstd is 0, and the sums may be infinite. (The slope is, where rstd^3 is.)
      const A slope = rstd == A(0) ? A(0) : rstd * (rstd * (rstd * (sums[1] * each)));
      return {mean, rstd, scale, scale * (sums[0] * each), slope};
    }

    HOST_DEVICE Values<A, 2> terms(A grad, A x, A w) const {
      const A g = grad * w;
      return {g, g * (x - mean)};
    }

    HOST_DEVICE A grad_input(A grad, A x, A w) const { return grad * scale * w - ((x - mean) * slope + offset); }

    HOST_DEVICE Values<A, 2> parameter_grads(A grad, A x) const { return {grad * rstd * (x - mean), grad}; }
  };
};

}  // namespace extension_cpp
