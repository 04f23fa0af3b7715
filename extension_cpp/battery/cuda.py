"""Checks of streams, graphs and devices. They need a GPU; one of them two."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from extension_cpp.battery.calls import cases
from extension_cpp.battery.case import Case
from extension_cpp.battery.choices import default_dtype, main_shape
from extension_cpp.battery.registry import on_cuda, register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import as_leaves, gradients, random_like, to_float64


def _shapes(spec: OpSpec) -> list[tuple[int, ...]]:
    """A small one, and one that several blocks share."""
    return [main_shape(spec), *[shape for shape in spec.shapes if math.prod(shape) > 10000][:1]]


def _empty_handed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors before their values arrive."""
    return [
        torch.full_like(t, math.nan if t.is_floating_point() else 0).requires_grad_(t.requires_grad)
        for t in (as_leaves(tensors))
    ]


def _arrive_late(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Writes values on the current stream, some ten milliseconds from now."""
    torch.cuda._sleep(20_000_000)
    with torch.no_grad():
        for place, value in zip(places, values, strict=True):
            place.copy_(value)


@register(applies=on_cuda)
def check_streams(spec: OpSpec, device: str) -> None:
    """Work goes to the current stream: values arrive there late, and any other would see NaN."""
    dtype = default_dtype(spec)
    for shape in _shapes(spec):
        for case in cases(spec, device, dtype, shape):
            inputs = _empty_handed(case.tensors)
            values = [t.detach().clone() for t in case.tensors]
            stream = torch.cuda.Stream()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream), case.explain("forward on a side stream", see="kernel"):
                _arrive_late(inputs, values)
                outputs = case(*inputs, in_place=True)
                stream.synchronize()
            upcast = to_float64(case.tensors)
            expected = case.expected(*upcast)
            case.compare(outputs, expected, "forward on a side stream")
            pairs = [(o, e) for o, e in zip(outputs, expected, strict=True) if e.requires_grad]
            if not case.order or not pairs:
                continue
            values = random_like(o for o, _ in pairs)
            cotangents = _empty_handed(values)
            torch.cuda.synchronize()
            with (
                torch.cuda.stream(stream),
                case.explain("backward on a side stream", see="backward"),
            ):
                _arrive_late(cotangents, values)
                grads = gradients(
                    [o for o, _ in pairs], [inputs[i] for i in case.wanted], cotangents
                )
                stream.synchronize()
            wanted = gradients(
                [e for _, e in pairs], [upcast[i] for i in case.wanted], to_float64(values)
            )
            names = [f"the gradient of {case.names[i]}" for i in case.wanted]
            case.compare(
                grads, wanted, "backward on a side stream", names=names, order=1, see="backward"
            )


@register(applies=on_cuda)
def check_cuda_graph(spec: OpSpec, device: str) -> None:
    """Forward and backward are captured into a CUDA graph, and replayed with other values."""
    dtype = default_dtype(spec)
    for shape in _shapes(spec):
        others = cases(spec, device, dtype, shape, seed=1)
        for case, other in zip(cases(spec, device, dtype, shape), others, strict=True):
            _check_replay(case, other)


@contextlib.contextmanager
def _spare_generator() -> Iterator[None]:
    """Another state for the device's generator: one that saw a capture fail draws nothing more."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)


def _check_replay(case: Case, other: Case) -> None:
    inputs = as_leaves(t.detach().clone().requires_grad_(t.requires_grad) for t in case.tensors)
    cotangents = random_like(case(*inputs))

    def run() -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        outputs = case(*inputs)
        pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
        if not case.order or not pairs:
            return outputs, []
        wanted = [inputs[i] for i in case.wanted]
        return outputs, gradients([o for o, _ in pairs], wanted, [c for _, c in pairs])

    with case.explain("capture into a CUDA graph, and replay", see="kernel"):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with _spare_generator(), torch.cuda.graph(graph):
            outputs, grads = run()
        with torch.no_grad():
            for place, value in zip(inputs, other.tensors, strict=True):
                place.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
    upcast = to_float64(other.tensors)
    expected = case.expected(*upcast)
    case.compare(outputs, expected, "replay of a CUDA graph")
    if grads:
        pairs = [(e, c) for e, c in zip(expected, cotangents, strict=True) if e.requires_grad]
        wanted = gradients(
            [e for e, _ in pairs], [upcast[i] for i in case.wanted], to_float64(c for _, c in pairs)
        )
        case.compare(grads, wanted, "replay of a CUDA graph, backward", order=1, see="backward")


@register(applies=lambda spec, device: on_cuda(spec, device) and torch.cuda.device_count() > 1)
def check_second_device(spec: OpSpec, device: str) -> None:
    """Inputs on another device than the current one: kernels run there, and it stays current."""
    with torch.cuda.device(0):
        for shape in _shapes(spec):
            for case in cases(spec, "cuda:1", default_dtype(spec), shape):
                case.agree(order=case.order)
                if torch.cuda.current_device() != 0:
                    case.fail("the current device is another one after the call", see="kernel")
