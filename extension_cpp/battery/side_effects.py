"""The check of what a call writes to."""

from __future__ import annotations

from extension_cpp.battery.calls import op_cases
from extension_cpp.battery.case import Case
from extension_cpp.battery.choices import default_dtype, small_shapes
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import exact_copies
from extension_cpp.battery.tolerance import same_bits


@register()
def check_side_effects(spec: OpSpec, device: str) -> None:
    """Writes to what the schema says alone; outputs share no memory with inputs or one another."""
    for shape in small_shapes(spec):
        for case in op_cases(spec, device, default_dtype(spec), shape):
            for laid_out in case.layouts():
                _check_side_effects_of(laid_out)


def _check_side_effects_of(case: Case) -> None:
    inputs = [t.detach() for t in exact_copies(case.tensors)]
    before = exact_copies(inputs)
    versions = [t._version for t in inputs]
    outputs = case.outputs_only(case(*inputs, in_place=True))
    for i, name in enumerate(case.names):
        bumped = inputs[i]._version != versions[i]
        if case.written[i] and not bumped:
            case.fail(
                f"{name} is written to, and its version counter is not bumped",
                detail="Backward would use new values for old: register_mutation.",
            )
        if not case.written[i] and (bumped or not same_bits(inputs[i], before[i])):
            case.fail(f"{name} is written to, and the schema does not say Tensor(a!)", see="kernel")
    named = {f"argument {name}": t for name, t in zip(case.names, inputs, strict=True)}
    for i, output in enumerate(outputs):
        for name, other in named.items():
            pointers = [t.untyped_storage().data_ptr() for t in (output, other)]
            if output.numel() and other.numel() and pointers[0] == pointers[1]:
                case.fail(f"output {i} shares its memory with {name}", see="kernel")
        named[f"output {i}"] = output
