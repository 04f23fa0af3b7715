"""Times operators against PyTorch, torch.compile, Liger and QuACK, from the operators' specs.

    python benchmarks/run.py                       all operators, a quick set of shapes
    python benchmarks/run.py affine --set full     one operator, all shapes
    python benchmarks/run.py affine --list         what that would time, and how long it would take

Every result is compared with the reference before it is timed; what is wrong is said, not timed.
benchmarks/README.md says how it is measured, and what the columns are.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import machine
import torch
from ahead import compile_ahead, compile_part
from cases import DTYPES, SETS, Call, Cell, Shapes, plan, realise, reference
from contenders import (
    DIRECTIONS,
    OTHERS,
    OURS,
    WORKED,
    Function,
    backward,
    both,
    contenders,
    forward,
)
from correctness import cotangents, expected, mistake, results
from limits import Memory
from results import FOLDER, Results, Row, Time, file_name, sizes
from table import cells, header, line
from timing import Effort, Timer, timer

from extension_cpp.battery.tensors import tensors_in
from extension_cpp.testing import OpSpec, find_specs

# What colours a terminal, of which some messages are full.
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Rough, for the forecast alone: of several processes to start, and of a call without and with
# torch.compile.
START_SECONDS = 20.0
CELL_SECONDS = {"cuda": (0.3, 3.0), "cpu": (0.5, 15.0)}


def main(argv: list[str] | None = None) -> int:
    begin = time.monotonic()
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse(argv)
    specs = chosen(arguments.operators)
    plain = tuple(parse_shape(shape) for shape in arguments.shapes or ())
    shapes = Shapes(plain, plain) if plain else SETS[arguments.device, arguments.set]
    dtypes = arguments.dtypes or DTYPES[arguments.device]
    todo = plan(specs, arguments.device, shapes, dtypes, arguments.forms)
    if arguments.list and not arguments.resume:
        print(*todo, forecast(todo, arguments), sep="\n")
        return 0
    run = describe(arguments, argv)
    record = Results(arguments.results / file_name(run["hardware"], run["versions"]["torch"]))
    if arguments.resume:
        todo = [cell for cell in todo if not record.measured(cell.key, run)]
    if arguments.part:
        compile_part(todo, arguments.part, arguments.device, arguments.against)
        return 0
    if arguments.list:
        print(*todo, sep="\n")
    say(forecast(todo, arguments))
    if arguments.list or not todo:
        return 0

    say(f"{run['hardware']}, torch {run['versions']['torch']}, {commit_text(run)}")
    others, run["absent"] = who(specs, arguments.device, arguments.against)
    for name, reasons in run["absent"].items():
        say(f"{name} {', '.join(reasons)}")
    if arguments.jobs > 1:
        say(f"compiling in {arguments.jobs} processes")
        if count := compile_ahead(argv, arguments.jobs):
            say(f"{count} of them failed: what they left is compiled where it is timed")
    failed = time_all(todo, arguments, run, record, others, begin)
    say(f"\nwritten to {record.path}; `python benchmarks/report.py` makes plots and tables of it")
    return int(failed)


def time_all(
    todo: Sequence[Cell],
    arguments: argparse.Namespace,
    run: dict[str, Any],
    record: Results,
    others: Sequence[str],
    begin: float,
) -> bool:
    """Times, prints and records every cell; returns whether ours failed, or a cell did."""
    device = arguments.device
    start = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    measure = timer(device, Effort(arguments.rounds, arguments.seconds))
    memory = Memory(device)
    run["ceiling"], run["ceiling_of"] = ceiling(measure, memory)
    run |= machine.state(device)
    record.runs[start] = run
    say(f"ceiling {run['ceiling'] / 1e12:.3f} TB/s ({run['ceiling_of']})\n")
    say(line(header(others), others))
    failed = False
    with progress(todo) as bar:
        for number, cell in enumerate(bar):
            if arguments.time_limit and time.monotonic() - begin > arguments.time_limit:
                say(f"{len(todo) - number} calls are left: --resume goes on with them")
                break
            record.drop(cell.key, arguments.passes)
            failures: dict[str, str] = {}
            try:
                for row in time_cell(cell, device, arguments, measure, memory, start):
                    record.put(row)
                    say(line(cells(row, run["ceiling"], others), others))
                    failures = row.failed
            except RuntimeError as error:  # out of memory, say
                say(f"{cell} was not timed: {error}")
                failed = True
            for name, why in failures.items():
                say(f"    {name}: {why}")
            failed |= OURS in failures
            record.save()
            machine.release(device)
    run["state_at_the_end"] = machine.state(device)
    record.save()
    return failed


def chosen(names: Sequence[str]) -> list[OpSpec]:
    """The operators of some names; all of them if there are none."""
    known = {spec.name: spec for spec in find_specs()}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"run.py: no operator {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names or known)]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*", metavar="op", help="operators; default: all")
    parser.add_argument(
        "--set", choices=("quick", "full"), default="quick", help="of shapes; default: quick"
    )
    parser.add_argument("--shapes", nargs="+", help="of the main input, as 16384x4096")
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=DTYPES["cpu"],
        help="default: bfloat16 and float32; on a CPU all four",
    )
    parser.add_argument("--forms", nargs="+", help="as --list names them; '' is the plain one")
    parser.add_argument("--passes", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--against", nargs="*", choices=(*OTHERS, WORKED), default=OTHERS)
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=30, help="at most; default: 30")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="for the rounds of a row; default: 1"
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out what the file has of this commit"
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help="begin nothing after so many seconds"
    )
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that compile ahead of the timing; default: 1"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="say what would be timed")
    arguments = parser.parse_args(argv)
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return arguments


def parse_shape(text: str) -> tuple[int, ...]:
    try:
        return sizes(text)
    except ValueError:
        raise SystemExit(f"run.py: a shape is written as 16384x4096, not {text}") from None


def describe(arguments: argparse.Namespace, argv: Sequence[str]) -> dict[str, Any]:
    """What a run is recorded with."""
    device = arguments.device
    commit, dirty = machine.commit()
    return {
        "device": device,
        "hardware": machine.hardware(device),
        "versions": machine.versions(),
        "commit": arguments.commit or commit,
        "dirty": False if arguments.commit else dirty,
        "command": shlex.join(["benchmarks/run.py", *argv]),
        "effort": {
            "rounds": arguments.rounds,
            "seconds": arguments.seconds,
            "passes": list(arguments.passes),
            "against": list(arguments.against),
        },
    }


def commit_text(run: dict[str, Any]) -> str:
    if run["commit"] is None:
        return "commit unknown"
    return f"commit {run['commit'][:12]}" + (", with changes" if run["dirty"] else "")


def forecast(todo: Sequence[Cell], arguments: argparse.Namespace) -> str:
    plain, compiled = CELL_SECONDS[arguments.device]
    rows = len(todo) * len(arguments.passes)
    # Cold, warm and host; few rows take all the seconds that they may.
    jobs = arguments.jobs
    if "compile" not in arguments.against:
        seconds = len(todo) * plain
    elif jobs > 1:
        seconds = len(todo) * (compiled / jobs + 2 * plain) + START_SECONDS
    else:
        seconds = len(todo) * compiled
    seconds += rows * min(0.3, arguments.seconds) * (1 if arguments.device == "cuda" else 3)
    long = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{len(todo)} calls, up to {rows} rows, about {long}"


def who(
    specs: Sequence[OpSpec], device: str, against: Sequence[str]
) -> tuple[list[str], dict[str, list[str]]]:
    """The other contenders that some operator has, and why there are no more."""
    present: set[str] = set()
    absent: dict[str, list[str]] = {}
    for spec in specs:
        found, missing = contenders(spec, device, against)
        present |= found.keys()
        for name, why in missing.items():
            if why not in absent.setdefault(name, []):
                absent[name].append(why)
    return [name for name in against if name in present], absent


def ceiling(measure: Timer, memory: Memory) -> tuple[float, str]:
    """Bytes a second of the fastest plain operation over 1 GiB, and which it is."""
    operations, moved = memory.ceiling()
    seconds = measure.time(operations)
    return max((moved[name] / seconds[name].median, name) for name in operations)


def time_cell(
    cell: Cell,
    device: str,
    arguments: argparse.Namespace,
    measure: Timer,
    memory: Memory,
    start: str,
) -> Iterator[Row]:
    """Compares all contenders with the reference, and times those that are right."""
    call = realise(cell, device)
    traffic = call.traffic(cell.spec)
    found, _ = contenders(cell.spec, device, arguments.against)
    found = {name: call.of(function) for name, function in found.items()}
    # Nothing is moved by a backward that hands on what it is given.
    moved = {"forward": traffic.forward}
    if traffic.backward:
        moved |= {"backward": traffic.backward, "both": traffic.forward + traffic.backward}
    right = call.of(reference(cell.spec))
    wants_grads = traffic.backward and set(arguments.passes) != {"forward"}
    grads = cotangents(cell.spec, right, call.sample) if wants_grads else []
    failed = compare(cell, call, found, grads)
    for direction, size in moved.items():
        if direction not in arguments.passes:
            continue
        timed: dict[str, Callable[[], object]] = {}
        for name, function in found.items():
            if name not in failed:
                timed[name] = a_pass(direction, function, call, grads)
        yield time_row(cell, direction, size, timed, failed, measure, memory, start)


def a_pass(
    direction: str, function: Function, call: Call, grads: Sequence[torch.Tensor]
) -> Callable[[], object]:
    if direction == "forward":
        return forward(function, call.sample)
    return (backward if direction == "backward" else both)(function, call.sample, grads)


def compare(
    cell: Cell, call: Call, found: dict[str, Function], grads: Sequence[torch.Tensor]
) -> dict[str, str]:
    """Which contenders fail or are wrong, and how."""
    spec, sample = cell.spec, call.sample
    right = expected(spec, call.of(reference(spec)), sample, grads)
    largest = max(t.numel() for t in tensors_in((sample.args, sample.kwargs)))
    failed = {}
    for name, function in found.items():
        try:
            actual = results(spec, function, sample, grads)
            problem = mistake(actual, right, largest, spec.tolerances)
        except Exception as error:
            text = COLOUR.sub("", str(error)).strip().splitlines() or [""]
            failed[name] = f"{type(error).__name__}: {text[0][:200]}"
        else:
            if problem:
                failed[name] = f"wrong: {problem}"
    return failed


def time_row(
    cell: Cell,
    direction: str,
    size: int,
    timed: dict[str, Callable[[], object]],
    failed: dict[str, str],
    measure: Timer,
    memory: Memory,
    start: str,
) -> Row:
    """Times contenders in turn with plain operations that move as many bytes."""
    floors = {f"floor {name}": call for name, call in memory.moving(size).items()}
    with torch.set_grad_enabled(direction != "forward"):
        cold = measure.time({**timed, **floors})
        warm, host = measure.warm(timed), measure.host(timed)
    floor = min(floors, key=lambda name: cold[name].median)
    operator, form, shape, dtype = cell.key
    return Row(
        operator,
        form,
        shape,
        dtype,
        direction,
        run=start,
        bytes=size,
        floor_us=us(cold[floor].median),
        floor_of=floor.removeprefix("floor "),
        rounds=cold[floor].rounds,
        times={
            name: Time(
                us(cold[name].median),
                (us(cold[name].low), us(cold[name].high)),
                us(warm[name].median) if name in warm else None,
                us(host[name].median) if name in host else None,
            )
            for name in timed
        },
        failed=failed,
    )


def us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


@contextlib.contextmanager
def progress(todo: Sequence[Cell]) -> Iterator[Any]:
    """The cells, under a bar where tqdm is installed and somebody looks."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield todo
        return
    with tqdm(todo, disable=None, unit="call", dynamic_ncols=True, leave=False) as bar:
        yield bar


def say(text: str) -> None:
    """Prints above the bar."""
    try:
        from tqdm import tqdm
    except ImportError:
        print(text, flush=True)
        return
    tqdm.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
