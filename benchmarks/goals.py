"""The figures that rows of the results shall reach, and of those that do not, why.

    python benchmarks/goals.py

`benchmarks/report.py` writes the same beside the results, as `NAME-goals.md`. A row is of the first
goal that is for it. Figures count as they are printed: shares in whole per cent, ratios in
hundredths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import cpu_goals
import gpu_goals
from conditions import TEXTBOOK, Goal, best, eager, first_of
from contenders import OURS
from results import Row, committed
from results import device as device_of
from table import markdown


@dataclasses.dataclass(frozen=True)
class Figure:
    """What a goal may ask for."""

    name: str
    asked: Callable[[Goal], float]
    of: Callable[[Row], float | None]
    format: str

    def is_reached(self, row: Row, goal: Goal) -> bool:
        value = self.of(row)
        return value is None or round(value, 2) >= self.asked(goal)

    def text(self, value: float | None) -> str:
        return "" if value is None else format(value, self.format)


FIGURES = (
    Figure("of floor", lambda goal: goal.floor, lambda row: row.of_floor(OURS), ".0%"),
    Figure("best other", lambda goal: goal.best, best, ".2f"),
    Figure("eager", lambda goal: goal.eager, eager, ".2f"),
)
# What rows of a device's results shall reach, and why they do not: GOALS and REASONS.
MODULES = {"cuda": gpu_goals, "cpu": cpu_goals}
# What tables of rows begin with.
NAMED = ("call", "shape", "dtype", "pass")


def goal_of(row: Row, device: str) -> Goal | None:
    return first_of(MODULES[device].GOALS, row)


def reason_for(row: Row, device: str) -> str:
    reason = first_of(MODULES[device].REASONS, row)
    return "not known" if reason is None else reason.text


def reached(row: Row, goal: Goal) -> bool:
    return all(figure.is_reached(row, goal) for figure in FIGURES)


def rows_by_goal(rows: Iterable[Row], device: str) -> dict[Goal, list[Row]]:
    """Those that were timed, of goals that ask something."""
    found: dict[Goal, list[Row]] = {goal: [] for goal in MODULES[device].GOALS}
    for row in rows:
        goal = goal_of(row, device)
        if goal is not None and OURS in row.times:
            found[goal].append(row)
    asks = {goal: any(figure.asked(goal) for figure in FIGURES) for goal in found}
    return {goal: of for goal, of in found.items() if of and asks[goal]}


def named(row: Row) -> list[str]:
    """The columns that say which row it is."""
    call = " ".join(word for word in (row.operator, row.form) if word)
    return [call, row.shape, row.dtype, row.direction]


def below_eager(rows: Iterable[Row]) -> str:
    """How many rows take longer than PyTorch, and those of which the quartiles say so, too."""
    compared = [row for row in rows if {OURS, "eager"} <= row.times.keys()]
    compared = [row for row in compared if row.operator != TEXTBOOK]
    longer = [row for row in compared if row.times[OURS].us > row.times["eager"].us]
    apart = [
        row for row in longer if row.times[OURS].quartiles[0] > row.times["eager"].quartiles[1]
    ]
    counts = (
        f"Of {len(compared)} rows that eager PyTorch has, too, ours take longer in {len(longer)}; "
        f"in {len(apart)} the quartiles do not overlap"
    )
    if not apart:
        return f"{counts}."
    cells = []
    for row in sorted(apart, key=lambda row: eager(row) or 0):
        both = [row.times[name].quartiles for name in (OURS, "eager")]
        quartiles = [f"{low:.1f} to {high:.1f}" for low, high in both]
        cells.append([*named(row), f"{eager(row):.3f}", *quartiles])
    names = [*NAMED, "eager", "us, quartiles", "of eager"]
    return f"{counts}:\n\n{markdown(names, cells, NAMED)}"


def table(rows: Iterable[Row], device: str) -> str:
    """The goals, how many rows reach them, the rows that do not, and those below eager."""
    rows = list(rows)
    by_goal = rows_by_goal(rows, device)
    figures = [figure for figure in FIGURES if any(map(figure.asked, by_goal))]
    summary, short = [], []
    for goal, of in by_goal.items():
        below = [row for row in of if not reached(row, goal)]
        asked_and_least = []
        for figure in figures:
            values = [value for value in map(figure.of, of) if value is not None]
            least = min(values, default=None)
            asked_and_least += [figure.text(figure.asked(goal) or None), figure.text(least)]
        summary.append([goal.work, *asked_and_least, str(len(of)), str(len(of) - len(below))])
        for row in below:
            us = f"{row.times[OURS].us:.1f}"
            has = [figure.text(figure.of(row)) for figure in figures]
            why = reason_for(row, device)
            short.append([*named(row), us, *has, why])
    names = [figure.name for figure in figures]
    of_goals = ["work", *(text for name in names for text in (f"{name}, goal", "least"))]
    of_rows = [*NAMED, "us", *names, "why"]
    return f"""\
{markdown([*of_goals, "rows", "reached"], summary, ["work"])}

Rows that do not reach theirs:

{markdown(of_rows, short, [*NAMED, "why"])}

{below_eager(rows)}
"""


def main() -> None:
    for results in committed():
        print(f"{results.path.stem}\n\n{table(results, device_of(results))}")


if __name__ == "__main__":
    main()
