"""Batching rules: an example of a batch is checked as it would be alone, also of an empty batch."""

import re
from types import SimpleNamespace

import pytest
import torch

from extension_cpp import ops
from extension_cpp.batching import by_example

f32, i32, f64 = torch.float32, torch.int32, torch.float64
operators = torch.ops.extension_cpp

# Shapes and dtypes of an example that is wrong for the operator.
WRONG = [
    (ops.relu, [((3,), i32)]),
    (ops.square, [((3,), i32)]),
    (operators.relu_backward, [((3,), f32), ((2,), f32)]),
    (operators.relu_backward, [((3,), f32), ((3,), f64)]),
    (operators.square_backward, [((3,), f32), ((2,), f32)]),
    (ops.mymul, [((3,), f32), ((2,), f32)]),
    (ops.mymul, [((3,), i32), ((3,), f32)]),
    (lambda a, b: ops.mymuladd(a, b, 1.0), [((3,), f32), ((2,), f32)]),
    (ops.vector_add, [((2, 3), f32), ((2,), f32)]),
    (ops.vector_add, [((3,), f32), ((3,), f64)]),
    (ops.affine, [((4,), f32), ((4, 3), f32), ((3,), f32)]),
    (ops.affine, [((3,), f32), ((4, 3), f32), ((4,), f32)]),
    (operators.affine_backward, [((3, 4), f32), ((2, 2), f32), ((3, 4), f32)]),
    (operators.affine_backward, [((4,), f32), ((4,), f32), ((3, 4), f32)]),
    (ops.myadd_out, [((3,), f32), ((2,), f32), ((3,), f32)]),
    (ops.myadd_out, [((3,), f32), ((3,), f32), ((2,), f32)]),
    (ops.fused_op, [((3,), f32), ((2,), f32)]),
    (ops.fused_op, [((), f32), ((3,), f32)]),
    (operators.fused_op_backward, [((3,), f32), ((2,), f32)]),
    (ops.fused_layer_norm, [((3,), i32), ((3,), f32)]),
    (ops.fused_layer_norm, [((3,), f32), ((2,), f32)]),
    (ops.fused_layer_norm, [((), f32)]),
    (operators.fused_layer_norm_backward, [((3,), f32), ((2,), f32), ((), f32), ((), f32)]),
    (ops.add_rms_norm, [((3,), f32), ((3,), f32), ((2,), f32)]),
    (ops.add_layer_norm, [((3,), f32), ((3,), f32), ((2,), f32)]),
    (ops.add_layer_norm, [((3,), f32), ((2,), f32)]),
    (
        operators.add_rms_norm_backward,
        [((3,), f32), ((3,), f32), ((3,), f32), ((), f32), ((2,), f32)],
    ),
    (
        operators.add_layer_norm_backward,
        [((3,), f32), ((2,), f32), ((3,), f32), ((), f32), ((), f32)],
    ),
    (ops.reduce_sum, [((3,), i32)]),
    (lambda x: ops.reduce_sum(x, 1), [((3,), f32)]),
]


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize(("op", "example"), WRONG)
def test_an_example_is_refused_as_it_is_alone(op, example, batch):
    with pytest.raises(RuntimeError) as alone:
        op(*(torch.ones(shape, dtype=dtype) for shape, dtype in example))
    batches = [torch.ones((batch, *shape), dtype=dtype) for shape, dtype in example]
    with pytest.raises(RuntimeError, match=f"^{re.escape(str(alone.value))}$"):
        torch.vmap(op)(*batches)


def test_the_batch_may_be_any_dimension_of_any_argument():
    message = r"mymuladd: b must have shape \(2, 3\), got \(3, 2\)$"
    for batch in (0, 2):
        a, b = torch.ones(2, batch, 3), torch.ones(3, 2)
        with pytest.raises(RuntimeError, match=message):
            torch.vmap(lambda a, b: ops.mymuladd(a, b, 1.0), in_dims=(1, None))(a, b)


# What is right of an empty batch: an example's result and gradient, none of them.
RIGHT = [
    (ops.relu, [(3, 4)]),
    (ops.square, [(3, 4)]),
    (ops.mymul, [(3, 4), (3, 4)]),
    (lambda a, b: ops.mymuladd(a, b, 1.0), [(3, 4), (3, 4)]),
    (ops.vector_add, [(3, 1), (4,)]),
    (ops.affine, [(4,), (3, 4), (4,)]),
    (ops.fused_op, [(3, 4), (4,)]),
    (ops.fused_layer_norm, [(3, 4), (4,), (4,)]),
    (ops.reduce_sum, [(3, 4)]),
]


@pytest.mark.parametrize(("op", "shapes"), RIGHT)
def test_a_batch_may_be_empty(op, shapes):
    examples = [torch.ones(shape) for shape in shapes]
    batches = [torch.ones(0, *shape) for shape in shapes]
    assert torch.vmap(op)(*batches).shape == (0, *op(*examples).shape)
    grad = torch.func.grad(lambda *args: op(*args).sum(), tuple(range(len(shapes))))
    assert [g.shape for g in torch.vmap(grad)(*batches)] == [(0, *shape) for shape in shapes]


def test_what_is_written_to_may_be_an_empty_batch():
    out = torch.ones(0, 3)
    torch.vmap(lambda a, out: (ops.myadd_out(a, a, out), a)[1])(torch.ones(0, 3), out)
    assert out._version == 1


def test_by_example_where_no_rule_follows_from_the_shapes():
    """Where one does, the operator is called once."""
    weights = torch.randn(3, 4)
    rule = by_example("extension_cpp::fused_layer_norm")
    info = SimpleNamespace(batch_size=3)
    for batched in (torch.randn(2, 4), torch.randn(2, 3, 4)):
        dims = (None if batched.dim() == 2 else 1, 0, None, None)
        (output, *_), out_dims = rule(info, dims, batched, weights, None, 1e-5)
        expected = torch.vmap(ops.fused_layer_norm, dims[:2])(batched, weights)
        torch.testing.assert_close(output.movedim(out_dims[0], 0), expected)
    (output, *_), out_dims = rule(info, (1, None, None, None), batched, None, None, 1e-5)
    assert (output.shape, out_dims[0]) == ((2, 3, 4), 1)


@pytest.mark.parametrize("op", [operators.square, operators.square_backward])
def test_one_call_registers_several_operators(op):
    """As in square/ops.py. Without a rule vmap loops, to the same results."""
    kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert kernel(op._qualified_op_name, "FuncTorchBatched")
