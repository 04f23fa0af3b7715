"""Times how long calls on small tensors keep Python, where the device has next to nothing to do.

    python benchmarks/host.py                   all operators, 4 x 8, float32
    python benchmarks/host.py fused_op          one of them
    python benchmarks/host.py --device cuda     with CUDA graphs, too
    python benchmarks/host.py relu --after 96   single calls, each after a copy of 96 MiB

Interleaved rounds of 100 calls in a row, their median and quartiles, and how many times the first
contender's median it is: PyTorch's own operations. benchmarks/README.md says who else is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import machine
import torch
from cases import Shapes, own, plan, realise
from run import chosen, parse_shape
from timing import Calls, Effort, Seconds, interleaved
from torch import Tensor

from extension_cpp.battery.case import arguments_of
from extension_cpp.battery.tensors import replace_tensors, tensors_in
from extension_cpp.testing import OpSpec

Function = Callable[..., Any]

CALLS = 100
GRAPH_CALLS = 20


@dataclasses.dataclass(frozen=True)
class Timed:
    """What is run again and again, in a mode that is entered once."""

    run: Callable[[], object]
    mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    calls: int = 1  # that one run makes

    def __call__(self) -> object:
        return self.run()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    print(f"{machine.hardware(arguments.device)}, torch {torch.__version__}")
    shapes = Shapes((arguments.shape,), ())
    for spec in chosen(arguments.operators):
        if spec.mutates:  # there is no operation of PyTorch's that leaves its arguments so
            continue
        for cell in plan([spec], arguments.device, shapes, [arguments.dtype])[:1]:
            sample = realise(cell, arguments.device).sample
            args = [value for _, value in arguments_of(spec.op, sample)]
            # The first output alone: public functions have no use for others.
            functions = {
                name: functools.partial(first, function)
                for name, function in contenders(spec, arguments.device).items()
            }
            plain = replace_tensors(args, iter([t.detach() for t in tensors_in(args)]))
            calls = {n: Timed(functools.partial(f, *plain)) for n, f in functions.items()}
            calls["inference_mode"] = Timed(calls["public function"].run, torch.inference_mode)
            report(f"{spec.name}, no gradients", calls, arguments)
            inputs = [t for t in tensors_in(args) if t.requires_grad]
            if inputs:
                grad = torch.ones_like(functions["torch"](*args))
                calls = {n: Timed(recorded(f, args, inputs, grad)) for n, f in functions.items()}
                report(f"{spec.name}, forward and backward", calls, arguments)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*", help="all of them if none is given")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", type=parse_shape, default=(4, 8), help="default: 4x8")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument(
        "--after",
        type=int,
        metavar="MIB",
        help="what is copied before each call, out of the caches",
    )
    return parser.parse_args(argv)


def contenders(spec: OpSpec, device: str) -> dict[str, Function]:
    functions = {
        "torch": spec.counterpart or spec.reference,
        "public function": spec.function,
        "torch.ops": spec.op.overloadpacket,
        "torch.ops, overload": spec.op,
    }
    classic = getattr(own(spec), "classic", None)
    if classic is not None:
        functions["autograd.Function"] = classic(functools.partial(kernel, spec.namespace, device))
    return functions


def kernel(namespace: str, device: str, name: str) -> Function:
    """An operator's kernel as if nothing but kernels were registered for it."""
    op = getattr(getattr(torch.ops, namespace), name).default
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device.upper()))
    return functools.partial(op._handle.redispatch_boxed, keys)


def first(function: Function, *args: Any) -> Tensor:
    output = function(*args)
    return output if type(output) is Tensor else output[0]


def recorded(
    function: Function, args: Sequence[Any], inputs: Sequence[Tensor], grad: Tensor
) -> Callable[[], object]:
    def run() -> object:
        return torch.autograd.grad(function(*args), inputs, grad)

    return run


def report(title: str, calls: dict[str, Timed], arguments: argparse.Namespace) -> None:
    """Prints a table of calls that have the same results."""
    right = calls["torch"].run()
    for name, call in calls.items():
        with call.mode():
            torch.testing.assert_close(call.run(), right, msg=lambda m, n=name: f"{n}: {m}")  # type: ignore[misc]
    if arguments.device == "cuda":
        calls = calls | {"CUDA graph": graph(calls["public function"])}
    cuda = arguments.device == "cuda"
    once = functools.partial(once_each, cuda=cuda)
    if arguments.after:
        kept = torch.ones(2, arguments.after << 18, device=arguments.device)
        once = functools.partial(once_each, cuda=cuda, before=lambda: kept[0].copy_(kept[1]))
    effort = Effort(arguments.rounds, fewest=arguments.rounds)
    spreads = interleaved(once, calls, effort)
    print(f"\n{title:<36} {'us':>8} {'quartiles':>17} {'of torch':>9}")
    for name, spread in spreads.items():
        quartiles = f"{1e6 * spread.low:.2f} - {1e6 * spread.high:.2f}"
        ratio = spread.median / spreads["torch"].median
        print(f"    {name:<32} {1e6 * spread.median:8.2f} {quartiles:>17} {ratio:8.2f}x")


def once_each(calls: Calls, *, cuda: bool, before: Callable[[], object] | None = None) -> Seconds:
    """How long a call takes: one of many in a row, or a single one after something else."""
    seconds = {}
    gc.collect()
    gc.disable()
    try:
        for name, call in calls.items():
            assert isinstance(call, Timed)
            runs = range(max(1, CALLS // call.calls) if before is None else 1)
            with call.mode():
                if before is not None:
                    before()
                if cuda:
                    torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in runs:
                    call.run()
                seconds[name] = (time.perf_counter() - start) / (len(runs) * call.calls)
    finally:
        gc.enable()
    return seconds


def graph(call: Timed) -> Timed:
    """Some calls in a CUDA graph, which is launched as one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call.run()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        kept = [call.run() for _ in range(GRAPH_CALLS)]
    del kept
    return Timed(captured.replay, calls=GRAPH_CALLS)


if __name__ == "__main__":
    raise SystemExit(main())
