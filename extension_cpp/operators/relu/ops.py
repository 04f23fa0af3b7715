"""relu: `max(input, 0)`, a functor and a call."""

import torch
from torch import Tensor

from extension_cpp.batching import first_example, to_front
from extension_cpp.checks import (
    check_floating,
    check_same_device,
    check_same_dtype,
    check_shape,
)
from extension_cpp.layout import new_elementwise
from extension_cpp.registration import register_autograd, register_vmap


def relu(input: Tensor) -> Tensor:
    """Computes `max(input, 0)`. NaN stays NaN and the gradient at 0 is 0, as in `torch.relu`.

    Args:
        input: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.

    Returns:
        A tensor with the shape and dtype of `input`, and its layout where it is dense.
        Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: another dtype.
    """
    return torch.ops.extension_cpp.relu(input)


@torch.library.register_fake("extension_cpp::relu")
def _(input: Tensor) -> Tensor:
    check_floating("relu", "input", input)
    return new_elementwise(input.shape, input)


def _check_backward(grad_output: Tensor, output: Tensor) -> None:
    check_floating("relu_backward", "grad_output", grad_output)
    check_same_dtype("relu_backward", "output", output, "grad_output", grad_output)
    check_same_device("relu_backward", "output", output, "grad_output", grad_output)
    check_shape("relu_backward", "output", output, grad_output.shape)


@torch.library.register_fake("extension_cpp::relu_backward")
def _(grad_output: Tensor, output: Tensor) -> Tensor:
    _check_backward(grad_output, output)
    return new_elementwise(output.shape, grad_output, output)


# The mask can be read off the output, which the next layer often saves too: no need for the input.
def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(output)


def _backward(ctx, grad_output):
    (output,) = ctx.saved_tensors
    return torch.ops.extension_cpp.relu_backward(grad_output, output)


register_autograd("extension_cpp::relu", _backward, setup_context=_setup_context)


# Linear in grad_output and, where it is differentiable at all, constant in output.
def _setup_context_backward(ctx, inputs, output):
    _, saved_output = inputs
    ctx.save_for_backward(saved_output)


def _backward_backward(ctx, grad_grad_input):
    if not ctx.needs_input_grad[0]:
        return None, None
    (output,) = ctx.saved_tensors
    return torch.ops.extension_cpp.relu_backward(grad_grad_input, output), None


register_autograd(
    "extension_cpp::relu_backward", _backward_backward, setup_context=_setup_context_backward
)


def _vmap(info, in_dims, input):
    return relu(input), in_dims[0]


def _vmap_backward(info, in_dims, grad_output, output):
    _check_backward(*first_example(in_dims, grad_output, output))
    batched = to_front(info.batch_size, in_dims, grad_output, output)
    return torch.ops.extension_cpp.relu_backward(*batched), 0


register_vmap("extension_cpp::relu", _vmap)
register_vmap("extension_cpp::relu_backward", _vmap_backward)

# No autocast rule: like torch.relu it runs in the dtype that comes.
