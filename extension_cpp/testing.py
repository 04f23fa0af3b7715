"""The battery: one description of an operator, every check.

An operator is described by an :class:`OpSpec`: its public function, a reference in plain PyTorch,
sample calls, bad inputs, and the bytes it moves. Each check tests one property, and raises an
`AssertionError` that says what is wrong, for which call, and where to look. In a test suite of your
own::

    from extension_cpp.testing import check
    from my_package.operators.my_op.spec import spec

    def test_my_op():
        check(spec)

`python -m extension_cpp.testing OP` builds what changed, says what is wrong with one operator, and
times it; `--help` says more.

This module needs neither pytest nor expecttest; `check_properties` alone needs hypothesis.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence

if __name__ == "__main__":
    # Before the rest, which it imports while the libraries are built.
    from extension_cpp.command import program

    sys.exit(program.main())

from extension_cpp.battery.autocast import check_autocast
from extension_cpp.battery.bytes_moved import check_traffic
from extension_cpp.battery.compiled import (
    check_compile,
    check_dynamic,
    check_export,
    check_inductor,
    check_mutation,
)
from extension_cpp.battery.cuda import check_cuda_graph, check_second_device, check_streams
from extension_cpp.battery.determinism import check_determinism
from extension_cpp.battery.divided import check_sharding
from extension_cpp.battery.errors import check_bad_inputs, check_wrong_tensors
from extension_cpp.battery.failure import CheckError
from extension_cpp.battery.fakes import check_opcheck, check_strides
from extension_cpp.battery.memory import check_memory
from extension_cpp.battery.no_gradient import check_no_gradient
from extension_cpp.battery.registrations import (
    check_missing_backend,
    check_namespace,
    check_registrations,
)
from extension_cpp.battery.registry import CHECKS, default_checks
from extension_cpp.battery.samples import DEFAULT_SHAPES, BadInput, Make, Sample, Traffic
from extension_cpp.battery.side_effects import check_argument_twice, check_side_effects
from extension_cpp.battery.signature import check_signature
from extension_cpp.battery.spec import OpSpec, devices, find_specs
from extension_cpp.battery.transforms import (
    check_compiled_transforms,
    check_saved_tensors,
    check_transforms,
    check_vmap,
)
from extension_cpp.battery.values import (
    check_backward,
    check_double_backward,
    check_forward,
    check_gradcheck,
    check_layouts,
    check_properties,
    check_references,
    check_wanted,
)

__all__ = [
    "CHECKS",
    "DEFAULT_SHAPES",
    "BadInput",
    "CheckError",
    "Make",
    "OpSpec",
    "Sample",
    "Traffic",
    "check",
    "check_argument_twice",
    "check_autocast",
    "check_backward",
    "check_bad_inputs",
    "check_compile",
    "check_compiled_transforms",
    "check_cuda_graph",
    "check_determinism",
    "check_double_backward",
    "check_dynamic",
    "check_export",
    "check_forward",
    "check_gradcheck",
    "check_inductor",
    "check_layouts",
    "check_memory",
    "check_missing_backend",
    "check_mutation",
    "check_namespace",
    "check_no_gradient",
    "check_opcheck",
    "check_properties",
    "check_references",
    "check_registrations",
    "check_saved_tensors",
    "check_second_device",
    "check_sharding",
    "check_side_effects",
    "check_signature",
    "check_streams",
    "check_strides",
    "check_traffic",
    "check_transforms",
    "check_vmap",
    "check_wanted",
    "check_wrong_tensors",
    "devices",
    "find_specs",
]


def check(
    spec: OpSpec,
    *,
    devices: Sequence[str] | None = None,
    checks: Sequence[str] | None = None,
    thorough: bool = False,
) -> None:
    """Runs the battery over one operator, and raises with all that it found.

    Without hypothesis, `check_properties` is left out.

    Args:
        spec: the operator.
        devices: types of device, by default those that this machine has.
        checks: names such as "check_forward", by default all that apply.
        thorough: every sample, layout, dtype, message and transform wherever that takes long:
            minutes.

    Raises:
        AssertionError: with a paragraph for every failed check.
        ValueError: if there is no check of a name.
    """
    checks = default_checks() if checks is None else checks
    unknown = set(checks) - CHECKS.keys()
    if unknown:
        raise ValueError(f"no check is called {sorted(unknown)}; there are {sorted(CHECKS)}")
    failures = []
    for name in checks:
        run = CHECKS[name].run
        options = {"thorough": True} if "thorough" in inspect.signature(run).parameters else {}
        for arguments in CHECKS[name].arguments([spec]):
            if devices is not None and arguments[1] not in devices:
                continue
            try:
                run(*arguments, **(options if thorough else {}))
            except AssertionError as error:
                where = ", ".join(map(str, arguments[1:]))
                failures.append(f"{name} ({where})\n{error}")
    if failures:
        plural = "" if len(failures) == 1 else "s"
        raise CheckError(f"{len(failures)} check{plural} failed\n\n" + "\n\n".join(failures))
