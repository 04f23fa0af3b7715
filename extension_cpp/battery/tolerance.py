"""How close is close enough, and how far off a tensor is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from extension_cpp.registration.signature import is_float8


def tolerance(
    actual: Tensor, expected: Tensor, inputs: Sequence[Tensor], order: int, *, least: bool = False
) -> tuple[float, float]:
    """(rtol, atol) against a reference in float64 from the same rounded inputs.

    - A result in float16 or bfloat16 of arithmetic in float32 is off by half an eps: rtol is one
      eps. float32 and float64 are off by the rounding of every step, and by a few units in the last
      place of exp, rsqrt and their like: rtol is eight.
    - Summing n numbers of either sign leaves an error that grows as sqrt(n), relative to the
      largest result: atol is as many roundings of the arithmetic (float32 for the half types).
    - float8 is as the half types, but that its smallest numbers are so large that the gaps between
      them count: atol has one more.
    - In float64 the reference is no more precise than the operator, so that both are off where a
      result is sensitive to rounding: rtol is larger. An error in the formula shows all the same.
    - A derivative may be composed of several operators, which round to the dtype in between, before
      terms cancel: each order of differentiation doubles both, and adds roundings relative to the
      largest result. Terms may cancel wholly, as those of a mean where all numbers are equal: they
      are taken to be as large as the inputs.

    Args:
        actual: the result, in its dtype.
        expected: the reference, in float64.
        inputs: what it is made of.
        order: of differentiation.
        least: as if no number were larger than 1, which takes no look at them, and is never more.
    """
    info = torch.finfo(actual.dtype)
    eps, half = info.eps, info.bits < 32
    arithmetic = torch.finfo(torch.float32).eps if half else eps
    reduced = max((t.numel() for t in inputs), default=1) / max(1, actual.numel())
    largest = 1.0 if least else _largest(expected)
    also = inputs if order and not least else ()
    terms = max([largest, *(_largest(t) for t in also if t.is_floating_point())])
    growth = 2**order
    rtol = (1 if half else 8) * eps * growth
    if actual.dtype == torch.float64:
        rtol, arithmetic = 1e4 * rtol, 1e4 * arithmetic
    atol = 8 * arithmetic * math.sqrt(max(1.0, reduced)) * terms * growth
    gap = eps * info.smallest_normal if info.bits < 16 else 0.0
    return rtol, atol + (growth - 1) * eps * largest + gap


def _largest(tensor: Tensor) -> float:
    tensor = tensor.double() if is_float8(tensor) else tensor
    finite = tensor[tensor.isfinite()].abs()
    return max(1.0, finite.max().item() if finite.numel() else 0.0)


def difference(actual: Tensor, expected: Tensor, rtol: float, atol: float) -> str | None:
    """How a tensor differs from its reference, in words; None if it does not."""
    if actual.shape != expected.shape:
        return f"shape: expected {tuple(expected.shape)}, got {tuple(actual.shape)}"
    actual, expected = actual.detach(), expected.detach()
    if actual.is_floating_point():
        if actual.dtype == torch.float8_e4m3fn:
            # In place of infinities it has its largest number.
            most = torch.finfo(actual.dtype).max
            expected = expected.clamp(-most, most)
        # What overflows the dtype is infinite in the reference too.
        rounded = expected.to(actual.dtype).to(torch.float64)
        expected = torch.where(rounded.isinf(), rounded, expected)
        got = actual.to(torch.float64)
        wrong = ~torch.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    else:
        got, expected = actual, expected.to(actual.dtype)
        wrong = got != expected
        if (rtol or atol) and wrong.any():
            error = (got.to(torch.float64) - expected.to(torch.float64)).abs()
            wrong = error > atol + rtol * expected.to(torch.float64).abs()
    if not wrong.any():
        return None
    error = (
        (got.to(torch.float64) - expected.to(torch.float64)).abs().nan_to_num(math.inf, math.inf)
    )
    error = error.masked_fill(~wrong, -1.0)
    worst = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    lines = [
        f"{int(wrong.sum())} of {wrong.numel()} elements differ (rtol {rtol:.2g}, atol {atol:.2g})",
        f"the furthest, at {worst}: expected {expected[worst].item():.10g}, "
        f"got {got[worst].item():.10g}",
    ]
    if (got.isnan() & ~expected.isnan()).any():
        lines.append(
            "NaN where a number was expected: uninitialised memory, and the gaps of strided "
            "inputs, hold NaN here. Does the kernel skip elements, or read others than it should?"
        )
    return "\n".join(lines)


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit by bit, NaN and signed zeros included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    integer = _INTEGERS[a.element_size()]
    return torch.equal(a.detach().contiguous().view(integer), b.detach().contiguous().view(integer))
