"""A C++ compiler for builds in which every source includes torch_abi.h, and nothing is timed.

It neither optimises nor writes debug symbols, reads torch_abi.h once for all sources, and compiles
a source once for all copies of the repository that hold it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICK = ("-O0", "-g0")
# Those that say where files lie.
PLACES = ("-I", "-ffile-prefix-map=")


def make() -> Path:
    """The compiler: a program that knows this interpreter and its torch."""
    # Named after a compiler, by which torch knows one.
    program = ROOT / "build" / "quick" / version("torch") / "g++"
    # One that is new would compile all again.
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        lines = (
            f"#!{sys.executable}",
            "import sys",
            f"sys.path.insert(0, {str(ROOT / 'tests')!r})",
            "import quick_compiler",
            "quick_compiler.main()",
        )
        script = program.with_name(f"{os.getpid()}.py")
        script.write_text("\n".join(lines) + "\n")
        script.chmod(0o755)
        script.replace(program)
    return program


def main() -> None:
    store, command = Path(sys.argv[0]).parent, sys.argv[1:]
    if "-c" in command:
        compile_once(store, command)
    else:
        os.execvp("c++", ["c++", *command])


def compile_once(store: Path, command: list[str]) -> None:
    named = {flag: command[i + 1] for i, flag in enumerate(command) if flag in ("-o", "-MF")}
    (source,) = (Path(a).resolve() for a in command if a.endswith(".cpp"))
    of_a_file = {*named, *named.values(), "-MMD", "-c"}
    flags = [a for a in command if a not in of_a_file and not a.endswith(".cpp")]
    (csrc,) = (Path(a[2:]).resolve() for a in flags if a.startswith("-I") and a.endswith("/csrc"))
    package = csrc.parent
    # What operators share includes none of theirs.
    headers = sorted((csrc if csrc in source.parents else package).rglob("*.h"))
    known = store / f"{digest(package, flags, [source, *headers])}.o"
    if not known.exists():
        header = precompiled(store / digest(package, flags, sorted(csrc.rglob("*.h"))), flags)
        made = known.with_suffix(f".{os.getpid()}")
        arguments = [*flags, *QUICK, "-include", str(header), "-c", str(source), "-o", str(made)]
        if status := subprocess.run(["c++", *arguments], check=False).returncode:
            sys.exit(status)
        made.replace(known)
    shutil.copyfile(known, named["-o"])
    if "-MF" in named:
        files = " ".join(str(path).replace(" ", "\\ ") for path in (source, *headers))
        Path(named["-MF"]).write_text(f"{named['-o']}: {files}\n")


def digest(package: Path, flags: Sequence[str], files: Sequence[Path]) -> str:
    """Of all that makes an object: whichever folder the package lies in."""
    compiler = subprocess.run(["c++", "--version"], stdout=subprocess.PIPE, check=True).stdout
    contents = [(str(path.relative_to(package)), path.read_bytes()) for path in files]
    said = [flag for flag in flags if not flag.startswith(PLACES)]
    return hashlib.sha256(repr((compiler, said, contents)).encode()).hexdigest()


def precompiled(folder: Path, flags: Sequence[str]) -> Path:
    folder.mkdir(exist_ok=True)
    header = folder / "precompiled.h"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder / "precompiled.h.gch"
        if not made.exists():
            header.write_text('#include "torch_abi.h"\n')
            arguments = [*flags, *QUICK, "-x", "c++-header", str(header), "-o", str(made)]
            subprocess.run(["c++", *arguments], check=True)
    return header


if __name__ == "__main__":
    # For .ci/run.
    print(make())
