import torch

from extension_cpp.operators.fused_op.ops import fused_op
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


def reference(input, bias, scale=1.0):
    return torch.relu(input * scale + bias)


def samples(make, shape):
    features = shape[-1:]
    yield Sample(make(shape), make(features), scale=1.75)
    yield Sample(make(shape), make(features), -0.375)
    yield Sample(make(shape), make(features))


def bad_inputs(make):
    yield BadInput(
        "integer input",
        Sample(make((3, 4), dtype=torch.int64), make((4,), dtype=torch.int64)),
        "fused_op: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "complex input",
        Sample(make((3, 4), dtype=torch.complex64), make((4,))),
        "fused_op: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64",
    )
    yield BadInput(
        "mixed dtypes",
        Sample(make((3, 4), dtype=torch.float32), make((4,), dtype=torch.float16)),
        "fused_op: bias must have the dtype of input, torch.float32, got torch.float16",
    )
    yield BadInput(
        "no bias",
        Sample(make((3, 4)), None),
        "fused_op: bias must be a tensor, got None",
    )
    yield BadInput(
        "bias too short",
        Sample(make((3, 4)), make((3,))),
        "fused_op: bias must have shape (4,), got (3,)",
    )
    yield BadInput(
        "bias with two dimensions",
        Sample(make((3, 4)), make((3, 4))),
        "fused_op: bias must have shape (4,), got (3, 4)",
    )
    yield BadInput(
        "0-d input",
        Sample(make(()), make((1,))),
        "fused_op: input must have at least 1 dimension, got shape ()",
    )


def traffic(sample):
    input, bias = sample.args[:2]
    size, features = input.nbytes, bias.nbytes
    return Traffic(forward=2 * size + features, backward=3 * size + features)


spec = OpSpec(
    name="fused_op",
    function=fused_op,
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    autocast="lower_precision",
)
