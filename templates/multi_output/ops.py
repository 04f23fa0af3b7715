"""EDIT: my_op, in one line."""

import torch
from torch import Tensor

from extension_cpp import checks, registration

_ops = torch.ops.extension_cpp


def my_op(input: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """EDIT: Squares the distance from the row's mean, and more, made of every argument.

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
    # EDIT: what else the operator returns is for the backward.
    return _ops.my_op(input, other, alpha)[0]


# EDIT: what the backward needs, and no more.
def _setup_context(ctx, inputs, output):
    ctx.alpha = inputs[2]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], output[1])


# EDIT: the gradient of each argument, None for those that have none. Those of the mean, and of what
# is returned after it, are None but in the derivative of the derivative.
def _backward(ctx, grad_output, *grad_means):
    input, mean = ctx.saved_tensors
    grad_input = None
    if grad_output is not None and ctx.needs_input_grad[0]:
        grad_input = _ops.my_op_backward(grad_output, input, mean, ctx.alpha)
    for grad_mean in (grad for grad in grad_means if grad is not None):
        spread = (grad_mean.unsqueeze(-1).expand(input.shape) / input.shape[-1]).to(input.dtype)
        grad_input = spread if grad_input is None else grad_input + spread
    return (grad_input, grad_output if ctx.needs_input_grad[1] else None, None)


# EDIT: the backward operator in plain PyTorch, from which its own derivatives follow.
def _backward_in_torch(grad_output, input, mean, alpha):
    term = 2 * (input - mean.unsqueeze(-1)) * grad_output
    return ((term - term.mean(-1, keepdim=True)) * (1 + alpha)).to(input.dtype)


registration.register_fake("extension_cpp::my_op", "extension_cpp::my_op_backward")
registration.register_autograd("extension_cpp::my_op", _backward, setup_context=_setup_context)
registration.register_autograd("extension_cpp::my_op_backward", reference=_backward_in_torch)
registration.register_vmap("extension_cpp::my_op", "extension_cpp::my_op_backward")
# EDIT: under autocast half and float32 meet in float32; or "lower_precision", "float32".
registration.register_autocast("extension_cpp::my_op", "promote")
