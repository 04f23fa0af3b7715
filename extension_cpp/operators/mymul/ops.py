"""mymul: `a * b`, as in PyTorch's tutorial on custom operators, with broadcasting."""

from collections.abc import Sequence

import torch
from torch import Tensor

from extension_cpp import registration
from extension_cpp.broadcasting import stand_in
from extension_cpp.layout import same_shape

_ops = torch.ops.extension_cpp


def mymul(a: Tensor, b: Tensor) -> Tensor:
    """Computes `a * b` with broadcasting.

    Args:
        a: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        b: a shape that broadcasts with that of `a`; dtype and device of `a`.

    Returns:
        A tensor of the common shape, in the layout on which the dense inputs of that shape agree,
        else contiguous. Differentiable to any order, in reverse and forward mode. The gradient of
        an input that was broadcast is a deterministic sum, accumulated in float32 (float64 for
        float64). Rows, columns and numbers are summed in the same pass over memory.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    return _ops.mymul(a, b)


def sum_of_products(grad_output: Tensor, other: Tensor, shape: Sequence[int]) -> Tensor:
    """The gradient of one factor of a product: `grad_output * other`, summed to its shape.

    Args:
        grad_output: of the product's shape.
        other: the other factor, which broadcasts to that.
        shape: of the factor.
    """
    if same_shape(shape, grad_output.shape):
        return mymul(grad_output, other)
    factor = stand_in(grad_output, shape)
    return _ops.mymul_factor_backward(grad_output, other, factor)


def _setup_context(ctx, inputs, output):
    a, b = inputs
    needs_a, needs_b = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.shapes = a.shape, b.shape


def _backward(ctx, grad_output):
    a, b = ctx.saved_tensors
    if a is not None and b is not None:
        return _ops.mymul_backward(grad_output, a, b)
    return tuple(
        None if other is None else sum_of_products(grad_output, other, shape)
        for other, shape in zip((b, a), ctx.shapes, strict=True)
    )


registration.register_fake(
    "extension_cpp::mymul",
    "extension_cpp::mymul_backward",
    "extension_cpp::mymul_factor_backward",
)
registration.register_autograd("extension_cpp::mymul", _backward, setup_context=_setup_context)
registration.register_autograd(
    "extension_cpp::mymul_backward",
    reference=lambda grad, a, b: ((grad * b).sum_to_size(a.shape), (grad * a).sum_to_size(b.shape)),
)
registration.register_autograd(
    "extension_cpp::mymul_factor_backward",
    reference=lambda grad, other, factor: (grad * other).sum_to_size(factor.shape),
)
registration.register_vmap(
    "extension_cpp::mymul",
    "extension_cpp::mymul_backward",
    "extension_cpp::mymul_factor_backward",
)
registration.register_autocast("extension_cpp::mymul", "promote")  # as torch.mul
