"""What is timed: shapes, dtypes, and the forms in which the operands come.

An operator's folder may hold a `benchmark.py`, with any of

- `cases(make, shape)`, which yields `(form, sample)`, in place of the first sample of the spec. The
  form "" is timed at every shape, others at some; all of them at every shape where none is "".
- `reference`, in place of the spec's, where that takes too long.
- `eager`, in place of the spec's counterpart, and `compiled`, what is compiled in place of that.
- `others`, functions of other libraries: `{"liger": load}`, where `load()` imports and returns one.
- `classic(kernel)`, which returns the operator as people write it by hand, in a
  `torch.autograd.Function` around the same kernels: `kernel(name)`. host.py times it.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from extension_cpp.battery.case import arguments_of
from extension_cpp.battery.layouts import LAYOUTS
from extension_cpp.battery.spec import is_written
from extension_cpp.battery.tensors import replace_tensors, tensors_in
from extension_cpp.battery.traffic import measured_traffic
from extension_cpp.testing import Make, OpSpec, Sample, Traffic

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of the main input: for every operator, and for all of the forms."""

    plain: tuple[Shape, ...]
    forms: tuple[Shape, ...]


ROWS = (4096, 8192, 16384, 32768, 65536)
COLUMNS = (256, 1024, 4096, 8192, 16384)
# Three-dimensional shapes are for operators whose own cases tell dimensions apart.
SETS: dict[tuple[str, str], Shapes] = {
    ("cuda", "quick"): Shapes(
        plain=(
            (4096, 1024),
            (65536, 256),
            (32768, 1024),
            (16384, 4096),
            (8192, 8192),
            (4096, 16384),
            (16384, 4095),
        ),
        forms=((16384, 4096), (512, 1024, 256), (8, 4096, 4096)),
    ),
    ("cuda", "full"): Shapes(
        plain=(
            (1024, 2048),
            *((rows, columns) for rows in ROWS for columns in COLUMNS),
            (16384, 4095),
            (2048, 65536),
            (16, 4194304),
        ),
        forms=((4096, 1024), (16384, 4096), (16384, 4095), (512, 1024, 256), (8, 4096, 4096)),
    ),
    ("cpu", "quick"): Shapes(
        plain=((1024, 2048), (4096, 1024), (4096, 4096)), forms=((4096, 1024),)
    ),
    ("cpu", "full"): Shapes(
        plain=(
            (1024, 2048),
            (16384, 256),
            (4096, 1024),
            (4096, 4095),
            (4096, 4096),
            (16384, 4096),
            (64, 262144),
        ),
        forms=((4096, 1024), (4096, 4095), (64, 256, 512)),
    ),
}

DTYPES = {
    "cuda": ("bfloat16", "float32"),
    "cpu": ("float32", "bfloat16", "float16", "float64"),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is timed in one go, all contenders and passes."""

    spec: OpSpec
    form: str
    shape: Shape
    dtype: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.spec.name, self.form, "x".join(map(str, self.shape)), self.dtype

    def __str__(self) -> str:
        return " ".join(word for word in self.key if word)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call, for every contender the same."""

    form: str
    sample: Sample
    # Operands come smaller, and are expanded to the shape of the first one by the call.
    expands: bool = False

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called with the sample."""
        if not self.expands:
            return function
        shape = tensors_in(self.sample.args)[0].shape

        def expanding(*args: Any, **kwargs: Any) -> Any:
            smaller = (isinstance(a, Tensor) and a.shape != shape for a in args)
            expanded = (a.expand(shape) if s else a for a, s in zip(args, smaller, strict=True))
            return function(*expanded, **kwargs)

        return expanding

    def traffic(self, spec: OpSpec) -> Traffic:
        """Bytes moved by an ideal kernel, the same for all contenders."""
        if not self.expands:
            return spec.traffic(self.sample)
        return measured_traffic(
            self.of(spec.function), self.sample, differentiable=spec.differentiable
        )


class DeviceMake(Make):
    """As `Make`, with values drawn on the device: on the CPU those of large samples take long."""

    def __init__(self, device: str, dtype: torch.dtype, *, requires_grad: bool) -> None:
        super().__init__(device, dtype, requires_grad=requires_grad)
        meta = self.device.type == "meta"
        self._own = None if meta else torch.Generator(self.device).manual_seed(0)

    def _uniform(
        self,
        shape: tuple[int, ...],
        low: float,
        high: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        if dtype.is_complex or dtype.itemsize == 1 or device != self.device:
            return super()._uniform(shape, low, high, dtype, device)
        tensor = torch.empty(shape, dtype=dtype, device=device)
        return tensor if self._own is None else tensor.uniform_(low, high, generator=self._own)


def own(spec: OpSpec) -> types.ModuleType | None:
    """The `benchmark.py` of the operator's folder, where there is one."""
    package = spec.function.__module__.rpartition(".")[0]
    name = f"{package}.benchmark"
    found = importlib.util.find_spec(name) if package else None
    return importlib.import_module(name) if found else None


def reference(spec: OpSpec) -> Callable[..., Any]:
    """What results are compared with."""
    return getattr(own(spec), "reference", spec.reference)


def calls(spec: OpSpec, make: Make, shape: Shape, *, all_forms: bool) -> Iterator[Call]:
    """The calls of an operator at a shape: the plain one, and others."""
    cases = getattr(own(spec), "cases", None)
    if cases is not None:
        given = list(cases(make, shape))
    elif len(shape) == 2 and any(len(other) == 2 for other in spec.shapes):
        given = [("", sample) for sample in itertools.islice(spec.samples(make, shape), 1)]
    else:
        given = []
    forms = [form for form, _ in given]
    for form, sample in given:
        if form == "" or "" not in forms or all_forms:
            yield Call(form, sample)
    if not all_forms or not given or len(shape) != 2:
        return
    plain = given[0][1]
    yield Call("misaligned", _laid_out(plain, range(_count(plain)), "storage offset"))
    operands = _operands(spec, plain)
    if not operands:
        return
    yield Call("last operand transposed", _laid_out(plain, operands[-1:], "transposed"))
    if cases is None:
        dtypes = {k: tensors_in((plain.args, plain.kwargs))[k].dtype for k in operands}
        smaller = {"rows": shape[-1:], "columns": (shape[0], 1), "scalars": ()}
        for form, size in smaller.items():
            yield Call(
                f"other operands {form}",
                _with(plain, {k: make(size, dtype=dtypes[k]) for k in operands}),
                expands=not _broadcasts(spec),
            )


def _count(sample: Sample) -> int:
    return len(tensors_in((sample.args, sample.kwargs)))


def _operands(spec: OpSpec, sample: Sample) -> list[int]:
    """The tensors of the first one's shape, without that, and without what is written to."""
    if not all(isinstance(argument, Tensor) for argument in sample.args):
        return []
    first = sample.args[0]
    return [
        k
        for k, (argument, value) in enumerate(arguments_of(spec.op, Sample(*sample.args)))
        if k > 0 and value.shape == first.shape and not is_written(argument)
    ]


def _broadcasts(spec: OpSpec) -> bool:
    line = spec.line
    if line is None or not line.notation.elementwise:  # `... n` has n columns
        return False
    return sum(s.star_symbol == "..." for s in line.notation.inputs) > 1


def _with(sample: Sample, tensors: dict[int, Tensor]) -> Sample:
    """The sample with other tensors in some places."""
    found = tensors_in((sample.args, sample.kwargs))
    values = iter([tensors.get(k, tensor) for k, tensor in enumerate(found)])
    args = replace_tensors(sample.args, values)
    return Sample(*args, **replace_tensors(sample.kwargs, values))


def _laid_out(sample: Sample, which: Iterable[int], layout: str) -> Sample:
    found = tensors_in((sample.args, sample.kwargs))
    replaced = {}
    for k in which:
        tensor = LAYOUTS[layout](found[k])
        assert tensor is not None
        replaced[k] = tensor.requires_grad_(found[k].requires_grad)
    return _with(sample, replaced)


def plan(
    specs: Sequence[OpSpec],
    device: str,
    shapes: Shapes,
    dtypes: Sequence[str],
    forms: Sequence[str] | None = None,
) -> list[Cell]:
    """All that is to be timed, in order. Nothing is allocated.

    Args:
        specs: the operators.
        device: cpu or cuda.
        shapes: of the main input.
        dtypes: by name; those that the operator does not take are left out.
        forms: the ones to time; all of them if None.
    """
    cells = []
    for spec in specs:
        if device not in spec.devices:
            continue
        for shape in dict.fromkeys((*shapes.plain, *shapes.forms)):
            for dtype in dtypes:
                if getattr(torch, dtype) not in spec.dtypes:
                    continue
                make = DeviceMake("meta", getattr(torch, dtype), requires_grad=False)
                for call in calls(spec, make, shape, all_forms=shape in shapes.forms):
                    if call.form == "" and shape not in shapes.plain:
                        continue
                    if forms is None or call.form in forms:
                        cells.append(Cell(spec, call.form, shape, dtype))
    return cells


def realise(cell: Cell, device: str) -> Call:
    """The call of a cell, with tensors."""
    dtype = getattr(torch, cell.dtype)
    make = DeviceMake(device, dtype, requires_grad=cell.spec.differentiable)
    for call in calls(cell.spec, make, cell.shape, all_forms=True):
        if call.form == cell.form:
            return call
    raise AssertionError(f"{cell} is not among the calls")
