import torch

from extension_cpp.operators.relu.ops import relu
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


def reference(input):
    return torch.relu(input)


def samples(make, shape):
    yield Sample(make(shape))


def bad_inputs(make):
    yield BadInput(
        "integer input",
        Sample(make((3, 4), dtype=torch.int64)),
        "relu: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "boolean input",
        Sample(make((3, 4), dtype=torch.bool)),
        "relu: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.bool",
    )
    yield BadInput(
        "complex input",
        Sample(make((3, 4), dtype=torch.complex64)),
        "relu: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64",
    )


def traffic(sample):
    size = sample.args[0].nbytes
    return Traffic(forward=2 * size, backward=3 * size)


spec = OpSpec(
    name="relu",
    function=relu,
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
)
