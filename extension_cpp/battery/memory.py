"""The check of memory that is not given back."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import sys
from collections.abc import Callable, Sequence

import torch

from extension_cpp.battery.calls import samples
from extension_cpp.battery.case import Case, op_case, public_case
from extension_cpp.battery.choices import default_dtype, main_shape
from extension_cpp.battery.registry import register
from extension_cpp.battery.samples import Make
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import as_leaves, gradients, random_like


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def _allocated(device: str) -> dict[str, int]:
    """Bytes in use."""
    gc.collect()
    used = {}
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallinfo2"):
        # Exact, for every allocation of the process: PyTorch's CPU tensors come from malloc.
        libc.mallinfo2.restype = _MallInfo
        info = libc.mallinfo2()
        used["host"] = info.uordblks + info.hblkhd
    else:
        import resource

        used["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device == "cuda":
        torch.cuda.synchronize()
        used["cuda"] = torch.cuda.memory_allocated()
    return used


# Bytes in a thousand calls. Even an empty tensor takes several hundred; what Python and PyTorch put
# aside now and then, a hundred in all.
_LEAK = 16384


@register()
def check_memory(spec: OpSpec, device: str) -> None:
    """A thousand calls, forward and backward, and a thousand errors, leave nothing behind."""
    dtype = default_dtype(spec)
    calls = []
    for sample in samples(spec, device, dtype, main_shape(spec)):
        case = public_case(spec, device, dtype, sample)
        inputs = as_leaves(case.tensors)
        cotangents = random_like(case(*inputs)) if case.order else []
        calls.append(functools.partial(_call, case, inputs, cotangents))
    _check_growth(case, "calls", calls)
    for bad in itertools.islice(spec.bad_inputs(Make(device, dtype)), 1):
        case = op_case(spec, device, dtype, bad.sample).laid_out(bad.name, ())
        _check_growth(case, "errors", [functools.partial(_call_badly, case)])


def _call(case: Case, inputs: list[torch.Tensor], cotangents: list[torch.Tensor]) -> None:
    outputs = case(*inputs)
    pairs = [
        (o, c) for o, c in zip(outputs, cotangents, strict=bool(cotangents)) if o.requires_grad
    ]
    if pairs:
        wanted = [inputs[i] for i in case.wanted]
        gradients([o for o, _ in pairs], wanted, [c for _, c in pairs])


def _call_badly(case: Case) -> None:
    with contextlib.suppress(RuntimeError):
        case(*case.tensors)


def _check_growth(case: Case, what: str, calls: Sequence[Callable[[], None]]) -> None:
    for call in itertools.islice(itertools.cycle(calls), 20 * len(calls)):
        call()
    growth: dict[str, int] = {}
    # A leak grows every time; a cache, or another thread's business, once.
    for _ in range(3):
        before = _allocated(case.device)
        for call in itertools.islice(itertools.cycle(calls), 1000):
            call()
        after = _allocated(case.device)
        growth = {key: min(growth.get(key, sys.maxsize), after[key] - before[key]) for key in after}
        if growth["host"] < _LEAK and growth.get("cuda", 0) <= 0:
            return
    case.fail(
        f"memory grows over a thousand {what}",
        detail="\n".join(
            f"{key}: {value / 1000:.0f} bytes a call" for key, value in growth.items()
        ),
        see="kernel",
    )
