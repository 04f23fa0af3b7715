"""Times operators that templates/new_op.py derives from definitions, by run.py.

    python benchmarks/derived.py                      makes and builds them, and times them
    python benchmarks/derived.py --build-only         only makes and builds them
    python benchmarks/derived.py softmax -- --resume  one of them; what is built already is used

The definitions are those of the tests. A folder outside version control gets a copy of the package
in which these are operators like any others; beside one whose definition is that of a worked
operator the worked one is timed, too. What follows `--` are options of run.py.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from results import DERIVED

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "derived"
# What is copied: all that deriving, building and comparing need.
COPIED = (
    *("extension_cpp/**/*", "templates/**/*", "tests/*derived*.py"),
    *("setup.py", "pyproject.toml", ".clang-format", "README.md", "LICENSE"),
)
LEFT_OUT = ("*.so", "_build_info.json", "*.pyc")
# Says of what the copy was made: while that is so, it is as good as new.
STAMP = "made_of.txt"
BUILT = ", built"

CHOSEN = {
    "derived_functions": (
        "softcap",
        "tanh_gelu",
        "mish",
        "geglu",
        "squared_relu",
        "soft_threshold",
        "huber",
        "logcosh",
        "gated_residual",
    ),
    "derived_packed_functions": ("packed_swiglu", "rotary_embedding"),
    "derived_row_functions": (
        *("rms_norm", "softmax", "log_softmax", "layer_norm"),
        *("standardised", "entropy", "cosine"),
    ),
}
# Definitions of worked operators, under their names and this.
SUFFIX = "_derived"
# Of such an operator, where there is a worked one: what the spec of that one calls it with.
BESIDE = """\
from cases import own

from extension_cpp.operators.{name}.spec import spec


def cases(make, shape):
    given = getattr(own(spec), "cases", None)
    return given(make, shape) if given else [("", next(iter(spec.samples(make, shape))))]


others = {{"worked": lambda: spec.function}}
"""

# Not by --remove, which asks git what there is.
MAKE = """\
import sys
from pathlib import Path

sys.path.insert(0, "templates")
import new_op
from repository import Repository

for name in {unwanted!r}:
    Repository(Path.cwd()).remove(name).apply()
for place in {places!r}:
    new_op.main(["--from", place])
"""

SHAPES = {"cpu": "4096x1024", "cuda": "16384x4096"}
# The plain one, and that in which a layer calls an operator whose tensors broadcast.
FORMS = ("", "a[N], b[N]")


def main(argv: Sequence[str] | None = None) -> int:
    arguments, options = parse(argv)
    places = definitions(ROOT)
    if unknown := [name for name in arguments.operators if name not in places]:
        raise SystemExit(
            f"derived.py: no definition {', '.join(unknown)}; there are {', '.join(places)}"
        )
    folder = arguments.folder.resolve()
    make(folder, places)
    build(folder)
    if arguments.build_only:
        return 0
    defaults = {
        "--shapes": [SHAPES["cuda" if torch.cuda.is_available() else "cpu"]],
        "--forms": FORMS,
        "--dtypes": ["float32", "bfloat16"],
        "--passes": ["forward", "backward"],
        "--against": ["eager", "compile", "worked"],
        "--results": [str(DERIVED)],
    }
    for option, values in defaults.items():
        if option not in options:
            options += [option, *values]
    names = arguments.operators or list(places)
    command = [str(ROOT / "benchmarks" / "run.py"), *names, *options]
    return python(folder, *command, cwd=Path.cwd(), check=False)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "operators", nargs="*", metavar="op", help="definitions; default: all of them"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help=f"where they are built; default: {FOLDER.relative_to(ROOT)}",
    )
    parser.add_argument("--build-only", action="store_true", help="do not time them")
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    return parser.parse_args(given[:end]), given[end + 1 :]


def definitions(root: Path) -> dict[str, str]:
    """Where the definitions stand, as new_op.py takes it, by name."""
    places = {name: f"tests/{file}.py:{name}" for file, names in CHOSEN.items() for name in names}
    worked = Path("tests", "derived_worked_functions.py")
    for name in re.findall(r"^def (\w+)\(", (root / worked).read_text(), re.M):
        places[name] = f"{worked}:{name}"
    return places


def make(folder: Path, places: dict[str, str]) -> None:
    """A copy of the package with operators of these definitions, unless it is there already."""
    stamp = folder / STAMP
    digest = digest_of(places)
    if stamp.exists() and stamp.read_text() in (digest, digest + BUILT):
        return
    if folder.exists() and not stamp.exists() and any(folder.iterdir()):
        raise SystemExit(f"derived.py: {folder} is not empty, and was not made by this command")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stamp.write_text("")
    for path in copied():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    operators = folder / "extension_cpp" / "operators"
    worked = {name.removesuffix(SUFFIX) for name in places if name.endswith(SUFFIX)}
    # In one process: importing torch takes longest.
    code = MAKE.format(unwanted=unwanted(operators, worked), places=[*places.values()])
    python(folder, "-c", code, cwd=folder, stdout=subprocess.DEVNULL)
    for name in worked:
        if (operators / name / "spec.py").exists():
            text = BESIDE.format(name=name)
            (operators / f"{name}{SUFFIX}" / "benchmark.py").write_text(text)
    stamp.write_text(digest)


def build(folder: Path) -> None:
    """Builds the copy, unless that was done; one that was stopped is gone on with."""
    stamp = folder / STAMP
    made_of = stamp.read_text()
    if not made_of.endswith(BUILT):
        python(folder, "setup.py", "-q", "build_ext", "--inplace", cwd=folder)
        stamp.write_text(made_of + BUILT)


def copied() -> list[Path]:
    """The files that the copy is made of."""
    found = {path for pattern in COPIED for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not any(path.match(name) for name in LEFT_OUT))


def digest_of(places: dict[str, str]) -> str:
    """Says whether sources or definitions changed."""
    digest = hashlib.sha256(repr([places, BESIDE]).encode())
    for path in copied():
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def unwanted(operators: Path, wanted: set[str]) -> list[str]:
    """The worked operators that none of the wanted ones imports."""
    kept, todo = set(), {name for name in wanted if (operators / name).is_dir()}
    while todo:
        name = todo.pop()
        kept.add(name)
        for path in (operators / name).glob("*.py"):
            todo |= {*re.findall(r"\.operators\.(\w+)", path.read_text())} - kept
    there = {path.parent.name for path in operators.glob("*/spec.py")}
    return sorted(there - kept)


def python(
    folder: Path, *command: str, cwd: Path, stdout: int | None = None, check: bool = True
) -> int:
    """Runs Python with the package in the folder; returns the exit status."""
    others = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(folder), *([others] if others else [])])
    result = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
        stdout=stdout,
        check=False,
    )
    if check and result.returncode != 0:
        raise SystemExit(result.returncode)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
