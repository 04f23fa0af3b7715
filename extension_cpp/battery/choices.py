"""Which dtype and which of a spec's shapes are for which checks."""

from __future__ import annotations

import math
from typing import Any

import torch

from extension_cpp.battery.spec import OpSpec

Shape = tuple[int, ...]


def default_dtype(spec: OpSpec) -> torch.dtype:
    """For checks that are not about dtypes."""
    return torch.float32 if torch.float32 in spec.dtypes else spec.dtypes[0]


def finest_dtype(spec: OpSpec) -> torch.dtype:
    """For checks of derivatives."""
    return torch.float64 if torch.float64 in spec.dtypes else default_dtype(spec)


def layout_dtypes(spec: OpSpec) -> list[torch.dtype]:
    """For what is asked of layouts, which no dtype is: of most operators a wide one and a half."""
    return list(dict.fromkeys([default_dtype(spec), spec.dtypes[-1]]))


def main_shape(spec: OpSpec, max_dim: int = 4) -> Shape:
    """For costly checks: small, of the highest rank up to `max_dim`, no size below two if any.

    Where every shape has more dimensions, of the lowest rank.
    """
    usable = [shape for shape in spec.shapes if math.prod(shape) > 0]
    max_dim = max(max_dim, min(map(len, usable)))
    usable = [shape for shape in usable if len(shape) <= max_dim]
    usable = [shape for shape in usable if all(size > 1 for size in shape)] or usable
    dim = max(map(len, usable))
    return min((shape for shape in usable if len(shape) == dim), key=math.prod)


def tiny_shapes(spec: OpSpec) -> list[Shape]:
    """Zero-sized, and of one element."""
    return [shape for shape in spec.shapes if math.prod(shape) <= 1]


def small_shapes(spec: OpSpec) -> list[Shape]:
    """One shape of every kind: by rank; zero-sized; with a size of one; of one element."""
    kinds: dict[Any, Shape] = {}
    for shape in sorted(spec.shapes, key=math.prod):
        if math.prod(shape) <= 200:
            by_kind = math.prod(shape) == 1 or (1 in shape, len(shape))
            kinds.setdefault(shape if 0 in shape else by_kind, shape)
    return list(kinds.values())


def layout_shapes(spec: OpSpec) -> list[Shape]:
    """Small shapes, and one that takes vectorised paths."""
    larger = [shape for shape in spec.shapes if 1000 <= math.prod(shape) <= 10000]
    return small_shapes(spec) + larger[:1]
