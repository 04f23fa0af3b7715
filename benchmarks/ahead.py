"""Compiling ahead of the timing, in several processes: what they compile is in caches on disk."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cases import Cell, realise, reference
from contenders import OURS, contenders
from correctness import cotangents, results
from machine import release

# Of elements: what is larger would not leave the others enough memory.
LARGEST = 1 << 28


def compile_ahead(argv: Sequence[str], jobs: int) -> int:
    """Runs the same command in several processes, each for its part; returns how many failed."""
    script = Path(__file__).with_name("run.py")
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *argv, "--part", f"{number}/{jobs}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(jobs)
    ]
    return sum(process.wait() != 0 for process in processes)


def compile_part(todo: Sequence[Cell], part: str, device: str, against: Sequence[str]) -> None:
    """Calls what is compiled, for each of a part of the cells; nothing is compared.

    Args:
        todo: all cells.
        part: such as 0/8, the first of eight.
        device: cpu or cuda.
        against: the contenders.
    """
    number, jobs = (int(word) for word in part.split("/"))
    compiled = [name for name in against if name != "eager"]
    for cell in todo[number::jobs]:
        if math.prod(cell.shape) > LARGEST:
            continue
        call = realise(cell, device)
        right = call.of(reference(cell.spec))
        grads = cotangents(cell.spec, right, call.sample)
        for name, function in contenders(cell.spec, device, compiled)[0].items():
            if name == OURS:
                continue
            try:
                for _ in results(cell.spec, call.of(function), call.sample, grads):
                    pass
            except Exception:  # said where it is timed
                continue
        del call, right, grads
        release(device)
