"""The calls to test: a spec's samples, and what they call in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from extension_cpp.battery.case import Case, arguments_of, op_case, public_case
from extension_cpp.battery.choices import Shape
from extension_cpp.battery.samples import Make, Sample
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import (
    as_leaves,
    flat,
    gradients,
    random_like,
    replace_tensors,
    tensors_in,
)


def samples(
    spec: OpSpec, device: str, dtype: torch.dtype, shape: Shape, **options: Any
) -> list[Sample]:
    """The spec's samples of a shape; options are those of `Make`."""
    found = list(spec.samples(Make(device, dtype, **options), shape))
    for given in _given:
        given.append((shape, len(found)))
    return found


_given: list[list[tuple[Shape, int]]] = []


@contextlib.contextmanager
def given_samples(given: list[tuple[Shape, int]]) -> Iterator[None]:
    """Adds to a list the shapes of which samples are asked for, and how many there were."""
    _given.append(given)
    try:
        yield
    finally:
        _given.pop()


def cases(
    spec: OpSpec, device: str, dtype: torch.dtype, shape: Shape, **options: Any
) -> Iterator[Case]:
    """Every sample of a shape, through the public function and through the operator."""
    for sample in samples(spec, device, dtype, shape, **options):
        yield public_case(spec, device, dtype, sample)
        yield op_case(spec, device, dtype, sample)


def mostly_op_cases(
    spec: OpSpec,
    device: str,
    dtype: torch.dtype,
    shape: Shape,
    *,
    thorough: bool,
    where: Callable[[Case], object] = lambda case: True,
    **options: Any,
) -> Iterator[Case]:
    """Every sample through the operator; through the public function the first, or thoroughly all.

    For what is asked of registrations, which are the operator's. What the public function makes of
    the other samples, the checks of values see, and in two layouts check_layouts. Those that are
    not `where`, as public cases, are left out.
    """
    public = True
    for sample in samples(spec, device, dtype, shape, **options):
        case = public_case(spec, device, dtype, sample)
        if where(case):
            if public:
                yield case
            yield op_case(spec, device, dtype, sample)
            public = thorough


class Recorder(TorchDispatchMode):
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


def op_cases(spec: OpSpec, device: str, dtype: torch.dtype, shape: Shape) -> list[Case]:
    """The operators that samples of a shape call in forward, backward and double backward.

    One case for every operator and kind of call, of those the one where most inputs require grad.
    """
    recorder = Recorder(spec.namespace)
    for case in cases(spec, device, dtype, shape):
        inputs = as_leaves(case.tensors)
        with recorder, case.explain("forward", see="kernel"):
            outputs = [o for o in case(*inputs) if o.requires_grad]
        if not outputs or not spec.differentiable:
            continue
        with recorder, case.explain("backward or double backward", see="backward"):
            inputs = [t for t in inputs if t.requires_grad]
            cotangents = [c.requires_grad_() for c in random_like(outputs)]
            grads = gradients(outputs, inputs, cotangents, create_graph=True)
            grads = [g for g in grads if g.requires_grad]
            if grads:
                gradients(grads, inputs + cotangents, random_like(grads, seed=2))
    found: dict[str, Case] = {}
    for op, args, kwargs in recorder.calls:
        copies = iter(
            t.detach().clone().requires_grad_(t.requires_grad) for t in tensors_in((args, kwargs))
        )
        sample = Sample(*replace_tensors(args, copies), **replace_tensors(kwargs, copies))
        case = op_case(spec, device, dtype, sample, op)
        kind = _kind_of_call(op, sample)
        if kind not in found or len(found[kind].wanted) < len(case.wanted):
            found[kind] = case
    return list(found.values())


def _kind_of_call(op: Any, sample: Sample) -> str:
    """What may lead to code of its own: absent tensors, flags, modes, lists; not which number."""
    values = {argument.name: argument.default_value for argument in op._schema.arguments}
    values.update((argument.name, value) for argument, value in arguments_of(op, sample))
    kinds = [type(value) if isinstance(value, (Tensor, float)) else value for value in flat(values)]
    return f"{op} {kinds}"
