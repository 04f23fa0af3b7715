"""`python -m extension_cpp.testing OP`: what is wrong with one operator, and how fast it is.

Torch is imported while the libraries are built, and these are loaded in processes of their own:
what was just built is what is checked, and a crash is a result like any other.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import extension_cpp
from extension_cpp import _loader
from extension_cpp.command import text
from extension_cpp.command.build import ENDING, Build

# The repository, where the package lies in one.
ROOT = _loader.FOLDER.parent
# Processes at most: each takes time to load the operator.
WORKERS = 4

EPILOG = """
In a clone of the repository it first builds what changed, as `make build` does, and at the end
times the operator beside its definition in PyTorch, eager and (without --quick) compiled.

Exit status: 0 if all checks passed; 1 if one failed, or nothing could be built or loaded; 2 for an
operator or a check that there is not.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    begin = time.monotonic()
    parser, arguments = parse(argv)
    say: Callable[[str], None] = (
        (lambda line: None) if arguments.json else (lambda line: print(line, flush=True))
    )
    report: dict[str, Any] = {"operator": arguments.operator, "ok": False}
    try:
        with ended_by_signals():
            examine(parser, arguments, report, say)
    except KeyboardInterrupt as stopped:
        print(f"\nstopped {stopped}".rstrip(), file=sys.stderr)
        return 130
    report["seconds"] = round(time.monotonic() - begin, 1)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        say(text.conclusion(report, arguments.verbose))
    return 0 if report["ok"] else 1


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within it they are exceptions, so that what was started is ended, too."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def parse(argv: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="python -m extension_cpp.testing",
        description="Says what is wrong with one operator, and how fast it is.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "operator", nargs="*", metavar="OP", help="its name; PACKAGE:NAME for one of your package"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the checks that find most for their time"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CHECK", help="these checks alone, without times"
    )
    parser.add_argument("--no-build", action="store_true", help="check the libraries as they are")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument("--verbose", action="store_true", help="whole messages, and all output")
    arguments = parser.parse_args(argv)
    given = " ".join(arguments.operator).split()
    there = sorted(path.parent.name for path in _loader.FOLDER.glob("operators/*/spec.py"))
    if len(given) != 1:
        wrong = f"one operator at a time, not '{' '.join(given)}'" if given else "no operator given"
        parser.error(f"{wrong}: make check OP={there[0]}; there are: {', '.join(there)}")
    (arguments.operator,) = given
    if ":" not in arguments.operator and arguments.operator not in there:
        parser.error(f"no operator '{arguments.operator}'; there are: {', '.join(there)}")
    return parser, arguments


def build_info() -> dict[str, Any]:
    try:
        return _loader.build_info()
    except ImportError:  # the worker that loads the operator says why
        return {}


def examine(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    report: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    """Builds, checks and times, and writes what comes of it into the report."""
    # OpenMP's threads wait for each other without working, which other processes can do meanwhile.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    build = Build(ROOT) if (ROOT / "setup.py").exists() and not arguments.no_build else None
    try:
        from extension_cpp.command import tasks, worker  # torch, too

        if unknown := set(arguments.only) - set(tasks.names()):
            names = ", ".join(sorted(tasks.names()))
            parser.error(f"no check '{', '.join(sorted(unknown))}'; there are: {names}")
        problem = build.wait(say) if build else ""
    except BaseException:
        if build:
            build.stop()
        raise
    report["build"] = {
        "seconds": round(build.seconds, 1) if build else None,
        "compiled": build.compiled if build else [],
        "problem": problem,
        **build_info(),
    }
    report["versions"] = {
        "extension_cpp": extension_cpp.__version__,
        "python": platform.python_version(),
        "torch": tasks.torch.__version__,
    }
    report["checks"] = []
    say(text.header(report))
    if problem:
        return
    request = tasks.Request(
        arguments.operator, tuple(arguments.only), arguments.quick, arguments.verbose
    )
    count = min(WORKERS, len(os.sched_getaffinity(0)))
    with worker.Workers(request, count) as workers:
        try:
            plan = workers.plan()
            if isinstance(plan, tasks.Outcome):
                report["checks"].append(dataclasses.asdict(plan))
                say(text.outcome(report["checks"][-1]))
                return
            report |= {"devices": plan.devices, "files": plan.files, "schemas": plan.schemas}
            for outcome in workers.outcomes(plan):
                report["checks"].append(dataclasses.asdict(outcome))
                say(text.outcome(report["checks"][-1]))
            report["checks"] += map(dataclasses.asdict, plan.skipped)
            if not arguments.only:
                report["timings"], wrong = workers.times()
                if wrong:
                    report["checks"].append(dataclasses.asdict(wrong))
            results = {check["result"] for check in report["checks"]}
            report["ok"] = "pass" in results and results <= {"pass", "skipped"}
        except tasks.UsageError as error:
            parser.error(str(error))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"during {', '.join(workers.doing)}") from None
