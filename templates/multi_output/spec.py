import torch

from extension_cpp.operators.my_op.ops import my_op
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


# EDIT: the definition, in plain PyTorch: of the operator, and of the public function.
def op_reference(input, other, alpha=1.0):
    mean = input.mean(-1, keepdim=True)
    centered = input - mean
    output = centered * centered * (1 + alpha) + other
    mean = mean.squeeze(-1)
    return output, mean


def reference(input, other, alpha=1.0):
    return op_reference(input, other, alpha)[0]


# EDIT: calls whose first tensor has this shape.
def samples(make, shape):
    yield Sample(make(shape), make(shape), 0.3)
    yield Sample(make(shape), make(shape))


# EDIT: calls that must fail, and with which words.
def bad_inputs(make):
    yield BadInput(
        "integer input",
        Sample(make((3, 4), dtype=torch.int64), make((3, 4))),
        "my_op: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "0-d input",
        Sample(make(()), make(())),
        "my_op: input must have at least 1 dimension, got shape ()",
    )
    yield BadInput(
        "other of another dtype",
        Sample(make((3, 4), dtype=torch.float32), make((3, 4), dtype=torch.float16)),
        "my_op: other must have the dtype of input, torch.float32, got torch.float16",
    )
    yield BadInput(
        "other of another shape",
        Sample(make((3, 4)), make((4,))),
        "my_op: other must have shape (3, 4), got (4,)",
    )


# EDIT: bytes that an ideal kernel reads and writes.
def traffic(sample):
    size = sample.args[0].nbytes
    return Traffic(forward=3 * size, backward=3 * size)


spec = OpSpec(
    name="my_op",
    function=my_op,
    reference=reference,
    op_reference=op_reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
)
