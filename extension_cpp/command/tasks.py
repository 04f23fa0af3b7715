"""What can be done with one operator: each of the checks, compiling its CUDA sources, timing it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch._dynamo  # checks need it: it is imported while the libraries are built

from extension_cpp import _loader
from extension_cpp.battery.choices import default_dtype
from extension_cpp.battery.failure import shown_path
from extension_cpp.battery.registry import Check, default_checks
from extension_cpp.testing import CHECKS, CheckError, OpSpec, devices

ROOT = _loader.FOLDER.parent
OPERATORS = "extension_cpp.operators"
# Where there is no GPU that would have it compiled: the sources, by nvcc.
CUDA_COMPILES = "cuda_compiles"
# Begun first, for the others to fit beside them.
LONG = (CUDA_COMPILES, "opcheck", "compile", "layouts")
# For a first look: together they find nearly every fault that the battery's own tests plant, and
# compile nothing.
QUICK = (
    "forward",
    "backward",
    "strides",
    "transforms",
    "vmap",
    "double_backward",
    "references",
    "wanted",
    "bad_inputs",
    "wrong_tensors",
    "autocast",
    "traffic",
    "determinism",
    "side_effects",
    "argument_twice",
    "no_gradient",
    "missing_backend",
    "signature",
    "registrations",
)


class UsageError(Exception):
    """What was asked for is not there."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked for.

    Attributes:
        operator: its name, or PACKAGE:NAME with a package as `find_specs` takes it.
        only: names of checks; all that apply if there are none.
        quick: whether only those of `QUICK` are wanted.
        verbose: whether what checks print is shown.
    """

    operator: str
    only: tuple[str, ...] = ()
    quick: bool = False
    verbose: bool = False


@dataclasses.dataclass
class Outcome:
    """What came of a check: "pass", "fail", "crash", or "skipped"; and the whole message."""

    name: str
    device: str
    seconds: float
    result: str
    message: str = ""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a worker can do; `run` returns why it did not, nothing as a rule."""

    name: str
    device: str
    run: Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What all workers can do.

    Attributes:
        tasks: names and devices, in order.
        skipped: the checks that are not run.
        devices: those of this machine.
        files: the operator's sources.
        schemas: the operators whose schemas are others than a test expects.
    """

    tasks: tuple[tuple[str, str], ...]
    skipped: tuple[Outcome, ...]
    devices: tuple[str, ...]
    files: tuple[str, ...]
    schemas: tuple[str, ...]


def names() -> list[str]:
    """All checks."""
    return [*(name.removeprefix("check_") for name in CHECKS), CUDA_COMPILES]


def load(operator: str) -> OpSpec:
    """The spec, once the libraries are loaded.

    Raises:
        UsageError: there is no such spec.
    """
    _loader.load()
    # What the package imports by itself otherwise.
    for module in ("ops", "nn"):
        importlib.import_module(f"extension_cpp.{module}")
    package, _, name = operator.rpartition(":")
    module = f"{package or OPERATORS}.{name}.spec"
    try:
        return importlib.import_module(module).spec
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"no operator '{operator}': there is no module {module}") from None
        raise


def plan(spec: OpSpec, request: Request) -> tuple[list[Task], list[Outcome]]:
    """What to do, and what is not done and why."""
    wanted = request.only or (QUICK if request.quick else tuple(names()))
    here, tasks, skipped = devices(), [], []
    few = (default_dtype(spec), spec.dtypes[-1])  # float32 and bfloat16, as a rule
    for name in sorted(wanted, key=_turn):
        skip = functools.partial(Outcome, name, seconds=0.0, result="skipped")
        if name == CUDA_COMPILES:
            if "cuda" in spec.devices and ":" not in request.operator:
                tasks.append(Task(name, "cuda", functools.partial(cuda_compiles, spec.name)))
            continue
        check = CHECKS[f"check_{name}"]
        if f"check_{name}" not in default_checks():
            skipped.append(skip(device="cpu", message="hypothesis is not installed"))
            continue
        for device in ("cpu", "cuda"):
            if not check.applies(spec, device):
                skipped.append(skip(device=device, message="not for this operator"))
            elif device not in here:
                skipped.append(skip(device=device, message="no GPU is visible"))
            else:
                calls = [call for call in check.arguments([spec]) if call[1] == device]
                if request.quick and check.per_dtype:
                    calls = [call for call in calls if call[2] in few]
                tasks.append(Task(name, device, functools.partial(run, check, calls)))
    return tasks, skipped


def _turn(name: str) -> int:
    order = (CUDA_COMPILES, *QUICK, *LONG[1:])
    return order.index(name) if name in order else len(order)


def run(check: Check, calls: Sequence[tuple[Any, ...]]) -> str:
    """Runs a check with all dtypes."""
    failed = {}
    for spec, device, *dtype in calls:
        try:
            check.run(spec, device, *dtype)
        except AssertionError as error:
            failed[", ".join(map(str, dtype))] = str(error)
    if failed:
        (_, message), *others = failed.items()
        if others:
            message += f"\n  also with: {', '.join(dtype for dtype, _ in others)}"
        raise CheckError(message)
    return ""


def cuda_compiles(operator: str) -> str:
    """Compiles the operator's CUDA sources where the build has not done so."""
    from extension_cpp.command.build import diagnostics

    if _loader.build_info().get("cuda"):
        return "the build compiled it"
    if not (ROOT / "setup.py").exists():
        return "no sources"
    command = [sys.executable, "setup.py", "check_cuda", "--optional", "--oldest"]
    command += [f"--operator={operator}"]
    result = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode:
        problem = f"{operator}: its CUDA sources do not compile"
        raise CheckError(f"{problem}\n{diagnostics(result.stdout.splitlines(), ROOT)}")
    return "no nvcc was found" if "no nvcc was found" in result.stdout else ""


def times(spec: OpSpec, quick: bool) -> dict[str, Any]:
    """Rows of times, or why there are none; see benchmarks/glance.py."""
    folder = ROOT / "benchmarks"
    if not (folder / "glance.py").exists():
        return {"rows": [], "why": "there is no benchmarks/ beside the package"}
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("glance").times(spec, devices()[-1], quick)
    except Exception as error:  # out of memory, say
        return {"rows": [], "why": explained(error)}


def outcome(task: Task) -> Outcome:
    begin, result, message = time.monotonic(), "pass", ""
    try:
        message = task.run()
        if message:
            result = "skipped"
    except AssertionError as error:
        result, message = "fail", str(error)
    except Exception as error:
        result, message = "fail", explained(error)
    return Outcome(task.name, task.device, round(time.monotonic() - begin, 2), result, message)


def explained(error: Exception) -> str:
    """What was raised, and where in people's own files."""
    if isinstance(error, ImportError) and error.name is None:
        return str(error)  # the loader's, which says it all
    found = traceback.TracebackException.from_exception(error)
    ours = [f for f in found.stack if Path(f.filename).parent != Path(__file__).parent]
    ours = [frame for frame in ours if "importlib" not in frame.filename]
    first, *rest = found.format_exception_only()
    if isinstance(error, SyntaxError):  # the kind of error comes last
        first, rest = f"{type(error).__name__}: {error}\n", [first, *rest[:-1]]
    return "".join([first, *rest, *traceback.StackSummary.from_list(ours).format()]).rstrip()


def files(spec: OpSpec) -> tuple[str, ...]:
    source = inspect.getsourcefile(inspect.unwrap(spec.function))
    folder = Path(source).parent if source else Path()
    kernels = [path for end in ("cpp", "cu") for path in sorted(folder.glob(f"*.{end}"))]
    found = [*kernels, folder / "ops.py", folder / "spec.py"]
    return tuple(str(shown_path(path)) for path in found if path.exists())


def changed_schemas() -> tuple[str, ...]:
    """The operators of this package whose schemas are others than tests/test_schemas.py expects."""
    test = ROOT / "tests" / "test_schemas.py"
    literal = r'"""\\\n(?:\w+\(.*\n)*"""'
    found = re.search(literal, test.read_text()) if test.exists() else None
    if found is None:
        return ()
    prefix = f"{_loader.NAMESPACE}::"
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith(prefix)]
    there = {str(schema).removeprefix(prefix) for schema in schemas}
    changed = there ^ {*ast.literal_eval(found[0]).splitlines()}
    return tuple(sorted({schema.partition("(")[0] for schema in changed}))
