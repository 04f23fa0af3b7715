import torch

from extension_cpp.operators.square.ops import square
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


def reference(input):
    return input * input


def samples(make, shape):
    yield Sample(make(shape))


def bad_inputs(make):
    yield BadInput(
        "integer input",
        Sample(make((3, 4), dtype=torch.int64)),
        "square: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "boolean input",
        Sample(make((3, 4), dtype=torch.bool)),
        "square: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.bool",
    )
    yield BadInput(
        "complex input",
        Sample(make((3, 4), dtype=torch.complex64)),
        "square: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64",
    )


def traffic(sample):
    size = sample.args[0].nbytes
    return Traffic(forward=2 * size, backward=3 * size)


spec = OpSpec(
    name="square",
    function=square,
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
)
