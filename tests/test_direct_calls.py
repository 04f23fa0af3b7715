"""Every operator's calls from Python spare the kernel of the Autograd key (registration/direct.py).

Counted, not timed. tests/registration/test_direct.py holds the cases in which they must not.
"""

import pytest
import torch

from extension_cpp.battery.tensors import tensors_in
from extension_cpp.testing import Make, find_specs

SPECS = find_specs()


def call(spec, sample):
    return tensors_in(spec.function(*sample.args, **sample.kwargs))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_public_functions_spare_the_kernel(spec, entered):
    # What is written to has no derivative, and a call that is asked for one takes the usual way.
    make = Make("cpu", torch.float32, requires_grad=not spec.mutates)
    for sample in spec.samples(make, (3, 4)):
        call(spec, sample)
    assert not entered


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.differentiable], ids=lambda spec: spec.name
)
def test_forward_and_backward_spare_the_kernel(spec, entered):
    for sample in spec.samples(Make("cpu", torch.float32, requires_grad=True), (3, 4)):
        outputs = call(spec, sample)
        inputs = [t for t in tensors_in((sample.args, sample.kwargs)) if t.requires_grad]
        torch.autograd.grad(outputs, inputs, [torch.ones_like(o) for o in outputs])
    assert not entered
