"""Processes in which an operator is loaded, checked and timed: one that crashes is replaced."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

import torch

from extension_cpp.command.build import ENDING
from extension_cpp.command.tasks import (
    Outcome,
    Plan,
    Request,
    UsageError,
    changed_schemas,
    explained,
    files,
    load,
    outcome,
    plan,
    times,
)
from extension_cpp.testing import devices

# Of a check, in seconds; longer is taken for a deadlock.
LIMIT = 900.0


def serve(connection: Connection, request: Request, log: Any) -> None:
    """What a worker does: says what it can do, then does what it is told to."""
    # Ctrl-C is for the parent, which ends it, and for compilers, which would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    # Standard output is the report's.
    if log is not None:
        os.dup2(log.fileno(), 2)
    os.dup2(2, 1)
    faulthandler.enable()
    parent = os.getppid()
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
                changed_schemas(),
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
        # The parent may have been killed, which closes no pipe that other workers hold as well.
        while not connection.poll(1.0):
            if os.getppid() != parent:
                return
        number = connection.recv()
        if number is None:
            torch.set_num_threads(threads)
            connection.send(times(spec, request.quick))
        else:
            torch.set_num_threads(min(2, threads))
            connection.send(outcome(tasks[number]))


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
        # A group of its own, for stop() to reach the compilers that it starts.
        with contextlib.suppress(ProcessLookupError):
            os.setpgid(self._pid, self._pid)
        theirs.close()

    def give(self, doing: tuple[str, str], number: int | None) -> None:
        """Hands over the task of a number, or with None the timing."""
        self.doing, self.since = doing, time.monotonic()
        self._start = 0 if self._log is None else os.fstat(self._log.fileno()).st_size
        with contextlib.suppress(BrokenPipeError):  # answer() says that it is gone
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

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def stop(self) -> None:
        """Ends it, and what it has started; by a signal that ninja hands on to compilers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGTERM)
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
