"""Times calls of two checkouts of this package, each with its own build, in turns.

    python benchmarks/versions.py ../before . "reduce_sum(x, [1], False)" --shapes 131072x8

In a call names are those of operators; `x` and `y` are tensors of the shape, `row` is one of its
columns, and there is `torch`; what stands before the last semicolon is done once. Medians; last,
the second's over the first's. On a CPU one thread and its own processor time, with `--device cuda`
what run.py times there.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DTYPES = ("float32", "bfloat16", "float16", "float64")
ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkouts", nargs=2, type=Path)
    parser.add_argument("call")
    parser.add_argument("--shapes", nargs="+", default=["131072x8", "1024x1024"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    for shape in arguments.shapes:
        for dtype in arguments.dtypes:
            call = arguments.device, arguments.call, shape, dtype
            workers = [start(each, *call) for each in arguments.checkouts]
            rounds = [[ask(worker) for worker in workers] for _ in range(ROUNDS)]
            before, after = (statistics.median(times) for times in zip(*rounds, strict=True))
            times = f"{before * 1e6:10.1f} us {after * 1e6:10.1f} us {after / before:6.2f}"
            print(f"{shape:>14} {dtype:>8} {times}")
            for worker in workers:
                worker.kill()


def start(checkout: Path, *call: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", *call]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": "."},
        stdin=pipe,
        stdout=pipe,
        text=True,
    )


def ask(worker: subprocess.Popen[str]) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def processor_time(run: Callable[[], object]) -> float:
    times = []
    for _ in range(7):
        begin = time.thread_time()
        run()
        times.append(time.thread_time() - begin)
    return statistics.median(times)


def work(device: str, call: str, shape: str, dtype: str) -> None:
    import torch
    from timing import Effort, timer

    import extension_cpp  # noqa: F401

    torch.set_num_threads(1)
    sizes = [int(size) for size in shape.split("x")]
    x, y, row = (
        (torch.rand(size) * 4 - 2).to(device, getattr(torch, dtype))
        for size in (sizes, sizes, sizes[-1:])
    )
    before, _, last = call.rpartition(";")
    once, code = compile(before, "call", "exec"), compile(last.strip(), "call", "eval")
    operators = torch.ops.extension_cpp
    names: dict[str, Any] = {"x": x, "y": y, "row": row, "torch": torch}
    for name in set(re.findall(r"[A-Za-z]\w*", call)) - set(names):
        if hasattr(operators, name):
            names[name] = getattr(operators, name)
    with torch.inference_mode():
        exec(once, names)

        def run() -> object:
            return eval(code, names)

        run()
        gpu = timer(device, Effort(rounds=7, seconds=0.2)) if device == "cuda" else None
        for _ in sys.stdin:
            seconds = gpu.time({"call": run})["call"].median if gpu else processor_time(run)
            print(seconds, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        main()
