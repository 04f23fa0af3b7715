"""EDIT: my_op, in one line."""

import torch
from torch import Tensor

from extension_cpp.batching import first_example, to_front
from extension_cpp.checks import (
    check_dtype,
    check_floating,
    check_min_dim,
    check_number,
    check_same_device,
    check_same_dtype,
    check_shape,
)
from extension_cpp.registration import register_autograd, register_vmap


def my_op(input: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """EDIT: Squares the distance from the row's mean, and more, made of every argument.

    Args:
        input: of shape `(..., cols)`, of any layout, on CPU or CUDA;
            float64, float32, float16 or bfloat16.
        other: shape, dtype and device of `input`.
        alpha: a number.

    Returns:
        A contiguous tensor with the shape and dtype of `input`.
        Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    check_number("my_op", "alpha", alpha)
    # EDIT: what else the operator returns is for the backward.
    return torch.ops.extension_cpp.my_op(input, other, alpha)[0]


def _statistics_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


# EDIT: the checks of my_op.h, and the results' shapes.
@torch.library.register_fake("extension_cpp::my_op")
def _(input: Tensor, other: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    check_floating("my_op", "input", input)
    check_min_dim("my_op", "input", input, 1)
    check_same_dtype("my_op", "other", other, "input", input)
    check_same_device("my_op", "other", other, "input", input)
    check_shape("my_op", "other", other, input.shape)
    output = input.new_empty(input.shape)
    mean = input.new_empty(input.shape[:-1], dtype=_statistics_dtype(input))
    return output, mean


@torch.library.register_fake("extension_cpp::my_op_backward")
def _(grad_output: Tensor, input: Tensor, mean: Tensor, alpha: float) -> Tensor:
    check_floating("my_op_backward", "input", input)
    check_min_dim("my_op_backward", "input", input, 1)
    check_same_dtype("my_op_backward", "grad_output", grad_output, "input", input)
    check_same_device("my_op_backward", "grad_output", grad_output, "input", input)
    check_shape("my_op_backward", "grad_output", grad_output, input.shape)
    check_dtype("my_op_backward", "mean", mean, _statistics_dtype(input))
    check_same_device("my_op_backward", "mean", mean, "input", input)
    check_shape("my_op_backward", "mean", mean, input.shape[:-1])
    return input.new_empty(input.shape)


# EDIT: what the backward needs, and no more.
def _setup_context(ctx, inputs, output):
    _, mean = output
    input, _, ctx.alpha = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, mean)


# EDIT: the gradient of each argument, None for those that have none. The gradient of the mean is
# None but in the derivative of the derivative.
def _backward(ctx, grad_output, grad_mean):
    input, mean = ctx.saved_tensors
    grad_input = None
    if grad_output is not None and ctx.needs_input_grad[0]:
        grad_input = torch.ops.extension_cpp.my_op_backward(grad_output, input, mean, ctx.alpha)
    if grad_mean is not None:
        spread = grad_mean.unsqueeze(-1).expand(input.shape) / input.shape[-1]
        spread = spread.to(input.dtype)
        grad_input = spread if grad_input is None else grad_input + spread
    return (
        grad_input,
        grad_output if grad_output is not None and ctx.needs_input_grad[1] else None,
        None,
    )


register_autograd("extension_cpp::my_op", _backward, setup_context=_setup_context)


def _setup_context_backward(ctx, inputs, output):
    grad_output, input, mean, ctx.alpha = inputs
    ctx.save_for_backward(grad_output, input, mean)


# EDIT: the derivative of the derivative, in each of its three tensors.
def _backward_backward(ctx, grad):
    grad_output, input, mean = ctx.saved_tensors
    grad = grad.to(mean.dtype)
    grad = 2 * (grad - grad.mean(-1, keepdim=True)) * (1 + ctx.alpha)
    product = grad * grad_output
    return (
        (grad * (input - mean.unsqueeze(-1))).to(input.dtype),
        product.to(input.dtype),
        -product.sum(-1),
        None,
    )


register_autograd(
    "extension_cpp::my_op_backward", _backward_backward, setup_context=_setup_context_backward
)


# EDIT: how a batch of calls becomes one call.
def _vmap(info, in_dims, input, other, alpha):
    input, other = to_front(info.batch_size, in_dims[:2], input, other)
    check_min_dim("my_op", "input", *first_example([0], input), 1)
    return torch.ops.extension_cpp.my_op(input, other, alpha), (0, 0)


register_vmap("extension_cpp::my_op", _vmap)


def _vmap_backward(info, in_dims, grad_output, input, mean, alpha):
    grad_output, input, mean = to_front(info.batch_size, in_dims[:3], grad_output, input, mean)
    check_min_dim("my_op_backward", "input", *first_example([0], input), 1)
    return torch.ops.extension_cpp.my_op_backward(grad_output, input, mean, alpha), 0


register_vmap("extension_cpp::my_op_backward", _vmap_backward)
