import math

import torch

from extension_cpp.operators.vector_add.ops import vector_add
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


def reference(a, b):
    return a + b


def samples(make, shape):
    yield Sample(make(shape), make(shape))
    yield Sample(make(shape), make(shape[-1:]))
    yield Sample(make((*shape[:-1], 1)), make(shape))


def bad_inputs(make):
    yield BadInput(
        "integer inputs",
        Sample(make((3, 4), dtype=torch.int64), make((3, 4), dtype=torch.int64)),
        "vector_add: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "complex inputs",
        Sample(make((3, 4), dtype=torch.complex64), make((3, 4), dtype=torch.complex64)),
        "vector_add: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64",
    )
    yield BadInput(
        "mixed dtypes",
        Sample(make((3, 4), dtype=torch.float32), make((3, 4), dtype=torch.bfloat16)),
        "vector_add: b must have the dtype of a, torch.float32, got torch.bfloat16",
    )
    yield BadInput(
        "shapes that do not broadcast",
        Sample(make((3, 4)), make((2, 3, 5))),
        "vector_add: b must broadcast with a of shape (3, 4), got (2, 3, 5)",
    )


def traffic(sample):
    a, b = sample.args
    output = math.prod(torch.broadcast_shapes(a.shape, b.shape)) * a.element_size()
    # The gradient of an input that is not broadcast is grad_output itself.
    sums = [t.nbytes for t in (a, b) if t.nbytes != output]
    return Traffic(forward=a.nbytes + b.nbytes + output, backward=output + sum(sums) if sums else 0)


spec = OpSpec(
    name="vector_add",
    function=vector_add,
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    autocast="promote",
)
