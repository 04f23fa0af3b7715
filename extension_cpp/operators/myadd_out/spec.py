from extension_cpp.operators.myadd_out.ops import myadd_out
from extension_cpp.testing import BadInput, OpSpec, Sample


def bad_inputs(make):
    yield BadInput(
        "out that overlaps itself",
        Sample(make((3, 4)), make((3, 4)), make((3, 1), requires_grad=False).expand(3, 4)),
        "myadd_out: out must not overlap itself, got shape (3, 4) and strides (1, 0)",
    )


spec = OpSpec(
    name="myadd_out",
    function=myadd_out,
    reference=lambda a, b, out: out.copy_(a + b),
    bad_inputs=bad_inputs,
    differentiable=False,
)
