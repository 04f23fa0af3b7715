"""mymul: `a * b` for equal shapes, as in PyTorch's tutorial on custom operators."""

import torch
from torch import Tensor

from extension_cpp.registration import (
    register_autocast,
    register_autograd,
    register_fake,
    register_vmap,
)


def mymul(a: Tensor, b: Tensor) -> Tensor:
    """Computes `a * b`.

    Args:
        a: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        b: shape, dtype and device of `a`.

    Returns:
        A tensor with the shape and dtype of `a`, in the layout on which the dense inputs agree,
        else contiguous. Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    return torch.ops.extension_cpp.mymul(a, b)


register_fake("extension_cpp::mymul")
register_fake("extension_cpp::mymul_backward")


def _setup_context(ctx, inputs, output):
    a, b = inputs
    needs_a, needs_b = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _backward(ctx, grad_output):
    a, b = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad
    if needs_a and needs_b:
        return torch.ops.extension_cpp.mymul_backward(grad_output, a, b)
    return mymul(grad_output, b) if needs_a else None, mymul(grad_output, a) if needs_b else None


register_autograd("extension_cpp::mymul", _backward, setup_context=_setup_context)
register_autograd(
    "extension_cpp::mymul_backward",
    reference=lambda grad_output, a, b: (grad_output * b, grad_output * a),
)
register_vmap("extension_cpp::mymul")
register_vmap("extension_cpp::mymul_backward")

# As torch.mul, which promotes: under autocast half and float32 meet in float32.
register_autocast("extension_cpp::mymul", "promote")
