"""Checks under torch.compile and torch.export."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as sizes

from extension_cpp.battery.calls import cases, samples
from extension_cpp.battery.case import Case, op_case, public_case
from extension_cpp.battery.choices import default_dtype, main_shape, tiny_shapes
from extension_cpp.battery.layouts import ONE_OF_EACH_KIND
from extension_cpp.battery.registry import mutates, register
from extension_cpp.battery.samples import Sample
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.surroundings import fresh_compiler
from extension_cpp.battery.tensors import flat, gradients, random_like, tensors_in, to_float64


def _agree_compiled(case: Case, backend: str) -> None:
    """Compiled as one graph, values are the reference's, and strides those of eager."""
    strides = [o.stride() for o in case(*case.copies(), in_place=True)]
    with fresh_compiler():
        compiled = torch.compile(case, backend=backend, fullgraph=True)
        got: list[Any] = []

        def run(*inputs: Tensor) -> Sequence[Tensor]:
            outputs = compiled(*inputs, in_place=True)
            got.extend(o.stride() for o in outputs)
            return outputs

        where = f"{case.layout}, compiled with {backend} as one graph"
        case.laid_out(where, case.tensors).agree(order=case.order, run=run)
    if got != strides and all(t.numel() for t in case.tensors):
        case.fail(f"strides {got} when compiled with {backend}, {strides} in eager", see="fake")


@register()
def check_compile(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """`torch.compile(fullgraph=True)`, forward and backward, in layouts of every kind.

    Of the public function. The operator itself, which check_opcheck traces, is compiled once.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: every layout, rather than one of each kind: check_strides sees them all; every
            sample of few elements, rather than the first; and every one of the operator itself.
    """
    dtype = default_dtype(spec)
    for i, sample in enumerate(samples(spec, device, dtype, main_shape(spec))):
        # With the first sample, of a shape that has them all.
        for laid_out in public_case(spec, device, dtype, sample).layouts():
            wanted = thorough or laid_out.layout in ONE_OF_EACH_KIND
            if laid_out.layout == "contiguous" or (i == 0 and wanted):
                _agree_compiled(laid_out, "aot_eager")
        if thorough or i == 0:
            case = op_case(spec, device, dtype, sample)
            _agree_compiled(case.laid_out("contiguous", case.tensors), "aot_eager")
    for shape in tiny_shapes(spec):
        for sample in samples(spec, device, dtype, shape)[: None if thorough else 1]:
            case = public_case(spec, device, dtype, sample)
            _agree_compiled(case.laid_out("contiguous", case.tensors), "aot_eager")


@register()
def check_inductor(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """Inductor, whose generated code relies on the fake kernel's strides.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: every sample in every layout, rather than one in two.
    """
    for case in cases(spec, device, default_dtype(spec), main_shape(spec)):
        for laid_out in case.layouts():
            if thorough or laid_out.layout in ("contiguous", "transposed"):
                _agree_compiled(laid_out, "inductor")
        if not thorough:
            return


@register()
def check_dynamic(spec: OpSpec, device: str) -> None:
    """`torch.compile(dynamic=True)` makes one graph for sizes from two up."""
    dtype, dim = default_dtype(spec), len(main_shape(spec, max_dim=3))
    # 0 and 1 always have graphs of their own.
    shapes = [tuple(range(first, first + dim)) for first in (3, 7, 17, 24)]
    by_shape = _alike(samples(spec, device, dtype, shape) for shape in shapes)
    if len(by_shape) < 2:
        shapes = [shape for shape in spec.shapes if len(shape) == dim and min(shape, default=2) > 1]
        by_shape = _alike(samples(spec, device, dtype, shape) for shape in shapes)
    for same in zip(*by_shape, strict=True):
        # Numbers among the arguments are constants of the graph.
        constants = [_constants(sample) for sample in same]
        variant = [s for s, c in zip(same, constants, strict=True) if c == constants[-1]]
        # Else sizes that happen to be equal in the first of them are taken for one.
        every_size = sizes.patch(use_duck_shape=False)  # type: ignore[attr-defined]
        with fresh_compiler(), every_size:
            compiled = torch.compile(
                spec.function, backend="aot_eager", fullgraph=True, dynamic=True
            )
            for i, sample in enumerate(variant):
                where = "compiled with dynamic=True" + (" for another size" if i else "")
                case = public_case(spec, device, dtype, sample).laid_out(where, ())

                def run(
                    *inputs: Tensor, case: Case = case, compiled: Any = compiled
                ) -> Sequence[Tensor]:
                    bound = case.bind(inputs)
                    outputs = tensors_in(compiled(*bound.args, **bound.kwargs))
                    written = list(itertools.compress(inputs, case.written))
                    return [*[o for o in outputs if not any(o is t for t in written)], *written]

                with torch.compiler.set_stance("fail_on_recompile" if i else "default"):
                    case.agree(order=case.order, run=run)


def _alike(by_shape: Iterable[list[Sample]]) -> list[list[Sample]]:
    """The samples of most shapes, of which there are as many; others have more, fewer or none.

    An operator may take even sizes alone, or have samples for large ones alone.
    """
    found = [given for given in by_shape if given]
    counts = Counter(map(len, found))
    usual = max(counts, key=lambda count: (counts[count], count), default=0)
    return [given for given in found if len(given) == usual]


def _constants(sample: Sample) -> list[Any]:
    return [value for value in flat((sample.args, sample.kwargs)) if not isinstance(value, Tensor)]


@register(applies=mutates)
def check_mutation(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """What is read before a write keeps its value under inductor, in the backward too.

    Inductor may compute it again from the tensor that was written to. And where gradients would be
    lost, in a leaf, the backward says so, compiled or not.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: the operator itself under inductor, too, which the public function calls.
    """
    found = cases(spec, device, default_dtype(spec), main_shape(spec, 2))
    for i, case in enumerate(itertools.islice(found, 2)):
        for program in (_value_around_write, _values_around_write) if thorough or i == 0 else ():
            _agree_around_write(case, program)
        for backend in (None, "aot_eager"):
            _check_leaf(case, backend)


_Write = Callable[..., Any]
_Program = Callable[[Case, _Write, Tensor, Sequence[Tensor]], Sequence[Tensor]]


def _value_around_write(
    case: Case, write: _Write, x: Tensor, tensors: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Alone, as nothing else makes inductor keep what is read."""
    difference = x - tensors[case.written.index(True)]
    _write_after(case, write, difference, tensors)
    return (difference * difference,)


def _values_around_write(
    case: Case, write: _Write, x: Tensor, tensors: Sequence[Tensor]
) -> Sequence[Tensor]:
    """A clone and a view as well, and behind them what has a gradient."""
    out = tensors[case.written.index(True)]
    hidden = x.sin() @ x.new_ones(x.shape[-1], x.shape[-1])
    difference, clone, view = hidden - out, out.clone(), out[..., :2]
    twice = view * 2
    _write_after(case, write, difference, tensors)
    after = (view * 2, hidden * out.clone())
    return difference * difference, clone, twice, (difference.cos() + clone.sin()) * x, *after


def _write_after(case: Case, write: _Write, value: Tensor, tensors: Sequence[Tensor]) -> None:
    """Calls the operator with something that is made of the value, where its shapes allow it."""
    value, tensors = value.detach(), list(tensors)
    for i, written in enumerate(case.written):
        if not written and tensors[i].shape == value.shape and tensors[i].dtype == value.dtype:
            tensors[i] = tensors[i] + value * 0.125
            break
    sample = case.bind(tensors)
    with torch.no_grad():
        write(*sample.args, **sample.kwargs)


def _agree_around_write(case: Case, program: _Program) -> None:
    assert case.reference is not None
    written = case.tensors[case.written.index(True)]
    x = random_like([written], seed=4)[0]
    wants_gradient = program is _values_around_write

    def run(function: _Write, x: Tensor, tensors: Sequence[Tensor], compiled: bool) -> list[Tensor]:
        def values(x: Tensor, *tensors: Tensor) -> Sequence[Tensor]:
            return program(case, function, x, tensors)

        tensors = [t.detach().clone() for t in tensors]
        x = x.detach().requires_grad_(wants_gradient)
        values = torch.compile(values, fullgraph=True) if compiled else values
        results = [*values(x, *tensors), *itertools.compress(tensors, case.written)]
        outputs = [o for o in results if o.requires_grad]
        if outputs:
            results += gradients(outputs, [x], random_like(outputs, seed=5))
        return results

    expected = run(case.reference, *_upcast(x, case.tensors), compiled=False)
    with fresh_compiler(), case.explain("a write compiled with inductor"):
        actual = run(case.function, x, case.tensors, compiled=True)
    what = "what was read before and after the write, compiled with inductor,"
    names = [f"value {i} of {program.__name__}" for i in range(len(expected))]
    if wants_gradient:
        names[-1] = "the gradient of what was read"
    case.compare(actual, expected, what, names=names, order=2, see="python")


def _upcast(x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    return to_float64([x])[0], to_float64(tensors)


def _check_leaf(case: Case, backend: str | None) -> None:
    """A leaf that requires a gradient has no history to keep a write in: its backward refuses."""
    inputs = [t.detach().clone() for t in case.tensors]
    leaf = inputs[case.written.index(True)].requires_grad_()

    def write(*tensors: Tensor) -> None:
        case(*tensors, in_place=True)

    where = f"compiled with {backend}" if backend else "in eager"
    with fresh_compiler():
        call = torch.compile(write, backend=backend, fullgraph=True) if backend else write
        try:
            call(*inputs)
            (leaf * 2).sum().backward()
        except RuntimeError as error:
            if case.spec.name not in str(error):
                case.fail(
                    f"{where}, a write to a leaf that requires a gradient: the error does not "
                    "name the operator",
                    detail=str(error),
                )
        else:
            case.fail(
                f"{where}, a leaf that requires a gradient is written to, and its backward passes",
                detail="A gradient would be lost in silence: register_mutation.",
            )


class _Module(torch.nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.case(*tensors)


@register()
def check_export(spec: OpSpec, device: str) -> None:
    """`torch.export` gives a program that holds the operator and computes what it computes."""
    options = {"requires_grad": False}
    for case in cases(spec, device, default_dtype(spec), main_shape(spec), **options):
        with case.explain("torch.export", see="fake"), fresh_compiler():
            program = torch.export.export(_Module(case), case.tensors)
            outputs = tensors_in(program.module()(*case.tensors))
        if not any(node.target is spec.op for node in program.graph.nodes):
            case.fail("the exported program does not hold the operator")
        expected = case.expected(*to_float64(case.tensors))
        case.compare(outputs, expected, "the exported program", see="fake")
