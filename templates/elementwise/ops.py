"""EDIT: my_op, in one line."""

import torch
from torch import Tensor

from extension_cpp.batching import to_front
from extension_cpp.checks import (
    check_floating,
    check_number,
    check_same_device,
    check_same_dtype,
    check_shape,
)
from extension_cpp.layout import new_elementwise
from extension_cpp.registration import register_autograd, register_vmap


def my_op(input: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """EDIT: Computes `input * input`, and more, made of every argument.

    Args:
        input: of any shape and layout, on CPU or CUDA;
            float64, float32, float16 or bfloat16.
        other: shape, dtype and device of `input`.
        alpha: a number.

    Returns:
        A tensor with the shape and dtype of `input`,
        in the layout on which the dense inputs agree, else contiguous.
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
    check_same_dtype("my_op", "other", other, "input", input)
    check_same_device("my_op", "other", other, "input", input)
    check_shape("my_op", "other", other, input.shape)
    return new_elementwise(input.shape, input, other)


@torch.library.register_fake("extension_cpp::my_op_backward")
def _(grad_output: Tensor, input: Tensor, alpha: float) -> Tensor:
    check_floating("my_op_backward", "grad_output", grad_output)
    check_same_dtype("my_op_backward", "input", input, "grad_output", grad_output)
    check_same_device("my_op_backward", "input", input, "grad_output", grad_output)
    check_shape("my_op_backward", "input", input, grad_output.shape)
    return new_elementwise(input.shape, grad_output, input)


# EDIT: what the backward needs, and no more.
def _setup_context(ctx, inputs, output):
    input, _, ctx.alpha = inputs
    ctx.save_for_backward(input)


# EDIT: the gradient of each argument, None for those that have none.
def _backward(ctx, grad_output):
    (input,) = ctx.saved_tensors
    grad_input = None
    if ctx.needs_input_grad[0]:
        grad_input = torch.ops.extension_cpp.my_op_backward(grad_output, input, ctx.alpha)
    return (
        grad_input,
        grad_output if ctx.needs_input_grad[1] else None,
        None,
    )


register_autograd("extension_cpp::my_op", _backward, setup_context=_setup_context)


def _setup_context_backward(ctx, inputs, output):
    grad_output, input, ctx.alpha = inputs
    ctx.save_for_backward(grad_output, input)


# EDIT: the derivative of the derivative. This one is linear in both tensors, hence its own
# derivative in each.
def _backward_backward(ctx, grad):
    grad_output, input = ctx.saved_tensors
    return (
        torch.ops.extension_cpp.my_op_backward(grad, input, ctx.alpha),
        torch.ops.extension_cpp.my_op_backward(grad_output, grad, ctx.alpha),
        None,
    )


register_autograd(
    "extension_cpp::my_op_backward", _backward_backward, setup_context=_setup_context_backward
)


# EDIT: how a batch of calls becomes one call.
def _vmap(info, in_dims, input, other, alpha):
    input, other = to_front(info.batch_size, in_dims[:2], input, other)
    return torch.ops.extension_cpp.my_op(input, other, alpha), 0


register_vmap("extension_cpp::my_op", _vmap)


def _vmap_backward(info, in_dims, grad_output, input, alpha):
    grad_output, input = to_front(info.batch_size, in_dims[:2], grad_output, input)
    return torch.ops.extension_cpp.my_op_backward(grad_output, input, alpha), 0


register_vmap("extension_cpp::my_op_backward", _vmap_backward)
