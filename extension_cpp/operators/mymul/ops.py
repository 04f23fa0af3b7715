"""mymul: `a * b` for equal shapes, as in PyTorch's tutorial on custom operators."""

import torch
from torch import Tensor

from extension_cpp import registration


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


def _setup_context(ctx, inputs, output):
    a, b = inputs
    needs_a, needs_b = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _backward(ctx, grad_output):
    a, b = ctx.saved_tensors
    if a is not None and b is not None:
        return torch.ops.extension_cpp.mymul_backward(grad_output, a, b)
    return tuple(None if other is None else mymul(grad_output, other) for other in (b, a))


registration.register_fake("extension_cpp::mymul", "extension_cpp::mymul_backward")
registration.register_autograd("extension_cpp::mymul", _backward, setup_context=_setup_context)
registration.register_autograd(
    "extension_cpp::mymul_backward", reference=lambda grad, a, b: (grad * b, grad * a)
)
registration.register_vmap("extension_cpp::mymul", "extension_cpp::mymul_backward")
registration.register_autocast("extension_cpp::mymul", "promote")  # as torch.mul
