"""relu: `max(input, 0)`, a formula for each element."""

import torch
from torch import Tensor

from extension_cpp import registration

_ops = torch.ops.extension_cpp


def relu(input: Tensor) -> Tensor:
    """Computes `max(input, 0)`. NaN stays NaN and the gradient at 0 is 0, as in `torch.relu`.

    Args:
        input: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.

    Returns:
        A tensor with the shape and dtype of `input`, and its layout where it is dense.
        Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: another dtype.
    """
    return _ops.relu(input)


# The mask can be read off the output, which the next layer often saves too: no need for the input.
def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(output)


def _backward(ctx, grad_output):
    (output,) = ctx.saved_tensors
    return _ops.relu_backward(grad_output, output)


registration.register_fake("extension_cpp::relu", "extension_cpp::relu_backward")
registration.register_autograd("extension_cpp::relu", _backward, setup_context=_setup_context)
registration.register_autograd(
    "extension_cpp::relu_backward",
    reference=lambda grad_output, output: torch.where(output <= 0, 0, grad_output),
)
registration.register_vmap("extension_cpp::relu", "extension_cpp::relu_backward")
# No autocast rule: like torch.relu it runs in the dtype that comes.
