"""Expected messages: where they are written, and that nothing else is printed."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from extension_cpp.battery.case import Case
from extension_cpp.battery.samples import BadInput


@contextlib.contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """What is written to `sys.stderr` and, by C++, to the file descriptor."""
    printed: list[str] = []
    with tempfile.TemporaryFile() as file, contextlib.redirect_stderr(io.StringIO()) as python:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield printed
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text = python.getvalue() + file.read().decode(errors="replace")
            if text:
                printed.append(text)


# What was accepted in this process: (file, name) to message.
_accepted: dict[tuple[str, str], str] = {}


def accept(case: Case, bad: BadInput, text: str) -> None:
    """Writes a message into the source, where its BadInput is constructed."""
    import expecttest

    path = Path(bad.origin)
    earlier = _accepted.setdefault((bad.origin, bad.name), text)
    if earlier != text:
        case.fail("two messages for one expectation", detail=f"{earlier}\n{text}", see=str(path))
    # The same text may be expected under several names, and lines move as literals are rewritten:
    # look for the name.
    source = path.read_text(encoding="utf-8")
    literals = [
        message
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] == "BadInput"
        and len(node.args) == 3
        and ast.unparse(node.args[0]) == repr(bad.name)
        and isinstance(message := node.args[2], ast.Constant)
    ]
    if len(literals) != 1:
        case.fail(
            f"{len(literals)} calls BadInput({bad.name!r}, ..., <literal>) to write it to",
            detail=text,
            see=str(path),
        )
    literal = literals[0]
    lines = source.splitlines(keepends=True)
    first, last = literal.lineno - 1, (literal.end_lineno or literal.lineno) - 1
    before = lines[first].encode()[: literal.col_offset].decode()
    after = lines[last].encode()[literal.end_col_offset :].decode()
    # expecttest knows how to write a literal, into triple quotes.
    written, _ = expecttest.replace_string_literal('""""""', 1, 1, text)
    lines[first : last + 1] = [before + written + after]
    path.write_text("".join(lines), encoding="utf-8")
