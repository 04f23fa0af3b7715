"""The description of an operator: what its author writes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from extension_cpp.battery import follows
from extension_cpp.battery.samples import BadInput, Make, Sample, Traffic, default_shapes
from extension_cpp.battery.traffic import measured_traffic
from extension_cpp.shapes import Operator, operators


class _Follows(functools.partial[Any]):
    """What a spec leaves out. ``dataclasses.replace`` leaves it out again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpSpec:
    """Everything the battery and the benchmark know about an operator.

    Attributes:
        name: the operator is ``torch.ops.<namespace>.<name>.default``.
        function: the public function; its signature is the schema's. By default ``<namespace>.ops.<name>``.
        reference: the definition in plain PyTorch, composed of primitive operations, with the same signature. It must
            follow the dtype of its inputs (float64 in, float64 out). For an operator that mutates, it mutates too. By
            default the first result of ``op_reference``.
        samples: ``samples(make, shape)`` yields calls whose main input has ``shape``. It is called with the shapes
            below and with others of the same ranks; for one the operator does not take, it yields nothing. By default
            those of the operator's line of shapes.
        bad_inputs: calls that must fail, with their messages. Those that follow from the operator's line of shapes
            (every tensor in turn of another dtype or shape, or None) are added, with the line's messages.
        traffic: bytes moved by an ideal kernel, forward and backward. By default those of the inputs and outputs;
            of the outputs' gradients, of what is saved for backward and of the inputs' gradients.
        shapes: that take every path of the kernels, empty and odd ones included. By default those of `DEFAULT_SHAPES`,
            in as many dimensions as the first tensor has in the operator's line of shapes, and with its sizes.
        op_reference: the reference of the operator itself, where it returns more than the public function.
        dtypes: that the operator takes.
        tolerances: dtype under test to (rtol, atol), overriding the defaults of the battery. Say why beside it. Of
            results that are quantised the dtype is theirs: integers are exact unless `torch.int8: (0, 1)`, say, allows
            for what falls on a tie but for rounding.
        differentiable: False for an operator without a derivative, which must then say so when one is asked for.
        stops_gradients: whether parts of the reference are constants for its derivatives, by `detach` or `no_grad`, so
            that these are no slopes: finite differences, of which the reference is wrong as well, say nothing then.
        devices: the backends that exist.
        autocast: the policy, one of "lower_precision", "float32", "promote", or None; a mapping where
            it differs between types of device.
        counterpart: PyTorch's own way to compute it, for the benchmark; the reference by default.
        namespace: of the operator.
        lines: the lines of shapes that there are, by qualified name; by default those of this package's library.
    """

    name: str
    # Never None once there is a spec.
    reference: Callable[..., Any] = None  # type: ignore[assignment]
    function: Callable[..., Any] = None  # type: ignore[assignment]
    samples: Callable[[Make, tuple[int, ...]], Iterable[Sample]] = None  # type: ignore[assignment]
    bad_inputs: Callable[[Make], Iterable[BadInput]] = None  # type: ignore[assignment]
    traffic: Callable[[Sample], Traffic] = None  # type: ignore[assignment]
    shapes: tuple[tuple[int, ...], ...] = None  # type: ignore[assignment]
    op_reference: Callable[..., Any] | None = None
    dtypes: tuple[torch.dtype, ...] = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    )
    tolerances: Mapping[torch.dtype, tuple[float, float]] = dataclasses.field(default_factory=dict)
    differentiable: bool = True
    stops_gradients: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")
    autocast: str | Mapping[str, str] | None = None
    counterpart: Callable[..., Any] | None = None
    namespace: str = "extension_cpp"
    lines: Mapping[str, Operator] = dataclasses.field(default_factory=operators)

    def __post_init__(self) -> None:
        if self.reference is None:
            if self.op_reference is None:
                raise ValueError(f"{self!r}: give its definition, as reference= or op_reference=")
            object.__setattr__(self, "reference", _first_result_of(self.op_reference))
        if self.function is None:
            ops = importlib.import_module(f"{self.namespace}.ops")
            if not hasattr(ops, self.name):
                raise ValueError(
                    f"{self!r}: {ops.__name__} has no '{self.name}'. Import the public function "
                    "there, or give it as function="
                )
            object.__setattr__(self, "function", getattr(ops, self.name))
        if self.shapes is None:
            first = None if self.line is None else self.line.notation.inputs[0]
            object.__setattr__(self, "shapes", default_shapes(first))
        if self.samples is None or isinstance(self.samples, _Follows):
            if self.line is None:
                raise ValueError(
                    f"{self!r}: samples are missing. They follow from a line of shapes alone, and "
                    "the operator is declared without (see csrc/notation.h)"
                )
            object.__setattr__(self, "samples", _Follows(follows.samples_of, self.line))
        given = self.bad_inputs
        if isinstance(given, _Follows):
            (given,) = given.args
        object.__setattr__(self, "bad_inputs", _Follows(self._bad_inputs, given))
        if self.traffic is None or isinstance(self.traffic, _Follows):
            object.__setattr__(
                self,
                "traffic",
                _Follows(measured_traffic, self.function, differentiable=self.differentiable),
            )

    def _bad_inputs(
        self, given: Callable[[Make], Iterable[BadInput]] | None, make: Make
    ) -> Iterator[BadInput]:
        if given is not None:
            yield from given(make)
        if self.line is not None:
            yield from follows.bad_inputs_of(self.line, make, self.samples)

    @property
    def line(self) -> Operator | None:
        """What the operator's line of shapes says, where it has one."""
        return self.lines.get(f"{self.namespace}::{self.name}")

    @property
    def op(self) -> Any:
        return getattr(getattr(torch.ops, self.namespace), self.name).default

    def autocast_on(self, device: str) -> str | None:
        """The autocast policy on a type of device."""
        if isinstance(self.autocast, Mapping):
            return self.autocast.get(device)
        return self.autocast

    @property
    def mutates(self) -> bool:
        return any(is_written(argument) for argument in self.op._schema.arguments)

    def __repr__(self) -> str:
        return f"OpSpec({self.namespace}::{self.name})"


def find_specs(package: str = "extension_cpp.operators") -> list[OpSpec]:
    """The ``spec`` of every operator folder of a package, by name."""
    root = importlib.import_module(package)
    specs = []
    for module in pkgutil.iter_modules(root.__path__):
        name = f"{package}.{module.name}.spec"
        if importlib.util.find_spec(name) is not None:
            specs.append(importlib.import_module(name).spec)
    return sorted(specs, key=lambda spec: spec.name)


def devices() -> list[str]:
    """The types of device that this machine can test on."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _first_result_of(op_reference: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(op_reference)
    def reference(*args: Any, **kwargs: Any) -> Any:
        return op_reference(*args, **kwargs)[0]

    return reference


def is_written(argument: Any) -> bool:
    """Whether a schema's argument is written to: ``Tensor(a!)``."""
    return argument.alias_info is not None and argument.alias_info.is_write
