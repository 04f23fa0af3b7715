from extension_cpp.operators.my_op.ops import my_op
from extension_cpp.testing import BadInput, OpSpec, Sample


# EDIT: the definition, in plain PyTorch.
def reference(input, other, alpha=1.0):
    input.copy_(input * input * (1 + alpha) + other)


# EDIT: calls that must fail besides those that the shapes speak of, and with which words.
def bad_inputs(make):
    yield BadInput(
        "input that overlaps itself",
        Sample(make((3, 1), requires_grad=False).expand(3, 4), make((3, 4))),
        "my_op: input must not overlap itself, got shape (3, 4) and strides (1, 0)",
    )


spec = OpSpec(
    name="my_op", function=my_op, reference=reference, bad_inputs=bad_inputs, differentiable=False
)
