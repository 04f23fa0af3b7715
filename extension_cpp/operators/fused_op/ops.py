"""fused_op: `relu(input * scale + bias)` in one pass over memory, forward and backward."""

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.batching import to_front
from extension_cpp.shapes import batching_rule, operator

_ops = torch.ops.extension_cpp


def fused_op(input: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    """Computes `relu(input * scale + bias)`.

    Half types are computed in float32. The gradient of relu at 0 is 0 and NaN propagates, as in
    PyTorch.

    Args:
        input: `(..., features)`, float64, float32, float16 or bfloat16, CPU or CUDA, any layout.
        bias: `(features,)`, dtype and device of `input`.
        scale: a number; not differentiable.

    Returns:
        A contiguous tensor with the shape and dtype of `input`. Differentiable to any order in
        `input` and `bias`, in reverse and forward mode. The gradient of `bias` is a deterministic
        sum, accumulated in float32 (float64 for float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
        TypeError: a tensor for `scale` whose derivative would be lost.
    """
    checks.check_number("fused_op", "scale", scale)
    return _ops.fused_op(input, bias, scale)


# The mask of relu can be read off the output: saving that, and not the input, costs no memory where
# the next layer saves it too.
def _setup_context(ctx, inputs, output):
    _, _, ctx.scale = inputs
    ctx.save_for_backward(output)


def _backward(ctx, grad_output):
    (output,) = ctx.saved_tensors
    return *_ops.fused_op_backward(grad_output, output, ctx.scale), None


def _backward_in_torch(grad_output, output, scale):
    grad = torch.where(output <= 0, 0, grad_output)
    return grad * scale, grad.sum_to_size(grad.shape[-1:])


_batched_input = batching_rule("extension_cpp::fused_op")


def _vmap(info, in_dims, input, bias, scale):
    input_dim, bias_dim, _ = in_dims
    if bias_dim is None:
        return _batched_input(info, in_dims, input, bias, scale)
    operator("extension_cpp::fused_op").check_examples(in_dims, input, bias, scale)
    # A bias of its own for every example: (batch, features) become one row of batch * features.
    (input,) = to_front(info.batch_size, [input_dim], input)
    bias = bias.movedim(bias_dim, 0)
    rows = input.movedim(0, -2)
    output = fused_op(rows.flatten(-2), bias.flatten(), scale)
    return output.unflatten(-1, bias.shape), input.dim() - 2


def _vmap_backward(info, in_dims, grad_output, output, scale):
    operator("extension_cpp::fused_op_backward").check_examples(in_dims, grad_output, output, scale)
    grad_output, output = to_front(info.batch_size, in_dims[:2], grad_output, output)
    grad_output, output = grad_output.movedim(0, -2), output.movedim(0, -2)
    grad_input, grad_bias = _ops.fused_op_backward(
        grad_output.flatten(-2), output.flatten(-2), scale
    )
    batch_and_features = grad_output.shape[-2:]
    return (
        (grad_input.unflatten(-1, batch_and_features), grad_bias.unflatten(-1, batch_and_features)),
        (grad_output.dim() - 2, 0),
    )


registration.register_fake("extension_cpp::fused_op", "extension_cpp::fused_op_backward")
registration.register_autograd("extension_cpp::fused_op", _backward, setup_context=_setup_context)
registration.register_autograd("extension_cpp::fused_op_backward", reference=_backward_in_torch)
registration.register_vmap("extension_cpp::fused_op", _vmap)
registration.register_vmap("extension_cpp::fused_op_backward", _vmap_backward)
registration.register_sharding(
    "extension_cpp::fused_op", "extension_cpp::fused_op_backward", along=("n",)
)
# As torch.nn.Linear, whose output it usually takes: the lower precision, bias included.
registration.register_autocast("extension_cpp::fused_op", "lower_precision")
