"""Checks of autocast, determinism and memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import sys
from collections.abc import Callable, Sequence

import torch

from extension_cpp.battery.cases import (
    Case,
    cases,
    default_dtype,
    main_shape,
    op_case,
    public_case,
    samples,
)
from extension_cpp.battery.registry import register
from extension_cpp.battery.samples import Make
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import as_leaves, gradients, random_like
from extension_cpp.battery.tolerance import same_bits


@register()
def check_autocast(spec: OpSpec, device: str) -> None:
    """Under autocast it runs in the dtype of its policy, and gradients have those of the inputs.

    float64 is never cast.
    """
    full = torch.float32
    for lower in (torch.bfloat16, torch.float16):
        if lower not in spec.dtypes or full not in spec.dtypes:
            continue
        # What the floating inputs have, alternating, and what they are cast to (None: left alone).
        by_policy: dict[str | None, list[tuple[list[torch.dtype], torch.dtype | None]]] = {
            "lower_precision": [([full], lower), ([lower], None), ([lower, full], lower)],
            "float32": [([full], None), ([lower], full), ([lower, full], full)],
            "promote": [([full], None), ([lower], None), ([lower, full], full)],
            None: [([full], None), ([lower], None)],
        }
        expected = by_policy[spec.autocast_on(device)]
        if torch.float64 in spec.dtypes:
            expected.append(([torch.float64], None))
        for dtypes, cast in expected:
            for case in cases(spec, device, full, main_shape(spec)):
                _check_autocast_of(case, lower, dtypes, cast)


def _check_autocast_of(
    case: Case, lower: torch.dtype, dtypes: list[torch.dtype], cast: torch.dtype | None
) -> None:
    given, cycle = list(case.tensors), itertools.cycle(dtypes)
    for i, t in enumerate(given):
        if t.is_floating_point():
            given[i] = t.detach().to(next(cycle)).requires_grad_(t.requires_grad)
    mixed = len({t.dtype for t in given if t.is_floating_point()}) > 1
    if mixed < (len(dtypes) > 1) or (cast is not None and any(case.written)):
        # One tensor cannot mix, and what is written to cannot be cast.
        return
    case = case.laid_out(f"under autocast to {lower}", given)
    with torch.no_grad():
        plain = [t.to(cast) if cast and t.is_floating_point() else t for t in given]
        expected = case(*plain)
    inputs = as_leaves(given)
    with case.explain("forward"), torch.autocast(case.device, dtype=lower):
        outputs = case(*inputs)
    policy = f"policy {case.spec.autocast_on(case.device)!r}"
    as_given = f"cast to {cast}" if cast else "as they are"
    for i, (output, e) in enumerate(zip(outputs, expected, strict=True)):
        if output.dtype != e.dtype:
            case.fail(f"output {i} is {output.dtype}, {e.dtype} expected: {policy}")
        if not same_bits(output, e):
            case.fail(f"output {i} is not that of inputs {as_given}: {policy}")
    pairs = [o for o in outputs if o.requires_grad]
    if not case.spec.differentiable or not pairs:
        return
    wanted = [inputs[i] for i in case.wanted]
    with case.explain("backward", see="backward"), torch.autocast(case.device, dtype=lower):
        grads = gradients(pairs, wanted, random_like(pairs))
    for i, grad in zip(case.wanted, grads, strict=True):
        if grad.dtype != inputs[i].dtype:
            case.fail(f"the gradient of {case.names[i]} is {grad.dtype}", see="backward")


@register(per_dtype=True)
def check_determinism(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """The same bits, forward and backward, run after run, for every shape."""
    for shape in spec.shapes:
        for sample in samples(spec, device, dtype, shape):
            case = public_case(spec, device, dtype, sample)
            first = _run(case)
            for repeat in range(2, 7):
                for (name, expected), (_, result) in zip(first, _run(case), strict=True):
                    if not same_bits(result, expected):
                        different = int((result != expected).sum())
                        case.fail(
                            f"{name} has other bits in run {repeat} than in run 1",
                            detail=f"{different} of {result.numel()} elements differ: an atomic "
                            "addition, a race, or memory that is never written?",
                            see="kernel",
                        )


def _run(case: Case) -> list[tuple[str, torch.Tensor]]:
    inputs = as_leaves(case.tensors)
    outputs = case(*inputs)
    results = [(f"output {i}", o.detach()) for i, o in enumerate(outputs)]
    pairs = [o for o in outputs if o.requires_grad]
    if case.spec.differentiable and pairs:
        grads = gradients(pairs, [inputs[i] for i in case.wanted], random_like(pairs))
        names = [f"the gradient of {case.names[i]}" for i in case.wanted]
        results += zip(names, grads, strict=True)
    return results


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
