"""Writes plots and tables from the results: README's, and beside each file of results its own.

    python benchmarks/report.py

For `results/NAME.json` there will be `NAME.md`, all rows, `NAME-goals.md`, what they shall reach,
`NAME-OPERATOR.png` and `NAME.png`; for `results/derived/NAME.json` only `NAME.md`.
What README and templates/README.md show between their marks is of the newest results of a GPU.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import goals
from contenders import OURS
from machine import ROOT
from plots import draw
from results import DERIVED, FOLDER, Results, Row, committed, device, sizes
from table import markdown, others_in, whole

README = ROOT / "README.md"
# Of the operators that were derived.
DERIVED_README = ROOT / "templates" / "README.md"
BEGIN, END = "<!-- benchmark: written by benchmarks/report.py -->\n", "<!-- end of benchmark -->\n"

TYPICAL = "16384x4096"


def main(folder: Path = FOLDER, readme: Path = README) -> None:
    found = committed(folder)
    for results in found:
        results.path.with_suffix(".md").write_text(document(results))
        goals_path(results).write_text(goals_document(results))
        try:
            draw(results, folder)
        except ImportError:
            raise SystemExit("report.py: matplotlib, which draws, is not installed") from None
    readme.write_text(with_section(readme.read_text(), section(found, readme.parent)))
    derived = committed(DERIVED)
    for results in derived:
        results.path.with_suffix(".md").write_text(document(results))
    text = DERIVED_README.read_text()
    DERIVED_README.write_text(with_section(text, derived_section(derived)))


def with_section(text: str, content: str) -> str:
    """A document with something else between its marks."""
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    replaced, count = re.subn(pattern, lambda _: BEGIN + content + END, text, flags=re.S)
    if count != 1:
        raise ValueError(f"the marks {BEGIN.strip()} and {END.strip()} must be there once")
    return replaced


def section(found: list[Results], folder: Path = ROOT) -> str:
    """What a README in a folder shows: plot, table and their origin; nothing without a GPU's."""
    if not found or device(found[0]) != "cuda":
        return ""
    plot = os.path.relpath(found[0].path.with_suffix(".png"), folder)
    return f"![TB/s over size]({plot})\n\n{figures(found[0])}"


def derived_section(found: list[Results]) -> str:
    """What templates/README.md shows: all rows. Nothing without results of a GPU."""
    if not found or device(found[0]) != "cuda":
        return ""
    results, others = found[0], others_in(found[0])
    dtypes = sorted({row.dtype for row in results}, reverse=True)
    rows: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in results:
        if OURS in row.times:
            rows.setdefault((row.operator, row.form, row.direction), {})[row.dtype] = row
    names = ["operator", "form", "pass"]
    names += [f"{dtype} {name}" for dtype in dtypes for name in ("us", "of floor", *others)]
    lines = [
        [*key, *(cell for dtype in dtypes for cell in cells(found.get(dtype), others))]
        for key, found in rows.items()
    ]
    shapes = ", ".join(sorted({row.shape for row in results}))
    return f"""\
{origin(results)} All of shape {shapes}. Times of others are given as how many times ours they are.

{markdown(names, lines)}
"""


def cells(row: Row | None, others: list[str]) -> list[str]:
    if row is None:
        return [""] * (2 + len(others))
    ours = row.times[OURS].us
    ratios = (f"{row.times[name].us / ours:.2f}" if name in row.times else "" for name in others)
    return [f"{ours:.1f}", f"{row.of_floor(OURS):.0%}", *ratios]


def figures(results: Results) -> str:
    """A table of typical rows, under their origin."""
    others = others_in(results)
    rows = [row for row in typical(results) if OURS in row.times]
    names = ["operator", "shape", "dtype", "pass", "us", "TB/s", "of floor", *others]
    return f"""\
{origin(results, rows)} Times of others are given as how many times ours they are.

{markdown(names, (summary(row, others) for row in rows))}
"""


def typical(results: Results) -> list[Row]:
    """One call of each operator: the plain one, at a shape and dtype that most of them have."""
    counts: dict[tuple[str, str], set[str]] = {}
    for row in results:
        if row.direction != "both":
            counts.setdefault((row.shape, row.dtype), set()).add(row.operator)
    if not counts:
        return []
    most = max(
        counts, key=lambda key: (len(counts[key]), key[0] == TYPICAL, math.prod(sizes(key[0])))
    )
    rows = [r for r in results if (r.shape, r.dtype) == most and r.direction != "both"]
    plain: dict[str, str] = {}  # or, where an operator has no plain call, the first
    for row in rows:
        plain[row.operator] = plain.get(row.operator, row.form) if row.form else ""
    shown = [row for row in rows if row.form == plain[row.operator]]
    return sorted(shown, key=lambda r: (list(plain).index(r.operator), r.direction == "backward"))


def summary(row: Row, others: list[str]) -> list[str]:
    us, of_floor, *rest = cells(row, others)
    rate = f"{row.rate(OURS) / 1e12:.2f}"
    return [row.operator, row.shape, row.dtype, row.direction, us, rate, of_floor, *rest]


def origin(results: Results, rows: Iterable[Row] | None = None) -> str:
    """The sentence that says what was measured, and on what: of all rows, or of some."""
    starts = sorted({row.run for row in (results if rows is None else rows)})
    runs = [results.runs[start] for start in starts]
    run = runs[-1]
    ceiling = f"{run['ceiling'] / 1e12:.2f} TB/s"
    return (
        f"{run['hardware']}, torch {run['versions']['torch']}, {commits(runs)}; "
        f"ceiling {ceiling} ({run['ceiling_of']} over 1 GiB)."
    )


def commits(runs: Iterable[Mapping[str, Any]]) -> str:
    """Those of runs in the order of time; of many the first and the last."""
    different = list(dict.fromkeys(str(run["commit"])[:7] for run in runs))
    if len(different) > 3:
        return f"{len(different)} commits, from {different[0]} to {different[-1]}"
    return f"commit {', '.join(different)}"


def document(results: Results) -> str:
    """All rows of a file."""
    readme = os.path.relpath(FOLDER.parent / "README.md", results.path.parent)
    return f"""\
{origin(results)} [benchmarks/README.md]({readme}) says what the columns are.

{whole(results)}
"""


def goals_path(results: Results) -> Path:
    return results.path.with_name(f"{results.path.stem}-goals.md")


def goals_document(results: Results) -> str:
    """What the rows of a file shall reach, and those that do not."""
    module = goals.MODULES[device(results)].__name__
    return f"""\
{origin(results)} Asked for are times of others over ours: of the floor,
of the fastest other, of eager. [{module}.py](../{module}.py) has the goals,
[NOTES.md](../NOTES.md) what was measured.

{goals.table(results, device(results))}"""


if __name__ == "__main__":
    main()
