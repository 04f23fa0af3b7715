"""What operators do to their inputs under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C import (
    DispatchKey,
    DispatchKeySet,
    _ExcludeDispatchKeyGuard,
)
from torch._ops import OpOverload

from extension_cpp.registration.dispatch import implement, lookup
from extension_cpp.registration.signature import is_float8, tensors_in


def register_autocast(
    op: str | OpOverload,
    policy: Literal["lower_precision", "float32", "promote"],
    *,
    devices: Sequence[str] = ("cpu", "cuda"),
) -> None:
    """Registers what an operator does to its inputs under ``torch.autocast``.

    As with PyTorch's own operators, this concerns the floating-point tensors on autocast's device
    that are not float64.

    Args:
        op: The operator, ``"namespace::name"``.
        policy: ``"lower_precision"`` casts them to autocast's dtype, ``"float32"`` to float32,
            ``"promote"`` to the widest of their dtypes.
        devices: The device types it holds for. On others inputs are left as they are, which is what
            some of PyTorch's own operators do on the CPU.

    Raises:
        ValueError: If there is no such policy.
    """
    overload = lookup(op)
    if policy not in ("lower_precision", "float32", "promote"):
        raise ValueError(
            f"{overload.name()}: the autocast policy must be 'lower_precision', 'float32' or "
            f"'promote', got {policy!r}"
        )
    for device_type in devices:
        kernel = _autocast_kernel(overload, policy, device_type)
        implement(overload, f"Autocast{device_type.upper()}", kernel)


def _autocast_kernel(op: OpOverload, policy: str, device_type: str) -> Callable[..., Any]:
    key = getattr(DispatchKey, f"Autocast{device_type.upper()}")

    def is_eligible(value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.device.type == device_type
            and value.is_floating_point()
            and not is_float8(value)
            and value.dtype != torch.float64
        )

    def choose_dtype(values: Iterable[Any]) -> torch.dtype | None:
        if policy == "lower_precision":
            return torch.get_autocast_dtype(device_type)
        if policy == "float32":
            return torch.float32
        dtypes = [tensor.dtype for tensor in tensors_in(values) if is_eligible(tensor)]
        return functools.reduce(torch.promote_types, dtypes) if dtypes else None

    def cast(value: Any, dtype: torch.dtype | None) -> Any:
        if isinstance(value, (list, tuple)):
            return [cast(element, dtype) for element in value]
        return value.to(dtype) if is_eligible(value) else value

    def kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        dtype = choose_dtype((*args, *kwargs.values()))
        with _ExcludeDispatchKeyGuard(DispatchKeySet(key)):
            return op(
                *(cast(value, dtype) for value in args),
                **{name: cast(value, dtype) for name, value in kwargs.items()},
            )

    return kernel
