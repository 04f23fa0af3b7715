"""Whether what is timed is right: every result against the reference in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from contenders import differentiable
from torch import Tensor

from extension_cpp.battery.case import Case
from extension_cpp.battery.tensors import as_pairs, tensors_in, to_float64
from extension_cpp.registration.signature import is_float8
from extension_cpp.testing import OpSpec, Sample


def results(
    spec: OpSpec, function: Callable[..., Any], sample: Sample, grads: Sequence[Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Outputs, what was written to, outputs with the graph recorded, and gradients, with names.

    Args:
        spec: the operator.
        function: ours or another contender.
        sample: the call.
        grads: of the outputs, none if gradients are not wanted.
    """
    case = _case(spec, function, sample)
    with torch.no_grad():
        outputs = case(*case.tensors)
    for k, tensor in enumerate(outputs):
        yield f"output {k}", tensor
    if not grads:
        return
    outputs = case(*case.tensors)
    for k, tensor in enumerate(outputs):
        yield f"output {k} with gradients", tensor.detach()
    ends = differentiable(outputs)
    if len(ends) != len(grads):
        raise ValueError(f"{len(ends)} outputs require grad, {len(grads)} of the reference do")
    inputs = [k for k, tensor in enumerate(case.tensors) if tensor.requires_grad]
    computed = torch.autograd.grad(
        ends, [case.tensors[k] for k in inputs], grads, materialize_grads=True
    )
    for k, grad in zip(inputs, computed, strict=True):
        yield f"the gradient of {case.names[k]}", grad


def cotangents(spec: OpSpec, reference: Callable[..., Any], sample: Sample) -> list[Tensor]:
    """Gradients of the reference's outputs, random but the same each time, on their device."""
    case = _case(spec, reference, sample)
    outputs = differentiable(case(*case.tensors))
    generator = torch.Generator(case.device).manual_seed(1)
    return [torch.empty_like(output).uniform_(-1, 1, generator=generator) for output in outputs]


def expected(
    spec: OpSpec, reference: Callable[..., Any], sample: Sample, grads: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The results of the reference, in float64 from the same inputs."""
    case = _case(spec, reference, sample)
    upcast = case.bind(to_float64(case.tensors))
    found = dict(results(spec, reference, upcast, to_float64(grads)))
    # Not twice the same, which may be gigabytes.
    return {name: found.get(f"{name} with gradients", tensor) for name, tensor in found.items()}


def _case(spec: OpSpec, function: Callable[..., Any], sample: Sample) -> Case:
    tensor = tensors_in((sample.args, sample.kwargs))[0]
    return Case(spec, tensor.device.type, tensor.dtype, spec.op, spec.name, function, None, sample)


def mistake(
    actual: Iterable[tuple[str, Tensor]],
    right: Mapping[str, Tensor],
    inputs: int,
    tolerances: Mapping[torch.dtype, tuple[float, float]] | None = None,
) -> str | None:
    """What is wrong with some results, in words; None if nothing is.

    A composition of several operations rounds in between to the dtype: an element may be off by a
    few eps of itself and of the largest one, all of them together by a few eps of their norm. What
    is a sum of n numbers, of which a composition rounds each to the dtype, may be off by sqrt(n)
    such roundings in norm, and by sqrt(n) of the arithmetic, which is in float32 for half types.

    Args:
        actual: of a contender.
        right: the reference's, in float64.
        inputs: elements of the largest input.
        tolerances: of integer results, as in OpSpec.
    """
    missing = set(right)
    for name, tensor in actual:
        if name not in right:
            return f"{name}: there is none of the reference"
        missing.discard(name)
        allowed = (tolerances or {}).get(tensor.dtype, (0.0, 0.0))
        problem = difference(tensor, right[name], inputs, allowed)
        if problem:
            return f"{name}: {problem}"
    return f"{', '.join(sorted(missing))}: there is none" if missing else None


def float8_difference(actual: Tensor, right: Tensor, info: torch.finfo) -> str | None:
    """Of codes, which are the next one where what is rounded was rounded before."""
    # What is larger saturates, or is NaN or infinite.
    within = right.abs() < info.max
    rtol, atol = 2 * info.eps, info.eps * info.smallest_normal
    wrong = within & ~torch.isclose(actual, right, rtol=rtol, atol=atol)
    return f"{int(wrong.sum())} of {wrong.numel()} codes are wrong" if wrong.any() else None


def difference(
    actual: Tensor, right: Tensor, inputs: int, of_integers: tuple[float, float] = (0.0, 0.0)
) -> str | None:
    if actual.shape != right.shape:
        return f"shape {tuple(actual.shape)}, expected {tuple(right.shape)}"
    if actual.is_complex() and right.is_complex():
        actual, right = as_pairs(actual, right)
    if is_float8(actual):
        return float8_difference(actual.double(), right.double(), torch.finfo(actual.dtype))
    if not actual.is_floating_point():
        if torch.equal(actual, right.to(actual.dtype)):
            return None
        rtol, atol = of_integers
        near = torch.isclose(actual.double(), right.double(), rtol=rtol, atol=atol)
        return None if (rtol or atol) and near.all() else "differs"
    if actual.numel() == 0:
        return None
    eps = torch.finfo(actual.dtype).eps
    arithmetic = min(eps, torch.finfo(torch.float32).eps)
    largest = max(1.0, right.abs().max().item())
    summed = max(1.0, inputs / actual.numel())
    if actual.dtype == torch.float64:  # in which the reference is no more precise
        eps, arithmetic = 1e4 * eps, 1e4 * arithmetic
    error = (actual.detach().to(torch.float64) - right).abs_()
    # The sum of many numbers that cancel.
    roundings = 8 * arithmetic * math.sqrt(summed) * largest
    allowed = right.abs().mul_(8 * eps).add_(4 * eps * largest + roundings)
    wrong = ~(error <= allowed)  # NaN is wrong
    count = int(wrong.sum())
    if count:
        at = tuple(int(i) for i in torch.unravel_index(wrong.int().argmax(), wrong.shape))
        return (
            f"{count} of {wrong.numel()} elements are wrong, at {at} {actual[at].item():.6g} "
            f"where {right[at].item():.6g} is expected"
        )
    off = torch.linalg.vector_norm(error).item()
    norm = torch.linalg.vector_norm(right).item()
    terms = eps / 2 * math.sqrt(inputs) if inputs > actual.numel() else 0.0
    if not off <= 4 * eps * norm + terms + roundings * math.sqrt(actual.numel()):
        return f"off by {off / norm:.2g} in norm"
    return None
