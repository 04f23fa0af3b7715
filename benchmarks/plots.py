"""Plots of TB/s over size, ours beside the others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contenders import DIRECTIONS, OTHERS, OURS
from results import Results, Row

FLOOR, CEILING = "floor", "ceiling"
COLOURS = {
    OURS: "#d62728",
    "eager": "#7f7f7f",
    "compile": "#1f77b4",
    "liger": "#2ca02c",
    "quack": "#9467bd",
}


def series(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    """Megabytes and TB/s of a contender, by size; of sizes within a fifth the medians."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        if name in row.times:
            groups.setdefault(round(4 * math.log2(row.bytes)), []).append(row)
    sizes, rates = [], []
    for _, group in sorted(groups.items()):
        sizes.append(statistics.median(row.bytes for row in group) / 1e6)
        rates.append(statistics.median(row.rate(name) for row in group) / 1e12)
    return sizes, rates


def draw(results: Results, folder: Path) -> list[Path]:
    """A figure for each operator, and one of them all, beside the results' file.

    Plain calls alone are drawn, as far as an operator has them: other forms move their bytes in
    other ways.
    """
    from matplotlib.figure import Figure

    operators = list(dict.fromkeys(row.operator for row in results))
    written = []
    for operator in operators:
        rows = plain(results, operator)
        dtypes = list(dict.fromkeys(row.dtype for row in rows))
        directions = [d for d in DIRECTIONS if any(row.direction == d for row in rows)]
        figure = Figure(
            figsize=(4 * len(directions), 3.2 * len(dtypes)), layout="constrained", dpi=100
        )
        grid = figure.subplots(len(dtypes), len(directions), squeeze=False, sharey=True)
        for axes_of_dtype, dtype in zip(grid, dtypes, strict=True):
            for axes, direction in zip(axes_of_dtype, directions, strict=True):
                chosen = [r for r in rows if (r.dtype, r.direction) == (dtype, direction)]
                panel(axes, f"{operator} {direction}, {dtype}", chosen, results)
        written.append(_save(figure, grid, folder / f"{results.path.stem}-{operator}.png"))
    return [*written, overview(results, operators, folder)]


def overview(results: Results, operators: Sequence[str], folder: Path) -> Path:
    """The forward of every operator, in the first dtype."""
    from matplotlib.figure import Figure

    across = min(4, len(operators))
    down = math.ceil(len(operators) / across)
    figure = Figure(figsize=(3.4 * across, 2.8 * down), layout="constrained", dpi=100)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes, operator in zip(grid.flat, operators, strict=False):
        rows = [row for row in plain(results, operator) if row.direction == "forward"]
        rows = [row for row in rows if row.dtype == rows[0].dtype]
        panel(axes, f"{operator}, {rows[0].dtype}" if rows else operator, rows, results)
    for axes in grid.flat[len(operators) :]:
        axes.set_visible(False)
    return _save(figure, grid, folder / f"{results.path.stem}.png")


def plain(results: Results, operator: str) -> list[Row]:
    rows = [row for row in results if row.operator == operator]
    return [row for row in rows if row.form == ""] or rows


def panel(axes: Any, title: str, rows: Sequence[Row], results: Results) -> None:
    """A line for each contender, and a dot for each of its rows."""
    for name in (*OTHERS, OURS):  # ours on top
        chosen = [row for row in rows if name in row.times]
        if chosen:
            colour = COLOURS[name]
            axes.plot(*series(chosen, name), label=name, color=colour)
            sizes, rates = zip(*[(r.bytes / 1e6, r.rate(name) / 1e12) for r in chosen], strict=True)
            axes.plot(sizes, rates, ".", color=colour, markersize=4)
    if rows:
        floors = {row.bytes / 1e6: row.bytes / row.floor_us / 1e6 for row in rows}
        axes.plot(*zip(*sorted(floors.items()), strict=True), ":k", linewidth=1, label=FLOOR)
        ceiling = results.ceiling(rows[0]) / 1e12
        axes.axhline(ceiling, color="k", linewidth=0.5, label=CEILING)
    axes.set_title(title, fontsize=9)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)


def _save(figure: Any, grid: Any, path: Path) -> Path:
    grid.flat[0].set_ylim(bottom=0)  # of all, which share it
    figure.supxlabel("MB moved", fontsize=8)
    figure.supylabel("TB/s", fontsize=8)
    entries: dict[str, Any] = {}
    for axes in grid.flat:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    order = [name for name in (OURS, *OTHERS, FLOOR, CEILING) if name in entries]
    handles = [entries[name] for name in order]
    figure.legend(handles, order, loc="outside upper center", ncols=len(order) or 1, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path
