"""The processes in which an operator is loaded, checked and timed: one that crashes is replaced."""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import importlib
import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch._dynamo  # checks need it: here it is imported while the libraries are built

from extension_cpp import _loader
from extension_cpp.battery.choices import default_dtype
from extension_cpp.battery.failure import shown_path
from extension_cpp.battery.registry import Check, default_checks
from extension_cpp.testing import CHECKS, CheckError, OpSpec, devices

ROOT = _loader.FOLDER.parent
OPERATORS = "extension_cpp.operators"
# Where there is no GPU that would have it compiled: the sources, by nvcc.
CUDA_COMPILES = "cuda_compiles"
# Of a check, in seconds; longer is taken for a deadlock.
LIMIT = 900.0
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
    """

    tasks: tuple[tuple[str, str], ...]
    skipped: tuple[Outcome, ...]
    devices: tuple[str, ...]
    files: tuple[str, ...]


def names() -> list[str]:
    """All checks."""
    return [*(name.removeprefix("check_") for name in CHECKS), CUDA_COMPILES]


# In a worker


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
    command = [sys.executable, "setup.py", "check_cuda", "--optional", f"--operator={operator}"]
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


def serve(connection: Connection, request: Request, log: Any) -> None:
    """What a worker does: says what it can do, then does what it is told to."""
    # Ctrl-C is for the parent, which ends it, and for compilers, which would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    # Standard output is the report's.
    if log is not None:
        os.dup2(log.fileno(), 2)
    os.dup2(2, 1)
    faulthandler.enable()
    threads = torch.get_num_threads()
    begin = time.monotonic()
    try:
        spec = load(request.operator)
        tasks, skipped = plan(spec, request)
        connection.send(
            Plan(
                tuple((task.name, task.device) for task in tasks),
                tuple(skipped),
                tuple(devices()),
                files(spec),
            )
        )
    except UsageError as error:
        connection.send(error)
        return
    except Exception as error:
        seconds = round(time.monotonic() - begin, 2)
        connection.send(Outcome("load", "", seconds, "fail", explained(error)))
        return
    while True:
        number = connection.recv()
        if number is None:
            torch.set_num_threads(threads)
            connection.send(times(spec, request.quick))
        else:
            torch.set_num_threads(min(2, threads))
            connection.send(outcome(tasks[number]))


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
    ours = [frame for frame in found.stack if frame.filename != __file__]
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


# In the parent


class Worker:
    """A process that has been given something to do, first of all to load the operator."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.doing = ("load", "")
        self.since = time.monotonic()
        # What it prints, for its last words.
        self._log = None if request.verbose else tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._start = 0
        # A fork has imported all that its parent has, torch and the battery.
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, request, self._log))
        self._process.start()
        theirs.close()

    def give(self, doing: tuple[str, str], number: int | None) -> None:
        """Hands over the task of a number, or with None the timing."""
        self.doing, self.since = doing, time.monotonic()
        self._start = 0 if self._log is None else os.fstat(self._log.fileno()).st_size
        self.connection.send(number)

    @property
    def left(self) -> float:
        """Seconds in which an answer is waited for."""
        return max(0.0, self.since + LIMIT - time.monotonic())

    def answer(self) -> Any:
        """What it says of what it does; an Outcome if it crashed, or says nothing for too long."""
        late = not self.connection.poll(self.left)
        if late:
            self._process.kill()
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            pass
        self._process.join()
        code = self._process.exitcode or 0
        how = f"crashed: {signal.Signals(-code).name}" if code < 0 else f"ended, status {code}"
        name, device = self.doing
        lines = [f"{self.request.operator}: the process {how}", *self._last_words()]
        if late:
            lines = [f"{self.request.operator}: no answer after {LIMIT:.0f} s"]
        what = "what the libraries register" if name == "load" else "the kernel"
        lines.append(f"  look at: {what}; `make sanitize` names a line that leaves its memory")
        seconds = round(time.monotonic() - self.since, 2)
        return Outcome(name, device, seconds, "crash", "\n".join(lines))

    def _last_words(self) -> list[str]:
        """What was written to stderr: by C++, and where in Python that was."""
        if self._log is None:
            return []
        self._log.seek(self._start)
        lines = [line.rstrip() for line in self._log if line.strip()]
        lines = [line for line in lines if not line.startswith("Extension modules:")]
        fatal = [i for i, line in enumerate(lines) if line.startswith("Fatal Python error")]
        end = fatal[0] + 10 if fatal else len(lines)
        return [f"  {line}" for line in lines[max(0, end - 16) : end]]

    @property
    def dead(self) -> bool:
        return self._process.exitcode is not None

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()
        if self._log is not None:
            self._log.close()


class Workers:
    """Workers that share the tasks of an operator out between them."""

    def __init__(self, request: Request, count: int) -> None:
        self._request = request
        self._count = count
        self._workers: list[Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.stop()

    @property
    def doing(self) -> list[str]:
        return [" ".join(worker.doing).strip() for worker in self._workers if any(worker.doing)]

    def plan(self) -> Plan | Outcome:
        """What there is to do; an Outcome if loading failed.

        Raises:
            UsageError: there is no such operator.
        """
        answer = self._new().answer()
        if isinstance(answer, UsageError):
            raise answer
        return answer

    def outcomes(self, plan: Plan) -> Iterator[Outcome]:
        """Of all tasks, as they come."""
        todo = list(enumerate(plan.tasks))
        self._next(self._workers[0], todo)
        while len(self._workers) < min(self._count, len(plan.tasks)):
            self._new()
        while busy := [worker for worker in self._workers if any(worker.doing)]:
            ready = wait([worker.connection for worker in busy], timeout=1)
            for worker in busy:
                if worker.connection not in ready and worker.left:
                    continue
                loading = worker.doing[0] == "load"
                answer = worker.answer()
                if isinstance(answer, Outcome):
                    yield answer
                if worker.dead or (loading and isinstance(answer, Outcome)):
                    self._workers.remove(worker)
                    worker.stop()
                    if todo and not loading:
                        self._new()
                else:
                    self._next(worker, todo)

    def times(self) -> tuple[dict[str, Any], Outcome | None]:
        """Of the operator and of PyTorch, with nothing beside them; and what was wrong there."""
        for worker in self._workers[1:]:
            worker.stop()
        del self._workers[1:]
        worker = self._workers[0] if self._workers else self._new()
        loading = worker.doing[0] == "load"
        found = worker.answer() if loading else None
        if not isinstance(found, Outcome):
            worker.give(("timing", ""), None)
            found = worker.answer()
        if isinstance(found, Outcome):
            return {"rows": [], "why": found.message.partition("\n")[0]}, found
        for row in found["rows"]:
            if "ours" in row["failed"]:
                message = f"{self._request.operator}: {row['shape']}: {row['failed']['ours']}"
                seconds = round(time.monotonic() - worker.since, 2)
                return found, Outcome("timing", row["device"], seconds, "fail", message)
        return found, None

    def _new(self) -> Worker:
        worker = Worker(self._request)
        self._workers.append(worker)
        return worker

    def _next(self, worker: Worker, todo: list[tuple[int, tuple[str, str]]]) -> None:
        if not todo:
            worker.doing = ("", "")
            return
        number, doing = todo.pop(0)
        worker.give(doing, number)
