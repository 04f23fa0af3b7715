"""square: `input * input`, a formula for each element."""

import torch
from torch import Tensor

from extension_cpp import registration

_ops = torch.ops.extension_cpp


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
    return _ops.square(input)


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad_output):
    (input,) = ctx.saved_tensors
    return _ops.square_backward(grad_output, input)


registration.register_fake("extension_cpp::square", "extension_cpp::square_backward")
registration.register_autograd("extension_cpp::square", _backward, setup_context=_setup_context)
registration.register_autograd(
    "extension_cpp::square_backward",
    reference=lambda grad_output, input: 2 * grad_output * input,
)
registration.register_vmap("extension_cpp::square", "extension_cpp::square_backward")
# No autocast rule: like torch.square it runs in the dtype that comes.
