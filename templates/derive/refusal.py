"""Why a definition is not derived."""

from __future__ import annotations

import linecache
import sys
import traceback

from schema import Refusal

BY_HAND = "start from --template elementwise, or write the kernel by hand"


class NotDerived(Refusal):
    """A definition that no operator is derived of; nothing was written."""


class OverEverything(NotDerived):
    """The same, unless all that it reduces is reduced over everything."""


def refuse(reason: str, instead: str = BY_HAND) -> NotDerived:
    """An exception that names the line of the definition which is being run, where there is one."""
    place = line_of_definition()
    return NotDerived(f"{place}{reason}; {instead}" if instead else f"{place}{reason}")


def taken(what: str) -> NotDerived:
    """An exception that says what is called as something that the generated code uses."""
    return NotDerived(f"{what} is used by the generated code: choose another name")


# The file of the definition that is traced.
traced_file: list[str] = []


def line_of_definition(file: str = "") -> str:
    """`softcap.py:3: 'y = x.sum()': `, of the innermost frame in the definition's file.

    Args:
        file: that of a definition that is not traced.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in (file, *traced_file):
            return line_of(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def line_of_error(error: BaseException, file: str) -> str:
    """The same of an exception that was raised by the definition."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return line_of(file, lines[-1]) if lines and lines[-1] else ""


def line_of(file: str, line: int) -> str:
    return f"{file}:{line}: '{linecache.getline(file, line).strip()}': "


def in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
