"""Gradients of inputs that were broadcast."""

from collections.abc import Sequence

import torch
from torch import Tensor

from extension_cpp.layout import known, same_shape


def to_sum(grad_output: Tensor, shape: Sequence[int]) -> Tensor | None:
    """What a backward operator takes that sums `grad_output` to a shape, and to which.

    Args:
        grad_output: the gradient of the output.
        shape: of an input, which broadcasts to that of `grad_output`.

    Returns:
        A tensor of the shape, without memory of its own; None where nothing is to be summed.
    """
    return None if same_shape(shape, grad_output.shape) else stand_in(grad_output, shape)


def summed(grad_output: Tensor, shape: Sequence[int]) -> Tensor:
    """`grad_output.sum_to_size(shape)`, by `reduce_sum`."""
    if same_shape(shape, grad_output.shape):
        return grad_output
    before = grad_output.dim() - len(shape)
    dims = [
        d
        for d, size in enumerate(grad_output.shape)
        if d < before or not known(size == shape[d - before])
    ]
    return torch.ops.extension_cpp.reduce_sum(grad_output, dims, True).reshape(shape)


def stand_in(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor for its shape: of the dtype and device of another, without memory of its own."""
    return tensor.new_empty(()).expand(shape)
