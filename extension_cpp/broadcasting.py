"""Gradients of inputs that were broadcast."""

from collections.abc import Sequence

import torch
from torch import Tensor

from extension_cpp.layout import is_one, same_shape


def to_sum(
    grad_output: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype | None = None,
    unless: Sequence[int] | None = None,
) -> Tensor | None:
    """What a backward operator takes that sums `grad_output` to a shape, and to which.

    Args:
        grad_output: the gradient of the output.
        shape: of an input, which broadcasts to that of `grad_output`.
        dtype: of the input, where it is another.
        unless: the shape of an input with the same gradient, which serves both where they have one
            shape. Without it, that of `grad_output`, whose sum it is.

    Returns:
        A tensor of the shape, without memory of its own; None where nothing is to be summed.
    """
    unless = grad_output.shape if unless is None else unless
    return None if same_shape(shape, unless) else stand_in(grad_output, shape, dtype)


def reduced_to(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """`tensor.sum_to_size(shape)`, by `reduce_sum`.

    Args:
        tensor: of any shape.
        shape: one that broadcasts to that of `tensor`.
    """
    if same_shape(shape, tensor.shape):
        return tensor
    before = tensor.dim() - len(shape)
    dims = [d for d in range(tensor.dim()) if d < before or is_one(shape[d - before])]
    return torch.ops.extension_cpp.reduce_sum(tensor, dims, True).reshape(shape)


def stand_in(tensor: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A tensor for its shape: of the device of another, and its dtype, without memory of its own.

    Args:
        tensor: the other.
        shape: of this one.
        dtype: where it is not that of the other.
    """
    return tensor.new_empty((), dtype=dtype).expand(shape)
