"""The check of the bytes that a spec says."""

from __future__ import annotations

from extension_cpp.battery.calls import cases
from extension_cpp.battery.choices import default_dtype
from extension_cpp.battery.failure import fail
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec


@register()
def check_traffic(spec: OpSpec, device: str) -> None:
    """The bytes that the benchmark divides by are those of the outputs at least."""
    some = False
    for shape in spec.shapes:
        for case in cases(spec, device, default_dtype(spec), shape, requires_grad=False):
            traffic = spec.traffic(case.sample)
            with case.explain("forward", see="kernel"):
                outputs = case(*case.tensors)
            written = sum(o.numel() * o.element_size() for o in outputs)
            some = some or traffic.forward > 0
            if not isinstance(traffic.forward, int) or not isinstance(traffic.backward, int):
                case.fail(f"{traffic} is not in whole bytes", see="spec")
            if case.function is spec.function and traffic.forward < written:
                case.fail(f"{traffic}, yet {written} bytes are written", see="spec")
    if not some:
        fail(spec, "traffic is zero for every shape", see="spec")
