import torch

from extension_cpp.operators.myadd_out.ops import myadd_out
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


def reference(a, b, out):
    out.copy_(a + b)


def samples(make, shape):
    yield Sample(make(shape), make(shape), make(shape))


def bad_inputs(make):
    yield BadInput(
        "integer inputs",
        Sample(*(make((3, 4), dtype=torch.int64) for _ in range(3))),
        "myadd_out: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "mixed dtypes",
        Sample(make((3, 4), dtype=torch.float32), make((3, 4), dtype=torch.float64), make((3, 4))),
        "myadd_out: b must have the dtype of a, torch.float32, got torch.float64",
    )
    yield BadInput(
        "another shape",
        Sample(make((3, 4)), make((4,)), make((3, 4))),
        "myadd_out: b must have shape (3, 4), got (4,)",
    )
    yield BadInput(
        "out of another dtype",
        Sample(
            make((3, 4), dtype=torch.float32),
            make((3, 4), dtype=torch.float32),
            make((3, 4), dtype=torch.float16),
        ),
        "myadd_out: out must have the dtype of a, torch.float32, got torch.float16",
    )
    yield BadInput(
        "out of another shape",
        Sample(make((3, 4)), make((3, 4)), make((3, 1))),
        "myadd_out: out must have shape (3, 4), got (3, 1)",
    )
    yield BadInput(
        "out that overlaps itself",
        Sample(make((3, 4)), make((3, 4)), make((3, 1), requires_grad=False).expand(3, 4)),
        "myadd_out: out must not overlap itself, got shape (3, 4) and strides (1, 0)",
    )


def traffic(sample):
    size = sample.args[0].nbytes
    return Traffic(forward=3 * size, backward=0)


spec = OpSpec(
    name="myadd_out",
    function=myadd_out,
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    differentiable=False,
)
