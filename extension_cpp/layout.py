"""Layouts of outputs, for fake kernels: `csrc/indexing.h` over sizes that may be symbolic.

Contiguous tensors are told apart first. Torch knows them without comparing sizes, so that a graph
with symbolic sizes gets no guards from them.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor


def is_one(size: int) -> bool:
    """Whether a size is 1, asked so that no guard comes of it.

    `torch.compile` makes a graph of its own for size 1; a symbol stands for other sizes.
    """
    return isinstance(size, int) and size == 1


def new_elementwise(shape: Sequence[int], first: Tensor, *others: Tensor) -> Tensor:
    """Makes the output of an elementwise operator, as `new_elementwise` of `csrc/layout.h` does.

    It keeps the layout of the operands that have its shape, are dense and agree on one (up to the
    strides of size-1 dimensions, which mean nothing); otherwise it is contiguous.

    Args:
        shape: to which the operands broadcast.
        first: operand that gives dtype and device.
        others: the other operands.
    """

    def without_ones(dims: Iterable[int]) -> list[int]:
        return [d for d in dims if not is_one(shape[d])]

    order = None
    for operand in (first, *others):
        if operand.dim() != len(shape) or any(
            is_one(a) != is_one(b) or a != b for a, b in zip(operand.shape, shape, strict=True)
        ):
            continue
        other = _dense_order(operand)
        if order is None:
            order = other
        elif other is not None and without_ones(other) != without_ones(order):
            order = None
            break
    if order is None or order == list(range(len(shape))):
        return first.new_empty(shape)
    strides = [1] * len(shape)
    stride = 1
    for d in reversed(order):
        strides[d] = stride
        stride *= shape[d]
    return first.new_empty_strided(shape, strides)


def _dense_order(tensor: Tensor) -> list[int] | None:
    """The dimensions, outermost in memory first; None where the elements do not lie densely."""
    dims = list(range(tensor.dim()))
    if tensor.is_contiguous():
        return dims
    dims.sort(key=tensor.stride, reverse=True)
    expected = 1
    for d in reversed(dims):
        if not is_one(tensor.shape[d]):
            if tensor.stride(d) != expected:
                return None
            expected *= tensor.shape[d]
    return dims


def is_non_overlapping(tensor: Tensor) -> bool:
    """Whether no two elements share memory, as far as strides that nest tell."""
    if tensor.is_contiguous():
        return True
    last = 0  # the largest offset that the dimensions so far reach
    dims = (d for d in range(tensor.dim()) if not is_one(tensor.shape[d]))
    for d in sorted(dims, key=tensor.stride):
        if tensor.stride(d) <= last:
            return False
        last += tensor.stride(d) * (tensor.shape[d] - 1)
    return True
