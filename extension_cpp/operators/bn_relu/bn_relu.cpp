// relu of a batch normalisation with given statistics: what follows a convolution at inference.
#include "each.h"
#include "rows.h"

#include <algorithm>

namespace extension_cpp {
namespace {

const Operator kBnRelu{
    "bn_relu(Tensor input, Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, float eps=1e-05) "
    "-> Tensor",
    "n c *spatial, c:wide, c:wide, c:wide, c:wide -> n c *spatial"};
const Operator kBnReluBackward{
    "bn_relu_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor bias, Tensor running_mean, "
    "Tensor running_var, float eps=1e-05) -> (Tensor, Tensor, Tensor)",
    "n c *spatial, n c *spatial, c:wide, c:wide, c:wide, c:wide -> n c *spatial, c:weight, c:bias"};

// What is done to the elements of a channel: relu((x - mean) * scale + bias).
template <class A>
struct Channel {
  A mean;
  A scale;  // weight / sqrt(running_var + eps)
  A bias;

  HOST_DEVICE A normalized(A x) const { return (x - mean) * scale + bias; }

  // NaN stays NaN.
  HOST_DEVICE A output(A x) const {
    const A y = normalized(x);
    return y <= A(0) ? A(0) : y;
  }

  HOST_DEVICE A grad_normalized(A grad, A x) const { return normalized(x) <= A(0) ? A(0) : grad; }
  HOST_DEVICE A grad_input(A grad, A x) const { return grad_normalized(grad, x) * scale; }

  // What is summed to the gradients of weight, but for a factor, and bias.
  HOST_DEVICE Values<A, 2> parameter_grads(A grad, A x) const {
    const A g = grad_normalized(grad, x);
    return {g * (x - mean), g};
  }
};

template <class T>
struct Channels {
  using Element = T;
  using A = acc_t<T>;

  backend::Parameter<T> weight;  // [channels]
  backend::Parameter<T> bias;    // [channels]
  backend::Parameter<T> mean;    // [channels]
  backend::Parameter<T> var;     // [channels]
  A eps;

  HOST_DEVICE A rstd(int64_t c) const { return math::rsqrt(value(var, c) + eps); }

  HOST_DEVICE Channel<A> operator[](int64_t c) const {
    return {value(mean, c), rstd(c) * value(weight, c), value(bias, c)};
  }

 private:
  HOST_DEVICE static A value(const backend::Parameter<T>& parameter, int64_t c) {
    return parameter.template at<1>(c)[0];
  }
};

// A tensor whose elements lie densely in any order is [outer, channels, inner] in memory. Where inner is 1, as in
// channels-last, a row has an element of every channel; else a row is of one.
struct Extent {
  int64_t channels;
  int64_t inner;
  int64_t outer;

  explicit Extent(const Tensor& dense)
      : channels(dense.size(1)),
        inner(channels == 1 ? std::max<int64_t>(1, dense.numel()) : dense.stride(1)),
        outer(dense.numel() / std::max<int64_t>(1, channels * inner)) {}

  bool channels_inside() const { return inner == 1; }
};

template <class T>
struct BnReluOfChannel {
  Channels<T> channels;
  Divider by_channels;
  T* __restrict__ output;  // [outer * channels, inner]

  BnReluOfChannel(const Channels<T>& channels, const Extent& extent, T* output)
      : channels(channels), by_channels(std::max<int64_t>(1, extent.channels)), output(output) {}

  HOST_DEVICE int64_t channel(int64_t row) const { return row - by_channels.divide(row) * by_channels.divisor(); }
  HOST_DEVICE Channel<acc_t<T>> row_values(int64_t row) const { return channels[channel(row)]; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Channel<acc_t<T>>& channel) const {
    row.write(output, [=](acc_t<T> x) { return channel.output(x); });
  }
};

template <class T>
struct BnReluBackwardOfChannel {
  using A = acc_t<T>;

  BnReluOfChannel<T> forward;   // whose output is the gradient of the input
  A* __restrict__ weight_sums;  // [outer * channels]
  A* __restrict__ bias_sums;    // [outer * channels]

  HOST_DEVICE Channel<A> row_values(int64_t row) const { return forward.row_values(row); }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Channel<A>& channel) const {
    const auto grads = row.sum([=](A grad, A x) { return channel.parameter_grads(grad, x); });
    if (row.leader()) {
      weight_sums[row.index()] = grads[0] * forward.channels.rstd(forward.channel(row.index()));
      bias_sums[row.index()] = grads[1];
    }
    row.write(forward.output, [=](A grad, A x) { return channel.grad_input(grad, x); });
  }
};

struct AddUp {
  static constexpr bool kWritesRows = false;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    using A = typename Row::A;
    row.add_to_columns([](A weight, A bias) { return Values<A, 2>{weight, bias}; });
  }
};

// Where channels are inside, a thread meets several, and has no registers to work them out: that is done ahead.
template <class A>
struct FoldedChannels {
  Tensor means;   // [channels]
  Tensor scales;  // [channels]
  Tensor biases;  // [channels]

  FoldedChannels(const Tensor& like, int64_t channels)
      : means(make(like, channels)), scales(make(like, channels)), biases(make(like, channels)) {}

  static Tensor make(const Tensor& like, int64_t channels) { return new_empty(like, {channels}, kDtypeOf<A>); }

  static backend::Parameter<A> parameter(const Tensor& tensor) {
    return backend::Parameter<A>(tensor, A(0), tensor.numel());
  }
};

template <class T>
struct Fold {
  using A = acc_t<T>;

  Channels<T> channels;
  A* __restrict__ mean;   // [channels]
  A* __restrict__ scale;  // [channels]
  A* __restrict__ bias;   // [channels]

  Fold(const Channels<T>& channels, FoldedChannels<A>& to)
      : channels(channels),
        mean(to.means.template mutable_data_ptr<A>()),
        scale(to.scales.template mutable_data_ptr<A>()),
        bias(to.biases.template mutable_data_ptr<A>()) {}

  HOST_DEVICE void operator()(int64_t c) const {
    const Channel<A> channel = channels[c];
    mean[c] = channel.mean;
    scale[c] = channel.scale;
    bias[c] = channel.bias;
  }
};

template <class T>
struct BnReluOfChannels {
  using A = acc_t<T>;

  backend::Parameter<A> mean;   // [channels]
  backend::Parameter<A> scale;  // [channels]
  backend::Parameter<A> bias;   // [channels]
  T* __restrict__ output;       // [outer, channels]

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    row.write(
        output, [](A x, A mean, A scale, A bias) { return Channel<A>{mean, scale, bias}.output(x); }, mean, scale,
        bias);
  }
};

template <class T>
struct BnReluBackwardOfChannels {
  using A = acc_t<T>;

  backend::Parameter<A> mean;   // [channels]
  backend::Parameter<A> scale;  // [channels]
  backend::Parameter<A> bias;   // [channels]
  T* __restrict__ grad_input;   // [outer, channels]

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    row.write_with_terms(
        grad_input,
        [](A grad, A x, A mean, A scale, A bias) {
          const Channel<A> channel{mean, scale, bias};
          return WithSums<A, 1, 2>{{channel.grad_input(grad, x)}, channel.parameter_grads(grad, x)};
        },
        mean, scale, bias);
  }
};

// The gradients of weight and bias, from what was summed.
template <class T>
struct ParameterGrads {
  using A = acc_t<T>;

  Channels<T> channels;
  const A* __restrict__ weight_sums;  // [channels]
  const A* __restrict__ bias_sums;    // [channels]
  SumOutput<T> grad_weight;           // [channels]
  SumOutput<T> grad_bias;             // [channels]

  HOST_DEVICE void operator()(int64_t c) const {
    grad_weight.store(c, weight_sums[c] * channels.rstd(c));
    grad_bias.store(c, bias_sums[c]);
  }
};

// compute(Channels<T>, Extent) for the dtype of a dense tensor.
template <class Compute>
void with_channels(
    const Tensor& dense, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
    const Tensor& running_var, double eps, const Compute& compute) {
  const Extent extent(dense);
  dispatch_floating(dense.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    std::array<std::optional<Tensor>, 4> held;  // by the parameters, as long as kernels are launched
    const Tensor* const given[] = {&weight, &bias, &running_mean, &running_var};
    std::transform(given, given + 4, held.begin(), [](const Tensor* tensor) { return as_parameter(*tensor); });
    const auto parameter = [&](size_t k) { return backend::Parameter<T>(held[k], A(0), extent.channels); };
    compute(Channels<T>{parameter(0), parameter(1), parameter(2), parameter(3), static_cast<A>(eps)}, extent);
  });
}

Tensor bn_relu(
    const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
    const Tensor& running_var, double eps) {
  kBnRelu.check(input, weight, bias, running_mean, running_var);
  check_not_negative(kBnRelu.name(), "eps", eps);
  const DeviceGuard guard(input);
  Tensor output = new_elementwise(input.sizes(), input);
  const Tensor x = with_layout_of(output, input);
  with_channels(output, weight, bias, running_mean, running_var, eps, [&](const auto& channels, const Extent& extent) {
    using T = typename std::decay_t<decltype(channels)>::Element;
    T* const to = output.mutable_data_ptr<T>();
    const std::array from{x.const_data_ptr<T>()};
    if (extent.channels_inside()) {
      FoldedChannels<acc_t<T>> folded(input, extent.channels);
      backend::for_each_index(input, extent.channels, Fold<T>(channels, folded));
      const BnReluOfChannels<T> f{
          folded.parameter(folded.means), folded.parameter(folded.scales), folded.parameter(folded.biases), to};
      backend::launch_rows(input, f, from, extent.outer, extent.channels);
    } else {
      const BnReluOfChannel<T> f(channels, extent, to);
      const int64_t rows = extent.outer * extent.channels;
      launch_rows(input, f, from, rows, extent.inner, backend::split_few_rows(rows, extent.inner));
    }
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> bn_relu_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Tensor& bias,
    const Tensor& running_mean, const Tensor& running_var, double eps) {
  const CheckedInputs inputs = kBnReluBackward.check(grad_output, input, weight, bias, running_mean, running_var);
  check_not_negative(kBnReluBackward.name(), "eps", eps);
  const DeviceGuard guard(input);
  Tensor grad_input = new_elementwise(input.sizes(), grad_output, input);
  Tensor grad_weight = inputs.new_output(1);
  Tensor grad_bias = inputs.new_output(2);
  const Tensor grad = with_layout_of(grad_input, grad_output);
  const Tensor x = with_layout_of(grad_input, input);
  with_channels(
      grad_input, weight, bias, running_mean, running_var, eps, [&](const auto& channels, const Extent& extent) {
        using T = typename std::decay_t<decltype(channels)>::Element;
        using A = acc_t<T>;
        T* const to = grad_input.mutable_data_ptr<T>();
        const std::array from{grad.const_data_ptr<T>(), x.const_data_ptr<T>()};
        const auto to_weight = SumOutput<T>::of(grad_weight);
        const auto to_bias = SumOutput<T>::of(grad_bias);
        const int64_t size = (extent.channels_inside() ? 1 : extent.outer) * extent.channels;
        Tensor buffer = FoldedChannels<A>::make(input, 2 * size);
        A* const weight_sums = buffer.mutable_data_ptr<A>();
        A* const bias_sums = weight_sums + size;
        if (!extent.channels_inside()) {
          const BnReluBackwardOfChannel<T> f{{channels, extent, to}, weight_sums, bias_sums};
          backend::launch_rows(input, f, from, size, extent.inner);
          backend::launch_column_sums(
              input, AddUp(), std::array<const A*, 2>{weight_sums, bias_sums}, 1, extent.outer, extent.channels,
              std::array{to_weight, to_bias});
          return;
        }
        FoldedChannels<A> folded(input, extent.channels);
        backend::for_each_index(input, extent.channels, Fold<T>(channels, folded));
        const BnReluBackwardOfChannels<T> f{
            folded.parameter(folded.means), folded.parameter(folded.scales), folded.parameter(folded.biases), to};
        backend::launch_column_sums(
            input, f, from, 1, extent.outer, extent.channels,
            std::array{SumOutput<T>(weight_sums), SumOutput<T>(bias_sums)});
        backend::for_each_index(
            input, extent.channels, ParameterGrads<T>{channels, weight_sums, bias_sums, to_weight, to_bias});
      });
  return {grad_input, grad_weight, grad_bias};
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kBnRelu.schema());
  m.def(kBnReluBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("bn_relu", TORCH_BOX(&bn_relu));
  m.impl("bn_relu_backward", TORCH_BOX(&bn_relu_backward));
}

}  // namespace
}  // namespace extension_cpp
