"""EDIT: my_op, in one line."""

import torch
from torch import Tensor

from extension_cpp.batching import to_front
from extension_cpp.checks import (
    check_floating,
    check_non_overlapping,
    check_number,
    check_same_device,
    check_same_dtype,
    check_shape,
)
from extension_cpp.registration import register_mutation, register_vmap


def my_op(input: Tensor, other: Tensor, alpha: float = 1.0) -> None:
    """EDIT: Writes `input * input`, and more, made of every argument, to `input`.

    Args:
        input: of any shape, on CPU or CUDA; float64, float32, float16 or bfloat16;
            of any layout in which no two elements share memory.
        other: shape, dtype and device of `input`.
        alpha: a number.

    Not differentiable: a derivative through what it wrote raises an error.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    """
    check_number("my_op", "alpha", alpha)
    torch.ops.extension_cpp.my_op(input, other, alpha)


# EDIT: the checks of my_op.h.
@torch.library.register_fake("extension_cpp::my_op")
def _(input: Tensor, other: Tensor, alpha: float = 1.0) -> None:
    check_floating("my_op", "input", input)
    check_non_overlapping("my_op", "input", input)
    check_same_dtype("my_op", "other", other, "input", input)
    check_same_device("my_op", "other", other, "input", input)
    check_shape("my_op", "other", other, input.shape)


register_mutation("extension_cpp::my_op")


# EDIT: how a batch of calls becomes one call.
def _vmap(info, in_dims, input, other, alpha):
    if in_dims[0] is None:
        raise RuntimeError(
            "my_op: what is written to must be batched "
            "under vmap where anything else is: a result per example does not fit into it"
        )
    input, other = to_front(info.batch_size, in_dims[:2], input, other)
    torch.ops.extension_cpp.my_op(input, other, alpha)
    return None, None


register_vmap("extension_cpp::my_op", _vmap)
