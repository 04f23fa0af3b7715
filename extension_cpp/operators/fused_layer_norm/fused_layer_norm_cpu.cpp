#include "fused_layer_norm.h"

#include "cpu/columns.h"
#include "cpu/elementwise.h"
#include "cpu/rows.h"
#include "dispatch.h"

#include <cmath>

namespace extension_cpp {
namespace {

// A parameter in the type of the arithmetic, or a constant where there is none.
template <class T>
class Parameter {
 public:
  using A = acc_t<T>;

  Parameter(const std::optional<Tensor>& parameter, int64_t cols, A otherwise) {
    if (!parameter.has_value()) {
      values_.assign(cols, otherwise);
      data_ = values_.data();
      return;
    }
    tensor_ = as_contiguous(*parameter);
    if (tensor_->scalar_type() == statistics_dtype(*tensor_)) {
      data_ = tensor_->template const_data_ptr<A>();
    } else {
      const T* const data = tensor_->template const_data_ptr<T>();
      values_.assign(data, data + cols);
      data_ = values_.data();
    }
  }

  const A* data() const { return data_; }

 private:
  std::optional<Tensor> tensor_;
  std::vector<A> values_;
  const A* data_;
};

// Where the gradient of a parameter is summed, in the type of the arithmetic.
template <class T>
class ParameterGrad {
 public:
  using A = acc_t<T>;

  ParameterGrad(Tensor& grad, int64_t cols) : grad_(grad), cols_(cols) {
    if (grad.numel() == cols && grad.scalar_type() == statistics_dtype(grad)) {
      data_ = grad.template mutable_data_ptr<A>();
    } else {
      values_.resize(cols);
      data_ = values_.data();
    }
  }

  A* data() { return data_; }

  void finish() {
    if (!values_.empty() && grad_.numel() == cols_) {
      T* const grad = grad_.template mutable_data_ptr<T>();
      for (int64_t col = 0; col < cols_; ++col) {
        grad[col] = static_cast<T>(values_[col]);
      }
    }
  }

 private:
  Tensor& grad_;
  int64_t cols_;
  std::vector<A> values_;
  A* data_;
};

// Of no elements it is 0.
template <class A>
CPU_INLINE A average(A sum, int64_t count) {
  return sum / static_cast<A>(std::max<int64_t>(1, count));
}

// The mean of a row is held as two numbers, its float and what rounding took from it. Without the second, a row with
// mean 10000 and standard deviation 1 would be off by 0.0005 in float32.
template <class A>
struct Statistics {
  A center;
  A residue;
  A rstd;

  // From the sums of input - center and of its square.
  Statistics(A center, const std::array<A, 2>& sums, int64_t cols, A eps) : center(center) {
    residue = average(sums[0], cols);
    const A variance = average(sums[1], cols) - residue * residue;
    rstd = A(1) / std::sqrt((variance < A(0) ? A(0) : variance) + eps);
  }

  A mean() const { return std::isinf(center) ? center : center + residue; }
  A normalize(A x) const { return ((x - center) - residue) * rstd; }
};

// Rows that fit the caches are read from memory once.
template <class T, class A>
void layer_norm_short_rows(
    const T* input,   // [rows, cols]
    const A* weight,  // [cols]
    const A* bias,    // [cols]
    T* output,        // [rows, cols]
    A* mean,          // [rows]
    A* rstd,          // [rows]
    int64_t rows, int64_t cols, A eps) {
  parallel_for(0, rows, cpu::row_grain(cols), [=](int64_t begin, int64_t end) CPU_CLONES {
    for (int64_t row = begin; row < end; ++row) {
      const T* const x = input + row * cols;
      T* const out = output + row * cols;
      const auto sum = cpu::sum_over<A, 1>(cols, [=](int64_t j, A(&sums)[1]) { sums[0] += static_cast<A>(x[j]); });
      const A center = average(sum[0], cols);
      const auto deviations = cpu::sum_over<A, 2>(cols, [=](int64_t j, A(&sums)[2]) {
        const A deviation = static_cast<A>(x[j]) - center;
        sums[0] += deviation;
        sums[1] += deviation * deviation;
      });
      const Statistics<A> statistics(center, deviations, cols, eps);
      CPU_INDEPENDENT_LOOP
      for (int64_t j = 0; j < cols; ++j) {
        out[j] = static_cast<T>(statistics.normalize(static_cast<A>(x[j])) * weight[j] + bias[j]);
      }
      mean[row] = statistics.mean();
      rstd[row] = statistics.rstd;
    }
  });
}

// Few long rows: each is shared out between threads.
template <class T, class A>
void layer_norm_long_rows(
    const T* input,   // [rows, cols]
    const A* weight,  // [cols]
    const A* bias,    // [cols]
    T* output,        // [rows, cols]
    A* mean,          // [rows]
    A* rstd,          // [rows]
    int64_t rows, int64_t cols, A eps) {
  cpu::row_sums<A, 1>(
      rows, cols, [=](int64_t i, int64_t, int64_t, A(&sums)[1]) { sums[0] += static_cast<A>(input[i]); },
      [=](int64_t row, const std::array<A, 1>& sums) { mean[row] = average(sums[0], cols); });
  std::vector<Statistics<A>> buffer(rows, Statistics<A>(A(0), {}, cols, eps));
  Statistics<A>* const statistics = buffer.data();
  cpu::row_sums<A, 2>(
      rows, cols,
      [=](int64_t i, int64_t row, int64_t, A(&sums)[2]) {
        const A deviation = static_cast<A>(input[i]) - mean[row];
        sums[0] += deviation;
        sums[1] += deviation * deviation;
      },
      [=](int64_t row, const std::array<A, 2>& sums) {
        statistics[row] = Statistics<A>(mean[row], sums, cols, eps);
        mean[row] = statistics[row].mean();
        rstd[row] = statistics[row].rstd;
      });
  cpu::for_each_element(rows, cols, [=](int64_t i, int64_t col) {
    const int64_t row = (i - col) / cols;
    output[i] = static_cast<T>(statistics[row].normalize(static_cast<A>(input[i])) * weight[col] + bias[col]);
  });
}

// With x_hat = (input - mean) * rstd and g = grad_output * weight:
//   grad_input = rstd * (g - average(g) - x_hat * average(g * x_hat))
//   grad_weight = sum over rows of grad_output * x_hat, grad_bias = sum over rows of grad_output
template <class T, class A>
void layer_norm_backward_short_rows(
    const T* grad_output,  // [rows, cols]
    const T* input,        // [rows, cols]
    const A* mean,         // [rows]
    const A* rstd,         // [rows]
    const A* weight,       // [cols]
    T* grad_input,         // [rows, cols]
    A* grad_weight,        // [cols]
    A* grad_bias,          // [cols]
    int64_t rows, int64_t cols) {
  // As in cpu::column_sums, blocks depend on the shape alone: equal bits with any number of threads.
  const int64_t block_rows = std::max<int64_t>(8, (rows + 127) / 128);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const std::unique_ptr<A[]> buffer(new A[blocks * 2 * cols]);
  A* const partials = buffer.get();  // [blocks, 2, cols]
  // In a row of one column g - average(g) is 0. A fused multiply-add would leave the rounding error of g, which rstd
  // enlarges: let g be 0 there.
  const A zero(0);
  const A* const own_weight = cols == 1 ? &zero : weight;
  const int64_t grain = std::max<int64_t>(1, cpu::row_grain(cols) / block_rows);
  parallel_for(0, blocks, grain, [=](int64_t begin, int64_t end) CPU_CLONES {
    for (int64_t block = begin; block < end; ++block) {
      A* const weight_sums = partials + block * 2 * cols;
      A* const bias_sums = weight_sums + cols;
      std::fill_n(weight_sums, 2 * cols, A(0));
      const int64_t last_row = std::min(rows, (block + 1) * block_rows);
      for (int64_t row = block * block_rows; row < last_row; ++row) {
        const T* const grad = grad_output + row * cols;
        const T* const x = input + row * cols;
        T* const out = grad_input + row * cols;
        const A center = mean[row];
        const A scale = rstd[row];
        const auto sums = cpu::sum_over<A, 2>(cols, [=](int64_t j, A(&acc)[2]) {
          const A g = static_cast<A>(grad[j]) * weight[j];
          acc[0] += g;
          acc[1] += g * ((static_cast<A>(x[j]) - center) * scale);
        });
        const A mean_grad = cols == 1 ? A(0) : average(sums[0], cols);
        const A projection = average(sums[1], cols);
        CPU_INDEPENDENT_LOOP
        for (int64_t j = 0; j < cols; ++j) {
          const A g = static_cast<A>(grad[j]);
          const A x_hat = (static_cast<A>(x[j]) - center) * scale;
          out[j] = static_cast<T>(scale * (g * own_weight[j] - mean_grad - x_hat * projection));
          weight_sums[j] += g * x_hat;
          bias_sums[j] += g;
        }
      }
    }
  });
  cpu::add_partials<A>(blocks, cols, partials, std::array{grad_weight, grad_bias});
}

template <class T, class A>
void layer_norm_backward_long_rows(
    const T* grad_output,  // [rows, cols]
    const T* input,        // [rows, cols]
    const A* mean,         // [rows]
    const A* rstd,         // [rows]
    const A* weight,       // [cols]
    T* grad_input,         // [rows, cols]
    A* grad_weight,        // [cols]
    A* grad_bias,          // [cols]
    int64_t rows, int64_t cols) {
  const std::unique_ptr<std::array<A, 2>[]> buffer(new std::array<A, 2>[rows]);
  std::array<A, 2>* const averages = buffer.get();
  cpu::row_sums<A, 2>(
      rows, cols,
      [=](int64_t i, int64_t row, int64_t col, A(&sums)[2]) {
        const A g = static_cast<A>(grad_output[i]) * weight[col];
        sums[0] += g;
        sums[1] += g * ((static_cast<A>(input[i]) - mean[row]) * rstd[row]);
      },
      [=](int64_t row, const std::array<A, 2>& sums) {
        averages[row] = {average(sums[0], cols), average(sums[1], cols)};
      });
  cpu::column_sums<A>(
      1, rows, cols,
      [=](int64_t i, int64_t row, int64_t col, A(&sums)[2]) {
        const A g = static_cast<A>(grad_output[i]);
        const A x_hat = (static_cast<A>(input[i]) - mean[row]) * rstd[row];
        grad_input[i] = static_cast<T>(rstd[row] * (g * weight[col] - averages[row][0] - x_hat * averages[row][1]));
        sums[0] += g * x_hat;
        sums[1] += g;
      },
      std::array{grad_weight, grad_bias});
}

std::tuple<Tensor, Tensor, Tensor> fused_layer_norm_cpu(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps) {
  check_fused_layer_norm(input, weight, bias, eps);
  const Tensor x = as_contiguous(input);
  const std::vector<int64_t> row_sizes(x.sizes().begin(), x.sizes().end() - 1);
  Tensor output = new_empty(x, x.sizes());
  Tensor mean = new_empty(x, row_sizes, statistics_dtype(x));
  Tensor rstd = new_empty(x, row_sizes, statistics_dtype(x));
  const int64_t rows = mean.numel();
  const int64_t cols = x.size(x.dim() - 1);
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const auto kernel = cols <= cpu::kSegment ? layer_norm_short_rows<T, A> : layer_norm_long_rows<T, A>;
    kernel(
        x.const_data_ptr<T>(), Parameter<T>(weight, cols, A(1)).data(), Parameter<T>(bias, cols, A(0)).data(),
        output.mutable_data_ptr<T>(), mean.mutable_data_ptr<A>(), rstd.mutable_data_ptr<A>(), rows, cols,
        static_cast<A>(eps));
  });
  return {output, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> fused_layer_norm_backward_cpu(
    const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias) {
  check_fused_layer_norm_backward(grad_output, input, mean, rstd, weight, bias);
  const Tensor grad = as_contiguous(grad_output);
  const Tensor x = as_contiguous(input);
  const Tensor mean_ = as_contiguous(mean);
  const Tensor rstd_ = as_contiguous(rstd);
  Tensor grad_input = new_empty(x, x.sizes());
  Tensor grad_weight = new_parameter_grad(x, weight);
  Tensor grad_bias = new_parameter_grad(x, bias);
  const int64_t rows = mean.numel();
  const int64_t cols = x.size(x.dim() - 1);
  dispatch_floating(x.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    ParameterGrad<T> weight_sums(grad_weight, cols);
    ParameterGrad<T> bias_sums(grad_bias, cols);
    const auto kernel =
        cols <= cpu::kSegment ? layer_norm_backward_short_rows<T, A> : layer_norm_backward_long_rows<T, A>;
    kernel(
        grad.const_data_ptr<T>(), x.const_data_ptr<T>(), mean_.const_data_ptr<A>(), rstd_.const_data_ptr<A>(),
        Parameter<T>(weight, cols, A(1)).data(), grad_input.mutable_data_ptr<T>(), weight_sums.data(), bias_sums.data(),
        rows, cols);
    weight_sums.finish();
    bias_sums.finish();
  });
  return {grad_input, grad_weight, grad_bias};
}

}  // namespace
}  // namespace extension_cpp

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) {
  m.impl("fused_layer_norm", TORCH_BOX(&extension_cpp::fused_layer_norm_cpu));
  m.impl("fused_layer_norm_backward", TORCH_BOX(&extension_cpp::fused_layer_norm_backward_cpu));
}
