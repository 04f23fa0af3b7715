"""Gradients of inputs that were broadcast."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from extension_cpp.layout import same_shape


def summed_gradients(
    backward: Callable[..., Any],
    shapes: Sequence[Sequence[int]],
    grad_output: Tensor,
    *args: Any,
) -> tuple[Tensor, ...]:
    """The gradients of a backward operator, each summed to the shape of its input.

    Where nothing was broadcast they are what the operator returns. Else the terms of the sums are
    computed in float32 for half types, and rounded once.

    Args:
        backward: called with `grad_output` and `args`; returns a gradient, or a tuple of them, of
            the shape of `grad_output`.
        shapes: of the inputs, one for each gradient.
        grad_output: the gradient of the output.
        args: tensors of its dtype, and numbers.
    """
    if all(same_shape(shape, grad_output.shape) for shape in shapes):
        gradients = backward(grad_output, *args)
        return gradients if isinstance(gradients, tuple) else (gradients,)
    dtype = grad_output.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    widened = [a.to(wide) if isinstance(a, Tensor) else a for a in (grad_output, *args)]
    gradients = backward(*widened)
    if not isinstance(gradients, tuple):
        gradients = (gradients,)
    return tuple(
        gradient.sum_to_size(shape).to(dtype)
        for gradient, shape in zip(gradients, shapes, strict=True)
    )


def to_sum(grad_output: Tensor, shape: Sequence[int]) -> Tensor | None:
    """What a backward operator takes that sums `grad_output` to a shape, and to which.

    Args:
        grad_output: the gradient of the output.
        shape: of an input, which broadcasts to that of `grad_output`.

    Returns:
        A tensor of the shape, without memory of its own; None where nothing is to be summed.
    """
    return None if same_shape(shape, grad_output.shape) else stand_in(grad_output, shape)


def stand_in(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor for its shape: of the dtype and device of another, without memory of its own."""
    return tensor.new_empty(()).expand(shape)
