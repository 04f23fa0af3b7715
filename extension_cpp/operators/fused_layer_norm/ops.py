"""fused_layer_norm: layer normalisation of the last dimension, one pass over memory each way."""

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.batching import to_front, with_columns
from extension_cpp.shapes import batching_rule, operator, sum_dtype

_ops = torch.ops.extension_cpp


def fused_layer_norm(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05
) -> Tensor:
    """Normalises the last dimension: `(input - mean) / sqrt(var + eps) * weight + bias`.

    `mean` and `var` (biased, as in `torch.nn.functional.layer_norm`) are those of each row,
    computed in float32 (float64 for float64) about a number near the mean, so that a mean far from
    zero costs the output no accuracy. (It costs the gradients some: they are computed from the mean
    as float32 holds it.) `torch.ops.extension_cpp.fused_layer_norm` returns `(output, mean, rstd)`,
    the statistics with the shape `input.shape[:-1]`.

    Args:
        input: `(..., features)`, float64, float32, float16 or bfloat16, on CPU or CUDA, of any
            layout.
        weight: `(features,)`, dtype of `input`, or float32 for half types; 1 if None.
        bias: as `weight`; 0 if None.
        eps: a number that is not negative; not differentiable.

    Returns:
        A contiguous tensor with the shape and dtype of `input`. Differentiable to any order in
        `input`, `weight` and `bias`, in reverse and forward mode. The gradients of `weight` and
        `bias` are deterministic sums.

    Raises:
        RuntimeError: a dtype, device or shape other than the above; a negative `eps`.
        TypeError: a tensor for `eps` whose derivative would be lost.
    """
    checks.check_number("fused_layer_norm", "eps", eps)
    return _ops.fused_layer_norm(input, weight, bias, eps)[0]


def _fake(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = operator("extension_cpp::fused_layer_norm").fake(input, weight, bias, eps)
    checks.check_not_negative("fused_layer_norm", "eps", eps)
    return outputs


# The statistics are differentiable outputs like any other: the backward below is a function of
# them, so that the second derivative passes through their gradients. Otherwise grad_mean and
# grad_rstd are None.
def _setup_context(ctx, inputs, output):
    input, weight, bias, _ = inputs
    _, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, mean, rstd, weight, bias)


def _backward(ctx, grad_output, grad_mean, grad_rstd):
    input, mean, rstd, weight, bias = ctx.saved_tensors
    needs_input, needs_weight, needs_bias, _ = ctx.needs_input_grad
    grad_input = grad_weight = grad_bias = None
    if grad_output is not None:
        grad_input, grad_weight, grad_bias = gradients(
            grad_output, input, mean, rstd, weight, bias, needs_weight, needs_bias
        )
    grad_input = add_grad_of_statistics(grad_input, input, mean, rstd, grad_mean, grad_rstd)
    return (
        grad_input if needs_input else None,
        grad_weight if needs_weight else None,
        grad_bias if needs_bias else None,
        None,
    )


def gradients(grad_output, input, mean, rstd, weight, bias, needs_weight, needs_bias):
    """Those of input, weight and bias; of parameters only what is needed is sure to be there."""
    args = grad_output, input, mean, rstd, weight
    if needs_weight or needs_bias:
        return _ops.fused_layer_norm_backward(*args, bias)
    return _ops.fused_layer_norm_input_backward(*args), None, None


def add_grad_of_statistics(grad_input, input, mean, rstd, grad_mean, grad_rstd):
    """What the gradients of mean and rstd add to that of the input; each may be None."""
    if grad_mean is None and grad_rstd is None:
        return grad_input
    # d mean / d input = 1 / features, d rstd / d input = -rstd^3 (input - mean) / features
    grad = mean.new_zeros(()) if grad_mean is None else grad_mean.unsqueeze(-1)
    if grad_rstd is not None:
        centered = input.to(mean.dtype) - mean.unsqueeze(-1)
        grad = grad - (grad_rstd * rstd**3).unsqueeze(-1) * centered
    # Not before it is expanded: of no features the derivative of what is divided would be 0 / 0.
    grad = (grad.expand(input.shape) / input.shape[-1]).to(input.dtype)
    return grad if grad_input is None else grad_input + grad


# As functions of independent tensors, whatever mean and rstd are the statistics of.
def _normalized(input, mean, rstd):
    return (input - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)


def _grad_input(grad_output, x_hat, rstd, weight):
    def average(tensor):
        return tensor.mean(-1, keepdim=True)

    h = grad_output if weight is None else grad_output * weight
    return rstd.unsqueeze(-1) * (h - average(h) - x_hat * average(h * x_hat))


def input_backward_in_torch(grad_output, input, mean, rstd, weight):
    return _grad_input(grad_output, _normalized(input, mean, rstd), rstd, weight)


def backward_in_torch(grad_output, input, mean, rstd, weight, bias, columns=None):
    x_hat = _normalized(input, mean, rstd)
    columns = columns or input.shape[-1:]
    return (
        _grad_input(grad_output, x_hat, rstd, weight),
        None if weight is None else (grad_output * x_hat).sum_to_size(columns),
        None if bias is None else grad_output.sum_to_size(columns),
    )


def _per_example(parameter: Tensor, dim: int | None, like: Tensor) -> Tensor:
    """A parameter, one for each example or for all, to broadcast with `(batch, ..., features)`."""
    if dim is None:
        return parameter.to(like.dtype)
    parameter = parameter.movedim(dim, 0).to(like.dtype)
    return parameter.view(parameter.shape[0], *[1] * (like.dim() - 2), parameter.shape[1])


_batched_input = batching_rule("extension_cpp::fused_layer_norm")


def vmap(info, in_dims, input, weight, bias, eps):
    input_dim, weight_dim, bias_dim, _ = in_dims
    if weight_dim is None and bias_dim is None:
        return _batched_input(info, in_dims, input, weight, bias, eps)
    operator("extension_cpp::fused_layer_norm").check_examples(in_dims, input, weight, bias, eps)
    # Parameters of their own for every example: one call normalises, the rest is elementwise.
    (rows,) = to_front(info.batch_size, [input_dim], input)
    output, mean, rstd = _ops.fused_layer_norm(rows.to(sum_dtype(rows.dtype)), None, None, eps)
    if weight is not None:
        output = output * _per_example(weight, weight_dim, output)
    if bias is not None:
        output = output + _per_example(bias, bias_dim, output)
    return (output.to(input.dtype), mean, rstd), (0, 0, 0)


def _vmap_backward(info, in_dims, grad_output, input, mean, rstd, weight, bias):
    backward = _ops.fused_layer_norm_input_backward
    operator("extension_cpp::fused_layer_norm_backward").check_examples(
        in_dims, grad_output, input, mean, rstd, weight, bias
    )
    grad_output, input, mean, rstd = to_front(
        info.batch_size, in_dims[:4], grad_output, input, mean, rstd
    )
    weight_dim = in_dims[4]
    g, x = grad_output.to(mean.dtype), input.to(mean.dtype)
    # One call for the gradient of the input; those of the parameters are sums over each example's
    # rows.
    if weight_dim is None:
        grad_input = backward(grad_output, input, mean, rstd, weight)
    else:
        grad_input = backward(g * _per_example(weight, weight_dim, g), x, mean, rstd)
        grad_input = grad_input.to(input.dtype)
    rows = tuple(range(1, g.dim() - 1))
    grad_weight = grad_bias = input.new_empty((info.batch_size, 0))
    if weight is not None:
        terms = g * ((x - mean.unsqueeze(-1)) * rstd.unsqueeze(-1))
        grad_weight = (terms.sum(rows) if rows else terms).to(weight.dtype)
    if bias is not None:
        grad_bias = (g.sum(rows) if rows else g).to(bias.dtype)
    return (grad_input, grad_weight, grad_bias), (0, 0, 0)


registration.register_fake("extension_cpp::fused_layer_norm", _fake)
registration.register_fake(
    "extension_cpp::fused_layer_norm_backward", "extension_cpp::fused_layer_norm_input_backward"
)
registration.register_autograd(
    "extension_cpp::fused_layer_norm", _backward, setup_context=_setup_context
)
registration.register_autograd(
    "extension_cpp::fused_layer_norm_backward", reference=backward_in_torch
)
registration.register_autograd(
    "extension_cpp::fused_layer_norm_input_backward", reference=input_backward_in_torch
)
registration.register_vmap("extension_cpp::fused_layer_norm", vmap)
registration.register_vmap("extension_cpp::fused_layer_norm_backward", _vmap_backward)
registration.register_vmap(
    "extension_cpp::fused_layer_norm_input_backward",
    with_columns("extension_cpp::fused_layer_norm_input_backward", input_backward_in_torch),
)
# As torch.nn.functional.layer_norm, which autocast leaves alone on the CPU.
registration.register_autocast("extension_cpp::fused_layer_norm", "float32", devices=("cuda",))
