"""torch.export and AOTInductor: all operators in one model, packaged, loaded again and compared."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scratch import EVERY, package
from torch import Tensor, nn

from extension_cpp.testing import Make, OpSpec, Sample, devices, find_specs

BATCH, FEATURES = 6, 8


class AllOperators(nn.Module):
    """Calls every operator on the tensors of its samples, which come in a row as arguments."""

    def __init__(self, calls: list[tuple[OpSpec, Sample]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        remaining = iter(tensors)

        def fill(value: object) -> object:
            return next(remaining) if isinstance(value, Tensor) else value

        outputs: list[Tensor] = []
        for spec, sample in self.calls:
            args = [fill(value) for value in sample.args]
            kwargs = {name: fill(value) for name, value in sample.kwargs.items()}
            if spec.mutates:
                # What is written to is the model's own, and an output of it.
                written = [
                    i for i, a in enumerate(spec.op._schema.arguments) if a.alias_info is not None
                ]
                for position in written:
                    args[position] = torch.zeros_like(args[position])
                spec.function(*args, **kwargs)
                outputs += [args[position] for position in written]
            else:
                result = spec.function(*args, **kwargs)
                outputs += result if isinstance(result, (tuple, list)) else [result]
        return outputs


def tensors_of(calls: list[tuple[OpSpec, Sample]]) -> Iterator[Tensor]:
    for _, sample in calls:
        for value in (*sample.args, *sample.kwargs.values()):
            if isinstance(value, Tensor):
                yield value


def calls(device: str, batch: int) -> list[tuple[OpSpec, Sample]]:
    make = Make(device, torch.float32, requires_grad=False)
    return [
        (spec, sample)
        for spec in find_specs()
        if device in spec.devices
        for sample in spec.samples(make, (batch, FEATURES))
    ]


# `make test-all` packages a program of constant sizes, too: check_export exports those.
@pytest.mark.slow
@pytest.mark.parametrize("batch", ["dynamic", *(["fixed"] if EVERY else [])])
@pytest.mark.parametrize("device", devices())
def test_package(device: str, batch: str, tmp_path: Path):
    made = calls(device, BATCH)
    tensors = tuple(tensors_of(made))
    model = AllOperators(made)
    shapes = None
    if batch == "dynamic":
        dim = torch.export.Dim("batch", min=2)
        # Behind another dimension, where it is broadcast over that.
        batches = [{d: dim for d, size in enumerate(t.shape) if size == BATCH} for t in tensors]
        shapes = {"tensors": tuple(batches)}
    program = torch.export.export(model, tensors, dynamic_shapes=shapes)
    called = {node.target for node in program.graph.nodes}
    assert {spec.op for spec, _ in made} <= called

    packaged = package(program, tmp_path / "model.pt2")
    loaded = torch._inductor.aoti_load_package(packaged)
    for size in (BATCH,) if batch == "fixed" else (BATCH, 2, 19):
        inputs = tuple(tensors_of(calls(device, size)))
        actual, expected = loaded(*inputs), model(*inputs)
        assert len(actual) == len(expected)
        for ours, eager in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours, eager)
