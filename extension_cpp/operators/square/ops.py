"""square: `input * input`, a functor and a call."""

import torch
from torch import Tensor

from extension_cpp.registration import register_autograd, register_fake, register_vmap


def square(input: Tensor) -> Tensor:
    """Computes `input * input`.

    Args:
        input: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.

    Returns:
        A tensor with the shape and dtype of `input`, and its layout where it is dense.
        Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: another dtype.
    """
    return torch.ops.extension_cpp.square(input)


register_fake("extension_cpp::square")
register_fake("extension_cpp::square_backward")


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad_output):
    (input,) = ctx.saved_tensors
    return torch.ops.extension_cpp.square_backward(grad_output, input)


register_autograd("extension_cpp::square", _backward, setup_context=_setup_context)


# 2 * grad_output * input: symmetric, so that it is its own derivative in either argument.
def _setup_context_backward(ctx, inputs, output):
    grad_output, input = inputs
    needs_grad_output, needs_input = ctx.needs_input_grad
    ctx.save_for_backward(
        grad_output if needs_input else None, input if needs_grad_output else None
    )


def _backward_backward(ctx, grad_grad_input):
    grad_output, input = ctx.saved_tensors
    square_backward = torch.ops.extension_cpp.square_backward
    return (
        square_backward(grad_grad_input, input) if ctx.needs_input_grad[0] else None,
        square_backward(grad_grad_input, grad_output) if ctx.needs_input_grad[1] else None,
    )


register_autograd(
    "extension_cpp::square_backward", _backward_backward, setup_context=_setup_context_backward
)


register_vmap("extension_cpp::square")
register_vmap("extension_cpp::square_backward")

# No autocast rule: like torch.square it runs in the dtype that comes.
