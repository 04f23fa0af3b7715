"""EDIT: my_op, in one line."""

import torch
from torch import Tensor

from extension_cpp.checks import check_number
from extension_cpp.registration import register_autograd, register_fake, register_vmap


def my_op(input: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """EDIT: Computes `input * input`, and more, made of every argument.

    Args:
        input: of any shape and layout, on CPU or CUDA; float64, float32, float16 or bfloat16.
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


register_fake("extension_cpp::my_op")
register_fake("extension_cpp::my_op_backward")


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
    return (grad_input, grad_output if ctx.needs_input_grad[1] else None, None)


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


register_vmap("extension_cpp::my_op")
register_vmap("extension_cpp::my_op_backward")
