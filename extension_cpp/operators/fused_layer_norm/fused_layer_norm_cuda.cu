#include "fused_layer_norm.h"

#include "arguments.h"
#include "cuda/columns.cuh"
#include "cuda/rows.cuh"
#include "dispatch.h"

namespace extension_cpp {
namespace {

// Of no elements it is 0.
template <class A>
__device__ A average(A sum, int64_t count) {
  return sum / static_cast<A>(count > 0 ? count : 1);
}

// Rounded, as a sum of the one product is. A fused multiply-add in product(g, w) - average would leave the rounding
// error where a row has one column and 0 is meant, and rstd would enlarge it.
__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double product(double a, double b) { return __dmul_rn(a, b); }

// The mean of a row is held as two numbers, its float and what rounding took from it. Without the second, a row with
// mean 10000 and standard deviation 1 would be off by 0.0005 in float32.
template <class A>
struct Statistics {
  A center;
  A residue;
  A rstd;

  // From the sums of input - center and of its square.
  __device__ static Statistics of(A center, const cuda::Values<A, 2>& sums, int64_t cols, A eps) {
    const A residue = average(sums[0], cols);
    const A variance = average(sums[1], cols) - residue * residue;
    return {center, residue, A(1) / sqrt((variance < A(0) ? A(0) : variance) + eps)};
  }

  __device__ A mean() const { return isinf(center) ? center : center + residue; }
  __device__ A normalize(A x) const { return ((x - center) - residue) * rstd; }
};

// Statistics of segments of rows.
template <class A>
struct SegmentStatistics {
  A* __restrict__ center;   // [rows, segments]
  A* __restrict__ residue;  // [rows, segments]
  A* __restrict__ squares;  // [rows, segments], of the deviations from center + residue
};

// Whole rows, or a step of what is done with few long rows, to fill the GPU: the statistics of segments first, the
// output when those of the rows are known. One functor for the three, so that there are fewer kernels to compile.
template <class T>
struct LayerNorm {
  using A = acc_t<T>;
  static constexpr bool kKeep = true;

  cuda::Parameter<T> weight;  // [cols]
  cuda::Parameter<T> bias;    // [cols]
  T* __restrict__ output;     // [rows, cols]
  A* __restrict__ mean;       // [rows]
  A* __restrict__ rstd;       // [rows]
  A eps;
  SegmentStatistics<A> segments;  // to write, and nothing else
  const Statistics<A>* known;     // [rows]

  template <class Row>
  __device__ void operator()(Row& row) const {
    Statistics<A> statistics;
    if (known != nullptr) {
      statistics = known[row.index()];
    } else {
      const A center = average(row.sum([](A x) { return x; }), row.cols());
      const auto deviations = row.sum([=](A x) {
        const A deviation = x - center;
        return cuda::Values<A, 2>{deviation, deviation * deviation};
      });
      if (segments.center != nullptr) {
        if (row.leader()) {
          const A residue = average(deviations[0], row.cols());
          segments.center[row.segment_index()] = center;
          segments.residue[row.segment_index()] = residue;
          segments.squares[row.segment_index()] = deviations[1] - deviations[0] * residue;
        }
        return;
      }
      statistics = Statistics<A>::of(center, deviations, row.cols(), eps);
      if (row.leader()) {
        mean[row.index()] = statistics.mean();
        rstd[row.index()] = statistics.rstd;
      }
    }
    row.write(output, [=](A x, A w, A b) { return statistics.normalize(x) * w + b; }, weight, bias);
  }
};

// The number of elements of each segment.
template <class A>
struct SegmentSizes {
  cuda::Split split;
  int64_t cols;

  template <int N>
  __device__ cuda::Values<A, N> at(int64_t segment) const {
    cuda::Values<A, N> sizes;
#pragma unroll
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
  static constexpr bool kKeep = false;

  SegmentSizes<A> sizes;
  Statistics<A>* __restrict__ statistics;  // [rows]
  A* __restrict__ mean;                    // [rows]
  A* __restrict__ rstd;                    // [rows]
  A eps;

  template <class Row>
  __device__ void operator()(Row& row) const {
    const A center = average(row.sum([](A center, A, A, A size) { return center * size; }, sizes), sizes.cols);
    const auto deviations = row.sum(
        [=](A segment_center, A residue, A squares, A size) {
          const A deviation = (segment_center - center) + residue;
          return cuda::Values<A, 2>{size * deviation, squares + size * (deviation * deviation)};
        },
        sizes);
    if (row.leader()) {
      const auto result = Statistics<A>::of(center, deviations, sizes.cols, eps);
      statistics[row.index()] = result;
      mean[row.index()] = result.mean();
      rstd[row.index()] = result.rstd;
    }
  }
};

// With x_hat = (input - mean) * rstd and g = grad_output * weight:
//   grad_input = rstd * (g - average(g) - x_hat * average(g * x_hat))
//   grad_weight = sum over rows of grad_output * x_hat, grad_bias = sum over rows of grad_output
template <class T>
struct LayerNormBackward {
  using A = acc_t<T>;

  const A* __restrict__ mean;  // [rows]
  const A* __restrict__ rstd;  // [rows]
  cuda::Parameter<T> weight;   // [cols]
  T* __restrict__ grad_input;  // [rows, cols]

  template <class Row>
  __device__ void operator()(Row& row) const {
    const A center = mean[row.index()];
    const A scale = rstd[row.index()];
    const auto sums = row.sum(
        [=](A grad, A x, A w) {
          const A g = grad * w;
          return cuda::Values<A, 2>{g, g * ((x - center) * scale)};
        },
        weight);
    const A mean_grad = average(sums[0], row.cols());
    const A projection = average(sums[1], row.cols());
    row.write(
        grad_input,
        [=](A grad, A x, A w) { return scale * (product(grad, w) - mean_grad - (x - center) * scale * projection); },
        weight);
    row.add_to_columns([=](A grad, A x) { return cuda::Values<A, 2>{grad * ((x - center) * scale), grad}; });
  }
};

// Long rows: the two sums of segments, then the averages of rows, then the rest by columns.
template <class T>
struct SegmentSums {
  using A = acc_t<T>;
  static constexpr bool kKeep = false;

  const A* __restrict__ mean;       // [rows]
  const A* __restrict__ rstd;       // [rows]
  cuda::Parameter<T> weight;        // [cols]
  A* __restrict__ grad_sums;        // [rows, segments]
  A* __restrict__ projection_sums;  // [rows, segments]

  template <class Row>
  __device__ void operator()(Row& row) const {
    const A center = mean[row.index()];
    const A scale = rstd[row.index()];
    const auto sums = row.sum(
        [=](A grad, A x, A w) {
          const A g = grad * w;
          return cuda::Values<A, 2>{g, g * ((x - center) * scale)};
        },
        weight);
    if (row.leader()) {
      grad_sums[row.segment_index()] = sums[0];
      projection_sums[row.segment_index()] = sums[1];
    }
  }
};

// What the gradient of a row's input needs to know of the row.
template <class A>
struct RowGrad {
  A mean;
  A rstd;
  A mean_grad;
  A projection;
};

template <class A>
struct CombineSums {
  static constexpr bool kKeep = false;

  const A* __restrict__ mean;        // [rows]
  const A* __restrict__ rstd;        // [rows]
  RowGrad<A>* __restrict__ results;  // [rows]
  int64_t cols;

  template <class Row>
  __device__ void operator()(Row& row) const {
    const auto sums = row.sum([](A grad, A projection) { return cuda::Values<A, 2>{grad, projection}; });
    if (row.leader()) {
      const int64_t i = row.index();
      results[i] = {mean[i], rstd[i], average(sums[0], cols), average(sums[1], cols)};
    }
  }
};

template <class T>
struct LayerNormBackwardColumns {
  using A = acc_t<T>;

  const T* __restrict__ grad_output;     // [rows, cols]
  const T* __restrict__ input;           // [rows, cols]
  const RowGrad<A>* __restrict__ grads;  // [rows]
  cuda::Parameter<T> weight;             // [cols]
  T* __restrict__ grad_input;            // [rows, cols]

  template <int N>
  __device__ void operator()(int64_t i, int64_t row, int64_t col, cuda::Values<A, N> (&sums)[2]) const {
    const auto grad = cuda::load<N>(grad_output + i);
    const auto x = cuda::load<N>(input + i);
    const auto w = weight.template at<N>(col);
    const RowGrad<A> r = grads[row];
    cuda::Values<A, N> result;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A x_hat = (x[k] - r.mean) * r.rstd;
      result[k] = r.rstd * (product(grad[k], w[k]) - r.mean_grad - x_hat * r.projection);
      sums[0][k] += grad[k] * x_hat;
      sums[1][k] += grad[k];
    }
    cuda::store(grad_input + i, result);
  }
};

template <class T>
void layer_norm(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, Tensor& output,
    Tensor& mean, Tensor& rstd, int64_t rows, int64_t cols, double eps) {
  using A = acc_t<T>;
  const T* const x = input.const_data_ptr<T>();
  T* const out = output.mutable_data_ptr<T>();
  A* const means = mean.mutable_data_ptr<A>();
  A* const rstds = rstd.mutable_data_ptr<A>();
  const cuda::Parameter<T> w(weight, A(1), cols);
  const cuda::Parameter<T> b(bias, A(0), cols);
  LayerNorm<T> f{w, b, out, means, rstds, static_cast<A>(eps), {}, nullptr};
  const cuda::Split split = cuda::Split::even(cols);
  if (split.segments == 1 || rows >= cuda::multiprocessors()) {
    cuda::launch_rows(input, f, std::array{x}, rows, cols);
    return;
  }
  Tensor buffer = new_empty(input, {rows * 3 * (split.segments + 1)}, statistics_dtype(input));
  auto* const statistics = reinterpret_cast<Statistics<A>*>(buffer.mutable_data_ptr<A>());
  A* const center = buffer.mutable_data_ptr<A>() + 3 * rows;
  A* const residue = center + rows * split.segments;
  A* const squares = residue + rows * split.segments;
  f.segments = {center, residue, squares};
  cuda::launch_rows(input, f, std::array{x}, rows, cols, split);
  cuda::launch_rows(
      input, CombineStatistics<A>{{split, cols}, statistics, means, rstds, f.eps},
      std::array<const A*, 3>{center, residue, squares}, rows, split.segments);
  f.segments = {};
  f.known = statistics;
  cuda::launch_rows(input, f, std::array{x}, rows, cols, split);
}

template <class T>
void layer_norm_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, Tensor& grad_input, cuda::SumOutput<T> grad_weight,
    cuda::SumOutput<T> grad_bias, int64_t rows, int64_t cols) {
  using A = acc_t<T>;
  const std::array<const T*, 2> inputs{grad_output.const_data_ptr<T>(), input.const_data_ptr<T>()};
  const A* const means = mean.const_data_ptr<A>();
  const A* const rstds = rstd.const_data_ptr<A>();
  T* const out = grad_input.mutable_data_ptr<T>();
  const cuda::Parameter<T> w(weight, A(1), cols);
  const std::array parameter_grads{grad_weight, grad_bias};
  if (cuda::launch_rows_and_column_sums(
          input, LayerNormBackward<T>{means, rstds, w, out}, inputs, rows, cols, parameter_grads)) {
    return;
  }
  const cuda::Split split = cuda::Split::even(cols);
  Tensor buffer = new_empty(input, {rows * (2 * split.segments + 4)}, statistics_dtype(input));
  auto* const row_grads = reinterpret_cast<RowGrad<A>*>(buffer.mutable_data_ptr<A>());
  A* const grad_sums = buffer.mutable_data_ptr<A>() + 4 * rows;
  A* const projection_sums = grad_sums + rows * split.segments;
  cuda::launch_rows(input, SegmentSums<T>{means, rstds, w, grad_sums, projection_sums}, inputs, rows, cols, split);
  cuda::launch_rows(
      input, CombineSums<A>{means, rstds, row_grads, cols}, std::array<const A*, 2>{grad_sums, projection_sums}, rows,
      split.segments);
  const bool aligned = cuda::is_aligned(inputs[0]) && cuda::is_aligned(inputs[1]);
  cuda::launch_column_sums<T>(
      input, LayerNormBackwardColumns<T>{inputs[0], inputs[1], row_grads, w, out}, 1, rows, cols, aligned,
      parameter_grads);
}

std::tuple<Tensor, Tensor, Tensor> fused_layer_norm_cuda(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps) {
  check_fused_layer_norm(input, weight, bias, eps);
  const DeviceGuard guard(input);
  const Tensor x = as_contiguous(input);
  const std::optional<Tensor> w = as_contiguous(weight);
  const std::optional<Tensor> b = as_contiguous(bias);
  const std::vector<int64_t> row_sizes(x.sizes().begin(), x.sizes().end() - 1);
  Tensor output = new_empty(x, x.sizes());
  Tensor mean = new_empty(x, row_sizes, statistics_dtype(x));
  Tensor rstd = new_empty(x, row_sizes, statistics_dtype(x));
  const int64_t rows = mean.numel();
  const int64_t cols = x.size(x.dim() - 1);
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    layer_norm<T>(x, w, b, output, mean, rstd, rows, cols, eps);
  });
  return {output, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> fused_layer_norm_backward_cuda(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias) {
  check_fused_layer_norm_backward(grad_output, input, mean, rstd, weight, bias);
  const DeviceGuard guard(input);
  const Tensor grad = as_contiguous(grad_output);
  const Tensor x = as_contiguous(input);
  const Tensor means = as_contiguous(mean);
  const Tensor rstds = as_contiguous(rstd);
  const std::optional<Tensor> w = as_contiguous(weight);
  Tensor grad_input = new_empty(x, x.sizes());
  Tensor grad_weight = new_parameter_grad(x, weight);
  Tensor grad_bias = new_parameter_grad(x, bias);
  const int64_t rows = mean.numel();
  const int64_t cols = x.size(x.dim() - 1);
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Output = cuda::SumOutput<T>;
    layer_norm_backward<T>(
        grad, x, means, rstds, w, grad_input, weight.has_value() ? Output::of(grad_weight) : Output(),
        bias.has_value() ? Output::of(grad_bias) : Output(), rows, cols);
  });
  return {grad_input, grad_weight, grad_bias};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) {
  m.impl("fused_layer_norm", TORCH_BOX(&extension_cpp::fused_layer_norm_cuda));
  m.impl("fused_layer_norm_backward", TORCH_BOX(&extension_cpp::fused_layer_norm_backward_cuda));
}
