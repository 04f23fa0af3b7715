"""affine: `a * x + b` with broadcasting, in one pass over memory."""

import torch
from torch import Tensor

from extension_cpp import registration
from extension_cpp.broadcasting import reduced_to, to_sum
from extension_cpp.operators.mymul.ops import sum_of_products

_ops = torch.ops.extension_cpp


def affine(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    """Computes `a * x + b` with broadcasting between all three.

    Half types are computed in float32 and rounded once.

    Args:
        a: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        x: a shape that broadcasts with that of `a`; dtype and device of `a`.
        b: a shape that broadcasts with that of `a * x`; dtype and device of `a`.

    Returns:
        A tensor of the common shape, in the layout on which the dense inputs of that shape agree,
        else contiguous. Differentiable to any order, in reverse and forward mode. The gradient of
        an input that was broadcast is a deterministic sum, accumulated in float32 (float64 for
        float64). Rows, columns and numbers are summed in the same pass over memory.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    return _ops.affine(a, x, b)


def _setup_context(ctx, inputs, output):
    a, x, _ = inputs
    needs_a, needs_x, _ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_x else None, x if needs_a else None)
    ctx.shapes = [tensor.shape for tensor in inputs]


def _backward(ctx, grad_output):
    a, x = ctx.saved_tensors
    shape_a, shape_x, shape_b = ctx.shapes
    needs_b = ctx.needs_input_grad[2]
    if a is not None and x is not None:
        b = to_sum(grad_output, shape_b) if needs_b else None
        gradients = _ops.affine_backward(grad_output, a, x, b)
        return *gradients[:2], grad_output if b is None else gradients[2]
    return (
        None if x is None else sum_of_products(grad_output, x, shape_a),
        None if a is None else sum_of_products(grad_output, a, shape_x),
        reduced_to(grad_output, shape_b) if needs_b else None,
    )


def _backward_in_torch(grad_output, a, x, b):
    return (
        (grad_output * x).sum_to_size(a.shape),
        (grad_output * a).sum_to_size(x.shape),
        None if b is None else grad_output.sum_to_size(b.shape),
    )


registration.register_fake("extension_cpp::affine", "extension_cpp::affine_backward")
registration.register_autograd("extension_cpp::affine", _backward, setup_context=_setup_context)
registration.register_autograd("extension_cpp::affine_backward", reference=_backward_in_torch)
registration.register_vmap("extension_cpp::affine", "extension_cpp::affine_backward")
registration.register_autocast("extension_cpp::affine", "promote")  # as torch.addcmul
