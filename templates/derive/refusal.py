"""Why a definition is not derived."""

from __future__ import annotations

import linecache
import sys

from schema import Refusal

BY_HAND = "start from --template elementwise, or write the kernel by hand"


class NotDerived(Refusal):
    """A definition that no operator is derived of; nothing was written."""


def refuse(reason: str, instead: str = BY_HAND) -> NotDerived:
    """An exception that names the line of the definition which is being run, where there is one."""
    place = line_of_definition()
    return NotDerived(f"{place}{reason}; {instead}" if instead else f"{place}{reason}")


# The file of the definition that is traced.
traced_file: list[str] = []


def line_of_definition() -> str:
    """`softcap.py:3: 'y = x.sum()': `, of the innermost frame in the definition's file."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in traced_file:
            file, line = frame.f_code.co_filename, frame.f_lineno
            text = linecache.getline(file, line).strip()
            return f"{file}:{line}: '{text}': "
        frame = frame.f_back  # type: ignore[assignment]
    return ""
