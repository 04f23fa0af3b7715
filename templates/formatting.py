"""Formats generated files as `make format` would, where the formatters are at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kinds import PACKAGE, TEMPLATES


def find_tool(name: str) -> str | None:
    """A formatter: beside the interpreter, in the repository's .venv, or on PATH."""
    own = (Path(sys.executable).parent, TEMPLATES.parent / ".venv" / "bin")
    return shutil.which(name, path=os.pathsep.join([*map(str, own), *os.get_exec_path()]))


def format_text(name: str, text: str) -> str:
    """Formats one file as `make format` would."""
    place = PACKAGE / name
    commands = [["clang-format", f"--assume-filename={place}"]]
    if name.endswith(".py"):
        stdin = ["--stdin-filename", str(place), "-"]
        commands = [
            ["ruff", "check", "--quiet", "--fix-only", "--select", "F401,I", *stdin],
            ["ruff", "format", *stdin],
        ]
    for tool, *arguments in commands:
        if found := find_tool(tool):
            command = [found, *arguments]
            result = subprocess.run(command, input=text, capture_output=True, encoding="utf-8")
            if result.returncode:
                raise RuntimeError(f"{found} refuses the generated {name}: {result.stderr}\n{text}")
            text = result.stdout
    return text
