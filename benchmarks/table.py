"""Rows as text, for a terminal and for documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contenders import OTHERS, OURS, WORKED
from results import Results, Row

TEXT = ("operator", "form", "shape", "dtype", "pass")
FIGURES = ("MB", "us", "quartiles", "TB/s", "of ceiling", "of floor")
BESIDE = ("warm us", "host us")
# On a terminal, where it is not known how long the text of later rows will be.
WIDTHS = {"operator": 16, "form": 24, "shape": 14, "quartiles": 18, "warm us": 17, "host us": 13}


def header(others: Sequence[str]) -> list[str]:
    return [*TEXT, *FIGURES, *others, *BESIDE]


def cells(row: Row, ceiling: float, others: Sequence[str]) -> list[str]:
    """A row's columns: ours, then each of the others as its time and how many times ours it is."""
    text = [row.operator, row.form, row.shape, row.dtype, row.direction, f"{row.bytes / 1e6:.1f}"]
    ours = row.times.get(OURS)
    if ours is None:
        text += [_failed(row, OURS), "", "", "", ""]
    else:
        rate = row.rate(OURS)
        text += [
            f"{ours.us:.1f}",
            f"{ours.quartiles[0]:.1f} to {ours.quartiles[1]:.1f}",
            f"{rate / 1e12:.3f}",
            f"{rate / ceiling:.1%}",
            f"{row.of_floor(OURS):.1%}",
        ]
    for name in others:
        other = row.times.get(name)
        if other is None:
            text.append(_failed(row, name))
        elif ours is None:
            text.append(f"{other.us:.1f}")
        else:
            text.append(f"{other.us:.1f} {other.us / ours.us:.2f}x")
    # Beside those of eager.
    pair = [time for time in (ours, row.times.get("eager")) if time is not None]
    for field in ("warm_us", "host_us"):
        values = [getattr(time, field) for time in pair]
        text.append(" / ".join(f"{value:.1f}" for value in values if value is not None))
    return text


def _failed(row: Row, name: str) -> str:
    if name not in row.failed:
        return ""
    return "wrong" if row.failed[name].startswith("wrong") else "failed"


def line(columns: Sequence[str], others: Sequence[str]) -> str:
    """A row for a terminal."""
    names = header(others)
    padded = []
    for name, column in zip(names, columns, strict=True):
        width = WIDTHS.get(name, 16 if name in others else max(9, len(name)))
        padded.append(f"{column:<{width}}" if name in TEXT else f"{column:>{width}}")
    return " ".join(padded).rstrip()


def markdown(
    names: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[str] = TEXT
) -> str:
    """A table for a document; what is no number is set to the left."""
    rule = ["---" if name in text else "---:" for name in names]
    return "\n".join(f"| {' | '.join(columns)} |" for columns in (names, rule, *rows))


def others_in(results: Iterable[Row]) -> list[str]:
    """The other contenders that occur, in their usual order."""
    found = {name for row in results for name in (*row.times, *row.failed)}
    return [name for name in (*OTHERS, WORKED) if name in found]


def whole(results: Results) -> str:
    """All rows of a file, in Markdown, and why some contenders have no time."""
    others = others_in(results)
    rows = (cells(row, results.ceiling(row), others) for row in results)
    failures: dict[str, list[str]] = {}
    for row in results:
        for name, why in row.failed.items():
            call = " ".join(word for word in row.key if word)
            failures.setdefault(f"{name}: {why}", []).append(call)
    notes = [f"- {what} ({'; '.join(calls)})" for what, calls in failures.items()]
    return "\n".join([markdown(header(others), rows), *(["", *notes] if notes else [])])
