"""Argument checks for fake kernels: `csrc/checks.h` function by function, in the same words.

`check_number` alone is for public functions and modules: C++ and fake kernels see numbers.

`torch._check` with a callable adds nothing to the message, and under `torch.compile` it turns a
comparison of symbolic sizes into a guard. Each raises `RuntimeError` whose text starts with
the operator's name.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad as fwAD

from extension_cpp.layout import is_non_overlapping, is_one

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_number(op: str, name: str, value: float | None, constant: bool = False) -> None:
    """Refuses a tensor for a number where the dispatcher, which casts it, would drop derivatives.

    Args:
        op: the function or module.
        name: of the argument.
        value: a number; a tensor of one element that nothing differentiates or batches will do.
        constant: whether no tensor will do: a module would list it among its parameters.

    Raises:
        TypeError: a tensor all the same.
    """
    # In two, for torch.jit.script: a float is no tensor, and what is below is not looked at.
    if isinstance(value, Tensor):  # noqa: SIM102
        if constant or _is_transformed(value):
            raise TypeError(
                f"{op}: {name} must be a number, which is not differentiable, got a tensor"
                f"{' that requires a gradient' if value.requires_grad else ''}. To use its value "
                f"as a constant, give {name}.item()"
            )


def _is_transformed(tensor: Tensor) -> bool:
    """Whether a derivative or a batch dimension would be lost with the tensor."""
    return (
        tensor.requires_grad
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or fwAD.unpack_dual(tensor).tangent is not None
    )


def check_defined(op: str, name: str, tensor: Tensor | None) -> None:
    torch._check(tensor is not None, lambda: f"{op}: {name} must be a tensor, got None")
    # Where there are no fake tensors, the dispatcher has refused others in words of its own.
    if tensor is not None and tensor.layout != torch.strided:
        raise NotImplementedError(f"{op}: {name} must be torch.strided, got {tensor.layout}")


def check_floating(op: str, name: str, tensor: Tensor) -> None:
    check_defined(op, name, tensor)
    torch._check(
        tensor.dtype in FLOATING,
        lambda: (
            f"{op}: {name} must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, "
            f"got {tensor.dtype}"
        ),
    )


def check_same_dtype(op: str, name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    check_defined(op, name, tensor)
    torch._check(
        tensor.dtype == like.dtype,
        lambda: (
            f"{op}: {name} must have the dtype of {like_name}, {like.dtype}, got {tensor.dtype}"
        ),
    )


def check_same_device(op: str, name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    torch._check(
        tensor.device == like.device,
        lambda: (
            f"{op}: {name} must be on the device of {like_name}, {like.device}, got {tensor.device}"
        ),
    )


def check_min_dim(op: str, name: str, tensor: Tensor, min_dim: int) -> None:
    plural = "" if min_dim == 1 else "s"
    torch._check(
        tensor.dim() >= min_dim,
        lambda: (
            f"{op}: {name} must have at least {min_dim} dimension{plural}, "
            f"got shape {tuple(tensor.shape)}"
        ),
    )


def check_shape(op: str, name: str, tensor: Tensor, expected: Sequence[int]) -> None:
    def message() -> str:
        return f"{op}: {name} must have shape {tuple(expected)}, got {tuple(tensor.shape)}"

    torch._check(tensor.dim() == len(expected), message)
    for size, expected_size in zip(tensor.shape, expected, strict=True):
        torch._check(size == expected_size, message)


def check_broadcast(
    op: str, name: str, tensor: Tensor, like_name: str, like: Sequence[int]
) -> tuple[int, ...]:
    def message() -> str:
        return (
            f"{op}: {name} must broadcast with {like_name} of shape {tuple(like)}, "
            f"got {tuple(tensor.shape)}"
        )

    return broadcast_sizes(tensor.shape, like, message)


def broadcast_sizes(
    own: Sequence[int], like: Sequence[int], message: Callable[[], str]
) -> tuple[int, ...]:
    """The sizes to which two shapes broadcast; `message` says that they do not."""
    result = []
    for a, b in itertools.zip_longest(reversed(like), reversed(own), fillvalue=1):
        if is_one(a):
            result.append(b)
        elif is_one(b):
            result.append(a)
        else:
            torch._check(a == b, message)
            result.append(a)
    return tuple(reversed(result))


def check_non_overlapping(op: str, name: str, tensor: Tensor) -> None:
    torch._check(
        is_non_overlapping(tensor),
        lambda: (
            f"{op}: {name} must not overlap itself, got shape {tuple(tensor.shape)} "
            f"and strides {tensor.stride()}"
        ),
    )


def check_parameter_dtype(op: str, name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    check_defined(op, name, tensor)
    half = like.dtype in (torch.float16, torch.bfloat16)
    torch._check(
        tensor.dtype == like.dtype or (half and tensor.dtype == torch.float32),
        lambda: (
            f"{op}: {name} must have the dtype of {like_name}, {like.dtype}"
            f"{', or torch.float32' if half else ''}, got {tensor.dtype}"
        ),
    )


def check_dtype(op: str, name: str, tensor: Tensor, expected: torch.dtype) -> None:
    check_defined(op, name, tensor)
    torch._check(
        tensor.dtype == expected,
        lambda: f"{op}: {name} must be {expected}, got {tensor.dtype}",
    )


def check_not_negative(op: str, name: str, value: float) -> None:
    torch._check(value >= 0, lambda: f"{op}: {name} must not be negative, got {value:g}")


def check_dims(op: str, name: str, dims: Sequence[int], ndim: int) -> None:
    n = max(1, ndim)
    for i, dim in enumerate(dims):

        def out_of_range(dim: int = dim) -> str:
            return f"{op}: {name} must be in [{-n}, {n - 1}], got {dim}"

        torch._check(-n <= dim < n, out_of_range)
        torch._check(
            dim % n not in [other % n for other in dims[:i]],
            lambda: f"{op}: {name} must name a dimension once, got {tuple(dims)}",
        )
