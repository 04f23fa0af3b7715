"""A C++ compiler for builds in which every source includes torch_abi.h, and nothing is timed.

It neither optimises nor writes debug symbols, reads torch_abi.h once for all sources, and compiles
a source once for all copies of the repository that hold it. So is a library that several processes
of a test run load.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICK = ("-O0", "-g0")
# Flags that say where files lie.
PLACES = ("-I", "-ffile-prefix-map=")
# Where else a compiler looks for headers.
VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
# Seconds for which what nobody uses is kept.
KEPT = 24 * 3600


def make() -> str:
    """The compiler, as a shell names it: a program that knows this interpreter and its torch."""
    # Named after a compiler, by which torch knows one.
    program = ROOT / "build" / "quick" / version("torch") / "g++"
    lines = (
        f"#!{sys.executable}",
        "import sys",
        f"sys.path.insert(0, {str(ROOT / 'tests')!r})",
        "import quick_compiler",
        "quick_compiler.main()",
    )
    text = "\n".join(lines) + "\n"
    # One that is new would compile all again.
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        script = program.with_name(f"{os.getpid()}.py")
        script.write_text(text)
        script.chmod(0o755)
        script.replace(program)
    program.touch()
    for path in program.parent.iterdir():
        if time.time() - path.stat().st_mtime > KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return shlex.quote(str(program))


def main() -> None:
    store, command = Path(sys.argv[0]).parent, sys.argv[1:]
    if "-c" in command and "-include" not in command:
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
    files = [source, *headers]
    known = store / f"{digest(package, flags, files)}.o"
    if known.exists():
        known.touch()
        shutil.copyfile(known, named["-o"])
    else:
        header = precompiled(store, package, flags)
        made = known.with_suffix(f".{os.getpid()}")
        run_compiler(*flags, *QUICK, "-include", header, "-c", source, "-o", made)
        shutil.copyfile(made, named["-o"])
        # Not where somebody has edited a file meanwhile.
        unchanged = store / f"{digest(package, flags, files)}.o" == known
        made.replace(known) if unchanged else made.unlink()
    if "-MF" in named:
        escaped = " ".join(str(path).replace(" ", "\\ ") for path in files)
        Path(named["-MF"]).write_text(f"{named['-o']}: {escaped}\n")


def digest(package: Path, flags: Sequence[str], files: Sequence[Path]) -> str:
    """Of all that makes an object: whichever folder the package lies in."""
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    # With the commit that it is built of.
    torch_version = Path(torch.origin).with_name("version.py").read_bytes()
    contents = [(str(path.relative_to(package)), path.read_bytes()) for path in files]
    said = [flag for flag in flags if not flag.startswith(PLACES)]
    variables = [os.environ.get(name) for name in VARIABLES]
    own = Path(__file__).read_bytes()
    everything = (compiler_version(), torch_version, own, variables, said, contents)
    return hashlib.sha256(repr(everything).encode()).hexdigest()


@functools.cache
def compiler_version() -> bytes:
    return subprocess.run(["c++", "--version"], stdout=subprocess.PIPE, check=True).stdout


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """One process at a time."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def library_once(
    command: Sequence[str], library: Path, files: Sequence[Path]
) -> subprocess.CompletedProcess[str]:
    """Runs a compiler that makes a library of files of the repository, unless one has.

    Args:
        command: without where the library goes to.
        library: that.
        files: all that it is made of, but what it includes of torch.
    """
    store = Path(shlex.split(make())[0]).parent
    known = store / f"{digest(ROOT, command, files)}.so"
    with locked(known.with_suffix(".lock")):
        made = known.with_suffix(f".{os.getpid()}")
        result = subprocess.CompletedProcess[str](command, 0, "", "")
        if not known.exists():
            result = subprocess.run(
                [*command, "-o", str(made)], capture_output=True, text=True, check=False
            )
            if result.returncode == 0:
                made.replace(known)
        if result.returncode == 0:
            known.touch()
            shutil.copyfile(known, library)
    return result


def precompiled(store: Path, package: Path, flags: Sequence[str]) -> Path:
    """A header that includes torch_abi.h, beside which the compiler finds it compiled."""
    folder = store / digest(package, flags, included(package / "csrc" / "torch_abi.h"))
    folder.mkdir(exist_ok=True)
    folder.touch()
    header, compiled = folder / "precompiled.h", folder / "precompiled.h.gch"
    with locked(folder / "lock"):
        if not compiled.exists():
            header.write_text('#include "torch_abi.h"\n')
            made = folder / "made"
            run_compiler(*flags, *QUICK, "-x", "c++-header", header, "-o", made)
            made.replace(compiled)
    return header


def included(header: Path) -> list[Path]:
    """A header and what it includes of its folder."""
    found = [header]
    for path in found:
        names = re.findall(r'^#include "(.+)"', path.read_text(), re.M)
        found += [header.parent / name for name in names if header.parent / name not in found]
    return found


def run_compiler(*arguments: str | Path) -> None:
    if status := subprocess.run(["c++", *map(str, arguments)], check=False).returncode:
        sys.exit(status)


if __name__ == "__main__":
    # For .ci/run.
    print(make())
