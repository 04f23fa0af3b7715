"""Formats generated files as `make format` would, where the formatters are at hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from kinds import TEMPLATES


def find_tool(name: str) -> str | None:
    """A formatter: beside the interpreter, as in the repository's .venv, or on PATH."""
    beside = Path(sys.executable).parent / name
    venv = TEMPLATES.parent / ".venv" / "bin" / name
    for path in (beside, venv):
        if path.exists():
            return str(path)
    return shutil.which(name)


def format_text(name: str, text: str) -> str:
    """Formats one file as `make format` would."""
    place = TEMPLATES.parent / "extension_cpp" / name
    if name.endswith(".py"):
        stdin = ["--stdin-filename", str(place), "-"]
        commands = [
            ["ruff", "check", "--quiet", "--fix-only", "--select", "F401,I", *stdin],
            ["ruff", "format", *stdin],
        ]
    else:
        commands = [["clang-format", f"--assume-filename={place}"]]
    for tool, *arguments in commands:
        found = find_tool(tool)
        if found is None:
            continue
        command = [found, *arguments]
        result = subprocess.run(
            command, input=text, capture_output=True, encoding="utf-8", check=False
        )
        if result.returncode:
            raise RuntimeError(f"{found} refuses the generated {name}: {result.stderr}\n{text}")
        text = result.stdout
    return text
