"""vector_add: `a + b`, the hello world; its CUDA source is a textbook kernel."""

import torch
from torch import Tensor

from extension_cpp import registration

_ops = torch.ops.extension_cpp


def vector_add(a: Tensor, b: Tensor) -> Tensor:
    """Computes `a + b`, with the broadcasting of `torch.add`.

    Args:
        a: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        b: a shape that broadcasts with that of `a`; dtype and device of `a`.

    Returns:
        A tensor of the common shape, in the layout on which the dense inputs of that shape agree,
        else contiguous. Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    return _ops.vector_add(a, b)


def _setup_context(ctx, inputs, output):
    ctx.shapes = [tensor.shape for tensor in inputs]


# An element that was used many times gets the sum of its gradients.
def _backward(ctx, grad_output):
    return tuple(
        grad_output.sum_to_size(shape) if needed else None
        for shape, needed in zip(ctx.shapes, ctx.needs_input_grad, strict=True)
    )


registration.register_fake("extension_cpp::vector_add")
registration.register_autograd("extension_cpp::vector_add", _backward, setup_context=_setup_context)
registration.register_vmap("extension_cpp::vector_add")
# As torch.add, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("extension_cpp::vector_add", "promote")
