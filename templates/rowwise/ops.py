"""EDIT: my_op, in one line."""

import torch
from torch import Tensor

from extension_cpp.batching import first_example, to_front
from extension_cpp.checks import (
    check_floating,
    check_min_dim,
    check_number,
    check_same_device,
    check_same_dtype,
    check_shape,
)
from extension_cpp.registration import register_autograd, register_vmap


def my_op(input: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """EDIT: Takes the mean of each row away, and more, made of every argument.

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
    return torch.ops.extension_cpp.my_op(input, other, alpha)


# EDIT: the checks of my_op.h, and the shape of the result.
@torch.library.register_fake("extension_cpp::my_op")
def _(input: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    check_floating("my_op", "input", input)
    check_min_dim("my_op", "input", input, 1)
    check_same_dtype("my_op", "other", other, "input", input)
    check_same_device("my_op", "other", other, "input", input)
    check_shape("my_op", "other", other, input.shape)
    return input.new_empty(input.shape)


@torch.library.register_fake("extension_cpp::my_op_backward")
def _(grad_output: Tensor, alpha: float) -> Tensor:
    check_floating("my_op_backward", "grad_output", grad_output)
    check_min_dim("my_op_backward", "grad_output", grad_output, 1)
    return grad_output.new_empty(grad_output.shape)


# EDIT: what the backward needs, and no more.
def _setup_context(ctx, inputs, output):
    _, _, ctx.alpha = inputs


# EDIT: the gradient of each argument, None for those that have none.
def _backward(ctx, grad_output):
    grad_input = None
    if ctx.needs_input_grad[0]:
        grad_input = torch.ops.extension_cpp.my_op_backward(grad_output, ctx.alpha)
    return (
        grad_input,
        grad_output if ctx.needs_input_grad[1] else None,
        None,
    )


register_autograd("extension_cpp::my_op", _backward, setup_context=_setup_context)


def _setup_context_backward(ctx, inputs, output):
    _, ctx.alpha = inputs


# EDIT: the derivative of the derivative. This one is linear and symmetric: its own derivative.
def _backward_backward(ctx, grad):
    return (
        torch.ops.extension_cpp.my_op_backward(grad, ctx.alpha),
        None,
    )


register_autograd(
    "extension_cpp::my_op_backward", _backward_backward, setup_context=_setup_context_backward
)


# EDIT: how a batch of calls becomes one call.
def _vmap(info, in_dims, input, other, alpha):
    input, other = to_front(info.batch_size, in_dims[:2], input, other)
    check_min_dim("my_op", "input", *first_example([0], input), 1)
    return torch.ops.extension_cpp.my_op(input, other, alpha), 0


register_vmap("extension_cpp::my_op", _vmap)


def _vmap_backward(info, in_dims, grad_output, alpha):
    (grad_output,) = to_front(info.batch_size, in_dims[:1], grad_output)
    check_min_dim("my_op_backward", "grad_output", *first_example([0], grad_output), 1)
    return torch.ops.extension_cpp.my_op_backward(grad_output, alpha), 0


register_vmap("extension_cpp::my_op_backward", _vmap_backward)
