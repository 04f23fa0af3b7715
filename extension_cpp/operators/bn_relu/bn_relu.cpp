// relu of a batch normalisation with given statistics: what follows a convolution at inference.
#include "channels.h"

#include <algorithm>
#include <array>

namespace extension_cpp::bn_relu {

const Operator kBnRelu{
    "bn_relu(Tensor input, Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, float eps=1e-05) "
    "-> Tensor",
    "n c *spatial, c:wide, c:wide, c:wide, c:wide -> n c *spatial"};
const Operator kBnReluBackward{
    "bn_relu_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor bias, Tensor running_mean, "
    "Tensor running_var, float eps=1e-05) -> (Tensor, Tensor, Tensor)",
    "n c *spatial, n c *spatial, c:wide, c:wide, c:wide, c:wide -> n c *spatial, c:weight, c:bias"};
// Where the gradients of weight and bias are not asked for.
const Operator kBnReluInputBackward{
    "bn_relu_input_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor bias, Tensor running_mean, "
    "Tensor running_var, float eps=1e-05) -> Tensor",
    "n c *spatial, n c *spatial, c:wide, c:wide, c:wide, c:wide -> n c *spatial"};

// The parameters, and what follows from them for a channel.
template <class T>
struct Channels {
  using A = acc_t<T>;

  backend::Parameter<T> weight;  // [channels]
  backend::Parameter<T> bias;    // [channels]
  backend::Parameter<T> mean;    // [channels]
  backend::Parameter<T> var;     // [channels]
  A eps;

  // Of N channels from c on: mean, weight / sqrt(running_var + eps), bias.
  template <int N, class Index>
  HOST_DEVICE Values<Values<A, 3>, N> numbers(Index c) const {
    using Result = Values<Values<A, 3>, N>;
    const auto of = [this](const auto& weights, const auto& biases, const auto& means, const auto& vars) {
      Result result;
      for (int n = 0; n < N; ++n) {
        result[n] = {means[n], math::rsqrt(vars[n] + eps) * weights[n], biases[n]};
      }
      return result;
    };
    return backend::with_values_at<Result, N>(c, of, weight, bias, mean, var);
  }

  // Of what BnReluBackward sums.
  HOST_DEVICE Values<A, 2> sum_factors(int64_t c) const { return {math::rsqrt(var.template at<1>(c)[0] + eps), A(1)}; }
};

template <class A>
HOST_DEVICE A normalized(const Values<A, 3>& channel, A x) {
  return (x - channel[0]) * channel[1] + channel[2];
}

template <class A>
struct BnRelu {
  // NaN stays NaN.
  HOST_DEVICE A operator()(const Values<A, 3>& channel, A x) const {
    const A y = normalized(channel, x);
    return y <= A(0) ? A(0) : y;
  }
};

template <class A>
HOST_DEVICE A grad_before_relu(const Values<A, 3>& channel, A grad_output, A x) {
  return normalized(channel, x) <= A(0) ? A(0) : grad_output;
}

template <class A>
struct BnReluBackward {
  // The gradient of the input, and what is summed to those of weight, but for a factor, and bias.
  HOST_DEVICE WithSums<A, 1, 2> operator()(const Values<A, 3>& channel, A grad_output, A x) const {
    const A grad = grad_before_relu(channel, grad_output, x);
    return {{grad * channel[1]}, {grad * (x - channel[0]), grad}};
  }
};

template <class A>
struct BnReluInputBackward {
  HOST_DEVICE A operator()(const Values<A, 3>& channel, A grad_output, A x) const {
    return grad_before_relu(channel, grad_output, x) * channel[1];
  }
};

// compute(Type<T>, Channels<T>) for the dtype of `like`.
template <class Compute>
void with_channels(
    const Tensor& like, const Tensor& weight, const Tensor& bias, const Tensor& running_mean, const Tensor& running_var,
    double eps, const Compute& compute) {
  dispatch_floating(like.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    std::array<std::optional<Tensor>, 4> held;  // by the parameters, as long as kernels are launched
    const Tensor* const given[] = {&weight, &bias, &running_mean, &running_var};
    std::transform(given, given + 4, held.begin(), [](const Tensor* tensor) { return as_contiguous(*tensor); });
    const auto parameter = [&](size_t k) { return backend::Parameter<T>(held[k], A(0), weight.numel()); };
    compute(tag, Channels<T>{parameter(0), parameter(1), parameter(2), parameter(3), static_cast<A>(eps)});
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
  with_channels(input, weight, bias, running_mean, running_var, eps, [&](auto tag, const auto& channels) {
    using T = typename decltype(tag)::type;
    backend::for_channels(
        input, channels, BnRelu<acc_t<T>>(), Images(output), std::array{x.const_data_ptr<T>()},
        output.mutable_data_ptr<T>());
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
  with_channels(input, weight, bias, running_mean, running_var, eps, [&](auto tag, const auto& channels) {
    using T = typename decltype(tag)::type;
    backend::for_channels_with_sums(
        input, channels, BnReluBackward<acc_t<T>>(), Images(grad_input),
        std::array{grad.const_data_ptr<T>(), x.const_data_ptr<T>()}, grad_input.mutable_data_ptr<T>(),
        std::array{SumOutput<T>::of(grad_weight), SumOutput<T>::of(grad_bias)});
  });
  return {grad_input, grad_weight, grad_bias};
}

Tensor bn_relu_input_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Tensor& bias,
    const Tensor& running_mean, const Tensor& running_var, double eps) {
  kBnReluInputBackward.check(grad_output, input, weight, bias, running_mean, running_var);
  check_not_negative(kBnReluInputBackward.name(), "eps", eps);
  const DeviceGuard guard(input);
  Tensor grad_input = new_elementwise(input.sizes(), grad_output, input);
  const Tensor grad = with_layout_of(grad_input, grad_output);
  const Tensor x = with_layout_of(grad_input, input);
  with_channels(input, weight, bias, running_mean, running_var, eps, [&](auto tag, const auto& channels) {
    using T = typename decltype(tag)::type;
    backend::for_channels(
        input, channels, BnReluInputBackward<acc_t<T>>(), Images(grad_input),
        std::array{grad.const_data_ptr<T>(), x.const_data_ptr<T>()}, grad_input.mutable_data_ptr<T>());
  });
  return grad_input;
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kBnRelu.schema());
  m.def(kBnReluBackward.schema());
  m.def(kBnReluInputBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("bn_relu", TORCH_BOX(&bn_relu));
  m.impl("bn_relu_backward", TORCH_BOX(&bn_relu_backward));
  m.impl("bn_relu_input_backward", TORCH_BOX(&bn_relu_input_backward));
}

}  // namespace extension_cpp::bn_relu
