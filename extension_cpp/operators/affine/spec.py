import math

import torch

from extension_cpp.operators.affine.ops import affine
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


def reference(a, x, b):
    return a * x + b


def samples(make, shape):
    features, rows = shape[-1:], (*shape[:-1], 1)
    yield Sample(make(shape), make(shape), make(shape))
    yield Sample(make(features), make(shape), make(features))
    yield Sample(make(rows), make(features), make(()))


def bad_inputs(make):
    yield BadInput(
        "integer inputs",
        Sample(*(make((3, 4), dtype=torch.int64) for _ in range(3))),
        "affine: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "complex inputs",
        Sample(*(make((3, 4), dtype=torch.complex64) for _ in range(3))),
        "affine: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64",
    )
    yield BadInput(
        "mixed dtypes",
        Sample(
            make((4,), dtype=torch.float32),
            make((3, 4), dtype=torch.float32),
            make((4,), dtype=torch.float64),
        ),
        "affine: b must have the dtype of a, torch.float32, got torch.float64",
    )
    yield BadInput(
        "a and x that do not broadcast",
        Sample(make((4,)), make((4, 3)), make((3,))),
        "affine: x must broadcast with a of shape (4,), got (4, 3)",
    )
    yield BadInput(
        "b that does not broadcast",
        Sample(make((3, 1)), make((4,)), make((3,))),
        "affine: b must broadcast with a and x of shape (3, 4), got (3,)",
    )


def traffic(sample):
    tensors = a, x, b = sample.args
    output = math.prod(torch.broadcast_shapes(*(t.shape for t in tensors))) * a.element_size()
    # grad_output, a and x are read; the gradients are written, unless that of b is grad_output itself.
    gradients = a.nbytes + x.nbytes + (b.nbytes if b.nbytes != output else 0)
    return Traffic(
        forward=sum(t.nbytes for t in tensors) + output,
        backward=output + a.nbytes + x.nbytes + gradients,
    )


spec = OpSpec(
    name="affine",
    function=affine,
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    autocast="promote",
)
