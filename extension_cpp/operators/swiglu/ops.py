"""swiglu: `silu(gate) * up`, the activation of gated feed-forward layers (N. Shazeer, 2020)."""

import torch
from torch import Tensor

from extension_cpp import registration
from extension_cpp.broadcasting import stand_in
from extension_cpp.layout import same_shape

_ops = torch.ops.extension_cpp


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Computes `silu(gate) * up`.

    Half types are computed in float32 and rounded once.

    Args:
        gate: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        up: a shape that broadcasts with that of `gate`; dtype and device of `gate`.

    Returns:
        A tensor of the common shape, in the layout on which the dense inputs of that shape agree,
        else contiguous. Differentiable to any order, in reverse and forward mode. The gradient of
        an input that was broadcast is a deterministic sum, accumulated in float32 (float64 for
        float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    return _ops.swiglu(gate, up)


def _setup_context(ctx, inputs, output):
    gate, up = inputs
    needs_gate, _ = ctx.needs_input_grad
    ctx.save_for_backward(gate, up if needs_gate else None)
    ctx.shape_of_up = up.shape


def _backward(ctx, grad_output):
    gate, up = ctx.saved_tensors
    if up is None:  # the gate is a constant, and the derivative by `up` is silu(gate)
        if same_shape(ctx.shape_of_up, grad_output.shape):
            return None, swiglu(gate, grad_output)
        up = stand_in(grad_output, ctx.shape_of_up)
    return _ops.swiglu_backward(grad_output, gate, up)


def _backward_in_torch(grad_output, gate, up):
    sigmoid = torch.sigmoid(gate)
    grad_gate = grad_output * up * sigmoid * (1 + gate * (1 - sigmoid))
    grad_up = grad_output * (gate * sigmoid)
    return grad_gate.sum_to_size(gate.shape), grad_up.sum_to_size(up.shape)


registration.register_fake("extension_cpp::swiglu", "extension_cpp::swiglu_backward")
registration.register_autograd("extension_cpp::swiglu", _backward, setup_context=_setup_context)
registration.register_autograd("extension_cpp::swiglu_backward", reference=_backward_in_torch)
registration.register_vmap("extension_cpp::swiglu", "extension_cpp::swiglu_backward")
# As the product, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("extension_cpp::swiglu", "promote")
