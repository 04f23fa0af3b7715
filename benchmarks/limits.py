"""What the memory gives: the fastest of plain operations over as many bytes, in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CEILING_BYTES = 1 << 30  # of a tensor
ITEMSIZE = 4


class Memory:
    """Memory for the operations to move, the same for all: random numbers, never zeros."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._scratch = torch.empty(0, device=device)

    def _floats(self, count: int) -> Tensor:
        if self._scratch.numel() < count:
            self._scratch = torch.empty(0)  # freed before more is asked for
            self._scratch = torch.rand(count, device=self._device)
        return self._scratch[:count]

    def moving(self, size: int) -> dict[str, Callable[[], object]]:
        """Operations that read and write `size` bytes in all, of float32, aligned."""
        floats = self._floats(max(16, size // ITEMSIZE))

        def parts(number: int) -> list[Tensor]:
            length = floats.numel() // number // 4 * 4  # each starts at a multiple of 16 bytes
            return [floats[i * length : (i + 1) * length] for i in range(number)]

        return _operations(parts(2), parts(3), floats)

    def ceiling(self) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
        """The operations over tensors of 1 GiB, and the bytes that each moves."""
        a, b, out = self._floats(3 * CEILING_BYTES // ITEMSIZE).chunk(3)
        operations = _operations([a, out], [a, b, out], a)
        passes = {"copy": 2, "relu": 2, "add": 3, "sum": 1}
        return operations, {name: passes[name] * CEILING_BYTES for name in operations}


def _operations(
    two: Sequence[Tensor], three: Sequence[Tensor], one: Tensor
) -> dict[str, Callable[[], object]]:
    """Plain operations on one, two and three tensors, the last of which is written."""
    (x, out), (a, b, total) = two, three
    return {
        "copy": lambda: out.copy_(x),
        "relu": lambda: torch.clamp_min(x, 0, out=out),
        "add": lambda: torch.add(a, b, out=total),
        "sum": lambda: torch.sum(one),
    }
