"""Times every operator against PyTorch, forward and backward, from the operators' specs.

    python benchmarks/run.py --shape 16384x4096 --dtype bfloat16 float32 --compile --save FILE

Each line is one operator, one shape, one dtype. Rounds are interleaved, so that a change of clock
or load meets all competitors; the figure is the median. On a GPU, device events time each call, and
the L2 cache is overwritten before it. TB/s counts the bytes that an ideal kernel moves (the spec's
traffic); the ceiling is the fastest plain PyTorch operation over 1 GiB in the same run. On a CPU
that other programs share, only the ratios mean anything.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import extension_cpp
from extension_cpp.testing import Make, OpSpec, Sample, find_specs

# Far more than the cache: the GPU must stay busy until Python has launched what is timed next.
L2_FLUSH_BYTES = 1 << 30


class Timer:
    """Median seconds of functions that are run in turn."""

    def __init__(self, device: str, rounds: int) -> None:
        self.device = device
        self.rounds = rounds
        self.cache = torch.empty(
            L2_FLUSH_BYTES if device == "cuda" else 0, dtype=torch.int8, device=device
        )

    def once(self, function: Callable[[], object]) -> float:
        if self.device == "cpu":
            start = time.perf_counter()
            function()
            return time.perf_counter() - start
        self.cache.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def __call__(self, functions: dict[str, Callable[[], object]]) -> dict[str, float]:
        for _ in range(3):
            for function in functions.values():
                function()
        seconds: dict[str, list[float]] = {name: [] for name in functions}
        for _ in range(self.rounds):
            for name, function in functions.items():
                seconds[name].append(self.once(function))
        return {name: statistics.median(measured) for name, measured in seconds.items()}


def ceiling(timer: Timer) -> float:
    """Bytes a second of the fastest of copy, relu, add and sum over 1 GiB."""
    a, b, out = (torch.ones(1 << 28, device=timer.device) for _ in range(3))
    size = a.nbytes
    seconds = timer(
        {
            "copy": lambda: out.copy_(a),
            "relu": lambda: torch.clamp_min(a, 0, out=out),
            "add": lambda: torch.add(a, b, out=out),
            "sum": lambda: torch.sum(a),
        }
    )
    moved = {"copy": 2 * size, "relu": 2 * size, "add": 3 * size, "sum": size}
    return max(moved[name] / seconds[name] for name in moved)


def forward(function: Callable[..., object], sample: Sample) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return function(*sample.args, **sample.kwargs)

    return call


def backward(function: Callable[..., object], sample: Sample) -> Callable[[], object] | None:
    """The backward alone, of a graph recorded once."""
    arguments = [*sample.args, *sample.kwargs.values()]
    inputs = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]
    result = function(*sample.args, **sample.kwargs)
    outputs = [
        o for o in (result if isinstance(result, tuple) else (result,)) if isinstance(o, Tensor)
    ]
    outputs = [o for o in outputs if o.requires_grad]
    if not outputs:
        return None
    grads = [torch.randn_like(o) for o in outputs]
    return lambda: torch.autograd.grad(outputs, inputs, grads, retain_graph=True, allow_unused=True)


def competitors(spec: OpSpec, compile: bool) -> dict[str, Callable[..., object]]:
    eager = spec.counterpart or spec.reference
    found: dict[str, Callable[..., object]] = {"ours": spec.function, "eager": eager}
    if compile:
        torch.compiler.reset()
        found["compile"] = torch.compile(eager, dynamic=False)
    return found


def rows(
    spec: OpSpec,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    timer: Timer,
    compile: bool,
    peak: float | None,
):
    make = Make(timer.device, dtype, requires_grad=spec.differentiable)
    sample = next(iter(spec.samples(make, shape)), None)
    if sample is None:
        return
    traffic = spec.traffic(sample)
    functions = competitors(spec, compile)
    passes = [("forward", traffic.forward, {n: forward(f, sample) for n, f in functions.items()})]
    if spec.differentiable:
        calls = {name: backward(function, sample) for name, function in functions.items()}
        passes.append(
            ("backward", traffic.backward, {n: c for n, c in calls.items() if c is not None})
        )
    for direction, moved, calls in passes:
        seconds = timer(calls)
        ours = seconds.pop("ours")
        size, short = "x".join(map(str, shape)), str(dtype).removeprefix("torch.")
        label = f"{spec.name} {size} {short} {direction}"
        rate = moved / ours
        share = f" {rate / peak:6.1%}" if peak else ""
        others = "".join(f"  {n} {s * 1e6:9.1f} us {s / ours:6.2f}x" for n, s in seconds.items())
        yield f"{label:<56} ours {ours * 1e6:9.1f} us {rate / 1e12:6.3f} TB/s{share}{others}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", nargs="*", help="operators; default: all")
    parser.add_argument(
        "--shape", nargs="*", default=["4096x1024"], help="of the main input, as 16384x4096"
    )
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--compile", action="store_true", help="time torch.compile of PyTorch's own as well"
    )
    parser.add_argument("--save", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()

    specs = [spec for spec in find_specs() if not arguments.op or spec.name in arguments.op]
    if unknown := set(arguments.op or ()) - {spec.name for spec in specs}:
        parser.error(f"no such operator: {', '.join(sorted(unknown))}")
    timer = Timer(arguments.device, arguments.rounds)
    cuda = arguments.device == "cuda"
    hardware = (
        torch.cuda.get_device_name()
        if cuda
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    lines: list[str] = []

    def report(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    report(f"# extension_cpp {extension_cpp.__version__}, torch {torch.__version__}, {hardware}")
    command = [word for word in sys.argv if word not in ("--save", str(arguments.save))]
    report(f"# python {' '.join(command)}")
    peak = ceiling(timer) if cuda else None
    if peak:
        report(f"# ceiling {peak / 1e12:.3f} TB/s")
    for spec in specs:
        if arguments.device not in spec.devices:
            continue
        for shape in arguments.shape:
            for dtype in arguments.dtype:
                sizes = tuple(int(size) for size in shape.split("x"))
                for line in rows(
                    spec, sizes, getattr(torch, dtype), timer, arguments.compile, peak
                ):
                    report(line)
    if arguments.save:
        arguments.save.parent.mkdir(parents=True, exist_ok=True)
        arguments.save.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
