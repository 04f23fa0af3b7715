"""Which operators PyTorch calls."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Called(TorchDispatchMode):
    """The names of the operators that are called under it, but for views and new tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func.name() != "aten::new_empty":
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def copies_in(call: Callable[[], object]) -> int:
    """How many copies of tensors it makes, those of kernels too."""
    with torch.profiler.profile() as profile:
        call()
    return sum(event.name == "aten::copy_" for event in profile.events())
