"""mymuladd: `a * b + c` for equal shapes, as in PyTorch's tutorial on custom operators."""

import torch
from torch import Tensor

from extension_cpp.checks import check_number
from extension_cpp.operators.mymul.ops import mymul
from extension_cpp.registration import (
    register_autocast,
    register_autograd,
    register_fake,
    register_vmap,
)


def mymuladd(a: Tensor, b: Tensor, c: float) -> Tensor:
    """Computes `a * b + c` in one pass.

    Half types are computed in float32 and rounded once.

    Args:
        a: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        b: shape, dtype and device of `a`.
        c: a number; not differentiable.

    Returns:
        A tensor with the shape and dtype of `a`, in the layout on which the dense inputs agree,
        else contiguous. Differentiable to any order in `a` and `b`, in reverse and forward mode.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
        TypeError: a tensor for `c` whose derivative would be lost.
    """
    check_number("mymuladd", "c", c)
    return torch.ops.extension_cpp.mymuladd(a, b, c)


register_fake("extension_cpp::mymuladd")


def _setup_context(ctx, inputs, output):
    a, b, _ = inputs
    needs_a, needs_b, _ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _backward(ctx, grad_output):
    a, b = ctx.saved_tensors
    needs_a, needs_b, _ = ctx.needs_input_grad
    if needs_a and needs_b:
        return *torch.ops.extension_cpp.mymul_backward(grad_output, a, b), None
    grad_a = mymul(grad_output, b) if needs_a else None
    return grad_a, mymul(grad_output, a) if needs_b else None, None


register_autograd("extension_cpp::mymuladd", _backward, setup_context=_setup_context)
register_vmap("extension_cpp::mymuladd")

# As torch.mul and torch.add, which promote: under autocast half and float32 meet in float32.
register_autocast("extension_cpp::mymuladd", "promote")
