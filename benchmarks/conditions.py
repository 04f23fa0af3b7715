"""Goals and reasons, and conditions that say which rows of the results they are for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from contenders import OURS
from results import Row

OfRow = Callable[[Row], bool]

ELEMENTWISE = ("relu", "square", "mymuladd", "mymul", "affine", "fused_op", "myadd_out")
TEXTBOOK = "vector_add"
LAYER = "fused_layer_norm"
ENTROPY = "softmax_cross_entropy"
NORMS = ("add_rms_norm", "add_layer_norm")
SMALL = ("4096x1024", "1024x2048")
TRANSPOSED = "last operand transposed"
MISALIGNED = "misaligned"


@dataclasses.dataclass(frozen=True)
class Goal:
    """The floor's time over ours, the least time of others, and eager's; 0: any will do."""

    work: str
    floor: float
    best: float
    of: OfRow
    eager: float = 0


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why rows stay below; `benchmarks/NOTES.md` has the measurements."""

    text: str
    of: OfRow


Entry = TypeVar("Entry", Goal, Reason)


def first_of(entries: Iterable[Entry], row: Row) -> Entry | None:
    """The first that is for a row."""
    return next((entry for entry in entries if entry.of(row)), None)


def columns(row: Row) -> int:
    return row.sizes[-1]


def mib(row: Row) -> float:
    """Of the main input."""
    return math.prod(row.sizes) * getattr(torch, row.dtype).itemsize / 2**20


def channels(row: Row) -> int:
    """Independent ones of a scan over the dimension that its form names."""
    return math.prod(row.sizes) // row.sizes[int(row.form.removeprefix("dim "))]


def whole(row: Row) -> bool:
    """Rows of whole accesses, aligned."""
    return columns(row) % 8 == 0 and row.form != MISALIGNED


def is_of(*operators: str, **values: str) -> OfRow:
    """Rows of some operators whose direction, form, shape or dtype is the one that is named."""
    return lambda row: row.operator in operators and has(**values)(row)


def has(**values: str) -> OfRow:
    return lambda row: all(getattr(row, name) == value for name, value in values.items())


def forward(*operators: str, **values: str) -> OfRow:
    return is_of(*operators, direction="forward", **values)


def backward(*operators: str, **values: str) -> OfRow:
    return is_of(*operators, direction="backward", **values)


def both(*operators: str, **values: str) -> OfRow:
    return is_of(*operators, direction="both", **values)


def all_of(*conditions: OfRow) -> OfRow:
    return lambda row: all(condition(row) for condition in conditions)


def any_of(*conditions: OfRow) -> OfRow:
    return lambda row: any(condition(row) for condition in conditions)


def of_columns(least: int, most: int) -> OfRow:
    return lambda row: least <= columns(row) <= most


def from_mib(least: float) -> OfRow:
    return lambda row: mib(row) >= least


def best(row: Row) -> float | None:
    """The least time of others over ours."""
    others = [time.us for name, time in row.times.items() if name != OURS]
    return min(others) / row.times[OURS].us if others else None


def eager(row: Row) -> float | None:
    """PyTorch's time over ours."""
    return row.times["eager"].us / row.times[OURS].us if "eager" in row.times else None


def quartiles_overlap(row: Row) -> bool:
    """Ours and those of every other that is faster."""
    ours = row.times[OURS]
    faster = [time for time in row.times.values() if time.us < ours.us]
    return bool(faster) and all(ours.quartiles[0] <= time.quartiles[1] for time in faster)


def before(time: str) -> OfRow:
    """Rows of runs that started before a time, as 2026-11-26T01:40: kernels have changed since."""
    return lambda row: row.run < time
