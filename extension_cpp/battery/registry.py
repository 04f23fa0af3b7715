"""The checks there are, and what each applies to."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from extension_cpp.battery.calls import given_samples
from extension_cpp.battery.failure import fail
from extension_cpp.battery.spec import OpSpec, devices


@dataclasses.dataclass(frozen=True)
class Check:
    """A check, and the operators that it applies to."""

    run: Callable[..., None]
    per_dtype: bool
    applies: Callable[[OpSpec, str], bool]

    def arguments(self, specs: Iterable[OpSpec]) -> list[tuple[Any, ...]]:
        """What to run it with on this machine: (spec, device), or (spec, device, dtype)."""
        pairs = [(s, device) for s in specs for device in devices() if self.applies(s, device)]
        if not self.per_dtype:
            return list(pairs)
        return [(spec, device, dtype) for spec, device in pairs for dtype in spec.dtypes]


CHECKS: dict[str, Check] = {}

_Run = TypeVar("_Run", bound=Callable[..., None])


def available(spec: OpSpec, device: str) -> bool:
    return device in spec.devices


def differentiable(spec: OpSpec, device: str) -> bool:
    return device in spec.devices and spec.differentiable


def mutates(spec: OpSpec, device: str) -> bool:
    return device in spec.devices and spec.mutates


def on_cuda(spec: OpSpec, device: str) -> bool:
    return device == "cuda" and device in spec.devices


def register(
    *, per_dtype: bool = False, applies: Callable[[OpSpec, str], bool] = available
) -> Callable[[_Run], _Run]:
    """Adds a function to the checks."""

    def add(run: _Run) -> _Run:
        @functools.wraps(run)
        def check(spec: OpSpec, device: str, *args: Any, **kwargs: Any) -> None:
            asked: list[tuple[tuple[int, ...], int]] = []
            try:
                with given_samples(asked):
                    run(spec, device, *args, **kwargs)
            finally:
                # Else it would pass, or stumble over what it does not have.
                if asked and not any(count for _, count in asked):
                    shapes = ", ".join(str(shape) for shape in dict(asked))
                    fail(
                        spec,
                        f"{run.__name__} checks nothing: samples() yields nothing for {shapes}",
                        detail="Shapes that it takes are given by shapes= of OpSpec.",
                        see="spec",
                    )

        CHECKS[run.__name__] = Check(check, per_dtype, applies)
        return cast(_Run, check)

    return add


def default_checks() -> list[str]:
    """All checks: without hypothesis, all but `check_properties`."""
    hypothesis = importlib.util.find_spec("hypothesis") is not None
    return [name for name in CHECKS if hypothesis or name != "check_properties"]
