import torch

from extension_cpp.operators.mymul.ops import mymul
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


def reference(a, b):
    return a * b


def samples(make, shape):
    yield Sample(make(shape), make(shape))


def bad_inputs(make):
    yield BadInput(
        "integer inputs",
        Sample(make((3, 4), dtype=torch.int64), make((3, 4), dtype=torch.int64)),
        "mymul: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "complex inputs",
        Sample(make((3, 4), dtype=torch.complex64), make((3, 4), dtype=torch.complex64)),
        "mymul: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64",
    )
    yield BadInput(
        "mixed dtypes",
        Sample(make((3, 4), dtype=torch.float32), make((3, 4), dtype=torch.float64)),
        "mymul: b must have the dtype of a, torch.float32, got torch.float64",
    )
    yield BadInput(
        "another shape",
        Sample(make((3, 4)), make((3, 5))),
        "mymul: b must have shape (3, 4), got (3, 5)",
    )
    yield BadInput(
        "a shape that would broadcast",
        Sample(make((3, 4)), make((4,))),
        "mymul: b must have shape (3, 4), got (4,)",
    )


def traffic(sample):
    size = sample.args[0].nbytes
    return Traffic(forward=3 * size, backward=5 * size)


spec = OpSpec(
    name="mymul",
    function=mymul,
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    autocast="promote",
)
