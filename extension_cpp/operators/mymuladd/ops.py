"""mymuladd: `a * b + c` for equal shapes, as in PyTorch's tutorial on custom operators."""

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.operators.mymul.ops import mymul

_ops = torch.ops.extension_cpp


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
    checks.check_number("mymuladd", "c", c)
    return _ops.mymuladd(a, b, c)


def _setup_context(ctx, inputs, output):
    a, b, _ = inputs
    needs_a, needs_b, _ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _backward(ctx, grad_output):
    a, b = ctx.saved_tensors
    if a is not None and b is not None:
        return *_ops.mymul_backward(grad_output, a, b), None
    return *(None if other is None else mymul(grad_output, other) for other in (b, a)), None


registration.register_fake("extension_cpp::mymuladd")
registration.register_autograd("extension_cpp::mymuladd", _backward, setup_context=_setup_context)
registration.register_vmap("extension_cpp::mymuladd")
registration.register_autocast("extension_cpp::mymuladd", "promote")  # as torch.addcmul
