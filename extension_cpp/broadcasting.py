"""Gradients of inputs that were broadcast."""

from collections.abc import Sequence

from torch import Tensor

from extension_cpp.layout import same_shape


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
