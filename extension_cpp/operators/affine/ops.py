"""affine: `a * x + b` with broadcasting, in one pass over memory."""

import torch
from torch import Tensor

from extension_cpp import registration
from extension_cpp.batching import to_front
from extension_cpp.broadcasting import summed_gradients
from extension_cpp.layout import same_shape
from extension_cpp.operators.mymul.ops import mymul
from extension_cpp.shapes import operator


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
        float64); for x of shape `(..., features)` with a and b of shape `(features,)` all three
        gradients take one pass over memory.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    return torch.ops.extension_cpp.affine(a, x, b)


def _sum_of_products(grad_output: Tensor, other: Tensor, shape: torch.Size) -> Tensor:
    """`grad_output * other` summed to `shape`, in float32 for half types."""
    (gradient,) = summed_gradients(
        lambda grad, other: mymul(grad, other.expand_as(grad)), [shape], grad_output, other
    )
    return gradient


def _setup_context(ctx, inputs, output):
    a, x, _ = inputs
    needs_a, needs_x, _ = ctx.needs_input_grad
    # The fused backward wants both.
    ctx.is_layer = needs_a and _is_layer(*inputs)
    ctx.save_for_backward(a if needs_x or ctx.is_layer else None, x if needs_a else None)
    ctx.shapes = [tensor.shape for tensor in inputs]


def _is_layer(a: Tensor, x: Tensor, b: Tensor) -> bool:
    features = x.shape[-1:]
    return x.dim() > 1 and same_shape(a.shape, features) and same_shape(b.shape, features)


def _backward(ctx, grad_output):
    a, x = ctx.saved_tensors
    needs_a, needs_x, needs_b = ctx.needs_input_grad
    if ctx.is_layer:
        return torch.ops.extension_cpp.affine_backward(grad_output, a, x)
    shape_a, shape_x, shape_b = ctx.shapes
    grad_b = grad_output.sum_to_size(shape_b) if needs_b else None
    shape = grad_output.shape
    if needs_a and needs_x and same_shape(shape_a, shape) and same_shape(shape_x, shape):
        return *torch.ops.extension_cpp.mymul_backward(grad_output, a, x), grad_b
    return (
        _sum_of_products(grad_output, x, shape_a) if needs_a else None,
        _sum_of_products(grad_output, a, shape_x) if needs_x else None,
        grad_b,
    )


def _backward_in_torch(grad_output, a, x):
    return (
        (grad_output * x).sum_to_size(a.shape),
        grad_output * a,
        grad_output.sum_to_size(a.shape),
    )


# The batch becomes part of the features: (..., features) examples are rows of batch * features.
def _vmap_backward(info, in_dims, grad_output, a, x):
    operator("extension_cpp::affine_backward").check_examples(in_dims, grad_output, a, x)
    grad_output, a, x = to_front(info.batch_size, in_dims, grad_output, a, x)
    grad_a, grad_x, grad_b = torch.ops.extension_cpp.affine_backward(
        grad_output.movedim(0, -2).flatten(-2), a.flatten(), x.movedim(0, -2).flatten(-2)
    )
    grad_x = grad_x.unflatten(-1, a.shape)
    return (grad_a.view(a.shape), grad_x, grad_b.view(a.shape)), (0, grad_x.dim() - 2, 0)


registration.register_fake("extension_cpp::affine")
registration.register_fake("extension_cpp::affine_backward")
registration.register_autograd("extension_cpp::affine", _backward, setup_context=_setup_context)
registration.register_autograd("extension_cpp::affine_backward", reference=_backward_in_torch)
registration.register_vmap("extension_cpp::affine")
registration.register_vmap("extension_cpp::affine_backward", _vmap_backward)
# As torch.addcmul, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("extension_cpp::affine", "promote")
