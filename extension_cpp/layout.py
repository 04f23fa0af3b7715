"""Layouts of outputs, for fake kernels: `csrc/indexing.h` over sizes that may be symbolic.

Contiguous tensors are told apart first. Torch knows them without comparing sizes, so that a graph
with symbolic sizes gets no guards from them. Sizes that depend on data ("unbacked" ones, as that of
`x[mask]`) can be compared in part only: what is not known of them is left to run time.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


def known(condition: Any) -> bool:
    """Whether a comparison of sizes holds for sure. No error where data decides it."""
    if isinstance(condition, bool):
        return condition
    # Imported where it is needed: it brings sympy, and half a second.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(condition)


def same_shape(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(a) == len(b) and all(known(m == n) for m, n in zip(a, b, strict=True))


def depends_on_data(tensor: Tensor) -> bool:
    """Whether sizes or strides do, which are then known at run time alone."""
    symbols = [value for value in (*tensor.shape, *tensor.stride()) if not isinstance(value, int)]
    if not symbols:
        return False
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    return has_free_unbacked_symbols(symbols)


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
        if not same_shape(operand.shape, shape) or any(
            is_one(a) != is_one(b) for a, b in zip(operand.shape, shape, strict=True)
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
    of_data = depends_on_data(tensor)
    if not of_data and tensor.is_contiguous():
        return dims
    # From the innermost, by equality alone: which of two strides is larger may depend on data.
    rest = [d for d in dims if not is_one(tensor.shape[d])]
    order: list[int] = []
    # Of what is inside; PyTorch's strides count a size of 0 as 1, or do not.
    size: int | torch.SymInt = 1
    clamped: int | torch.SymInt = 1
    while rest:
        strides = {d: tensor.stride(d) for d in rest}
        inner = [d for d in rest if known(strides[d] == clamped) or known(strides[d] == size)]
        if not inner:
            # Were it dense after all, the kernel would keep its order.
            if of_data and (len(rest) > 1 or [*rest, *order] != sorted([*rest, *order])):
                for d in rest:
                    _check_differs(strides[d], size)
            return None
        d = inner[-1]
        rest.remove(d)
        order.insert(0, d)
        size, clamped = size * tensor.shape[d], clamped * torch.sym_max(1, tensor.shape[d])
    if order == sorted(order):
        return dims
    # A dimension of size 1 goes where its stride says, and before its equals.
    for d in (d for d in dims if is_one(tensor.shape[d])):
        stride = tensor.stride(d)
        places = (
            k
            for k, other in enumerate(order)
            if known(stride > tensor.stride(other))
            or (d < other and known(stride == tensor.stride(other)))
        )
        order.insert(next(places, len(order)), d)
    return order


def _check_differs(stride: int, expected: int | torch.SymInt) -> None:
    torch._check(
        stride != expected,
        lambda: (
            f"a stride of {stride}, which depends on data, makes a layout dense that torch.compile "
            "took for sparse. Make the tensor contiguous"
        ),
    )


def is_non_overlapping(tensor: Tensor) -> bool:
    """Whether no two elements share memory, as far as strides that nest tell.

    Where data decides, this leaves it to the kernel.
    """
    if depends_on_data(tensor) or tensor.is_contiguous():
        return True
    last = 0  # the largest offset that the dimensions so far reach
    dims = (d for d in range(tensor.dim()) if not is_one(tensor.shape[d]))
    for d in sorted(dims, key=tensor.stride):
        if tensor.stride(d) <= last:
            return False
        last += tensor.stride(d) * (tensor.shape[d] - 1)
    return True
