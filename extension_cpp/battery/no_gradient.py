"""The check of operators without a derivative."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor

from extension_cpp.battery.calls import cases
from extension_cpp.battery.case import Case
from extension_cpp.battery.choices import default_dtype, main_shape
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import as_leaves
from extension_cpp.registration.signature import is_differentiable


@register(applies=lambda spec, device: device in spec.devices and not spec.differentiable)
def check_no_gradient(spec: OpSpec, device: str) -> None:
    """Without a derivative, it works where none is asked for, and names itself where one is."""
    for case in cases(spec, device, default_dtype(spec), main_shape(spec)):
        if not case.wanted:
            continue
        with case.explain("a plain call on inputs that require grad"):
            outputs = case(*as_leaves(case.tensors))
        if not any(map(is_differentiable, outputs)):
            continue  # integers have none to lose
        for what, ask in (
            ("backward", _ask_backward),
            ("a tangent in forward-mode AD", _ask_tangent),
            ("torch.func.grad", _ask_transform),
        ):
            try:
                ask(case)
            except RuntimeError as error:
                if spec.name not in str(error):
                    case.fail(f"{what}: the error does not name the operator", detail=str(error))
            else:
                case.fail(f"{what} does not raise: a derivative is lost in silence")


def _sum(outputs: Sequence[Tensor]) -> Tensor:
    return torch.stack([o.to(torch.float64).sum() for o in outputs if is_differentiable(o)]).sum()


def _ask_backward(case: Case) -> None:
    _sum(case(*as_leaves(case.tensors))).backward()


def _ask_tangent(case: Case) -> None:
    with fwAD.dual_level():
        case(
            *[
                fwAD.make_dual(t.detach(), torch.ones_like(t)) if t.requires_grad else t
                for t in case.tensors
            ]
        )


def _ask_transform(case: Case) -> None:
    def loss(*inputs: Tensor) -> Tensor:
        return _sum(case(*inputs))

    torch.func.grad(loss, tuple(case.wanted))(*[t.detach() for t in case.tensors])
