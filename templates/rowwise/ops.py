"""EDIT: my_op, in one line."""

import torch
from torch import Tensor

from extension_cpp import checks, registration

_ops = torch.ops.extension_cpp


def my_op(input: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """EDIT: Takes the mean of each row away, and more, made of every argument.

    Args:
        input: of shape `(..., cols)` and any layout, on CPU or CUDA;
            float64, float32, float16 or bfloat16.
        other: shape, dtype and device of `input`.
        alpha: a number.

    Returns:
        A contiguous tensor with the shape and dtype of `input`.
        Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    checks.check_number("my_op", "alpha", alpha)
    return _ops.my_op(input, other, alpha)


# EDIT: what the backward needs, and no more.
def _setup_context(ctx, inputs, output):
    ctx.alpha = inputs[2]


# EDIT: the gradient of each argument, None for those that have none.
def _backward(ctx, grad_output):
    grad_input = None
    if ctx.needs_input_grad[0]:
        grad_input = _ops.my_op_backward(grad_output, ctx.alpha)
    return (grad_input, grad_output if ctx.needs_input_grad[1] else None, None)


# EDIT: the backward operator in plain PyTorch, from which its own derivatives follow.
def _backward_in_torch(grad_output, alpha):
    return (grad_output - grad_output.mean(-1, keepdim=True)) * (1 + alpha)


registration.register_fake("extension_cpp::my_op", "extension_cpp::my_op_backward")
registration.register_autograd("extension_cpp::my_op", _backward, setup_context=_setup_context)
registration.register_autograd("extension_cpp::my_op_backward", reference=_backward_in_torch)
registration.register_vmap("extension_cpp::my_op", "extension_cpp::my_op_backward")
# EDIT: under autocast half and float32 meet in float32; or "lower_precision", "float32".
registration.register_autocast("extension_cpp::my_op", "promote")
