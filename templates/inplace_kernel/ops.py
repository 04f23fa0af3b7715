"""EDIT: my_op, in one line."""

import torch
from torch import Tensor

from extension_cpp import checks, registration

_ops = torch.ops.extension_cpp


def my_op(input: Tensor, other: Tensor, alpha: float = 1.0) -> None:
    """EDIT: Adds to each element the one as far from the row's other end, and more, made of every
    argument; writes it all to `input`.

    Args:
        input: of shape `(..., cols)`, on CPU or CUDA; float64, float32, float16 or bfloat16;
            of any layout in which no two elements share memory.
        other: shape, dtype and device of `input`.
        alpha: a number.

    Not differentiable: a derivative through what it wrote raises an error.

    Under `torch.compile` and `torch.export`, which see no memory, arguments may share it in part:
    these compute on copies where a write could reach another tensor.

    Raises:
        RuntimeError: a dtype, device or shape other than the above, or memory that is shared
            with another argument in part.
    """
    checks.check_number("my_op", "alpha", alpha)
    _ops.my_op(input, other, alpha)


registration.register_fake("extension_cpp::my_op")
registration.register_mutation("extension_cpp::my_op")
registration.register_vmap("extension_cpp::my_op")
