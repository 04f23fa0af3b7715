// Layer normalisation of the last dimension.
#include "arguments.h"
#include "columns.h"
#include "elementary.h"
#include "operator.h"
#include "rows.h"

#include <cmath>

namespace extension_cpp {
namespace {

const Operator kFusedLayerNorm{
    "fused_layer_norm(Tensor input, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> (Tensor, Tensor, "
    "Tensor)",
    "*rows n, n:wide, n:wide -> *rows n, *rows:sum, *rows:sum"};
const Operator kFusedLayerNormBackward{
    "fused_layer_norm_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None, "
    "Tensor? bias=None) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n, *rows:sum, *rows:sum, n:wide, n:wide -> *rows n, n:weight, n:bias"};

// Of no elements it is 0.
template <class A>
HOST_DEVICE A average(A sum, int64_t count) {
  return sum / static_cast<A>(count > 0 ? count : 1);
}

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
    const bool again = !std::isfinite(result.square) || !(result.residue * result.residue <= A(4) * result.variance());
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
struct Statistics {
  A center;
  A residue;
  A rstd;

  HOST_DEVICE static Statistics of(const Deviations<A>& deviations, A eps) {
    const A variance = deviations.variance();
    return {deviations.center, deviations.residue, math::rsqrt((variance < A(0) ? A(0) : variance) + eps)};
  }

  HOST_DEVICE A mean() const { return Deviations<A>::mean_of(center, residue); }
  HOST_DEVICE A normalize(A x) const { return (x - center) * rstd - residue * rstd; }
};

template <class T>
struct LayerNorm {
  using A = acc_t<T>;

  backend::Parameter<T> weight;  // [cols]
  backend::Parameter<T> bias;    // [cols]
  T* __restrict__ output;        // [rows, cols]
  A* __restrict__ mean;          // [rows]
  A* __restrict__ rstd;          // [rows]
  A eps;
  A each;  // 1 / cols

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto statistics = Statistics<A>::of(Deviations<A>::of(row, each), eps);
    if (row.leader()) {
      mean[row.index()] = statistics.mean();
      rstd[row.index()] = statistics.rstd;
    }
    row.write(output, [=](A x, A w, A b) { return statistics.normalize(x) * w + b; }, weight, bias);
  }
};

// A step of what is done with few long rows: the statistics of segments first, the output when those of the rows are
// known. One functor for both, so that there are fewer kernels to compile.
template <class T>
struct LayerNormSegments {
  using A = acc_t<T>;

  backend::Parameter<T> weight;  // [cols]
  backend::Parameter<T> bias;    // [cols]
  T* __restrict__ output;        // [rows, cols]
  const Statistics<A>* known;    // [rows], or null
  A* __restrict__ center;        // [rows, segments]
  A* __restrict__ residue;       // [rows, segments]
  A* __restrict__ squares;       // [rows, segments], of the deviations from center + residue

  HOST_DEVICE Statistics<A> row_values(int64_t row) const { return known != nullptr ? known[row] : Statistics<A>{}; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Statistics<A>& statistics) const {
    if (known != nullptr) {
      row.write(output, [=](A x, A w, A b) { return statistics.normalize(x) * w + b; }, weight, bias);
      return;
    }
    const auto deviations = Deviations<A>::of(row, average(A(1), row.cols()));
    if (row.leader()) {
      center[row.segment_index()] = deviations.center;
      residue[row.segment_index()] = deviations.residue;
      squares[row.segment_index()] = deviations.variance() * static_cast<A>(row.cols());
    }
  }
};

// The number of elements of each segment, for row.sum.
template <class A>
struct SegmentSizes {
  backend::Split split;
  int64_t cols;

  template <int N>
  HOST_DEVICE Values<A, N> at(int64_t segment) const {
    Values<A, N> sizes;
    for (int k = 0; k < N; ++k) {
      const int64_t rest = cols - (segment + k) * split.segment_cols;
      sizes[k] = static_cast<A>(rest < split.segment_cols ? rest : split.segment_cols);
    }
    return sizes;
  }
};

// The statistics of rows from those of their segments.
template <class A>
struct CombineStatistics {
  SegmentSizes<A> sizes;
  Statistics<A>* __restrict__ statistics;  // [rows]
  A* __restrict__ mean;                    // [rows]
  A* __restrict__ rstd;                    // [rows]
  A eps;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A center = average(
        row.sum([](A center, A residue, A, A size) { return Deviations<A>::mean_of(center, residue) * size; }, sizes),
        sizes.cols);
    const auto deviations = row.sum(
        [=](A segment_center, A residue, A squares, A size) {
          const A deviation = (segment_center - center) + residue;
          return Values<A, 2>{size * deviation, squares + size * (deviation * deviation)};
        },
        sizes);
    if (row.leader()) {
      const auto result = Statistics<A>::of(Deviations<A>::of(center, deviations, average(A(1), sizes.cols)), eps);
      statistics[row.index()] = result;
      mean[row.index()] = result.mean();
      rstd[row.index()] = result.rstd;
    }
  }
};

// The gradients of a row. With x_hat = (input - mean) * rstd and g = grad_output * weight:
//   grad_input = rstd * (g - average(g) - x_hat * average(g * x_hat))
//   grad_weight = sum over rows of grad_output * x_hat, grad_bias = sum over rows of grad_output
template <class A>
struct RowGrad {
  A mean;
  A rstd;
  A scale;   // rstd; 0 in a row of one column, where g - average(g) is 0, and rstd would enlarge a rounding error
  A offset;  // scale * average(g)
  A slope;   // rstd * average(g * x_hat)

  // `each` is the share of an element in an average.
  HOST_DEVICE static RowGrad of(A mean, A rstd, const Values<A, 2>& sums, A each) {
    const A scale = each == A(1) ? A(0) : rstd;
    return {mean, rstd, scale, scale * (sums[0] * each), rstd * (sums[1] * each)};
  }

  HOST_DEVICE A x_hat(A x) const { return (x - mean) * rstd; }

  // What is averaged.
  HOST_DEVICE Values<A, 2> terms(A grad, A x, A w) const {
    const A g = grad * w;
    return {g, g * x_hat(x)};
  }

  HOST_DEVICE A grad_input(A grad, A x, A w) const { return scale * (grad * w) - (x_hat(x) * slope + offset); }

  // What is summed to grad_weight and grad_bias.
  HOST_DEVICE Values<A, 2> parameter_grads(A grad, A x) const { return {grad * x_hat(x), grad}; }
};

template <class T>
struct LayerNormBackward {
  using A = acc_t<T>;

  const A* __restrict__ mean;    // [rows]
  const A* __restrict__ rstd;    // [rows]
  backend::Parameter<T> weight;  // [cols]
  T* __restrict__ grad_input;    // [rows, cols]
  A each;                        // 1 / cols

  HOST_DEVICE Values<A, 2> row_values(int64_t row) const { return {mean[row], rstd[row]}; }
  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&weight}}; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Values<A, 2>& statistics) const {
    const RowGrad<A> known{statistics[0], statistics[1]};
    const auto sums = row.sum([=](A grad, A x, A w) { return known.terms(grad, x, w); }, weight);
    const auto r = RowGrad<A>::of(known.mean, known.rstd, sums, each);
    row.write_and_add_to_columns(
        grad_input, [=](A grad, A x, A w) { return r.grad_input(grad, x, w); },
        [=](A grad, A x) { return r.parameter_grads(grad, x); }, weight);
  }
};

// Long rows: the two sums of segments, then the averages of rows, then the rest by columns.
template <class T>
struct SegmentSums {
  using A = acc_t<T>;

  const A* __restrict__ mean;       // [rows]
  const A* __restrict__ rstd;       // [rows]
  backend::Parameter<T> weight;     // [cols]
  A* __restrict__ grad_sums;        // [rows, segments]
  A* __restrict__ projection_sums;  // [rows, segments]

  HOST_DEVICE RowGrad<A> row_values(int64_t row) const { return {mean[row], rstd[row]}; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const RowGrad<A>& r) const {
    const auto sums = row.sum([=](A grad, A x, A w) { return r.terms(grad, x, w); }, weight);
    if (row.leader()) {
      grad_sums[row.segment_index()] = sums[0];
      projection_sums[row.segment_index()] = sums[1];
    }
  }
};

template <class A>
struct CombineSums {
  const A* __restrict__ mean;        // [rows]
  const A* __restrict__ rstd;        // [rows]
  RowGrad<A>* __restrict__ results;  // [rows]
  A each;                            // 1 / cols

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto sums = row.sum([](A grad, A projection) { return Values<A, 2>{grad, projection}; });
    if (row.leader()) {
      const int64_t i = row.index();
      results[i] = RowGrad<A>::of(mean[i], rstd[i], sums, each);
    }
  }
};

template <class T>
struct LayerNormBackwardColumns {
  using A = acc_t<T>;

  const RowGrad<A>* __restrict__ grads;  // [rows]
  backend::Parameter<T> weight;          // [cols]
  T* __restrict__ grad_input;            // [rows, cols]

  HOST_DEVICE RowGrad<A> row_values(int64_t row) const { return grads[row]; }
  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&weight}}; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const RowGrad<A>& r) const {
    row.write_and_add_to_columns(
        grad_input, [=](A grad, A x, A w) { return r.grad_input(grad, x, w); },
        [=](A grad, A x) { return r.parameter_grads(grad, x); }, weight);
  }
};

template <class T>
void layer_norm(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps,
    Tensor& output, Tensor& mean, Tensor& rstd) {
  using A = acc_t<T>;
  const int64_t rows = mean.numel();
  const int64_t cols = input.size(input.dim() - 1);
  const std::array x{input.const_data_ptr<T>()};
  const backend::Parameter<T> w(weight, A(1), cols);
  const backend::Parameter<T> b(bias, A(0), cols);
  T* const out = output.mutable_data_ptr<T>();
  A* const means = mean.mutable_data_ptr<A>();
  A* const rstds = rstd.mutable_data_ptr<A>();
  const backend::Split split = backend::split_few_rows(rows, cols);
  if (split.segments == 1) {
    const LayerNorm<T> f{w, b, out, means, rstds, static_cast<A>(eps), average(A(1), cols)};
    backend::launch_rows(input, f, x, rows, cols);
    return;
  }
  Tensor buffer = new_empty(input, {rows * 3 * (split.segments + 1)}, mean.scalar_type());
  auto* const statistics = reinterpret_cast<Statistics<A>*>(buffer.mutable_data_ptr<A>());
  A* const center = buffer.mutable_data_ptr<A>() + 3 * rows;
  A* const residue = center + rows * split.segments;
  A* const squares = residue + rows * split.segments;
  LayerNormSegments<T> f{w, b, out, nullptr, center, residue, squares};
  backend::launch_segments(input, f, x, rows, cols, split);
  backend::launch_rows(
      input, CombineStatistics<A>{{split, cols}, statistics, means, rstds, static_cast<A>(eps)},
      std::array<const A*, 3>{center, residue, squares}, rows, split.segments);
  f.known = statistics;
  backend::launch_segments(input, f, x, rows, cols, split);
}

template <class T>
void layer_norm_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, Tensor& grad_input, SumOutput<T> grad_weight, SumOutput<T> grad_bias) {
  using A = acc_t<T>;
  const int64_t rows = mean.numel();
  const int64_t cols = input.size(input.dim() - 1);
  const std::array inputs{grad_output.const_data_ptr<T>(), input.const_data_ptr<T>()};
  const A* const means = mean.const_data_ptr<A>();
  const A* const rstds = rstd.const_data_ptr<A>();
  T* const out = grad_input.mutable_data_ptr<T>();
  const backend::Parameter<T> w(weight, A(1), cols);
  const A each = average(A(1), cols);
  const std::array parameter_grads{grad_weight, grad_bias};
  if (backend::launch_rows_and_column_sums(
          input, LayerNormBackward<T>{means, rstds, w, out, each}, inputs, rows, cols, parameter_grads)) {
    return;
  }
  const backend::Split split = backend::Split::even(cols, 2);
  constexpr int64_t kSize = sizeof(RowGrad<A>) / sizeof(A);
  Tensor buffer = new_empty(input, {rows * (2 * split.segments + kSize)}, mean.scalar_type());
  auto* const row_grads = reinterpret_cast<RowGrad<A>*>(buffer.mutable_data_ptr<A>());
  A* const grad_sums = buffer.mutable_data_ptr<A>() + kSize * rows;
  A* const projection_sums = grad_sums + rows * split.segments;
  backend::launch_segments(
      input, SegmentSums<T>{means, rstds, w, grad_sums, projection_sums}, inputs, rows, cols, split);
  backend::launch_rows(
      input, CombineSums<A>{means, rstds, row_grads, each}, std::array<const A*, 2>{grad_sums, projection_sums}, rows,
      split.segments);
  backend::launch_column_sums(
      input, LayerNormBackwardColumns<T>{row_grads, w, out}, inputs, 1, rows, cols, parameter_grads);
}

std::tuple<Tensor, Tensor, Tensor> fused_layer_norm(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps) {
  const CheckedInputs inputs = kFusedLayerNorm.check(input, weight, bias);
  check_not_negative(kFusedLayerNorm.name(), "eps", eps);
  const DeviceGuard guard(input);
  Tensor output = inputs.new_output(0);
  Tensor mean = inputs.new_output(1);
  Tensor rstd = inputs.new_output(2);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    layer_norm<typename decltype(tag)::type>(
        as_contiguous(input), as_parameter(weight), as_parameter(bias), eps, output, mean, rstd);
  });
  return {output, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> fused_layer_norm_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias) {
  const CheckedInputs inputs = kFusedLayerNormBackward.check(grad_output, input, mean, rstd, weight, bias);
  const DeviceGuard guard(input);
  Tensor grad_input = inputs.new_output(0);
  Tensor grad_weight = inputs.new_output(1);
  Tensor grad_bias = inputs.new_output(2);
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Output = SumOutput<T>;
    layer_norm_backward<T>(
        as_contiguous(grad_output), as_contiguous(input), as_contiguous(mean), as_contiguous(rstd),
        as_parameter(weight), grad_input, weight.has_value() ? Output::of(grad_weight) : Output(),
        bias.has_value() ? Output::of(grad_bias) : Output());
  });
  return {grad_input, grad_weight, grad_bias};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(extension_cpp::kFusedLayerNorm.schema());
  m.def(extension_cpp::kFusedLayerNormBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("fused_layer_norm", TORCH_BOX(&extension_cpp::fused_layer_norm));
  m.impl("fused_layer_norm_backward", TORCH_BOX(&extension_cpp::fused_layer_norm_backward));
}
