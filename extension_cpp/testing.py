"""The battery: one description of an operator, every check.

An operator is described by an :class:`OpSpec`: its public function, a reference in plain PyTorch, sample calls and bad
inputs. Each ``check_*`` function below tests one property of it and raises an ``AssertionError`` that says what is
wrong, for which call, and where to look. In a test suite of your own::

    from extension_cpp.testing import check
    from my_package.operators.my_op.spec import spec

    def test_my_op():
        check(spec)

This module needs neither pytest nor expecttest; ``check_properties`` alone needs hypothesis.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib
import importlib.util
import inspect
import itertools
import math
import os
import pkgutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "CHECKS",
    "DEFAULT_SHAPES",
    "BadInput",
    "Make",
    "OpSpec",
    "Sample",
    "Traffic",
    "check",
    "devices",
    "find_specs",
]

# Empty, single, odd, with a size-one dimension, four-dimensional (channels-last), a long row, many rows, and one that
# is large enough to be shared out between threads.
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

HALF_DTYPES = (torch.float16, torch.bfloat16)


# ----- the description of an operator


@dataclasses.dataclass(frozen=True, init=False)
class Sample:
    """One call of an operator: ``Sample(x, bias, scale=2.0)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
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
        autocast: the policy, one of "lower_precision", "float32", "promote", or None.
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
    autocast: str | None = None
    namespace: str = "extension_cpp"

    @property
    def op(self) -> Any:
        return getattr(getattr(torch.ops, self.namespace), self.name).default

    @property
    def mutates(self) -> bool:
        return any(_is_mutated(argument) for argument in self.op._schema.arguments)

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


# ----- calls with their tensors laid bare


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [tensor for item in tree for tensor in _tensors(item)]
    if isinstance(tree, dict):
        return [tensor for item in tree.values() for tensor in _tensors(item)]
    return []


def _replace(tree: Any, tensors: Iterator[Any]) -> Any:
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, (tuple, list)):
        return type(tree)(_replace(item, tensors) for item in tree)
    if isinstance(tree, dict):
        return {key: _replace(item, tensors) for key, item in tree.items()}
    return tree


def _is_mutated(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _arguments(op: Any, sample: Sample) -> list[tuple[Any, Any]]:
    """(argument of the schema, value) for every value that the sample passes."""
    arguments = op._schema.arguments
    by_name = {argument.name: argument for argument in arguments}
    pairs = list(zip(arguments, sample.args, strict=False))
    return pairs + [(by_name[name], value) for name, value in sample.kwargs.items()]


class _Call:
    """A sample as a function of its tensors: ``call(*call.tensors)``, everything else fixed.

    Returns a flat tuple: the outputs, then the mutated arguments. Mutated arguments are copied first, so that the call
    is functional unless it is made with ``in_place=True``.
    """

    def __init__(self, op: Any, function: Callable[..., Any], sample: Sample, label: str) -> None:
        self.op = op
        self.function = function
        self.sample = sample
        self.label = label
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self.mutated: list[bool] = []
        for argument, value in _arguments(op, sample):
            found = _tensors(value)
            for i, tensor in enumerate(found):
                written = _is_mutated(argument)
                # Writing into a leaf that requires grad is an error of the caller.
                self.tensors.append(tensor.detach() if written else tensor)
                self.mutated.append(written)
                self.names.append(argument.name if value is tensor else f"{argument.name}[{i}]")

    def __call__(self, *tensors: Tensor, in_place: bool = False) -> tuple[Tensor, ...]:
        if not in_place:
            tensors = tuple(
                tensor.clone() if written else tensor
                for tensor, written in zip(tensors, self.mutated, strict=True)
            )
        values = iter(tensors)
        args = _replace(self.sample.args, values)
        kwargs = _replace(self.sample.kwargs, values)
        outputs = _tensors(self.function(*args, **kwargs))
        written = [t for t, mutated in zip(tensors, self.mutated, strict=True) if mutated]
        # A public function may return the argument that it wrote to.
        outputs = [output for output in outputs if not any(output is t for t in written)]
        return (*outputs, *written)

    def with_function(self, function: Callable[..., Any], label: str) -> _Call:
        return _Call(self.op, function, self.sample, label)

    def with_tensors(self, tensors: Sequence[Tensor]) -> _Call:
        values = iter(tensors)
        args = _replace(self.sample.args, values)
        kwargs = _replace(self.sample.kwargs, values)
        return _Call(self.op, self.function, Sample(*args, **kwargs), self.label)

    def describe(self, tensors: Sequence[Tensor] | None = None) -> str:
        values = iter(self.tensors if tensors is None else tensors)
        args = [_show(_replace(value, values)) for value in self.sample.args]
        kwargs = [
            f"{key}={_show(_replace(value, values))}" for key, value in self.sample.kwargs.items()
        ]
        return f"{self.label}({', '.join(args + kwargs)})"


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        try:
            if not value.is_contiguous():
                text += f" strides {value.stride()}"
            if value.storage_offset():
                text += f" offset {value.storage_offset()}"
        except RuntimeError:  # A tensor of a transform has no storage.
            pass
        return text
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_show, value))}]"
    return repr(value)


def _function_label(spec: OpSpec) -> str:
    function = inspect.unwrap(spec.function)
    return f"{function.__module__}.{function.__qualname__}"


def _op_label(op: Any) -> str:
    return f"torch.ops.{op.namespace}.{op._schema.name.split('::')[1]}"


def _calls(spec: OpSpec, sample: Sample) -> list[tuple[_Call, _Call]]:
    """The public function and the operator, each with its reference."""
    public = _Call(spec.op, spec.function, sample, _function_label(spec))
    raw = _Call(spec.op, spec.op, sample, _op_label(spec.op))
    op_reference = spec.op_reference or spec.reference
    return [
        (public, public.with_function(spec.reference, "reference")),
        (raw, raw.with_function(op_reference, "reference")),
    ]


def _samples(
    spec: OpSpec, device: str, dtype: torch.dtype, shape: tuple[int, ...], **options: Any
) -> list[Sample]:
    return list(spec.samples(Make(device, dtype, **options), shape))


def _small_shapes(spec: OpSpec, *, limit: int = 200) -> list[tuple[int, ...]]:
    """One shape per kind: by rank; zero-sized; with a dimension of one; a single element."""
    kinds: dict[Any, tuple[int, ...]] = {}
    for shape in sorted(spec.shapes, key=math.prod):
        if math.prod(shape) > limit:
            continue
        if 0 in shape:
            kind: Any = ("empty", shape)
        elif math.prod(shape) == 1:
            kind = "one element"
        elif 1 in shape:
            kind = "one"
        else:
            kind = len(shape)
        kinds.setdefault(kind, shape)
    return list(kinds.values())


def _main_shape(spec: OpSpec, *, at_most: int = 4) -> tuple[int, ...]:
    """The shape for costly checks: of the highest rank, no dimension below two, few elements."""
    usable = [shape for shape in spec.shapes if math.prod(shape) > 0 and len(shape) <= at_most]
    full = [shape for shape in usable if all(size > 1 for size in shape)] or usable
    rank = max(map(len, full))
    return min((shape for shape in full if len(shape) == rank), key=math.prod)


def _floating(dtypes: Iterable[torch.dtype]) -> list[torch.dtype]:
    return [dtype for dtype in dtypes if dtype.is_floating_point]


def _check_dtype(spec: OpSpec) -> torch.dtype:
    """The dtype for checks that are not about dtypes."""
    return torch.float32 if torch.float32 in spec.dtypes else spec.dtypes[0]


def _upcast(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The same (rounded) values in float64, as leaves."""
    return [
        t.detach().to(torch.float64).requires_grad_(t.requires_grad)
        if t.is_floating_point()
        else t.detach().clone()
        for t in tensors
    ]


def _leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Leaves that share the memory, and thus the layout, of the tensors."""
    return [t.detach().requires_grad_(t.requires_grad) for t in tensors]


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies down to strides, storage offset and the memory between elements; shared storage stays shared."""
    storages: dict[int, Tensor] = {}
    copies = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            itemsize = tensor.element_size()
            whole.set_(storage, 0, (storage.nbytes() // itemsize,), (1,))
            storages[storage.data_ptr()] = whole.clone()
        whole = storages[storage.data_ptr()].view(tensor.dtype)
        copy = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        copies.append(copy.detach().requires_grad_(tensor.requires_grad))
    return copies


# ----- layouts


def _strided(tensor: Tensor, order: Sequence[int], steps: Sequence[int], offset: int) -> Tensor:
    """The tensor's values in memory with this order of dimensions, steps between elements, and storage offset.

    What lies between holds NaN, so that reading the wrong place shows.
    """
    sizes = [tensor.shape[d] * steps[d] for d in order]
    fill: Any = math.nan if tensor.is_floating_point() else 1
    buffer = torch.full(
        (offset + math.prod(sizes),), fill, dtype=tensor.dtype, device=tensor.device
    )
    inverse = sorted(range(len(order)), key=order.__getitem__)
    view = buffer[offset:].view(sizes).permute(inverse)
    view = view[tuple(slice(None, None, step) for step in steps)]
    view.copy_(tensor.detach())
    return view


def _transposed(t: Tensor) -> Tensor | None:
    return _strided(t, range(t.dim())[::-1], [1] * t.dim(), 0) if t.dim() > 1 else None


def _permuted(t: Tensor) -> Tensor | None:
    return _strided(t, [1, 0, *range(2, t.dim())], [1] * t.dim(), 0) if t.dim() > 2 else None


def _sliced(t: Tensor) -> Tensor | None:
    return _strided(t, range(t.dim()), [1] * (t.dim() - 1) + [2], 0) if t.dim() else None


def _sliced_rows(t: Tensor) -> Tensor | None:
    return _strided(t, range(t.dim()), [3] + [1] * (t.dim() - 1), 0) if t.dim() > 1 else None


def _channels_last(t: Tensor) -> Tensor | None:
    return _strided(t, [0, 2, 3, 1], [1] * 4, 0) if t.dim() == 4 else None


def _expanded(t: Tensor) -> Tensor | None:
    return t.detach()[:1].clone().expand(t.shape) if t.dim() and t.shape[0] else None


def _expanded_last(t: Tensor) -> Tensor | None:
    return t.detach()[..., :1].clone().expand(t.shape) if t.dim() > 1 and t.shape[-1] else None


def _offset(t: Tensor) -> Tensor | None:
    return _strided(t, range(t.dim()), [1] * t.dim(), 1)


def _odd_stride(t: Tensor) -> Tensor | None:
    """Contiguous, with an arbitrary stride where the size is one, which ``empty_like`` keeps."""
    if 1 not in t.shape:
        return None
    strides = [77 if n == 1 else s for n, s in zip(t.shape, t.stride(), strict=True)]
    return t.detach().as_strided(t.shape, strides)


LAYOUTS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "contiguous": lambda t: t.detach(),
    "transposed": _transposed,
    "permuted": _permuted,
    "sliced with a step": _sliced,
    "sliced rows": _sliced_rows,
    "channels-last": _channels_last,
    "expanded": _expanded,
    "expanded last": _expanded_last,
    "storage offset": _offset,
    "odd stride of a size-one dimension": _odd_stride,
}


def _laid_out(
    tensors: Sequence[Tensor], mutated: Sequence[bool], *, each: bool = False
) -> Iterator[tuple[str, list[Tensor]]]:
    """(layout, tensors in it), where it applies; with ``each``, for every tensor alone too.

    Contiguous tensors are expected. No tensor that is written to is expanded.
    """
    count = len(tensors)
    groups = [tuple(range(count))]
    if each and count > 1:
        groups += [(i,) for i in range(count)]
    for name, layout in LAYOUTS.items():
        for group in groups:
            result, changed = list(tensors), False
            for i in group:
                if mutated[i] and "expanded" in name:
                    continue
                new = layout(tensors[i])
                if new is not None:
                    result[i] = new.requires_grad_(tensors[i].requires_grad)
                    changed = True
            if not changed or (name == "contiguous" and group != groups[0]):
                continue
            only = f" (argument {group[0]} only)" if group != groups[0] else ""
            yield name + only, result


# ----- failures


class CheckError(AssertionError):
    """What a check found."""


def _sources(spec: OpSpec) -> tuple[str, str, str]:
    """Where a user looks: (Python file, CPU source, CUDA source)."""
    try:
        path = Path(inspect.getsourcefile(inspect.unwrap(spec.function)) or "?")
    except TypeError:
        return ("?", "?", "?")
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    cpu, cuda = path.with_name(f"{spec.name}_cpu.cpp"), path.with_name(f"{spec.name}_cuda.cu")
    return (
        str(path),
        str(cpu if cpu.exists() else path),
        str(cuda if cuda.exists() else path),
    )


def _see(spec: OpSpec, what: str, device: str) -> str:
    python, cpu, cuda = _sources(spec)
    kernel = cuda if device.startswith("cuda") else cpu
    return {
        "kernel": f"the kernel in {kernel}",
        "backward": f"the derivative formula in {python}, and its kernel in {kernel}",
        "fake": f"the fake kernel in {python}, and what the kernel allocates in {kernel}",
        "python": python,
    }.get(what, what)


def _fail(
    spec: OpSpec,
    problem: str,
    *,
    call: _Call | str | None = None,
    tensors: Sequence[Tensor] | None = None,
    device: str = "",
    detail: str = "",
    see: str = "python",
) -> NoReturn:
    lines = [f"{spec.name}: {problem}"]
    if isinstance(call, _Call):
        call = call.describe(tensors)
    if call:
        lines.append(f"  call: {call}" + (f" on {device}" if device else ""))
    lines += [f"  {line}" for line in detail.splitlines()]
    lines.append(f"  look at: {_see(spec, see, device)}")
    raise CheckError("\n".join(lines))


@contextlib.contextmanager
def _about(
    spec: OpSpec,
    doing: str,
    call: _Call | str,
    *,
    tensors: Sequence[Tensor] | None = None,
    device: str,
    see: str = "python",
) -> Iterator[None]:
    """Says which call it was when something raises."""
    try:
        yield
    except CheckError:
        raise
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        if len(detail) > 4000:
            detail = f"{detail[:3000]}\n...\n{detail[-1000:]}"
        try:
            _fail(
                spec,
                f"{doing} raised",
                call=call,
                tensors=tensors,
                device=device,
                detail=detail,
                see=see,
            )
        except CheckError as failure:
            raise failure from error


# ----- tolerances


def _tolerance(
    spec: OpSpec, dtype: torch.dtype, actual: Tensor, expected: Tensor, reduced: float, order: int
) -> tuple[float, float]:
    """(rtol, atol) for an output, against a reference computed in float64 from the same rounded inputs.

    - A result in float16 or bfloat16 of arithmetic in float32 is off by half an eps: rtol is one eps. float32 and
      float64 are off by the rounding of every step, and by a few units in the last place of exp, rsqrt and the like:
      rtol is eight.
    - Summing n numbers of either sign leaves an error that grows as sqrt(n), relative to the largest result: atol is
      that many roundings of the arithmetic (float32 for the half dtypes).
    - A derivative may be composed of several operators and round to the dtype in between, before terms cancel: each
      order of differentiation doubles rtol, and adds as many roundings relative to the largest result to atol.
    """
    if dtype in spec.tolerances:
        return spec.tolerances[dtype]
    eps = torch.finfo(actual.dtype).eps
    half = actual.dtype in HALF_DTYPES
    arithmetic = torch.finfo(torch.float32).eps if half else eps
    finite = expected[expected.isfinite()].abs()
    largest = max(1.0, finite.max().item() if finite.numel() else 0.0)
    growth = 2.0**order
    rtol = (1 if half else 8) * eps * growth
    atol = 8 * arithmetic * math.sqrt(max(1.0, reduced)) * largest * growth
    if order:
        atol += (growth - 1) * eps * largest
    return rtol, atol


def _difference(actual: Tensor, expected: Tensor, rtol: float, atol: float) -> str | None:
    """How a tensor differs from its reference; None if it does not."""
    if actual.shape != expected.shape:
        return f"shape: expected {tuple(expected.shape)}, got {tuple(actual.shape)}"
    actual, expected = actual.detach(), expected.detach()
    if not actual.is_floating_point():
        if torch.equal(actual, expected.to(actual.dtype)):
            return None
        wrong = actual != expected.to(actual.dtype)
    else:
        # What overflows the dtype is infinite in the reference too.
        rounded = expected.to(actual.dtype)
        expected = torch.where(rounded.isinf(), rounded.to(torch.float64), expected)
        got = actual.to(torch.float64)
        wrong = ~torch.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)
        if not wrong.any():
            return None
    error = (actual.to(torch.float64) - expected.to(torch.float64)).abs()
    error = torch.where(wrong, error.nan_to_num(math.inf, math.inf), error.new_tensor(-1.0))
    worst = tuple(i.item() for i in torch.unravel_index(error.argmax(), error.shape))
    lines = [
        f"{int(wrong.sum())} of {wrong.numel()} elements differ (rtol {rtol:.2g}, atol {atol:.2g})",
        f"the furthest, at {worst}: expected {expected[worst].item():.10g}, "
        f"got {actual[worst].item():.10g}",
    ]
    if actual.is_floating_point() and (actual.isnan() & ~expected.isnan()).any():
        lines.append(
            "NaN came where a number was expected: these checks fill uninitialised memory, and the gaps of strided "
            "inputs, with NaN. Does the kernel skip elements, or read others than it should?"
        )
    return "\n".join(lines)


def _compare(
    spec: OpSpec,
    dtype: torch.dtype,
    call: _Call,
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    *,
    what: str,
    names: Sequence[str] | None = None,
    order: int = 0,
    layout: str = "",
    device: str,
    tensors: Sequence[Tensor] | None = None,
    see: str = "kernel",
) -> None:
    where = f", {layout}" if layout else ""
    if len(actual) != len(expected):
        _fail(
            spec,
            f"{what}: {len(actual)} tensors, but {len(expected)} from the reference{where}",
            call=call,
            tensors=tensors,
            device=device,
            see=see,
        )
    largest = max([t.numel() for t in call.tensors if not isinstance(t, list)], default=1)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a.is_floating_point():
            if e.dtype != torch.float64:
                _fail(
                    spec,
                    f"the reference gives {e.dtype} for inputs in torch.float64: it must follow their dtype",
                    call=call,
                    tensors=tensors,
                    device=device,
                    see=f"the reference, {_function_name(spec.reference)}",
                )
            rtol, atol = _tolerance(spec, dtype, a, e, largest / max(1, a.numel()), order)
        else:
            rtol = atol = 0.0
        difference = _difference(a, e, rtol, atol)
        if difference is not None:
            name = names[i] if names else (f"output {i}" if len(actual) > 1 else "the output")
            _fail(
                spec,
                f"{what} differs from the reference ({device}, {dtype}{where})",
                call=call,
                tensors=tensors,
                device=device,
                detail=f"{name}: {difference}",
                see=see,
            )


def _function_name(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


@contextlib.contextmanager
def _poisoned() -> Iterator[None]:
    """Fills uninitialised memory with NaN (or the largest integer), so that an element never written shows."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


def _random_like(tensors: Sequence[Tensor], seed: int = 1) -> list[Tensor]:
    """Cotangents or tangents: values of order one, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.rand(t.shape, generator=generator, dtype=torch.float64).mul(2).sub(1).to(t)
        for t in (t.detach() for t in tensors)
    ]


class _Recorder(TorchDispatchMode):
    """Records the calls of a namespace's operators."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self.namespace = namespace
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == self.namespace:
            self.calls.append((func, args, kwargs))
        return func(*args, **kwargs)


# ----- the checks


@dataclasses.dataclass(frozen=True)
class Check:
    """A check, and the operators that it applies to."""

    run: Callable[..., None]
    per_dtype: bool
    applies: Callable[[OpSpec, str], bool]

    @property
    def name(self) -> str:
        return self.run.__name__

    def cases(self, specs: Iterable[OpSpec]) -> list[tuple[Any, ...]]:
        """The arguments to run it with: (spec, device) or (spec, device, dtype)."""
        cases: list[tuple[Any, ...]] = []
        for spec in specs:
            for device in devices():
                if not self.applies(spec, device):
                    continue
                if self.per_dtype:
                    cases += [(spec, device, dtype) for dtype in spec.dtypes]
                else:
                    cases.append((spec, device))
        return cases


CHECKS: dict[str, Check] = {}


def _available(spec: OpSpec, device: str) -> bool:
    return device in spec.devices


def _differentiable(spec: OpSpec, device: str) -> bool:
    return device in spec.devices and spec.differentiable


def _on_cuda(spec: OpSpec, device: str) -> bool:
    return device == "cuda" and device in spec.devices


def _check(
    *, per_dtype: bool = False, applies: Callable[[OpSpec, str], bool] = _available
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(run: Callable[..., None]) -> Callable[..., None]:
        CHECKS[run.__name__] = Check(run, per_dtype, applies)
        return run

    return register


def _gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    create_graph: bool = False,
) -> list[Tensor]:
    return list(
        torch.autograd.grad(
            outputs, inputs, cotangents, create_graph=create_graph, materialize_grads=True
        )
    )


def _compare_call(
    spec: OpSpec,
    device: str,
    dtype: torch.dtype,
    call: _Call,
    reference: _Call,
    tensors: Sequence[Tensor],
    *,
    order: int = 0,
    layout: str = "",
    cotangent_layout: Callable[[Tensor], Tensor | None] | None = None,
    run: Callable[..., Any] | None = None,
) -> None:
    """Compares a call with its reference; with order 1 the gradients too, with order 2 those of the gradients."""
    options: dict[str, Any] = {"device": device, "layout": layout, "tensors": tensors}
    about = functools.partial(_about, spec, call=call, device=device, tensors=tensors)
    copies = _copies(tensors) if any(call.mutated) else _leaves(tensors)
    upcast = _upcast(tensors)
    function = run or functools.partial(call, in_place=True)
    with contextlib.ExitStack() as stack:
        if not order:
            stack.enter_context(torch.no_grad())
        with about(doing="forward", see="kernel"):
            outputs = function(*copies)
        expected = reference(*upcast)
    _compare(spec, dtype, call, outputs, expected, what="forward", see="kernel", **options)
    if not order:
        return
    pairs = [(o, e) for o, e in zip(outputs, expected, strict=True) if e.requires_grad]
    for i, (o, e) in enumerate(zip(outputs, expected, strict=True)):
        if e.requires_grad and not o.requires_grad:
            _fail(
                spec,
                f"output {i} does not require grad, although an input does and the reference's output does",
                call=call,
                tensors=tensors,
                device=device,
                see="backward",
            )
    outputs, expected = [o for o, _ in pairs], [e for _, e in pairs]
    wanted = [i for i, t in enumerate(copies) if t.requires_grad]
    if not outputs or not wanted:
        return
    cotangents = _random_like(outputs)
    if cotangent_layout is not None:
        cotangents = [
            cotangent_layout(c) if cotangent_layout(c) is not None else c for c in cotangents
        ]  # type: ignore[misc]
    cotangents = [c.requires_grad_(order > 1) for c in cotangents]
    upcast_cotangents = _upcast(cotangents)
    with about(doing="backward", see="backward"):
        actual = _gradients(
            outputs, [copies[i] for i in wanted], cotangents, create_graph=order > 1
        )
    expected = _gradients(
        expected, [upcast[i] for i in wanted], upcast_cotangents, create_graph=order > 1
    )
    names = [f"the gradient of {call.names[i]}" for i in wanted]
    _compare(
        spec,
        dtype,
        call,
        actual,
        expected,
        what="backward",
        names=names,
        order=1,
        see="backward",
        **options,
    )
    if order < 2:
        return
    for name, a, e in zip(names, actual, expected, strict=True):
        if e.requires_grad and not a.requires_grad:
            _fail(
                spec,
                f"{name} has no gradient of its own: the backward is not differentiable",
                call=call,
                tensors=tensors,
                device=device,
                detail="Compose it of differentiable operators; a backward operator needs a formula (or an error) too.",
                see="backward",
            )
    pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if e.requires_grad]
    if not pairs:
        return
    wanted_names = [call.names[i] for i in wanted] + ["the gradient of the output"] * len(
        cotangents
    )
    cocotangents = _random_like([a for a, _ in pairs], seed=2)
    with about(doing="double backward", see="backward"):
        actual = _gradients(
            [a for a, _ in pairs], [copies[i] for i in wanted] + cotangents, cocotangents
        )
    expected = _gradients(
        [e for _, e in pairs],
        [upcast[i] for i in wanted] + upcast_cotangents,
        _upcast(cocotangents),
    )
    names = [f"the second-order gradient of {name}" for name in wanted_names]
    _compare(
        spec,
        dtype,
        call,
        actual,
        expected,
        what="double backward",
        names=names,
        order=2,
        see="backward",
        **options,
    )


@_check(per_dtype=True)
def check_forward(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """Every shape, against the reference in float64; NaN, infinities and signed zeros too."""
    count = 0
    for shape in spec.shapes:
        for specials in (False, True):
            options = {"requires_grad": False, "specials": specials, "seed": int(specials)}
            for sample in _samples(spec, device, dtype, shape, **options):
                for call, reference in _calls(spec, sample):
                    layout = "with NaN and infinities" if specials else ""
                    with _poisoned():
                        _compare_call(
                            spec, device, dtype, call, reference, call.tensors, layout=layout
                        )
                    count += 1
    if not count:
        _fail(spec, "samples() yields nothing for any of the spec's shapes", see="the spec")
    _check_dtypes(spec, device, dtype)


def _check_dtypes(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """The dtypes of the public function's outputs are those of the reference on the same inputs."""
    for sample in _samples(spec, device, dtype, _main_shape(spec), requires_grad=False):
        call, reference = _calls(spec, sample)[0]
        got = [o.dtype for o in call(*call.tensors)]
        expected = [o.dtype for o in reference(*call.tensors)]
        if got != expected:
            _fail(
                spec,
                f"the outputs have dtypes {got}, the reference's {expected}",
                call=call,
                device=device,
                see="kernel",
            )


@_check(per_dtype=True, applies=_differentiable)
def check_backward(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """Gradients over every shape, against those of the reference in float64."""
    if not dtype.is_floating_point:
        return
    for shape in spec.shapes:
        for sample in _samples(spec, device, dtype, shape):
            for call, reference in _calls(spec, sample):
                with _poisoned():
                    _compare_call(spec, device, dtype, call, reference, call.tensors, order=1)


@_check(per_dtype=True, applies=_differentiable)
def check_double_backward(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """Gradients of gradients over small shapes, against those of the reference in float64."""
    if not dtype.is_floating_point:
        return
    for shape in _small_shapes(spec):
        for sample in _samples(spec, device, dtype, shape):
            for call, reference in _calls(spec, sample):
                with _poisoned():
                    _compare_call(spec, device, dtype, call, reference, call.tensors, order=2)


@_check(per_dtype=True)
def check_layouts(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """Forward and backward for inputs, and for gradients of the output, in every layout."""
    order = 1 if spec.differentiable and dtype.is_floating_point else 0
    larger = [s for s in spec.shapes if 1000 <= math.prod(s) <= 10000][:1]
    for shape in _small_shapes(spec) + larger:
        for sample in _samples(spec, device, dtype, shape):
            for call, reference in _calls(spec, sample):
                for layout, tensors in _laid_out(call.tensors, call.mutated, each=True):
                    _compare_call(
                        spec, device, dtype, call, reference, tensors, layout=layout, order=order
                    )
                if not order:
                    continue
                for name, layout_of in LAYOUTS.items():
                    _compare_call(
                        spec,
                        device,
                        dtype,
                        call,
                        reference,
                        call.tensors,
                        order=1,
                        layout=f"gradient of the output {name}",
                        cotangent_layout=layout_of,
                    )
    # The operators of the backward take any layout too: what they give must not depend on it.
    for op, sample in _recorded(spec, device, dtype, _main_shape(spec)):
        if op is spec.op:
            continue
        call = _Call(op, op, sample, _op_label(op))
        with torch.no_grad():
            for layout, tensors in _laid_out(call.tensors, call.mutated, each=True):
                contiguous = [t.detach().contiguous().clone() for t in tensors]
                expected = [
                    o.to(torch.float64) if o.is_floating_point() else o
                    for o in call(*contiguous, in_place=True)
                ]
                with _about(spec, layout, call, tensors=tensors, device=device, see="kernel"):
                    actual = call(*_copies(tensors), in_place=True)
                _compare(
                    spec,
                    dtype,
                    call,
                    actual,
                    expected,
                    what=f"{_op_label(op)} on contiguous copies",
                    device=device,
                    tensors=tensors,
                    layout=layout,
                    order=1,
                )


def _recorded(
    spec: OpSpec, device: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> list[tuple[Any, Sample]]:
    """The namespace's operators that samples of a shape call, forward, backward and double backward, with arguments.

    One call for every operator and every pattern of absent arguments and of arguments that require grad.
    """
    recorder = _Recorder(spec.namespace)
    for sample in _samples(spec, device, dtype, shape):
        for call, _ in _calls(spec, sample):
            tensors = _leaves(call.tensors)
            with recorder:
                outputs = [o for o in call(*tensors) if o.requires_grad]
                wanted = [t for t in tensors if t.requires_grad]
                if not outputs or not wanted or not spec.differentiable:
                    continue
                with _about(spec, "backward", call, device=device, see="backward"):
                    cotangents = [c.requires_grad_() for c in _random_like(outputs)]
                    grads = _gradients(outputs, wanted, cotangents, create_graph=True)
                    grads = [g for g in grads if g.requires_grad]
                    if grads:
                        _gradients(grads, wanted + cotangents, _random_like(grads, seed=2))
    found: dict[Any, tuple[Any, Sample]] = {}
    for op, args, kwargs in recorder.calls:
        pattern = [
            (t.requires_grad if isinstance(t, Tensor) else t is None) for t in _flat((args, kwargs))
        ]
        key = (op, tuple(pattern))
        if key not in found:
            leaves = iter(
                t.detach().clone().requires_grad_(t.requires_grad) for t in _tensors((args, kwargs))
            )
            found[key] = (op, Sample(*_replace(args, leaves), **_replace(kwargs, leaves)))
    return list(found.values())


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in _flat(item)]
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in _flat(item)]
    return [tree]


@_check(applies=_differentiable)
def check_gradcheck(spec: OpSpec, device: str) -> None:
    """Derivatives against finite differences in float64: first and second order, backward, forward and batched."""
    if torch.float64 not in spec.dtypes:
        return
    for sample in _samples(spec, device, torch.float64, _main_shape(spec, at_most=2)):
        for call, _ in _calls(spec, sample):
            for _, tensors in itertools.islice(_laid_out(call.tensors, call.mutated), 2):

                def function(*inputs: Tensor, call: _Call = call) -> tuple[Tensor, ...]:
                    return tuple(o for o in call(*inputs) if o.is_floating_point())

                # The second output onwards (statistics) count as outputs like the first.
                inputs = tuple(_leaves(tensors))
                if not any(t.requires_grad for t in inputs):
                    continue
                about = functools.partial(
                    _about, spec, call=call, tensors=tensors, device=device, see="backward"
                )
                with about("gradcheck"):
                    torch.autograd.gradcheck(
                        function,
                        inputs,
                        check_forward_ad=True,
                        check_batched_grad=True,
                        check_batched_forward_grad=True,
                    )
                with about("gradgradcheck"):
                    torch.autograd.gradgradcheck(
                        function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True
                    )


@_check()
def check_opcheck(spec: OpSpec, device: str) -> None:
    """``torch.library.opcheck``, all of its tests, for the operator and those of its backward, in every layout."""
    dtype = _check_dtype(spec)
    tests = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_static",
        "test_aot_dispatch_dynamic",
    )
    main = _main_shape(spec)
    for shape in [main] + [s for s in _small_shapes(spec) if math.prod(s) <= 1]:
        for op, sample in _recorded(spec, device, dtype, shape):
            call = _Call(op, op, sample, _op_label(op))
            tensors = call.tensors
            if not _has_formula(call):
                tensors = [t.detach() for t in tensors]
            for layout, laid in _laid_out(tensors, call.mutated):
                if shape != main and layout != "contiguous":
                    continue
                bound = call.with_tensors(laid).sample
                doing = f"opcheck ({layout})"
                with (
                    _fresh_compiler(),
                    warnings.catch_warnings(),
                    _about(spec, doing, call, tensors=laid, device=device, see="fake"),
                ):
                    warnings.simplefilter("ignore")
                    torch.library.opcheck(op, bound.args, bound.kwargs, test_utils=tests)


def _has_formula(call: _Call) -> bool:
    """Whether gradients can be asked of an operator; if not, the operator says so itself."""
    tensors = _leaves(call.tensors)
    wanted = [t for t in tensors if t.requires_grad]
    if not wanted:
        return True
    try:
        outputs = [o for o in call(*tensors) if o.requires_grad]
        if outputs:
            _gradients(outputs, wanted, _random_like(outputs))
    except RuntimeError as error:
        if call.op._schema.name.split("::")[1] in str(error):
            return False
        raise
    return True


@contextlib.contextmanager
def _fresh_compiler() -> Iterator[None]:
    """Nothing compiled before counts: recompilation limits are per function, not per test."""
    torch.compiler.reset()
    try:
        yield
    finally:
        torch.compiler.reset()


def _fake(op: Any, tensors: Sequence[Tensor], call: _Call) -> list[Tensor]:
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(t.detach()) for t in tensors]
    with mode, torch.no_grad():
        return list(call(*fakes, in_place=True))


def _is_dense(t: Tensor) -> bool:
    expected = 1
    for stride, size in sorted(
        (stride, size) for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def _same_strides(a: Tensor, b: Tensor) -> bool:
    """Equal where strides mean something: dimensions of more than one element."""
    if a.numel() == 0:
        return True
    return all(
        size <= 1 or s == t for size, s, t in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def _fresh_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def _obeys_elementwise_rule(output: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Keeps the layout of dense inputs that agree on it; fresh and contiguous otherwise."""
    full = [t for t in inputs if t.shape == output.shape]
    agree = full and all(_is_dense(t) and _same_strides(t, full[0]) for t in full)
    fresh = output.stride() == _fresh_strides(output.shape)
    if not agree:
        return fresh
    # Inputs that are broadcast may, but need not, count as disagreeing.
    return _same_strides(output, full[0]) or (fresh and len(full) < len(inputs))


@_check()
def check_strides(spec: OpSpec, device: str) -> None:
    """Outputs of the kernel and of the fake kernel agree on sizes, strides, dtype and device, in every layout.

    And the strides follow one of the two rules: those of dense inputs that agree (elementwise operators), or freshly
    contiguous.
    """
    shapes = [s for s in spec.shapes if math.prod(s) <= 10000]
    for dtype in dict.fromkeys([_check_dtype(spec), spec.dtypes[-1]]):
        elementwise, contiguous = {}, {}  # operator and output: the first call that breaks the rule
        for shape in shapes:
            for op, sample in _recorded(spec, device, dtype, shape):
                call = _Call(op, op, sample, _op_label(op))
                for layout, tensors in _laid_out(call.tensors, call.mutated, each=True):
                    about = functools.partial(
                        _about, spec, call=call, tensors=tensors, device=device
                    )
                    with about(f"the kernel ({layout})", see="kernel"), torch.no_grad():
                        outputs = call(*_copies(tensors), in_place=True)
                    with about(f"the fake kernel ({layout})", see="fake"):
                        fakes = _fake(op, tensors, call)
                    fail = functools.partial(
                        _fail, spec, call=call, tensors=tensors, device=device, see="fake"
                    )
                    if len(outputs) != len(fakes):
                        fail(
                            f"the kernel returns {len(outputs)} tensors, the fake one {len(fakes)}"
                        )
                    for i, (output, fake) in enumerate(zip(outputs, fakes, strict=True)):
                        for what in ("shape", "dtype", "device", "stride", "storage_offset"):
                            got, expected = (
                                (v() if callable(v) else v)
                                for v in (getattr(output, what), getattr(fake, what))
                            )
                            if got != expected:
                                fail(
                                    f"kernel and fake kernel disagree on the {what} of output {i} ({layout}): "
                                    f"{_plain(got)} from the kernel, {_plain(expected)} from the fake one"
                                )
                    for i, output in enumerate(outputs[: len(outputs) - sum(call.mutated)]):
                        describe = f"{call.describe(tensors)} gives strides {output.stride()}"
                        if not _obeys_elementwise_rule(output, tensors):
                            elementwise.setdefault((op, i), describe)
                        if output.stride() != _fresh_strides(output.shape):
                            contiguous.setdefault((op, i), describe)
        for key in elementwise.keys() & contiguous.keys():
            op, i = key
            _fail(
                spec,
                f"the strides of output {i} of {_op_label(op)} follow neither rule",
                detail=(
                    f"not freshly contiguous: {contiguous[key]}\n"
                    f"not the layout of dense inputs that agree: {elementwise[key]}"
                ),
                see="fake",
                device=device,
            )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, torch.Size) else value


@_check()
def check_side_effects(spec: OpSpec, device: str) -> None:
    """Writes to what the schema says and nothing else; outputs share no memory with inputs or with each other."""
    for shape in _small_shapes(spec):
        for op, sample in _recorded(spec, device, _check_dtype(spec), shape):
            call = _Call(op, op, sample, _op_label(op))
            for layout, tensors in _laid_out(call.tensors, call.mutated):
                tensors = [t.detach() for t in _copies(tensors)]
                before = _copies(tensors)
                versions = [t._version for t in tensors]
                fail = functools.partial(
                    _fail, spec, call=call, tensors=tensors, device=device, see="kernel"
                )
                outputs = call(*tensors, in_place=True)
                outputs = outputs[: len(outputs) - sum(call.mutated)]
                for i, name in enumerate(call.names):
                    bumped = tensors[i]._version != versions[i]
                    if call.mutated[i]:
                        if not bumped:
                            fail(
                                f"{name} is written to, but its version counter is not bumped: autograd would use "
                                "the new values where it saved the old ones ({layout})".format(
                                    layout=layout
                                )
                            )
                    elif bumped or not _same_bits(tensors[i], before[i]):
                        fail(
                            f"{name} is written to, but the schema does not say Tensor(a!) ({layout})"
                        )
                for i, output in enumerate(outputs):
                    if output.numel() == 0:
                        continue
                    pointer = output.untyped_storage().data_ptr()
                    others = {f"argument {n}": t for n, t in zip(call.names, tensors, strict=True)}
                    others |= {f"output {j}": t for j, t in enumerate(outputs) if j != i}
                    for name, other in others.items():
                        if other.numel() and other.untyped_storage().data_ptr() == pointer:
                            fail(f"output {i} shares its memory with {name} ({layout})")


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    integer = _INTEGERS[a.element_size()]
    return torch.equal(a.detach().contiguous().view(integer), b.detach().contiguous().view(integer))


@_check()
def check_signature(spec: OpSpec, device: str) -> None:
    """The public function, the reference and the fake kernel have the schema's names, order and defaults."""
    arguments = spec.op._schema.arguments
    for what, function in (("public function", spec.function), ("reference", spec.reference)):
        parameters = list(inspect.signature(function).parameters.values())
        names = [p.name for p in parameters]
        if names != [a.name for a in arguments]:
            _fail(
                spec,
                f"the {what} takes {names}, the schema {[a.name for a in arguments]}",
                see=_function_name(function),
            )
        for parameter, argument in zip(parameters, arguments, strict=True):
            _compare_default(spec, what, argument, parameter.default, _function_name(function))
    for op, sample in _recorded(spec, device, _check_dtype(spec), _main_shape(spec)):
        _check_fake_signature(spec, op, sample)


def _compare_default(spec: OpSpec, what: str, argument: Any, default: Any, see: str) -> None:
    has_default = default is not inspect.Parameter.empty
    if has_default != argument.has_default_value():
        _fail(
            spec,
            f"{argument.name} has {'a' if has_default else 'no'} default in the {what}, "
            f"{'one' if argument.has_default_value() else 'none'} in the schema",
            see=see,
        )
    if has_default:
        expected = argument.default_value
        if isinstance(default, tuple):
            default = list(default)
        if default != expected:
            _fail(
                spec,
                f"the default of {argument.name} is {default!r} in the {what}, {expected!r} in the schema",
                see=see,
            )


def _check_fake_signature(spec: OpSpec, op: Any, sample: Sample) -> None:
    """Watches what the dispatcher calls: it strips trailing arguments that equal their defaults."""
    arguments = op._schema.arguments
    values = {a.name: v for a, v in _arguments(op, sample)}
    required = [values[a.name] for a in arguments if not a.has_default_value()]
    if any(a.kwarg_only for a in arguments):
        return
    entered: list[tuple[CodeType, dict[str, Any]]] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.split(".")[0] != "torch" and module != __name__:
            entered.append((frame.f_code, dict(frame.f_locals)))

    mode = FakeTensorMode()
    leaves = iter([mode.from_tensor(t.detach()) for t in _tensors(required)])
    fakes = _replace(required, leaves)
    with mode, torch.no_grad():
        previous = sys.getprofile()
        sys.setprofile(profile)
        try:
            op(*fakes)
        except TypeError as error:
            sys.setprofile(previous)
            _fail(
                spec,
                f"the fake kernel of {_op_label(op)} does not take what its schema says: {op._schema}",
                detail=f"TypeError: {error}",
                see="fake",
            )
        finally:
            sys.setprofile(previous)
    # The first Python function outside of torch that takes the fake inputs is the fake kernel; one that stands inside
    # torch has none of its own.
    for code, values in entered:
        count = code.co_argcount + code.co_kwonlyargcount
        names = list(code.co_varnames[:count])
        if len(names) != len(arguments) or not fakes or values.get(names[0]) is not fakes[0]:
            continue
        see = f"{code.co_filename}:{code.co_firstlineno}"
        if names != [a.name for a in arguments]:
            _fail(
                spec,
                f"the fake kernel of {_op_label(op)} takes {names}, the schema {[a.name for a in arguments]}",
                see=see,
            )
        for argument in arguments:
            if argument.has_default_value():
                default = values.get(argument.name)
                _compare_default(spec, f"fake kernel of {_op_label(op)}", argument, default, see)
        return
    if entered:
        code, _ = entered[0]
        names = list(code.co_varnames[: code.co_argcount])
        _fail(
            spec,
            f"the fake kernel of {_op_label(op)} takes {names}, the schema {[a.name for a in arguments]}",
            see=f"{code.co_filename}:{code.co_firstlineno}",
        )


def check_namespace(namespace: str) -> None:
    """Every schema of the namespace has an Autograd kernel of its own: a formula, or an error.

    Without one, PyTorch's own fallback detaches in silence.
    """
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(f"{namespace}::")]
    if not names:
        raise CheckError(f"no operator is defined in the namespace {namespace}")
    bare = [n for n in names if not _has_kernel(n, "Autograd")]
    if bare:
        raise CheckError(
            f"no Autograd kernel for {', '.join(bare)}: call register_autograd, register_no_autograd or "
            "register_mutation of extension_cpp.library in the operator's ops.py"
        )


def _has_kernel(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


@_check()
def check_registrations(spec: OpSpec, device: str) -> None:
    """The operator, and those of its backward, have kernels for the device and for autograd, and none that hides them."""
    ops = {op for op, _ in _recorded(spec, device, _check_dtype(spec), _main_shape(spec))}
    for op in {spec.op, *ops}:
        name = op._schema.name
        if not _has_kernel(name, device.upper()):
            _fail(spec, f"{name} has no {device.upper()} kernel", see="kernel", device=device)
        if not _has_kernel(name, "Autograd"):
            _fail(
                spec,
                f"{name} has no Autograd kernel: gradients would be lost in silence",
                detail="register_autograd, register_no_autograd or register_mutation of extension_cpp.library",
            )
        if _has_kernel(name, "CompositeImplicitAutograd"):
            _fail(
                spec, f"{name} is registered as CompositeImplicitAutograd, which hides its autograd"
            )


# ----- errors


@_check()
def check_bad_inputs(spec: OpSpec, device: str) -> None:
    """The same text from the kernel, from the fake kernel, and within the error of torch.compile."""
    bad_inputs = list(spec.bad_inputs(Make(device, _check_dtype(spec))))
    names = [bad.name for bad in bad_inputs]
    if len(set(names)) < len(names):
        _fail(spec, f"two bad inputs have one name: {sorted(names)}", see="the spec")
    for bad in bad_inputs:
        call = _Call(spec.op, spec.function, bad.sample, _function_label(spec))
        raw = call.with_function(spec.op, _op_label(spec.op))
        fail = functools.partial(_fail, spec, call=call, device=device)
        with _captured_stderr() as captured:
            text = _message(spec, bad, call, call.tensors, device)
        if captured.text:
            fail(f"{bad.name}: something is printed to stderr", detail=captured.text, see="kernel")
        raw_text = _message(spec, bad, raw, raw.tensors, device)
        if raw_text != text:
            fail(
                f"{bad.name}: the operator and the public function disagree on the message",
                detail=f"public:   {text}\noperator: {raw_text}",
            )
        mode = FakeTensorMode()
        tensors = [mode.from_tensor(t) for t in raw.tensors]
        with mode:
            fake_text = _message(spec, bad, raw, tensors, f"fake {device}")
        if fake_text != text:
            fail(
                f"{bad.name}: kernel and fake kernel disagree on the message",
                detail=f"kernel: {text}\nfake:   {fake_text}",
                see="fake",
            )
        if not text.startswith(spec.name):
            fail(
                f"{bad.name}: the message does not start with the operator's name",
                detail=f"got: {text}",
                see="kernel",
            )
        if text != bad.message:
            if os.environ.get("EXPECTTEST_ACCEPT"):
                _accept(spec, bad, text)
                continue
            fail(
                f"{bad.name}: the message is not the one that the spec expects",
                detail=f"expected: {bad.message}\ngot:      {text}\n"
                "If the new one is right: EXPECTTEST_ACCEPT=1 pytest -k bad_inputs writes it into the spec.",
                see="kernel",
            )
        with _fresh_compiler():
            compiled = torch.compile(call, backend="eager", fullgraph=True)
            try:
                compiled(*call.tensors)
            except Exception as error:
                if text not in str(error):
                    fail(
                        f"{bad.name}: the error of torch.compile does not contain the message",
                        detail=f"expected: {text}\ngot: {error}",
                        see="fake",
                    )
            else:
                fail(f"{bad.name}: torch.compile does not raise", see="fake")


def _message(
    spec: OpSpec, bad: BadInput, call: _Call, tensors: Sequence[Tensor], device: str
) -> str:
    try:
        call(*tensors)
    except RuntimeError as error:
        return str(error)
    except Exception as error:
        _fail(
            spec,
            f"{bad.name}: raises {type(error).__name__}, not RuntimeError",
            call=call,
            device=device,
            detail=str(error),
        )
    _fail(spec, f"{bad.name}: does not raise", call=call, device=device, see="kernel")


class _Captured:
    text = ""


@contextlib.contextmanager
def _captured_stderr() -> Iterator[_Captured]:
    """What is written to the file descriptor, by C++ too."""
    captured = _Captured()
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield captured
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            captured.text = file.read().decode(errors="replace")


def _accept(spec: OpSpec, bad: BadInput, text: str) -> None:
    """Writes a message into the spec, where its BadInput is constructed."""
    import expecttest

    path = Path(bad.origin)
    source = path.read_text()
    found = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", getattr(node.func, "attr", "")) == "BadInput"
        ):
            arguments: list[ast.expr | None] = [*node.args, None, None, None][:3]
            keywords = {k.arg: k.value for k in node.keywords}
            name, message = (
                arguments[0] or keywords.get("name"),
                arguments[2] or keywords.get("message"),
            )
            if isinstance(name, ast.Constant) and name.value == bad.name and message is not None:
                found.append(message)
    if len(found) != 1 or not isinstance(found[0], ast.Constant):
        _fail(
            spec,
            f"{bad.name}: cannot write the message: {len(found)} literals BadInput({bad.name!r}, ...) in {path}",
            detail=f"the message: {text}",
            see="the spec",
        )
    literal = found[0]
    # expecttest replaces triple-quoted literals only, the first one of the lines: put an empty one in place.
    lines = source.splitlines(keepends=True)
    first, last = literal.lineno - 1, (literal.end_lineno or literal.lineno) - 1
    before = lines[first].encode()[: literal.col_offset].decode()
    after = lines[last].encode()[literal.end_col_offset :].decode()
    start = "".join(lines[:first]) + before
    new, _ = expecttest.replace_string_literal('""""""', 1, 1, text)
    path.write_text(start + new + after + "".join(lines[last + 1 :]))
    seen = expecttest.EDIT_HISTORY.seen_edit(str(path), hash(bad.name))
    if seen is not None and seen != text:
        _fail(
            spec,
            f"{bad.name}: two messages for one expectation",
            detail=f"{seen}\n{text}",
            see="the spec",
        )
    expecttest.EDIT_HISTORY.record_edit(str(path), hash(bad.name), 0, text)


@_check(applies=lambda spec, device: device in spec.devices and not spec.differentiable)
def check_no_gradient(spec: OpSpec, device: str) -> None:
    """An operator without a derivative says so when one is asked for, by name, and works when none is."""
    dtype = _check_dtype(spec)
    for sample in _samples(spec, device, dtype, _main_shape(spec)):
        for call, _ in _calls(spec, sample):
            tensors = _leaves(call.tensors)
            wanted = [i for i, t in enumerate(tensors) if t.requires_grad]
            if not wanted:
                continue
            about = functools.partial(_about, spec, call=call, device=device)
            with about("a plain call on inputs that require grad"):
                call(*tensors, in_place=not any(call.mutated))

            def backward(call: _Call = call, tensors: list[Tensor] = tensors) -> None:
                for output in call(*tensors):
                    if output.is_floating_point():
                        output.sum().backward()

            def tangent(call: _Call = call, tensors: list[Tensor] = tensors) -> None:
                with fwAD.dual_level():
                    duals = [
                        fwAD.make_dual(t.detach(), torch.ones_like(t)) if t.requires_grad else t
                        for t in tensors
                    ]
                    call(*duals)

            def transform(call: _Call = call, tensors: list[Tensor] = tensors) -> None:
                def loss(*inputs: Tensor) -> Tensor:
                    return sum(o.sum() for o in call(*inputs) if o.is_floating_point())  # type: ignore[return-value]

                torch.func.grad(loss, argnums=tuple(wanted))(*[t.detach() for t in tensors])

            for what, run in (
                ("backward", backward),
                ("a tangent (forward AD)", tangent),
                ("torch.func.grad", transform),
            ):
                try:
                    run()
                except RuntimeError as error:
                    if spec.name not in str(error):
                        _fail(
                            spec,
                            f"{what} raises an error that does not name the operator",
                            call=call,
                            device=device,
                            detail=str(error),
                        )
                else:
                    _fail(
                        spec,
                        f"{what} does not raise: the derivative is lost in silence",
                        call=call,
                        device=device,
                    )


@_check(applies=lambda spec, device: device not in spec.devices)
def check_missing_backend(spec: OpSpec, device: str) -> None:
    """On a device without a kernel, PyTorch's own error names the operator and the device."""
    for sample in _samples(
        spec, device, _check_dtype(spec), _main_shape(spec), requires_grad=False
    )[:1]:
        call, _ = _calls(spec, sample)[1]
        try:
            call(*call.tensors)
        except NotImplementedError as error:
            if spec.op._schema.name not in str(error) or device.upper() not in str(error):
                _fail(spec, "the error names neither", call=call, device=device, detail=str(error))
        except Exception as error:
            _fail(
                spec, f"raises {type(error).__name__}", call=call, device=device, detail=str(error)
            )
        else:
            _fail(spec, f"runs on {device}, which its spec does not list", call=call, device=device)


@_check()
def check_traffic(spec: OpSpec, device: str) -> None:
    """The bytes that the benchmark divides by: at least those of the outputs, more for larger inputs."""
    last = -1
    for shape in sorted((s for s in spec.shapes if 0 not in s), key=math.prod):
        for sample in _samples(spec, device, _check_dtype(spec), shape, requires_grad=False)[:1]:
            traffic = spec.traffic(sample)
            call, _ = _calls(spec, sample)[0]
            written = sum(o.numel() * o.element_size() for o in call(*call.tensors))
            if not isinstance(traffic.forward, int) or not isinstance(traffic.backward, int):
                _fail(
                    spec, f"traffic must be whole bytes, got {traffic}", call=call, see="the spec"
                )
            if traffic.forward < written or traffic.backward < 0:
                _fail(
                    spec, f"{traffic}, yet {written} bytes are written", call=call, see="the spec"
                )
            last = max(last, traffic.forward)
    if last <= 0:
        _fail(spec, "traffic is zero for every shape", see="the spec")


# ----- torch.compile and torch.export


def _compare_compiled(
    spec: OpSpec,
    device: str,
    call: _Call,
    reference: _Call,
    tensors: Sequence[Tensor],
    layout: str,
    backend: str,
) -> None:
    dtype = _check_dtype(spec)
    order = 1 if spec.differentiable else 0
    strides = [o.stride() for o in call(*_leaves(tensors))]
    with _fresh_compiler():
        compiled = torch.compile(call, backend=backend, fullgraph=True)

        def run(*inputs: Tensor) -> Any:
            return compiled(*inputs, in_place=True)

        where = f"torch.compile, backend {backend}, {layout}"
        doing = f"torch.compile(fullgraph=True, backend={backend!r}) ({layout})"
        with _about(spec, doing, call, tensors=tensors, device=device, see="fake"):
            _compare_call(
                spec, device, dtype, call, reference, tensors, order=order, layout=where, run=run
            )
            got = [o.stride() for o in run(*_copies(tensors))]
        if backend == "aot_eager" and got != strides and all(t.numel() for t in tensors):
            _fail(
                spec,
                f"strides {got} when compiled, {strides} in eager ({layout})",
                call=call,
                tensors=tensors,
                device=device,
                see="fake",
            )


@_check()
def check_compile(spec: OpSpec, device: str) -> None:
    """``torch.compile(fullgraph=True)``, forward and backward, in every layout."""
    main = _main_shape(spec)
    dtype = _check_dtype(spec)
    for shape in [main] + [s for s in _small_shapes(spec) if math.prod(s) <= 1]:
        for i, sample in enumerate(_samples(spec, device, dtype, shape)):
            for call, reference in _calls(spec, sample)[: 1 if i else 2]:
                for layout, tensors in _laid_out(call.tensors, call.mutated):
                    # Layouts with the first sample, the others as they are.
                    if layout == "contiguous" or (shape == main and not i):
                        _compare_compiled(
                            spec, device, call, reference, tensors, layout, "aot_eager"
                        )


@_check()
def check_inductor(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """Inductor, whose generated code relies on the fake kernel's strides; thorough: in every layout."""
    dtype = _check_dtype(spec)
    few = ("contiguous", "transposed")
    for sample in _samples(spec, device, dtype, _main_shape(spec))[: None if thorough else 1]:
        for call, reference in _calls(spec, sample)[: None if thorough else 1]:
            for layout, tensors in _laid_out(call.tensors, call.mutated):
                if thorough or layout in few:
                    _compare_compiled(spec, device, call, reference, tensors, layout, "inductor")


@_check()
def check_dynamic(spec: OpSpec, device: str) -> None:
    """``torch.compile(dynamic=True)`` makes one graph for sizes from two up."""
    dtype = _check_dtype(spec)
    # Different sizes per dimension, so that no two are taken for the same; 0 and 1 have graphs of their own.
    rank = len(_main_shape(spec, at_most=3))
    shapes = [tuple(range(first, first + rank)) for first in (3, 5, 11, 24)]
    variants = list(zip(*(_samples(spec, device, dtype, s) for s in shapes), strict=False))
    if not variants:
        variants = [
            tuple(
                itertools.chain(
                    *(
                        _samples(spec, device, dtype, s)[:1]
                        for s in spec.shapes
                        if len(s) == rank and min(s) > 1
                    )
                )
            )
        ]
    for variant in variants:
        call, _ = _calls(spec, variant[0])[0]
        values = iter(call.tensors)
        function = spec.function

        def run(args: Any, kwargs: Any, function: Any = function) -> Any:
            return function(*args, **kwargs)

        with _fresh_compiler():
            compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
            for i, sample in enumerate(variant):
                call, reference = _calls(spec, sample)[0]

                def compiled_call(*inputs: Tensor, call: _Call = call) -> Any:
                    rebound = call.with_function(lambda *a, **k: compiled(a, k), call.label)
                    return rebound(*inputs, in_place=True)

                stance = "fail_on_recompile" if i else "default"
                doing = "torch.compile(dynamic=True)" + (
                    " at another size (must not recompile)" if i else ""
                )
                with (
                    _about(spec, doing, call, device=device, see="fake"),
                    torch.compiler.set_stance(stance),
                ):
                    _compare_call(
                        spec,
                        device,
                        dtype,
                        call,
                        reference,
                        call.tensors,
                        order=1 if spec.differentiable else 0,
                        layout="dynamic=True",
                        run=compiled_call,
                    )
        del values


class _Module(torch.nn.Module):
    def __init__(self, call: _Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> Any:
        return self.call(*tensors)


@_check()
def check_export(spec: OpSpec, device: str) -> None:
    """``torch.export`` gives a program that holds the operator and computes what it computes."""
    dtype = _check_dtype(spec)
    for sample in _samples(spec, device, dtype, _main_shape(spec), requires_grad=False)[:1]:
        call, reference = _calls(spec, sample)[0]
        with _about(spec, "torch.export", call, device=device, see="fake"), _fresh_compiler():
            program = torch.export.export(_Module(call), tuple(call.tensors))
            outputs = _tensors(program.module()(*call.tensors))
        if not any(node.target is spec.op for node in program.graph.nodes):
            _fail(spec, "the exported program does not hold the operator", call=call, device=device)
        expected = reference(*_upcast(call.tensors))
        _compare(
            spec,
            dtype,
            call,
            outputs,
            expected,
            what="the exported program",
            device=device,
            see="fake",
        )


# ----- torch.func


_Function = Callable[..., tuple[Tensor, ...]]


@dataclasses.dataclass
class _Point:
    """Where a transform is taken: a function, its inputs, those to differentiate, and directions."""

    function: _Function  # of the floating outputs
    inputs: tuple[Tensor, ...]
    argnums: tuple[int, ...]
    cotangents: tuple[Tensor, ...]
    tangents: tuple[Tensor, ...]  # one per argnum

    def only(self, *wanted: Tensor) -> tuple[Tensor, ...]:
        """The function of the inputs that are differentiated."""
        inputs = list(self.inputs)
        for i, value in zip(self.argnums, wanted, strict=True):
            inputs[i] = value
        return self.function(*inputs)

    def loss(self, *wanted: Tensor) -> Tensor:
        """A scalar whose second derivative involves the outputs' first."""
        outputs = self.only(*wanted)
        terms = [(c * o.sin()).sum() for c, o in zip(self.cotangents, outputs, strict=True)]
        return torch.stack(terms).sum()

    @property
    def wanted(self) -> tuple[Tensor, ...]:
        return tuple(self.inputs[i] for i in self.argnums)

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(range(len(self.argnums)))


def _grad(p: _Point) -> Any:
    return torch.func.grad(p.loss, p.all)(*p.wanted)


def _vjp(p: _Point) -> Any:
    return torch.func.vjp(p.only, *p.wanted)[1](p.cotangents)


def _jvp(p: _Point) -> Any:
    return torch.func.jvp(p.only, p.wanted, p.tangents)


def _jvp_each(p: _Point) -> Any:
    """A tangent for one input at a time."""
    results = []
    for i in p.all:

        def one(x: Tensor, i: int = i) -> Any:
            return p.only(*p.wanted[:i], x, *p.wanted[i + 1 :])

        results.append(torch.func.jvp(one, (p.wanted[i],), (p.tangents[i],)))
    return results


def _jacrev(p: _Point) -> Any:
    return torch.func.jacrev(p.only, p.all)(*p.wanted)


def _jacfwd(p: _Point) -> Any:
    return torch.func.jacfwd(p.only, p.all)(*p.wanted)


def _hessian(p: _Point) -> Any:
    return torch.func.hessian(p.loss, p.all)(*p.wanted)


def _linearize(p: _Point) -> Any:
    return torch.func.linearize(p.only, *p.wanted)[1](*p.tangents)


def _forward_ad(p: _Point) -> Any:
    with fwAD.dual_level():
        duals = [fwAD.make_dual(x, t) for x, t in zip(p.wanted, p.tangents, strict=True)]
        unpacked = [fwAD.unpack_dual(o) for o in p.only(*duals)]
    return [
        (u.primal, torch.zeros_like(u.primal) if u.tangent is None else u.tangent) for u in unpacked
    ]


def _grad_of_grad(p: _Point) -> Any:
    def inner(*wanted: Tensor) -> Tensor:
        return torch.stack([g.sin().sum() for g in torch.func.grad(p.loss, p.all)(*wanted)]).sum()

    return torch.func.grad(inner, p.all)(*p.wanted)


def _jvp_of_grad(p: _Point) -> Any:
    return torch.func.jvp(torch.func.grad(p.loss, p.all), p.wanted, p.tangents)


def _grad_of_jvp(p: _Point) -> Any:
    def inner(*wanted: Tensor) -> Tensor:
        outputs, tangents = torch.func.jvp(p.only, wanted, p.tangents)
        return torch.stack(
            [(o.sin() * t).sum() for o, t in zip(outputs, tangents, strict=True)]
        ).sum()

    return torch.func.grad(inner, p.all)(*p.wanted)


def _jvp_of_jvp(p: _Point) -> Any:
    def inner(*wanted: Tensor) -> Any:
        return torch.func.jvp(p.only, wanted, p.tangents)[1]

    return torch.func.jvp(inner, p.wanted, p.tangents)


def _jacfwd_of_jacrev(p: _Point) -> Any:
    return torch.func.jacfwd(torch.func.jacrev(p.only, p.all), p.all)(*p.wanted)


def _backward_of_grad(p: _Point) -> Any:
    """torch.autograd around a transform."""
    leaves = [x.detach().clone().requires_grad_() for x in p.wanted]
    grads = torch.func.grad(p.loss, p.all)(*leaves)
    total = torch.stack([g.sin().sum() for g in grads]).sum()
    if not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(total, leaves, materialize_grads=True)


def _vmap_of_grad(p: _Point) -> Any:
    """Per-sample gradients: a batch of the first input, the others shared."""
    batch = torch.stack([p.wanted[0], p.wanted[0].flip(0) * 0.5, p.wanted[0] - 0.25])
    in_dims = (0,) + (None,) * (len(p.wanted) - 1)
    return torch.func.vmap(torch.func.grad(p.loss, p.all), in_dims)(batch, *p.wanted[1:])


def _vmap_of_jvp(p: _Point) -> Any:
    batch = tuple(torch.stack([t, 2 * t]) for t in p.tangents)
    return torch.func.vmap(lambda *t: torch.func.jvp(p.only, p.wanted, t)[1])(*batch)


def _grad_of_vmap(p: _Point) -> Any:
    batch = tuple(torch.stack([x, x * 0.5]) for x in p.wanted)

    def inner(*wanted: Tensor) -> Tensor:
        return torch.func.vmap(p.loss)(*wanted).sum()

    return torch.func.grad(inner, p.all)(*batch)


TRANSFORMS: dict[str, Callable[[_Point], Any]] = {
    "grad": _grad,
    "vjp": _vjp,
    "jvp": _jvp,
    "jvp, one input at a time": _jvp_each,
    "jacrev": _jacrev,
    "jacfwd": _jacfwd,
    "hessian": _hessian,
    "linearize": _linearize,
    "forward AD": _forward_ad,
    "grad of grad": _grad_of_grad,
    "jvp of grad": _jvp_of_grad,
    "grad of jvp": _grad_of_jvp,
    "jvp of jvp": _jvp_of_jvp,
    "jacfwd of jacrev": _jacfwd_of_jacrev,
    "backward of grad": _backward_of_grad,
    "vmap of grad (per-sample gradients)": _vmap_of_grad,
    "vmap of jvp": _vmap_of_jvp,
    "grad of vmap": _grad_of_vmap,
}
COMPILED_TRANSFORMS = ("grad", "jvp", "vmap of grad (per-sample gradients)")


def _point(
    call: _Call, tensors: Sequence[Tensor], wanted: Sequence[int], like: _Point | None
) -> _Point:
    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(o for o in call(*inputs) if o.is_floating_point())

    inputs = tuple(t.detach() for t in tensors)
    if like is None:
        cotangents = tuple(_random_like(function(*inputs)))
        tangents = tuple(_random_like([inputs[i] for i in wanted], seed=3))
    else:
        cotangents, tangents = tuple(_upcast(like.cotangents)), tuple(_upcast(like.tangents))
    return _Point(function, inputs, tuple(wanted), cotangents, tangents)


def _transform_points(
    spec: OpSpec, device: str, dtype: torch.dtype
) -> Iterator[tuple[_Call, _Point, _Point]]:
    shape = _main_shape(spec, at_most=2)
    for sample in _samples(spec, device, dtype, shape):
        for call, reference in _calls(spec, sample):
            wanted = [i for i, t in enumerate(call.tensors) if t.requires_grad]
            if wanted:
                with _about(spec, "forward", call, device=device, see="kernel"):
                    point = _point(call, call.tensors, wanted, None)
                yield call, point, _point(reference, _upcast(call.tensors), wanted, point)


@_check(applies=_differentiable)
def check_transforms(spec: OpSpec, device: str) -> None:
    """Every transform of torch.func and forward AD, nested ones too, against the same transform of the reference."""
    dtype = torch.float64 if torch.float64 in spec.dtypes else _check_dtype(spec)
    for call, point, expected_point in _transform_points(spec, device, dtype):
        for name, transform in TRANSFORMS.items():
            _compare_transform(spec, device, dtype, call, name, transform, point, expected_point)


def _compare_transform(
    spec: OpSpec,
    device: str,
    dtype: torch.dtype,
    call: _Call,
    name: str,
    transform: Callable[[_Point], Any],
    point: _Point,
    expected_point: _Point,
    where: str = "",
) -> None:
    what = f"{name}{where}"
    with warnings.catch_warnings():
        # A rule that is missing is for check_vmap to tell.
        warnings.simplefilter("ignore")
        with _about(spec, what, call, device=device, see="backward"):
            actual = _tensors(transform(point))
        expected = _tensors(transform(expected_point))
    _compare(
        spec,
        dtype,
        call,
        actual,
        [e.to(torch.float64) for e in expected],
        what=what,
        order=2,
        device=device,
        see="backward",
    )


@_check(applies=_differentiable)
def check_compiled_transforms(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """Transforms inside ``torch.compile(fullgraph=True)``; thorough: all that Dynamo traces."""
    dtype = torch.float64 if torch.float64 in spec.dtypes else _check_dtype(spec)
    # Dynamo traces neither the tracing that linearize does nor make_dual, and autograd.grad only at top level.
    untraced = ("linearize", "forward AD", "backward of grad")
    names = [n for n in TRANSFORMS if n not in untraced] if thorough else COMPILED_TRANSFORMS
    points = list(_transform_points(spec, device, dtype))
    for call, point, expected_point in points if thorough else points[:2]:
        for name in names:

            def compiled(p: _Point, name: str = name) -> Any:
                def run(*wanted: Tensor) -> Any:
                    inputs = list(p.inputs)
                    for i, value in zip(p.argnums, wanted, strict=True):
                        inputs[i] = value
                    return TRANSFORMS[name](dataclasses.replace(p, inputs=tuple(inputs)))

                if p is not point:
                    return run(*p.wanted)
                return torch.compile(run, backend="aot_eager", fullgraph=True)(*p.wanted)

            with _fresh_compiler():
                _compare_transform(
                    spec,
                    device,
                    dtype,
                    call,
                    name,
                    compiled,
                    point,
                    expected_point,
                    " inside torch.compile(fullgraph=True)",
                )


@_check()
def check_vmap(spec: OpSpec, device: str) -> None:
    """vmap over any argument and dimension, nested too; the operator is called as often for 7 as for 2."""
    dtype = torch.float64 if torch.float64 in spec.dtypes else _check_dtype(spec)
    for shape in dict.fromkeys([_main_shape(spec, at_most=2), _main_shape(spec)]):
        # The same calls with other values: what a batch consists of.
        seeds = [
            _samples(spec, device, dtype, shape, requires_grad=False, seed=seed)
            for seed in range(7)
        ]
        for variant in zip(*seeds, strict=True):
            for calls in zip(*(_calls(spec, sample) for sample in variant), strict=True):
                _check_vmap_calls(spec, device, dtype, [c for c, _ in calls], calls[0][1])


def _batched(calls: Sequence[_Call], dims: Sequence[int | None], size: int) -> list[Tensor]:
    return [
        calls[0].tensors[i]
        if dim is None
        else torch.stack([c.tensors[i] for c in calls[:size]], dim)
        for i, dim in enumerate(dims)
    ]


def _check_vmap_calls(
    spec: OpSpec, device: str, dtype: torch.dtype, calls: Sequence[_Call], reference: _Call
) -> None:
    call = calls[0]
    count = len(call.tensors)
    subsets: list[tuple[int, ...]] = [(i,) for i in range(count)]
    subsets += [s for n in range(2, count + 1) for s in itertools.combinations(range(count), n)]
    if count > 3:
        subsets = subsets[:count] + subsets[-1:]
    if any(call.mutated):
        # Batched values cannot be written into an argument that has no batch dimension.
        written = {i for i, mutated in enumerate(call.mutated) if mutated}
        subsets = [s for s in subsets if written <= set(s)]
    for subset in subsets:
        for place in ("first", "last", "mixed"):
            dims: list[int | None] = [None] * count
            for n, i in enumerate(subset):
                last = place == "last" or (place == "mixed" and n % 2 == 0)
                dims[i] = call.tensors[i].dim() if last else 0
            doing = (
                f"vmap over {', '.join(call.names[i] for i in subset)} with in_dims {tuple(dims)}"
            )
            about = functools.partial(_about, spec, call=call, device=device)
            runs = []
            for size in (2, 7):
                inputs = _batched(calls, dims, size)
                recorder = _Recorder(spec.namespace)
                with about(doing), warnings.catch_warnings(), recorder:
                    warnings.simplefilter("ignore")
                    outputs = torch.func.vmap(call, in_dims=tuple(dims))(*inputs)
                runs.append((outputs, [op for op, _, _ in recorder.calls]))
                expected = _loop(calls[:size], reference, dims)
                _compare(
                    spec, dtype, call, outputs, expected, what=doing, device=device, see="python"
                )
            if len(runs[0][1]) != len(runs[1][1]):
                _fail(
                    spec,
                    f"{doing} calls the operator {len(runs[0][1])} times for a batch of 2, {len(runs[1][1])} for 7",
                    call=call,
                    device=device,
                    detail="PyTorch falls back to a loop where there is no batching rule: register_vmap.",
                )
    # Nested: the outer batch over one argument, the inner over another (or the same).
    if any(call.mutated):
        return
    for outer, inner in itertools.product(range(count), repeat=2):
        outer_dims: list[int | None] = [0 if i == outer else None for i in range(count)]
        inner_dims: list[int | None] = [
            call.tensors[i].dim() if i == inner else None for i in range(count)
        ]
        doing = f"vmap over {call.names[outer]} of vmap over {call.names[inner]}"
        inputs = list(call.tensors)
        inputs[inner] = torch.stack([c.tensors[inner] for c in calls[:2]], inner_dims[inner] or 0)
        if inner == outer:
            other = torch.stack([c.tensors[inner] for c in calls[2:4]], inner_dims[inner] or 0)
            inputs[outer] = torch.stack([inputs[inner], other])
        else:
            inputs[outer] = torch.stack([c.tensors[outer] for c in calls[:2]])
        function = torch.func.vmap(torch.func.vmap(call, tuple(inner_dims)), tuple(outer_dims))
        with (
            _about(spec, doing, call, device=device),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            outputs = function(*inputs)
        rows = []
        for a in range(2):
            row = [t.select(0, a) if i == outer else t for i, t in enumerate(inputs)]
            cells = [
                reference(
                    *_upcast(
                        [t.select(t.dim() - 1, b) if i == inner else t for i, t in enumerate(row)]
                    )
                )
                for b in range(2)
            ]
            rows.append([torch.stack(values) for values in zip(*cells, strict=True)])
        expected = [torch.stack(values) for values in zip(*rows, strict=True)]
        _compare(spec, dtype, call, outputs, expected, what=doing, device=device, see="python")


def _loop(calls: Sequence[_Call], reference: _Call, dims: Sequence[int | None]) -> list[Tensor]:
    results = []
    for one in calls:
        tensors = [
            one.tensors[i] if dim is not None else calls[0].tensors[i] for i, dim in enumerate(dims)
        ]
        results.append(reference(*_upcast(tensors)))
    return [torch.stack(values) for values in zip(*results, strict=True)]


# ----- autocast, determinism, memory


@_check()
def check_autocast(spec: OpSpec, device: str) -> None:
    """Under autocast the operator runs in the dtype that its policy says, and gradients come back in the inputs'."""
    policy = spec.autocast
    for lower in (torch.bfloat16, torch.float16):
        if lower not in spec.dtypes or torch.float32 not in spec.dtypes:
            continue
        cases: list[tuple[list[torch.dtype], torch.dtype | None]] = [
            ([torch.float32], {"lower_precision": lower}.get(policy or "")),
            ([lower], {"float32": torch.float32}.get(policy or "")),
        ]
        if policy:
            expected = {"lower_precision": lower}.get(policy, torch.float32)
            cases.append(([lower, torch.float32], expected))
        if torch.float64 in spec.dtypes:
            cases.append(([torch.float64], None))
        for dtypes, cast in cases:
            for sample in _samples(spec, device, dtypes[0], _main_shape(spec)):
                for call, _ in _calls(spec, sample):
                    _check_autocast_call(spec, device, call, lower, dtypes, cast)


def _check_autocast_call(
    spec: OpSpec,
    device: str,
    call: _Call,
    lower: torch.dtype,
    dtypes: Sequence[torch.dtype],
    cast: torch.dtype | None,
) -> None:
    """Inputs of these dtypes, alternating, are expected to be cast to one dtype (None: left alone)."""
    floating = [i for i, t in enumerate(call.tensors) if t.is_floating_point()]
    given = list(call.tensors)
    for n, i in enumerate(floating):
        given[i] = (
            given[i].detach().to(dtypes[n % len(dtypes)]).requires_grad_(given[i].requires_grad)
        )
    if len({given[i].dtype for i in floating}) < len(set(dtypes)) or (
        any(call.mutated) and cast is not None
    ):
        return
    inputs = [
        t.to(cast) if cast is not None and t.is_floating_point() else t
        for t in map(Tensor.detach, given)
    ]
    with torch.no_grad():
        expected = call(*inputs)
    names = f"{', '.join(str(d) for d in dtypes)} under autocast({device!r}, {lower})"
    leaves = _leaves(given)
    with _about(spec, names, call, tensors=given, device=device):
        with torch.autocast(device, dtype=lower):
            outputs = call(*leaves)
    for i, (output, e) in enumerate(zip(outputs, expected, strict=True)):
        fail = functools.partial(_fail, spec, call=call, tensors=given, device=device)
        policy = f"policy {spec.autocast!r}"
        if output.dtype != e.dtype:
            fail(f"output {i} is {output.dtype}, expected {e.dtype}: {names}, {policy}")
        if not _same_bits(output, e):
            fail(f"output {i} differs from that of inputs cast to {cast}: {names}, {policy}")
    wanted = [t for t in leaves if t.requires_grad]
    outputs = tuple(o for o in outputs if o.requires_grad)
    if spec.differentiable and wanted and outputs:
        with _about(spec, f"backward: {names}", call, tensors=given, device=device, see="backward"):
            with torch.autocast(device, dtype=lower):
                grads = _gradients(outputs, wanted, _random_like(outputs))
        for grad, leaf in zip(grads, wanted, strict=True):
            if grad.dtype != leaf.dtype:
                _fail(
                    spec,
                    f"a gradient is {grad.dtype} for an input in {leaf.dtype}: {names}",
                    call=call,
                )


@_check(per_dtype=True)
def check_determinism(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """The same bits, forward and backward, over repeated runs, for every shape."""
    for shape in spec.shapes:
        for sample in _samples(spec, device, dtype, shape):
            call, _ = _calls(spec, sample)[0]
            first: list[Tensor] | None = None
            for repeat in range(5):
                tensors = _leaves(_copies(call.tensors))
                results = list(call(*tensors))
                names = [f"output {i}" for i in range(len(results))]
                outputs = [o for o in results if o.requires_grad]
                wanted = [i for i, t in enumerate(tensors) if t.requires_grad]
                if spec.differentiable and outputs and wanted:
                    results += _gradients(
                        outputs, [tensors[i] for i in wanted], _random_like(outputs)
                    )
                    names += [f"the gradient of {call.names[i]}" for i in wanted]
                if first is None:
                    first = [r.detach() for r in results]
                    continue
                for name, result, expected in zip(names, results, first, strict=True):
                    if not _same_bits(result, expected):
                        different = int((result != expected).sum())
                        _fail(
                            spec,
                            f"{name} has other bits in run {repeat + 1} than in run 1",
                            call=call,
                            device=device,
                            detail=f"{different} of {result.numel()} elements differ. An atomic add, a race, or memory "
                            "that is never written?",
                            see="kernel",
                        )


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _allocated(device: str) -> dict[str, int]:
    """Bytes in use: on the host as malloc counts them, exactly, and on the device."""
    gc.collect()
    used = {}
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = _MallInfo
        info = libc.mallinfo2()
        used["host"] = info.uordblks + info.hblkhd
    else:
        import resource

        used["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device == "cuda":
        torch.cuda.synchronize()
        used["cuda"] = torch.cuda.memory_allocated()
    return used


# A tensor, with its storage, takes several hundred bytes even when empty; what Python and PyTorch cache now and then,
# a few bytes a call.
_LEAK_PER_CALL = 48


@_check()
def check_memory(spec: OpSpec, device: str) -> None:
    """A thousand calls, forward and backward, and a thousand errors, leave nothing behind."""
    dtype = _check_dtype(spec)
    runs: list[tuple[str, _Call, Callable[[], None]]] = []
    for sample in _samples(spec, device, dtype, _main_shape(spec)):
        for call, _ in _calls(spec, sample):
            tensors = _leaves(call.tensors)
            wanted = [t for t in tensors if t.requires_grad] if spec.differentiable else []
            cotangents = _random_like(call(*tensors))

            def run(
                call: _Call = call,
                tensors: list[Tensor] = tensors,
                wanted: list[Tensor] = wanted,
                cotangents: list[Tensor] = cotangents,
            ) -> None:
                outputs = call(*tensors)
                pairs = [
                    (o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad
                ]
                if wanted and pairs:
                    _gradients([o for o, _ in pairs], wanted, [c for _, c in pairs])

            runs.append(("calls", call, run))
    for bad in itertools.islice(spec.bad_inputs(Make(device, dtype)), 1):
        call = _Call(spec.op, spec.op, bad.sample, _op_label(spec.op))

        def fail(call: _Call = call) -> None:
            with contextlib.suppress(RuntimeError):
                call(*call.tensors)

        runs.append(("errors", call, fail))
    for what, call, run in runs:
        for _ in range(20):
            run()
        growth: dict[str, int] = {}
        # A leak grows every time; a cache, a free list or another thread only once.
        for _ in range(3):
            before = _allocated(device)
            for _ in range(1000):
                run()
            after = _allocated(device)
            growth = {k: min(growth.get(k, sys.maxsize), after[k] - before[k]) for k in after}
            if all(growth[k] < (1000 * _LEAK_PER_CALL if k == "host" else 1) for k in growth):
                break
        else:
            _fail(
                spec,
                f"memory grows over a thousand {what}",
                call=call,
                device=device,
                detail="\n".join(f"{k}: {v / 1000:.0f} bytes a call" for k, v in growth.items()),
                see="kernel",
            )


# ----- CUDA


def _delay() -> None:
    """Keeps the current stream busy for some ten milliseconds."""
    torch.cuda._sleep(20_000_000)


@_check(applies=_on_cuda)
def check_streams(spec: OpSpec, device: str) -> None:
    """Work goes to the current stream: inputs are written there late, so that another stream would read NaN."""
    dtype = _check_dtype(spec)
    for sample in _samples(spec, device, dtype, _main_shape(spec)):
        for call, reference in _calls(spec, sample):
            late = [t.detach().clone() for t in call.tensors]
            inputs = [
                torch.full_like(t, math.nan) if t.is_floating_point() else torch.zeros_like(t)
                for t in late
            ]
            stream = torch.cuda.Stream()
            torch.cuda.synchronize()

            def run(
                *tensors: Tensor,
                call: _Call = call,
                late: list[Tensor] = late,
                stream: Any = stream,
            ) -> Any:
                with torch.cuda.stream(stream):
                    _delay()
                    with torch.no_grad():
                        for tensor, value in zip(tensors, late, strict=True):
                            tensor.copy_(value)
                    outputs = call(*tensors)
                    # Autograd runs the backward on the stream of the forward.
                    wanted = [t for t in tensors if t.requires_grad]
                    grads = [o for o in outputs if o.requires_grad]
                    if spec.differentiable and wanted and grads:
                        _gradients(grads, wanted, _random_like(grads), create_graph=True)
                stream.synchronize()
                return outputs

            tensors = [
                i.requires_grad_(t.requires_grad) for i, t in zip(inputs, call.tensors, strict=True)
            ]
            with _about(spec, "a side stream", call, device=device, see="kernel"):
                outputs = run(*tensors)
            expected = reference(*_upcast(call.tensors))
            _compare(
                spec,
                dtype,
                call,
                outputs,
                expected,
                what="forward on a side stream",
                device=device,
                see="kernel",
            )
            if spec.differentiable:
                _check_backward_stream(spec, device, dtype, call, reference)


def _check_backward_stream(
    spec: OpSpec, device: str, dtype: torch.dtype, call: _Call, reference: _Call
) -> None:
    stream = torch.cuda.Stream()
    tensors, upcast = _leaves(call.tensors), _upcast(call.tensors)
    wanted = [i for i, t in enumerate(tensors) if t.requires_grad]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outputs = [o for o in call(*tensors) if o.requires_grad]
        if not wanted or not outputs:
            return
        late = _random_like(outputs)
        cotangents = [torch.full_like(c, math.nan) for c in late]
        torch.cuda.synchronize()
        _delay()
        for cotangent, value in zip(cotangents, late, strict=True):
            cotangent.copy_(value)
        actual = _gradients(outputs, [tensors[i] for i in wanted], cotangents)
    stream.synchronize()
    expected_outputs = [o for o in reference(*upcast) if o.requires_grad]
    expected = _gradients(expected_outputs, [upcast[i] for i in wanted], _upcast(late))
    names = [f"the gradient of {call.names[i]}" for i in wanted]
    _compare(
        spec,
        dtype,
        call,
        actual,
        expected,
        what="backward on a side stream",
        names=names,
        order=1,
        device=device,
        see="backward",
    )


@_check(applies=_on_cuda)
def check_cuda_graph(spec: OpSpec, device: str) -> None:
    """Forward and backward are captured into a CUDA graph, and replayed with other values."""
    dtype = _check_dtype(spec)
    shape = _main_shape(spec)
    variants = zip(
        _samples(spec, device, dtype, shape),
        _samples(spec, device, dtype, shape, seed=1),
        strict=True,
    )
    for sample, other in variants:
        calls = zip(_calls(spec, sample), _calls(spec, other), strict=True)
        for (call, reference), (new, _) in calls:
            static = _leaves(
                [t.detach().clone().requires_grad_(t.requires_grad) for t in call.tensors]
            )
            wanted = [i for i, t in enumerate(static) if t.requires_grad]
            cotangents = _random_like(call(*static))

            def run(
                call: _Call = call,
                static: list[Tensor] = static,
                wanted: list[int] = wanted,
                cotangents: list[Tensor] = cotangents,
            ) -> tuple[list[Tensor], list[Tensor]]:
                outputs = list(call(*static))
                pairs = [
                    (o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad
                ]
                grads = []
                if spec.differentiable and wanted and pairs:
                    inputs = [static[i] for i in wanted]
                    grads = _gradients([o for o, _ in pairs], inputs, [c for _, c in pairs])
                return outputs, grads

            with _about(spec, "a CUDA graph", call, device=device, see="kernel"):
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(3):
                        run()
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    outputs, grads = run()
                with torch.no_grad():
                    for tensor, value in zip(static, new.tensors, strict=True):
                        tensor.copy_(value)
                graph.replay()
                torch.cuda.synchronize()
            upcast = _upcast(new.tensors)
            expected = reference(*upcast)
            _compare(
                spec,
                dtype,
                call,
                outputs,
                expected,
                what="replay of a CUDA graph",
                device=device,
                see="kernel",
            )
            if grads:
                pairs = [
                    (e, c) for e, c in zip(expected, cotangents, strict=True) if e.requires_grad
                ]
                expected_grads = _gradients(
                    [e for e, _ in pairs], [upcast[i] for i in wanted], _upcast(c for _, c in pairs)
                )
                _compare(
                    spec,
                    dtype,
                    call,
                    grads,
                    expected_grads,
                    what="replay of a CUDA graph, backward",
                    order=1,
                    device=device,
                    see="backward",
                )


@_check(applies=lambda spec, device: _on_cuda(spec, device) and torch.cuda.device_count() > 1)
def check_second_device(spec: OpSpec, device: str) -> None:
    """Inputs on a device that is not the current one: kernels run there, and the current device stays."""
    dtype = _check_dtype(spec)
    order = 1 if spec.differentiable else 0
    with torch.cuda.device(0):
        for shape in [_main_shape(spec)] + [s for s in spec.shapes if math.prod(s) > 1000][:1]:
            for sample in _samples(spec, "cuda:1", dtype, shape):
                for call, reference in _calls(spec, sample):
                    _compare_call(
                        spec,
                        "cuda:1",
                        dtype,
                        call,
                        reference,
                        call.tensors,
                        order=order,
                        layout="not current",
                    )
                    if torch.cuda.current_device() != 0:
                        _fail(
                            spec,
                            "the current device was changed",
                            call=call,
                            see="kernel",
                            device=device,
                        )


# ----- properties


@_check()
def check_properties(spec: OpSpec, device: str, *, examples: int = 50) -> None:
    """Shapes, strides, offsets, dtypes and values, NaN and infinities among them, as hypothesis finds them."""
    import hypothesis
    from hypothesis import strategies as st

    ranks = sorted({len(shape) for shape in spec.shapes})
    sizes = st.one_of(st.integers(0, 5), st.sampled_from([8, 15, 17, 33]))

    def layout(draw: Any, tensor: Tensor, mutated: bool) -> Tensor:
        order = draw(st.permutations(range(tensor.dim())), label="order of dimensions")
        steps = [draw(st.sampled_from([1, 1, 2, 3]), label="step") for _ in order]
        result = _strided(tensor, order, steps, draw(st.integers(0, 4), label="storage offset"))
        for d in range(tensor.dim()):
            one_in_four = st.sampled_from([False, False, False, True])
            if tensor.shape[d] and not mutated and draw(one_in_four, label="expand"):
                result = result.narrow(d, 0, 1).expand(tensor.shape)
        return result.requires_grad_(tensor.requires_grad)

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def run(data: Any) -> None:
        rank = data.draw(st.sampled_from(ranks), label="rank")
        shape = tuple(data.draw(sizes, label="size") for _ in range(rank))
        dtype = data.draw(st.sampled_from(spec.dtypes), label="dtype")
        specials = data.draw(st.booleans(), label="NaN and infinities")
        seed = data.draw(st.integers(0, 1000), label="seed")
        samples = _samples(spec, device, dtype, shape, specials=specials, seed=seed)
        hypothesis.assume(samples)
        sample = samples[data.draw(st.integers(0, len(samples) - 1), label="sample")]
        for call, reference in _calls(spec, sample):
            tensors = [
                layout(data.draw, t, mutated)
                for t, mutated in zip(call.tensors, call.mutated, strict=True)
            ]
            order = 1 if spec.differentiable and dtype.is_floating_point and not specials else 0
            _compare_call(spec, device, dtype, call, reference, tensors, order=order)

    run()


# ----- the entry point


def check(
    spec: OpSpec,
    *,
    devices: Sequence[str] | None = None,
    checks: Sequence[str] | None = None,
    thorough: bool = False,
) -> None:
    """Runs the battery over one operator, and raises with everything that it found.

    Args:
        spec: the operator.
        devices: types of device; those that this machine has, by default.
        checks: names of checks ("check_forward", ...); all that apply, by default.
        thorough: also compile every layout and transform; takes minutes.

    Raises:
        AssertionError: with one paragraph per failed check.
        ValueError: for an unknown check.
    """
    unknown = set(checks or ()) - CHECKS.keys()
    if unknown:
        raise ValueError(f"no such check: {sorted(unknown)}; there are {sorted(CHECKS)}")
    failures = []
    for name, one in CHECKS.items():
        if checks is not None and name not in checks:
            continue
        options = {}
        if thorough and "thorough" in inspect.signature(one.run).parameters:
            options["thorough"] = True
        for case in one.cases([spec]):
            if devices is not None and case[1] not in devices:
                continue
            try:
                one.run(*case, **options)
            except AssertionError as error:
                where = ", ".join(str(value) for value in case[1:])
                failures.append(f"{name} ({where}):\n{error}")
    if failures:
        raise CheckError(f"{len(failures)} checks failed\n\n" + "\n\n".join(failures))
