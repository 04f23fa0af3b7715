"""Checks of what is registered for which device."""

from __future__ import annotations

import torch
from torch._library.utils import has_fake_kernel

from extension_cpp.battery.calls import op_cases, samples
from extension_cpp.battery.case import op_case
from extension_cpp.battery.choices import default_dtype, main_shape
from extension_cpp.battery.failure import CheckError, fail
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec

_REGISTER_AUTOGRAD = (
    "Call register_autograd, register_no_autograd or register_mutation of "
    "extension_cpp.registration."
)
_REGISTER_FAKE = "Call register_fake of extension_cpp.registration, or of torch.library."
_STRAYS = "kernels are registered for {}, and no such operator is defined"


def check_namespace(namespace: str) -> None:
    """Every operator of a namespace has an Autograd kernel of its own: a formula, or an error.

    Without one, PyTorch's own fallback loses gradients in silence. And every kernel has a schema.
    """
    if strays := _without_schema(namespace):
        raise CheckError(_STRAYS.format(", ".join(strays)))
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(f"{namespace}::")]
    if not names:
        raise CheckError(f"no operator is defined in the namespace {namespace}")
    bare = [name for name in names if not has_kernel(name, "Autograd")]
    if bare:
        raise CheckError(
            f"no Autograd kernel for {', '.join(bare)}: gradients would be lost in silence. "
            + _REGISTER_AUTOGRAD
        )


def has_kernel(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _without_schema(namespace: str) -> list[str]:
    """The names that a namespace has kernels for, and no schema: misspelt ones, as a rule."""
    dumps = torch._C._dispatch_find_dangling_impls()
    names = [dump.partition("\n")[0].removeprefix("name: ") for dump in dumps]
    return sorted(name for name in names if name.startswith(f"{namespace}::"))


@register()
def check_registrations(spec: OpSpec, device: str) -> None:
    """The operator, and those of its backward, have kernels for the device, fake ones, and for
    autograd; and no kernel of the namespace is without an operator.
    """
    if strays := _without_schema(spec.namespace):
        fail(spec, _STRAYS.format(", ".join(strays)), see="kernel", device=device)
    dtype = default_dtype(spec)
    for op in {case.op for case in op_cases(spec, device, dtype, main_shape(spec))}:
        name = op._schema.name
        if not has_kernel(name, device.upper()):
            fail(spec, f"{name} has no {device.upper()} kernel", see="kernel", device=device)
        if not has_fake_kernel(op):
            fail(
                spec,
                f"{name} has no fake kernel: nothing could be compiled or exported",
                detail=_REGISTER_FAKE,
            )
        if not has_kernel(name, "Autograd"):
            fail(
                spec,
                f"{name} has no Autograd kernel: gradients would be lost in silence",
                detail=_REGISTER_AUTOGRAD,
            )


@register(applies=lambda spec, device: device not in spec.devices)
def check_missing_backend(spec: OpSpec, device: str) -> None:
    """On a device without a kernel, PyTorch's own error names the operator and the device."""
    for sample in samples(spec, device, default_dtype(spec), main_shape(spec), requires_grad=False):
        case = op_case(spec, device, default_dtype(spec), sample)
        try:
            case(*case.tensors)
        except NotImplementedError as error:
            if spec.op._schema.name not in str(error) or device.upper() not in str(error):
                case.fail("the error does not name operator and device", detail=str(error))
        except Exception as error:
            case.fail(f"raises {type(error).__name__}, not NotImplementedError", detail=str(error))
        else:
            case.fail(f"runs on {device}, which its spec does not list", see="spec")
