"""The check of calls that are divided among devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from extension_cpp.battery.calls import op_cases
from extension_cpp.battery.case import Case
from extension_cpp.battery.choices import finest_dtype, main_shape
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.registration.sharding import rule_of
from extension_cpp.registration.signature import Signature
from extension_cpp.sharding import SUM, Placement, placements_passed

PIECES = 2

_SEE = (
    "the line of shapes (each entry of a *name is computed by itself; *all is a whole), or the "
    "rule of register_sharding"
)


@register()
def check_sharding(spec: OpSpec, device: str) -> None:
    """Calls that are divided, as DTensor may divide them, give in pieces what the whole gives.

    By the rules of the operator and of what its backward calls: those that are registered, or else
    follow from the line of shapes. The pieces are computed one after the other, on one device.
    """
    for case in op_cases(spec, device, finest_dtype(spec), main_shape(spec)):
        rule = rule_of(case.op.name(), spec.lines)
        if rule is None:
            continue
        signature = Signature(case.op)
        args, kwargs = signature.fill_defaults(case.sample.args, case.sample.kwargs)
        values = signature.tensor_values(args, kwargs)
        for outputs, inputs in rule(*args, **kwargs):
            _compare(case, outputs, placements_passed(inputs, values))


def _compare(case: Case, outputs: Sequence[Placement], inputs: Sequence[Placement]) -> None:
    pairs = list(zip(case.tensors, inputs, strict=True))
    if any(isinstance(said, int) and t.shape[said] < PIECES for t, said in pairs):
        return
    said_of = ", ".join(f"{name}: {said}" for name, said in zip(case.names, inputs, strict=True))
    case = case.laid_out(f"divided by {{{said_of}}}", case.tensors)
    with torch.no_grad(), case.explain("a call on all of it, or on a piece,", see="kernel"):
        whole = case(*case.tensors)
        pieces = [case(*(_piece(t, said, i) for t, said in pairs)) for i in range(PIECES)]
    written = [said for said, it_is in zip(inputs, case.written, strict=True) if it_is]
    found = []
    for said, *results in zip((*outputs, *written), *pieces, strict=True):
        if said is None:
            case.compare(results[1:], results[:1], "what every device has whole", see=_SEE)
            found.append(results[0])
        else:
            found.append(sum(results) if said == SUM else torch.cat(results, said))
    case.compare(found, whole, "what the pieces give", see=_SEE)


def _piece(tensor: Tensor, said: Placement, i: int) -> Tensor:
    """What the i-th device has."""
    if said is None:
        return tensor
    if said == SUM:
        share = tensor * 0.25
        return tensor - share if i == 0 else share
    return tensor.chunk(PIECES, said)[i]
