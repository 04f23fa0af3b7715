"""The build, as `make build` makes it, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Signals at which the program, as at Ctrl-C, ends what it has started.
ENDING = (signal.SIGTERM, signal.SIGHUP)
# What ninja says of a file that is compiled: how many it is of how many, and the command.
_COMPILED = re.compile(r"\[(\d+)/(\d+)\] .* -c '?(\S.*?)'? -o ")
# What is no message: commands, and through which templates a compiler came to an error.
_NOISE = re.compile(
    r"FAILED:|\[\d+/\d+\] |ninja: |.* -o \S"
    r"|.*\b(required (from|by)|In (instantiation|substitution) of|instantiation contexts)\b"
)


class Build:
    """A build that was started.

    Attributes:
        compiled: the files, from the repository's root.
        seconds: how long it took, once it was waited for.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.compiled: list[str] = []
        self.seconds = 0.0
        self._begin = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # for stop() to reach what it starts
        )

    def wait(self, say: Callable[[str], None]) -> str:
        """Says which files are compiled; returns what is wrong, nothing as a rule."""
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line.rstrip("\n"))
            found = _COMPILED.match(line)
            if found:
                file = Path(found[3])
                name = str(file.relative_to(self.root) if file.is_absolute() else file)
                self.compiled.append(name)
                say(f"  [{found[1]}/{found[2]}] {name}")
        failed = self._process.wait() != 0
        self.seconds = time.monotonic() - self._begin
        return diagnostics(lines, self.root) if failed else ""

    def stop(self) -> None:
        """Ends it, and the compilers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()


def diagnostics(lines: list[str], root: Path) -> str:
    """What compilers say in the output of a build that failed; files are named from the root."""
    failed = [i for i, line in enumerate(lines) if line.startswith("FAILED:")]
    if failed:
        lines = lines[failed[0] :]
    # Python's own words about it follow.
    ends = [i for i, line in enumerate(lines) if line.startswith(("ninja: build st", "Traceback"))]
    lines = [line for line in lines[: ends[0] if ends else None] if line and not _NOISE.match(line)]
    return "\n".join(line.replace(f"{root}/", "") for line in lines)
