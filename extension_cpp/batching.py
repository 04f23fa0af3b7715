"""Moves the batch dimensions of `torch.vmap` to where operators take them. Nothing is copied."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def to_front(
    batch_size: int, in_dims: Sequence[int | None], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """For operators whose arguments have equal shapes: every tensor becomes `(batch, *shape)`."""
    return tuple(
        tensor.expand(batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for dim, tensor in zip(in_dims, tensors, strict=True)
    )


def first_example(in_dims: Sequence[int | None], *args: Any) -> tuple[Any, ...]:
    """The arguments for the first example of a batch, for their checks.

    A batch whose dimensions are joined to others can pass for valid where its examples are not, and
    an error should speak of the shapes that the caller's function sees. Of an empty batch it is
    what an example would be.
    """

    def example(dim: int, tensor: Tensor) -> Tensor:
        if tensor.shape[dim] > 0:
            return tensor.select(dim, 0)
        sizes, strides = list(tensor.shape), list(tensor.stride())
        del sizes[dim], strides[dim]
        return tensor.new_empty_strided(sizes, strides)

    return tuple(
        arg if dim is None else example(dim, arg) for dim, arg in zip(in_dims, args, strict=True)
    )
