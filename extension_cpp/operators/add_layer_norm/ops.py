"""add_layer_norm: adds a residual, then layer normalisation, one pass over memory each way."""

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.batching import to_front, with_columns
from extension_cpp.operators.fused_layer_norm import ops as layer_norm
from extension_cpp.shapes import batching_rule, operator

_ops = torch.ops.extension_cpp


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> tuple[Tensor, Tensor]:
    """The residual step of a transformer block: `sum = input + residual`, and the layer norm of it.

    The sum is rounded to its dtype, as by itself, and what is normalised is that: the results are
    those of `fused_layer_norm(input + residual, weight, bias, eps)`, which says more of them.
    `torch.ops.extension_cpp.add_layer_norm` returns `(normalised, sum, mean, rstd)`, the statistics
    with the shape `input.shape[:-1]`.

    Args:
        input: `(..., features)`, float64, float32, float16 or bfloat16, on CPU or CUDA, of any
            layout.
        residual: shape, dtype and device of `input`.
        weight: `(features,)`, dtype of `input`, or float32 for half types; 1 if None.
        bias: as `weight`; 0 if None.
        eps: a number that is not negative; not differentiable.

    Returns:
        `(normalised, sum)`, contiguous tensors with the shape and dtype of `input`. Both are
        differentiable to any order in `input`, `residual`, `weight` and `bias`, in reverse and
        forward mode. The gradients of `weight` and `bias` are deterministic sums.

    Raises:
        RuntimeError: a dtype, device or shape other than the above; a negative `eps`.
        TypeError: a tensor for `eps` whose derivative would be lost.
    """
    checks.check_number("add_layer_norm", "eps", eps)
    return _ops.add_layer_norm(input, residual, weight, bias, eps)[:2]


def _fake(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outputs = operator("extension_cpp::add_layer_norm").fake(input, residual, weight, bias, eps)
    checks.check_not_negative("add_layer_norm", "eps", eps)
    return outputs


def _setup_context(ctx, inputs, output):
    _, _, weight, bias, _ = inputs
    _, sum, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sum, mean, rstd, weight, bias)


def _backward(ctx, grad_output, grad_sum, grad_mean, grad_rstd):
    sum, mean, rstd, weight, bias = ctx.saved_tensors
    needs_input, needs_residual, needs_weight, needs_bias, _ = ctx.needs_input_grad
    grad, grad_weight, grad_bias = grad_sum, None, None
    if grad_output is not None and grad_sum is not None:
        args = grad_output, grad_sum, sum, mean, rstd, weight
        if needs_weight or needs_bias:
            grad, grad_weight, grad_bias = _ops.add_layer_norm_backward(*args, bias)
        else:
            grad = _ops.add_layer_norm_input_backward(*args)
    elif grad_output is not None:
        grad, grad_weight, grad_bias = layer_norm.gradients(
            grad_output, sum, mean, rstd, weight, bias, needs_weight, needs_bias
        )
    grad = layer_norm.add_grad_of_statistics(grad, sum, mean, rstd, grad_mean, grad_rstd)
    return (
        grad if needs_input else None,
        grad if needs_residual else None,
        grad_weight if needs_weight else None,
        grad_bias if needs_bias else None,
        None,
    )


def _input_backward_in_torch(grad_output, grad_sum, sum, mean, rstd, weight):
    return layer_norm.input_backward_in_torch(grad_output, sum, mean, rstd, weight) + grad_sum


def _backward_in_torch(grad_output, grad_sum, sum, mean, rstd, weight, bias, columns=None):
    grad, grad_weight, grad_bias = layer_norm.backward_in_torch(
        grad_output, sum, mean, rstd, weight, bias, columns
    )
    return grad + grad_sum, grad_weight, grad_bias


_batched_inputs = batching_rule("extension_cpp::add_layer_norm")


def _vmap(info, in_dims, input, residual, weight, bias, eps):
    if in_dims[2] is None and in_dims[3] is None:
        return _batched_inputs(info, in_dims, input, residual, weight, bias, eps)
    operator("extension_cpp::add_layer_norm").check_examples(
        in_dims, input, residual, weight, bias, eps
    )
    checks.check_not_negative("add_layer_norm", "eps", eps)
    input, residual = to_front(info.batch_size, in_dims[:2], input, residual)
    sum = input + residual
    (output, *statistics), _ = layer_norm.vmap(info, (0, *in_dims[2:]), sum, weight, bias, eps)
    return (output, sum, *statistics), (0, 0, 0, 0)


registration.register_fake("extension_cpp::add_layer_norm", _fake)
registration.register_fake(
    "extension_cpp::add_layer_norm_backward", "extension_cpp::add_layer_norm_input_backward"
)
registration.register_autograd(
    "extension_cpp::add_layer_norm", _backward, setup_context=_setup_context
)
registration.register_autograd(
    "extension_cpp::add_layer_norm_backward", reference=_backward_in_torch
)
registration.register_autograd(
    "extension_cpp::add_layer_norm_input_backward", reference=_input_backward_in_torch
)
registration.register_vmap("extension_cpp::add_layer_norm", _vmap)
registration.register_vmap(
    "extension_cpp::add_layer_norm_backward",
    with_columns("extension_cpp::add_layer_norm_backward", _backward_in_torch),
)
registration.register_vmap(
    "extension_cpp::add_layer_norm_input_backward",
    with_columns("extension_cpp::add_layer_norm_input_backward", _input_backward_in_torch),
)
# On a GPU as the norm, on the CPU, where autocast leaves that alone, as the addition.
registration.register_autocast("extension_cpp::add_layer_norm", "float32", devices=("cuda",))
registration.register_autocast("extension_cpp::add_layer_norm", "promote", devices=("cpu",))
