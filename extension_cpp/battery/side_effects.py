"""Checks of what a call writes to."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from extension_cpp.battery.calls import cases, op_cases
from extension_cpp.battery.case import Case
from extension_cpp.battery.choices import default_dtype, layout_shapes, small_shapes
from extension_cpp.battery.layouts import ONE_OF_EACH_KIND
from extension_cpp.battery.registry import mutates, register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import exact_copies, to_float64
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


@register(applies=mutates)
def check_argument_twice(spec: OpSpec, device: str) -> None:
    """What is only read may be the very tensor that is written to: the result is as of a copy.

    Each pair of the same shape and dtype, in layouts of every kind. An element of a list that is
    written to may be the one in its own place of another list, and no other: kernels go through
    lists one element after the other.
    """
    for shape in layout_shapes(spec):
        for case in cases(spec, device, default_dtype(spec), shape):
            for written, read in _pairs(case):
                tensors = list(case.tensors)
                tensors[written] = _values_of_both(tensors[written], tensors[read].detach())
                for laid_out in case.laid_out("", tensors).layouts():
                    if laid_out.layout in ONE_OF_EACH_KIND:
                        _check_twice(laid_out, written, read)


def _pairs(case: Case) -> list[tuple[int, int]]:
    """What is written to, and what is only read and may be that."""

    def may_be(written: int, read: int) -> bool:
        _, is_listed, place = case.names[written].partition("[")
        a, b = case.tensors[written], case.tensors[read]
        in_step = not is_listed or case.names[read].endswith(f"[{place}")
        return in_step and a.shape == b.shape and a.dtype == b.dtype

    pairs = itertools.product(range(len(case.tensors)), repeat=2)
    return [(w, r) for w, r in pairs if case.written[w] and not case.written[r] and may_be(w, r)]


def _values_of_both(written: Tensor, read: Tensor) -> Tensor:
    """Those of the first in the range of the second, which may be one of indices, or positive."""
    if read.numel() == 0 or read.is_complex():
        return written
    return torch.where((written >= read.min()) & (written <= read.max()), written, read)


def _check_twice(case: Case, written: int, read: int) -> None:
    tensors = list(case.tensors)
    tensors[read] = tensors[written]
    name = f"{case.names[read]} is {case.names[written]} itself"
    case = case.laid_out(f"{case.layout}, {name}", tensors)
    with torch.no_grad(), case.explain(f"a call where {name}", see="kernel"):
        results = case(*case.copies(), in_place=True)
    # The reference writes to copies.
    expected = case.expected(*to_float64(case.tensors))
    names = [f"output {i}" for i in range(len(case.outputs_only(results)))]
    names += itertools.compress(case.names, case.written)
    case.compare(results, expected, f"the result where {name}, as of a copy,", names=names)
