"""The check that bits do not change."""

from __future__ import annotations

import torch

from extension_cpp.battery.calls import samples
from extension_cpp.battery.case import Case, public_case
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import as_leaves, gradients, random_like
from extension_cpp.battery.tolerance import same_bits


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
    with case.explain("forward", see="kernel"):
        outputs = case(*inputs)
    results = [(f"output {i}", o.detach()) for i, o in enumerate(outputs)]
    pairs = [o for o in outputs if o.requires_grad]
    if case.spec.differentiable and pairs:
        with case.explain("backward", see="backward"):
            grads = gradients(pairs, [inputs[i] for i in case.wanted], random_like(pairs))
        names = [f"the gradient of {case.names[i]}" for i in case.wanted]
        results += zip(names, grads, strict=True)
    return results
