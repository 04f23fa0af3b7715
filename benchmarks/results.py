"""Results as a file: runs, and rows that say of which run they are.

A row is measured again by replacing it, so that a file may hold operators of several runs. The
ceiling belongs to the run, the floor to the row.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"
# Of operators that were derived from definitions: see derived.py.
DERIVED = FOLDER / "derived"

Key = tuple[str, str, str, str, str]
# What must agree for a row to count as measured already.
SAME = ("hardware", "versions", "commit", "effort")


def sizes(shape: str) -> tuple[int, ...]:
    """Of a shape such as 16384x4096."""
    return tuple(int(length) for length in shape.split("x"))


@dataclasses.dataclass(frozen=True)
class Time:
    """What was measured of one contender, in microseconds."""

    us: float
    quartiles: tuple[float, float]
    warm_us: float | None = None
    host_us: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One call and pass: all contenders, and what the memory gives for as many bytes."""

    operator: str
    form: str
    shape: str
    dtype: str
    direction: str
    run: str
    bytes: int
    # How long the fastest plain operation takes to move as many bytes.
    floor_us: float
    floor_of: str
    rounds: int
    times: dict[str, Time]
    # Contenders that have no time, and why.
    failed: dict[str, str]

    @property
    def key(self) -> Key:
        return self.operator, self.form, self.shape, self.dtype, self.direction

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the main input."""
        return sizes(self.shape)

    def rate(self, name: str) -> float:
        """Bytes a second."""
        return self.bytes / self.times[name].us * 1e6

    def of_floor(self, name: str) -> float:
        return self.floor_us / self.times[name].us


class Results:
    """The content of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # By the time at which they started.
        self.runs: dict[str, dict[str, Any]] = {}
        self._rows: dict[Key, Row] = {}
        if path.exists():
            content = json.loads(path.read_text())
            self.runs = content["runs"]
            for row in content["rows"]:
                times = {
                    name: Time(**{**time, "quartiles": tuple(time["quartiles"])})
                    for name, time in row["times"].items()
                }
                self.put(Row(**{**row, "times": times}))

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def put(self, row: Row) -> None:
        self._rows[row.key] = row

    def ceiling(self, row: Row) -> float:
        """Bytes a second of the fastest plain operation over 1 GiB in the row's run."""
        return self.runs[row.run]["ceiling"]

    def measured(self, cell: tuple[str, str, str, str], run: dict[str, Any]) -> bool:
        """Whether rows of a cell were measured in just such a run, of a commit without changes."""
        if run["commit"] is None or run["dirty"]:
            return False
        return any(
            row.key[:4] == cell and all(self.runs[row.run].get(k) == run[k] for k in SAME)
            for row in self
        )

    def drop(self, cell: tuple[str, str, str, str], directions: Collection[str]) -> None:
        """Forgets the rows of a cell."""
        self._rows = {
            key: row
            for key, row in self._rows.items()
            if key[:4] != cell or row.direction not in directions
        }

    def save(self) -> None:
        """Writes runs and rows, a row a line."""
        used = {row.run for row in self}
        runs = {start: run for start, run in sorted(self.runs.items()) if start in used}
        rows = [json.dumps(dataclasses.asdict(row)) for row in self]
        text = (
            f'{{\n"runs": {json.dumps(runs, indent=1)},\n"rows": [\n' + ",\n".join(rows) + "\n]}\n"
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(text)
        os.replace(temporary, self.path)


def file_name(hardware: str, torch_version: str) -> str:
    """Such as nvidia-h200-torch2.11.json."""
    short = ".".join(torch_version.split("+")[0].split(".")[:2])
    words = re.sub(r"[^a-z0-9]+", "-", hardware.lower().replace("(r)", "").replace("(tm)", ""))
    return f"{words.strip('-')}-torch{short}.json"


def committed(folder: Path = FOLDER) -> list[Results]:
    """The files of a folder; those of GPUs first, the newest of each first."""
    found = [Results(path) for path in sorted(folder.glob("*.json"))]
    found = [results for results in found if results.runs]
    found.sort(key=lambda r: (device(r) == "cuda", max(r.runs)), reverse=True)
    return found


def device(results: Results) -> str:
    return next(iter(results.runs.values()))["device"]
