"""Layouts: the same values, elsewhere in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def strided(tensor: Tensor, order: Sequence[int], steps: Sequence[int], offset: int = 0) -> Tensor:
    """The values of a tensor in memory of another shape.

    What lies between the elements, and before them, holds NaN, or the largest integer: reading the
    wrong place shows.

    Args:
        tensor: the values.
        order: the dimensions, outermost in memory first.
        steps: for every dimension, one element in how many is used.
        offset: the storage offset.
    """
    sizes = [tensor.shape[d] * steps[d] for d in order]
    floating = tensor.is_floating_point() or tensor.is_complex()
    is_bool = tensor.dtype == torch.bool
    fill = math.nan if floating else is_bool or torch.iinfo(tensor.dtype).max
    buffer = tensor.detach().new_full((offset + math.prod(sizes),), fill)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    view = buffer[offset:].view(sizes).permute(inverse)
    view = view[tuple(slice(None, None, step) for step in steps)]
    view.copy_(tensor.detach())
    return view


def _transposed(t: Tensor) -> Tensor | None:
    return strided(t, range(t.dim())[::-1], [1] * t.dim()) if t.dim() > 1 else None


def _permuted(t: Tensor) -> Tensor | None:
    return strided(t, [1, 0, *range(2, t.dim())], [1] * t.dim()) if t.dim() > 2 else None


def _sliced(t: Tensor) -> Tensor | None:
    return strided(t, range(t.dim()), [1] * (t.dim() - 1) + [2]) if t.dim() > 0 else None


def _sliced_rows(t: Tensor) -> Tensor | None:
    return strided(t, range(t.dim()), [3] + [1] * (t.dim() - 1)) if t.dim() > 1 else None


def _channels_last(t: Tensor) -> Tensor | None:
    return strided(t, [0, 2, 3, 1], [1] * 4) if t.dim() == 4 else None


def _expanded(t: Tensor) -> Tensor | None:
    return t.detach()[:1].clone().expand(t.shape) if t.dim() > 0 and t.shape[0] else None


def _expanded_last(t: Tensor) -> Tensor | None:
    return t.detach()[..., :1].clone().expand(t.shape) if t.dim() > 1 and t.shape[-1] else None


def _offset(t: Tensor) -> Tensor | None:
    return strided(t, range(t.dim()), [1] * t.dim(), 1)


def _odd_stride(t: Tensor) -> Tensor | None:
    # Counts as contiguous, and empty_like keeps the stride.
    if 1 not in t.shape:
        return None
    strides = [77 if n == 1 else s for n, s in zip(t.shape, t.stride(), strict=True)]
    return t.detach().as_strided(t.shape, strides)


# Each gives a contiguous tensor's values in its layout (an expanded one only some of them), or None
# where it does not apply.
LAYOUTS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "contiguous": lambda t: t.detach(),
    "transposed": _transposed,
    "permuted": _permuted,
    "sliced with a step": _sliced,
    "sliced rows": _sliced_rows,
    "channels-last": _channels_last,
    "expanded": _expanded,
    "expanded last": _expanded_last,
    "storage offset": _offset,
    "odd stride of a size-one dimension": _odd_stride,
}
# Of those which code can tell apart by what it asks a tensor: contiguous, dense in another order,
# in that of a memory format, with gaps, overlapping.
ONE_OF_EACH_KIND = (
    "contiguous",
    "transposed",
    "channels-last",
    "sliced with a step",
    "expanded",
)


def is_dense(t: Tensor) -> bool:
    """Whether the elements fill their memory without gap or overlap, in whatever order."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def same_strides(a: Tensor, b: Tensor) -> bool:
    """Whether strides agree where they mean something: in dimensions of more than one element."""
    if a.numel() == 0:
        return True
    pairs = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(size == 1 or s == t for size, s, t in pairs)
