"""The check of autocast's policies."""

from __future__ import annotations

import itertools

import torch

from extension_cpp.battery.calls import cases
from extension_cpp.battery.case import Case
from extension_cpp.battery.choices import main_shape
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import as_leaves, gradients, random_like
from extension_cpp.battery.tolerance import same_bits
from extension_cpp.notation import DtypeRule
from extension_cpp.registration.signature import is_differentiable, is_float8
from extension_cpp.shapes import sum_dtype


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
        rule = _rule(case, i)
        if is_differentiable(t) and rule is not DtypeRule.EXACT:
            dtype = sum_dtype(dtypes[0]) if rule is DtypeRule.SUM else next(cycle)
            given[i] = t.detach().to(dtype).requires_grad_(t.requires_grad)
    policy = case.spec.autocast_on(case.device)
    mixed = len({t.dtype for t in given if _is_cast(t)}) > 1
    if mixed and policy == "promote":  # also where the line has some in float32
        cast = torch.float32
    if mixed < (len(dtypes) > 1) or (cast is not None and any(case.written)):
        # One tensor cannot mix, and what is written to cannot be cast.
        return
    case = case.laid_out(f"under autocast to {lower}", given)
    as_given = f"cast to {cast}" if cast else "as they are"
    with torch.no_grad(), case.explain(f"forward of inputs {as_given}"):
        plain = [t.to(cast) if cast and _is_cast(t) else t for t in given]
        expected = case(*plain)
    inputs = as_leaves(given)
    with case.explain("forward"), torch.autocast(case.device, dtype=lower):
        outputs = case(*inputs)
    for i, (output, e) in enumerate(zip(outputs, expected, strict=True)):
        if output.dtype != e.dtype:
            case.fail(f"output {i} is {output.dtype}, {e.dtype} expected: policy {policy!r}")
        if not same_bits(output, e):
            case.fail(f"output {i} is not that of inputs {as_given}: policy {policy!r}")
    pairs = [o for o in outputs if o.requires_grad]
    if not case.spec.differentiable or not pairs:
        return
    wanted = [inputs[i] for i in case.wanted]
    with case.explain("backward", see="backward"), torch.autocast(case.device, dtype=lower):
        grads = gradients(pairs, wanted, random_like(pairs))
    for i, grad in zip(case.wanted, grads, strict=True):
        if grad.dtype != inputs[i].dtype:
            case.fail(f"the gradient of {case.names[i]} is {grad.dtype}", see="backward")


def _is_cast(tensor: torch.Tensor) -> bool:
    """Whether it is one of those that policies are about."""
    is_float = tensor.is_floating_point() and not is_float8(tensor)
    return is_float and tensor.dtype != torch.float64


def _rule(case: Case, i: int) -> DtypeRule:
    """Which dtype tensor i has by the operator's line of shapes."""
    line = case.spec.line
    if line is None:
        return DtypeRule.LEADER
    names = [argument.name for argument in line.notation.arguments]
    shape = line.notation.inputs[names.index(case.names[i].partition("[")[0])]
    return line.notation.dtype_source(shape).rule
