"""The description of an operator: what its author writes."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

# Empty, single, odd, with a size-one dimension, four-dimensional (channels-last), a long row, many
# rows, and one that is large enough to be shared out between threads.
DEFAULT_SHAPES: tuple[tuple[int, ...], ...] = (
    (1,),
    (7,),
    (0,),
    (0, 5),
    (5, 0),
    (1, 1),
    (3, 5),
    (2, 1, 3),
    (2, 4, 3, 5),
    (33, 65),
    (3, 10007),
    (10007, 3),
    (128, 1024),
)


@dataclasses.dataclass(frozen=True, init=False)
class Sample:
    """One call of an operator: ``Sample(x, bias, scale=2.0)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)


@dataclasses.dataclass(frozen=True)
class BadInput:
    '''A call that must fail, and the exact text of its error.

    The text is an inline expectation: with ``EXPECTTEST_ACCEPT=1`` the check rewrites it in the source, so that a new
    one may start as ``BadInput("bias is too short", Sample(...), """""")``.
    '''

    name: str
    sample: Sample
    message: str
    # Where the expectation stands in the source.
    origin: str = dataclasses.field(default="", init=False, compare=False)

    def __post_init__(self) -> None:
        frame: FrameType | None = sys._getframe(1)
        # The caller of the generated __init__.
        while frame is not None and frame.f_code.co_filename == "<string>":
            frame = frame.f_back
        if frame is not None:
            object.__setattr__(self, "origin", frame.f_code.co_filename)


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that an ideal kernel moves to and from memory."""

    forward: int
    backward: int


class Make:
    """Makes the tensors of samples: on the device, and by default of the dtype, under test.

    The same seed gives the same values on every device, rounded to the dtype.

    Args:
        device: where the tensors live.
        dtype: the dtype of tensors made without one.
        requires_grad: whether floating tensors require grad unless told otherwise.
        specials: whether one value in ten is NaN, an infinity or a signed zero.
        seed: of the values.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        requires_grad: bool = True,
        specials: bool = False,
        seed: int = 0,
    ) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.specials = specials
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        requires_grad: bool | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> Tensor:
        """A contiguous tensor of ``shape`` with values uniform in [low, high).

        By default floating values lie in [-2, 2), integers in [0, 10). Floating tensors require grad unless
        ``requires_grad=False``; non-floating ones never do. For values to stay away from a kink or a pole, give bounds.
        """
        dtype = dtype or self.dtype
        device = self.device if device is None else device
        shape = tuple(shape)
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self._generator).to(device, dtype)
        if not (dtype.is_floating_point or dtype.is_complex):
            low, high = (0 if low is None else low), (10 if high is None else high)
            values = torch.randint(int(low), int(high), shape, generator=self._generator)
            return values.to(device, dtype)
        low, high = (-2.0 if low is None else low), (2.0 if high is None else high)
        values = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        values = low + (high - low) * values
        if self.specials:
            special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=torch.float64)
            choice = torch.randint(0, 50, shape, generator=self._generator)
            values = torch.where(choice < 5, special[choice.clamp(max=4)], values)
        if requires_grad is None:
            requires_grad = self.requires_grad
        return values.to(device, dtype).requires_grad_(requires_grad)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpSpec:
    """Everything the battery and the benchmark know about an operator.

    Attributes:
        name: the operator is ``torch.ops.<namespace>.<name>.default``.
        function: the public function; its signature is the schema's.
        reference: the definition in plain PyTorch, composed of primitive operations, with the same signature. It must
            follow the dtype of its inputs (float64 in, float64 out). For an operator that mutates, it mutates too.
        samples: ``samples(make, shape)`` yields calls whose main input has ``shape``. It is called with the shapes
            below and with others of the same ranks; for one the operator does not take, it yields nothing.
        bad_inputs: calls that must fail, with their messages.
        traffic: bytes moved by an ideal kernel, forward and backward.
        shapes: that take every path of the kernels, empty and odd ones included.
        op_reference: the reference of the operator itself, where it returns more than the public function.
        dtypes: that the operator takes.
        tolerances: dtype under test to (rtol, atol), overriding the defaults of the battery. Say why beside it.
        differentiable: False for an operator without a derivative, which must then say so when one is asked for.
        devices: the backends that exist.
        autocast: the policy, one of "lower_precision", "float32", "promote", or None; a mapping where
            it differs between types of device.
        counterpart: PyTorch's own way to compute it, for the benchmark; the reference by default.
        namespace: of the operator.
    """

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    samples: Callable[[Make, tuple[int, ...]], Iterable[Sample]]
    bad_inputs: Callable[[Make], Iterable[BadInput]]
    traffic: Callable[[Sample], Traffic]
    shapes: tuple[tuple[int, ...], ...] = DEFAULT_SHAPES
    op_reference: Callable[..., Any] | None = None
    dtypes: tuple[torch.dtype, ...] = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    )
    tolerances: Mapping[torch.dtype, tuple[float, float]] = dataclasses.field(default_factory=dict)
    differentiable: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")
    autocast: str | Mapping[str, str] | None = None
    counterpart: Callable[..., Any] | None = None
    namespace: str = "extension_cpp"

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


def is_written(argument: Any) -> bool:
    """Whether a schema's argument is written to: ``Tensor(a!)``."""
    return argument.alias_info is not None and argument.alias_info.is_write
