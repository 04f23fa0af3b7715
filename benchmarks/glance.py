"""One operator at one shape beside PyTorch, for `python -m extension_cpp.testing`."""

from __future__ import annotations

import itertools
from typing import Any

from cases import Shapes, own, plan
from contenders import OURS
from limits import Memory
from run import parse, time_cell
from timing import Effort, timer

from extension_cpp.battery.choices import default_dtype
from extension_cpp.testing import OpSpec

SHAPES = {"cpu": (4096, 1024), "cuda": (16384, 4096)}
# For a first look: what is compared and timed in a second.
SMALL_SHAPES = {"cpu": (1024, 2048), "cuda": (4096, 1024)}


def times(spec: OpSpec, device: str, quick: bool = False) -> dict[str, Any]:
    """Rows of times, in us, of the operator and of its definition, or why there are none.

    Args:
        spec: the operator.
        device: cpu or cuda.
        quick: a smaller shape, without torch.compile, in few rounds.
    """
    if device not in spec.devices:
        return {"rows": [], "why": f"it does not run on {device}"}
    against = ["eager"] if quick else ["eager", "compile"]
    arguments = parse(["--passes", "forward", "both", "--against", *against, "--device", device])
    shape = (SMALL_SHAPES if quick else SHAPES)[device]
    dtype = str(default_dtype(spec)).removeprefix("torch.")
    measure = timer(device, Effort(rounds=30, seconds=0.1 if quick else 0.5, fewest=5))
    memory, rows = Memory(device), []
    # Of an operator with forms of its own, the first.
    for cell in itertools.islice(plan([spec], device, Shapes((shape,), ()), [dtype]), 1):
        for row in time_cell(cell, device, arguments, measure, memory, start=""):
            rows.append(
                {
                    "form": row.form,
                    "shape": row.shape,
                    "dtype": row.dtype,
                    "device": device,
                    "pass": row.direction,
                    "us": {name: time.us for name, time in row.times.items()},
                    "of_floor": row.of_floor(OURS) if OURS in row.times else None,
                    "failed": row.failed,
                }
            )
    return {"rows": rows, "why": "" if rows else f"no sample of shape {shape}{_yet(spec)}"}


def _yet(spec: OpSpec) -> str:
    """Where samples of another shape come from."""
    if hasattr(own(spec), "cases"):
        return ": cases() of its benchmark.py yields none"
    return ": cases(make, shape) of a benchmark.py beside spec.py may yield one of any other"
