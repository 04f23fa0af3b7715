"""What operators say of bad inputs, word for word, where it follows from their lines of shapes.

The battery holds kernels and fake kernels, public functions and batching rules to one text: here is
which. ``EXPECTTEST_ACCEPT=1`` writes it anew. What no line says stands in the operators' specs.
"""

import pytest
import torch
from expecttest import assert_expected_inline

import extension_cpp  # noqa: F401

ops = torch.ops.extension_cpp
HALF, FLOAT, DOUBLE = torch.float16, torch.float32, torch.float64


def tensor(*shape, dtype=FLOAT):
    return torch.ones(shape, dtype=dtype)


def of(dtype, *shapes):
    """The tensors of a call."""
    return [tensor(*shape, dtype=dtype) for shape in shapes]


def messages(op, *calls):
    """What an operator says of each call."""
    lines = []
    for call in calls:
        with pytest.raises(RuntimeError) as error:
            op(*call)
        lines.append(str(error.value))
    return "\n".join(lines)


def test_dtypes():
    """That of the first tensor, of whatever rank."""
    wrong = (torch.int64, torch.bool, torch.complex64)
    assert_expected_inline(
        messages(ops.square, *(of(dtype, (3, 4)) for dtype in wrong)),
        """\
square: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64
square: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.bool
square: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64""",
    )
    assert_expected_inline(
        messages(ops.relu, *(of(dtype, (3, 4)) for dtype in wrong)),
        """\
relu: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64
relu: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.bool
relu: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64""",
    )
    for op, count in ((ops.mymul, 2), (ops.vector_add, 2), (ops.affine, 3), (ops.myadd_out, 3)):
        for dtype in (torch.int64, torch.complex64):
            assert messages(op, of(dtype, *[(3, 4)] * count)) == (
                f"{op.__name__}: a must be torch.float64, torch.float32, torch.float16 or "
                f"torch.bfloat16, got {dtype}"
            )
    assert_expected_inline(
        messages(
            ops.fused_op,
            of(torch.int64, (3, 4), (4,)),
            [tensor(3, 4, dtype=torch.complex64), tensor(4)],
        ),
        """\
fused_op: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64
fused_op: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64""",
    )
    assert_expected_inline(
        messages(
            ops.mymuladd,
            [*of(torch.int64, (3, 4), (3, 4)), 1.5],
            [*of(torch.complex64, (3, 4), (3, 4)), 1.5],
        ),
        """\
mymuladd: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64
mymuladd: a must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64""",
    )
    assert_expected_inline(
        messages(
            ops.square_backward,
            of(torch.int64, (3, 4), (3, 4)),
        ),
        """square_backward: grad_output must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64""",
    )


def test_one_dtype():
    assert_expected_inline(
        messages(ops.mymul, [tensor(3, 4), tensor(3, 4, dtype=DOUBLE)]),
        """mymul: b must have the dtype of a, torch.float32, got torch.float64""",
    )
    assert_expected_inline(
        messages(ops.mymuladd, [tensor(3, 4), tensor(3, 4, dtype=DOUBLE), 1.5]),
        """mymuladd: b must have the dtype of a, torch.float32, got torch.float64""",
    )
    assert_expected_inline(
        messages(ops.vector_add, [tensor(3, 4), tensor(3, 4, dtype=torch.bfloat16)]),
        """vector_add: b must have the dtype of a, torch.float32, got torch.bfloat16""",
    )
    assert_expected_inline(
        messages(ops.affine, [tensor(4), tensor(3, 4), tensor(4, dtype=DOUBLE)]),
        """affine: b must have the dtype of a, torch.float32, got torch.float64""",
    )
    assert_expected_inline(
        messages(ops.fused_op, [tensor(3, 4), tensor(4, dtype=HALF)]),
        """fused_op: bias must have the dtype of input, torch.float32, got torch.float16""",
    )
    assert_expected_inline(
        messages(
            ops.myadd_out,
            [tensor(3, 4), tensor(3, 4, dtype=DOUBLE), tensor(3, 4)],
            [tensor(3, 4), tensor(3, 4), tensor(3, 4, dtype=HALF)],
        ),
        """\
myadd_out: b must have the dtype of a, torch.float32, got torch.float64
myadd_out: out must have the dtype of a, torch.float32, got torch.float16""",
    )


def test_none():
    assert_expected_inline(
        messages(ops.fused_op, [tensor(3, 4), None]),
        """fused_op: bias must be a tensor, got None""",
    )
    assert_expected_inline(
        messages(ops.square_backward, [None, tensor(3)]),
        """square_backward: grad_output must be a tensor, got None""",
    )


def test_one_shape():
    assert_expected_inline(
        messages(ops.mymuladd, [*of(FLOAT, (3, 4), (3, 5)), 1.5], [*of(FLOAT, (3, 4), (4,)), 1.5]),
        """\
mymuladd: b must have shape (3, 4), got (3, 5)
mymuladd: b must have shape (3, 4), got (4,)""",
    )
    assert_expected_inline(
        messages(ops.myadd_out, of(FLOAT, (3, 4), (4,), (3, 4)), of(FLOAT, (3, 4), (3, 4), (3, 1))),
        """\
myadd_out: b must have shape (3, 4), got (4,)
myadd_out: out must have shape (3, 4), got (3, 1)""",
    )


def test_dimensions():
    assert_expected_inline(
        messages(
            ops.fused_op,
            of(FLOAT, (3, 4), (3,)),
            of(FLOAT, (3, 4), (3, 4)),
            of(FLOAT, (), (1,)),
        ),
        """\
fused_op: bias must have shape (4,), got (3,)
fused_op: bias must have shape (4,), got (3, 4)
fused_op: input must have at least 1 dimension, got shape ()""",
    )


def test_broadcasting():
    assert_expected_inline(
        messages(ops.vector_add, of(FLOAT, (3, 4), (2, 3, 5))),
        """vector_add: b must broadcast with a of shape (3, 4), got (2, 3, 5)""",
    )
    assert_expected_inline(
        messages(ops.affine, of(FLOAT, (4,), (4, 3), (3,)), of(FLOAT, (3, 1), (4,), (3,))),
        """\
affine: x must broadcast with a of shape (4,), got (4, 3)
affine: b must broadcast with a and x of shape (3, 4), got (3,)""",
    )


def test_devices():
    with torch._subclasses.FakeTensorMode():
        call = [torch.ones(3, 4), torch.ones(4, device="cuda")]
        assert_expected_inline(
            messages(ops.fused_op, call),
            """fused_op: bias must be on the device of input, cpu, got cuda:0""",
        )


def test_layer_norm():
    """Parameters may be wider than what they scale; any of them may be left out."""
    half = tensor(3, 4, dtype=HALF)
    assert_expected_inline(
        messages(
            ops.fused_layer_norm,
            [tensor(3, 4, dtype=torch.int64)],
            [tensor(3, 4, dtype=torch.complex64)],
            [tensor()],
            [tensor(3, 4), tensor(4, dtype=HALF)],
            [half, None, tensor(4, dtype=DOUBLE)],
            [tensor(3, 4), tensor(3)],
            [tensor(3, 4), None, tensor(3, 4)],
        ),
        """\
fused_layer_norm: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64
fused_layer_norm: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.complex64
fused_layer_norm: input must have at least 1 dimension, got shape ()
fused_layer_norm: weight must have the dtype of input, torch.float32, got torch.float16
fused_layer_norm: bias must have the dtype of input, torch.float16, or torch.float32, got torch.float64
fused_layer_norm: weight must have shape (4,), got (3,)
fused_layer_norm: bias must have shape (4,), got (3, 4)""",
    )
