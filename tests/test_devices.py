"""Inputs on different devices: one message, from kernels and fake kernels."""

import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from extension_cpp.testing import Make, OpSpec, devices, find_specs


def calls(spec: OpSpec, device: str, other: str) -> Iterator[tuple[list, dict]]:
    """The arguments of samples, with one tensor in turn on another device than the first."""
    for sample in spec.samples(Make(device, torch.float32, requires_grad=False), (3, 4)):
        given = {**dict(enumerate(sample.args)), **sample.kwargs}
        for place, value in given.items():
            if place != 0 and isinstance(value, Tensor):
                moved = {**given, place: value.to(other)}
                yield [moved.pop(i) for i in range(len(sample.args))], moved


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("spec", find_specs(), ids=repr)
def test_one_device_for_all(spec: OpSpec, device: str):
    # Meta tensors are the fake kernel's everywhere: the kernel's own check needs a GPU.
    other = "cpu" if device == "cuda" else "meta"
    message = (
        rf"{spec.name}: \w+ must be on the device of \w+, "
        rf"{re.escape(str(torch.empty(0, device=device).device))}, got {other}"
    )
    for args, kwargs in calls(spec, device, other):
        with pytest.raises(RuntimeError, match=f"^{message}$"):
            spec.function(*args, **kwargs)
        with FakeTensorMode() as mode:
            args, kwargs = tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
            with pytest.raises(RuntimeError, match=f"^{message}$"):
                spec.function(*args, **kwargs)
