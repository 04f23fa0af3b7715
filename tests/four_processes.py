"""What test_distributed.py asks of four processes: each function is one test, run by all of them.

A mesh of two by two; where one dimension is enough, each pair has its own, of two.
"""

import contextlib
import copy
import json
import sys
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import extension_cpp
from extension_cpp import ops, registration
from extension_cpp.battery.calls import op_cases
from extension_cpp.battery.choices import main_shape
from extension_cpp.nn import AddRMSNorm, FusedLayerNorm, FusedOp
from extension_cpp.registration.sharding import rule_of
from extension_cpp.registration.signature import Signature
from extension_cpp.sharding import SUM, placements_passed
from extension_cpp.testing import find_specs

WORLD = 4


def placement(said):
    return {None: Replicate(), SUM: Partial()}.get(said) or Shard(said)


def divided(tensor, mesh, *placements):
    """A leaf with these values; of a sum each device has a share."""
    tensor = tensor.detach()
    for dim, each in enumerate(placements):
        if each.is_partial():
            tensor = tensor / mesh.size(dim)
    whole = [Replicate() if each.is_partial() else each for each in placements]
    found = distribute_tensor(tensor, mesh, whole)
    return DTensor.from_local(
        found.to_local(), mesh, placements, shape=tensor.shape, stride=tensor.stride()
    )


def same(actual, expected):
    torch.testing.assert_close(actual.full_tensor(), expected.detach())


def test_without_the_import_a_call_raises(mesh):
    x = divided(torch.randn(4, 8), mesh["two"], Shard(0))
    with pytest.raises(NotImplementedError, match="does not have a sharding strategy"):
        ops.relu(x)
    import extension_cpp.distributed  # noqa: F401

    same(ops.relu(x), ops.relu(x.full_tensor()))


def test_every_operator_as_its_rule_says(mesh):
    """Nothing is sent: results have the placements of the rule; and gradients are right."""
    calls = 0
    for spec in find_specs():
        for case in op_cases(spec, "cpu", torch.float64, main_shape(spec)):
            rule = rule_of(case.op.name(), spec.lines)
            signature = Signature(case.op)
            args, kwargs = signature.fill_defaults(case.sample.args, case.sample.kwargs)
            values = signature.tensor_values(args, kwargs)
            for outputs, inputs in rule(*args, **kwargs):
                passed = placements_passed(inputs, values)
                placed = zip(case.tensors, passed, strict=True)
                if all(not isinstance(said, int) or t.shape[said] > 1 for t, said in placed):
                    calls += 1
                    compare(case, mesh["two"], passed, outputs)
    assert calls > 100


def compare(case, mesh, passed, outputs):
    differentiates = case.op is case.spec.op and case.spec.differentiable
    plain = [t if differentiates else t.detach() for t in case.copies()]
    pieces = [
        divided(t, mesh, placement(said)).requires_grad_(t.requires_grad)
        for t, said in zip(plain, passed, strict=True)
    ]
    expected = case(*plain, in_place=True)
    found = case(*pieces, in_place=True)
    written = [said for said, it_is in zip(passed, case.written, strict=True) if it_is]
    for result, whole, said in zip(found, expected, (*outputs, *written), strict=True):
        assert result.placements == (placement(said),), (str(case), passed)
        same(result, whole)
    if not differentiates:
        return
    wanted = [i for i, t in enumerate(plain) if t.requires_grad]
    ends = [i for i, whole in enumerate(expected) if whole.requires_grad]
    gradients = torch.autograd.grad(
        sum(expected[i].square().sum() for i in ends), [plain[i] for i in wanted]
    )
    grads = torch.autograd.grad(
        sum(found[i].square().sum() for i in ends), [pieces[i] for i in wanted]
    )
    for grad, whole in zip(grads, gradients, strict=True):
        same(grad, whole)


def test_along_two_dimensions_of_a_mesh(mesh):
    x, weight, bias = torch.randn(6, 5, 8), torch.randn(8), torch.randn(8)
    whole = [divided(t, mesh, Replicate(), Replicate()) for t in (weight, bias)]
    y = ops.fused_layer_norm(divided(x, mesh, Shard(0), Shard(1)), *whole)
    assert y.placements == (Shard(0), Shard(1))
    same(y, ops.fused_layer_norm(x, weight, bias))
    y = ops.fused_op(
        divided(x, mesh, Shard(0), Shard(2)), divided(bias, mesh, Replicate(), Shard(0))
    )
    assert y.placements == (Shard(0), Shard(2))
    same(y, ops.fused_op(x, bias))
    total = ops.reduce_sum(divided(x, mesh, Shard(0), Shard(1)), [0, 2])
    assert total.placements == (Partial(), Shard(0))
    same(total, x.sum((0, 2)))


def test_other_placements_are_redistributed(mesh):
    pair = mesh["two"]
    x, weight = torch.randn(6, 8), torch.randn(8)
    for of_x in (Shard(1), Partial()):
        for of_weight in (Shard(0), Partial(), Replicate()):
            y = ops.fused_layer_norm(divided(x, pair, of_x), divided(weight, pair, of_weight))
            same(y, ops.fused_layer_norm(x, weight))
        same(ops.relu(divided(x, pair, of_x)), ops.relu(x))


def test_uneven_pieces_and_none(mesh):
    pair = mesh["two"]
    weight = torch.randn(8)
    for rows in (0, 1, 5):
        x = torch.randn(rows, 8)
        pieces = divided(x, pair, Shard(0)).requires_grad_()
        of_weight = divided(weight, pair, Replicate()).requires_grad_()
        y = ops.fused_layer_norm(pieces, of_weight)
        assert y.placements == (Shard(0),)
        same(y, ops.fused_layer_norm(x, weight))
        y.square().sum().backward()
        plain = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        ops.fused_layer_norm(*plain).square().sum().backward()
        same(pieces.grad, plain[0].grad)
        same(of_weight.grad, plain[1].grad)
        out = divided(torch.zeros(rows, 8), pair, Shard(0))
        ops.myadd_out(pieces.detach(), pieces.detach(), out)
        same(out, x + x)


def test_floats_are_part_of_what_a_function_decides(mesh):
    with torch.library._scoped_library("four_processes", "DEF") as library:
        library.define("softmax(Tensor a, float dim) -> Tensor")
        for key in ("CPU", "Meta"):
            library.impl("softmax", lambda a, dim: a.softmax(int(dim)), key)
        registration.register_sharding(
            "four_processes::softmax", lambda a, dim: [([1 - int(dim)], [1 - int(dim)])]
        )
        extension_cpp.distributed.apply_rules()
        x = torch.randn(4, 8)
        pieces = divided(x, mesh["two"], Shard(1))
        for dim in (0, 1):
            same(torch.ops.four_processes.softmax(pieces, float(dim)), x.softmax(dim))


def test_second_derivatives(mesh):
    logits, target = torch.randn(4, 8), torch.tensor([1, 3, -100, 0])

    def second(logits, target):
        logits.requires_grad_()
        loss = ops.softmax_cross_entropy(logits, target)
        (grad,) = torch.autograd.grad(loss.square().sum(), logits, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), logits)[0]

    pieces = [divided(t, mesh["two"], Shard(0)) for t in (logits, target)]
    same(second(*pieces), second(logits, target))


def test_a_derivative_that_is_refused_says_so(mesh):
    x = divided(torch.randn(4, 8), mesh["two"], Shard(0)).requires_grad_()
    out = divided(torch.zeros(4, 8), mesh["two"], Shard(0))
    ops.myadd_out(x, x, out)
    with pytest.raises(RuntimeError, match="myadd_out: a derivative was asked for"):
        out.sum().backward()


def test_numbers_are_part_of_the_decision(mesh):
    """What was decided for one dimension is not taken for another."""
    x = torch.randn(4, 6, 8)
    pieces = divided(x, mesh["two"], Shard(1))
    for dim in (0, 1, 2):
        for keepdim in (False, True):
            same(ops.reduce_sum(pieces, dim, keepdim), x.sum(dim, keepdim))
        same(ops.linear_scan(pieces, pieces, None, dim), ops.linear_scan(x, x, None, dim))


def test_what_is_written_to_stays_where_it_lies(mesh):
    pair = mesh["two"]
    a, b = torch.randn(4, 8), torch.randn(4, 8)
    for of_out in (Shard(0), Shard(1), Replicate()):
        out = divided(torch.zeros(4, 8), pair, of_out)
        memory = out.to_local().data_ptr()
        ops.myadd_out(divided(a, pair, Shard(0)), divided(b, pair, Partial()), out)
        assert out.to_local().data_ptr() == memory
        assert out.placements == (of_out,)
        same(out, a + b)
    out = divided(torch.zeros(4, 8), pair, Partial())
    pieces = divided(a, pair, Shard(0))
    with pytest.raises(RuntimeError, match="what is written to stays where it lies"):
        ops.myadd_out(pieces, pieces, out)


def test_messages_are_those_of_other_tensors(mesh):
    x = divided(torch.randn(4, 8), mesh["two"], Shard(0))
    bias = divided(torch.randn(7), mesh["two"], Replicate())
    with pytest.raises(RuntimeError, match=r"fused_op: bias must have shape \(8,\), got \(7,\)"):
        ops.fused_op(x, bias)


def test_compiled(mesh):
    pair = mesh["two"]
    x, weight, bias = torch.randn(6, 8), torch.randn(8), torch.randn(8)

    def loss(x, weight, bias):
        return ops.fused_op(ops.fused_layer_norm(x, weight), bias, 2.0).square().sum()

    plain = [t.clone().requires_grad_() for t in (x, weight, bias)]
    pieces = [divided(x, pair, Shard(0))] + [divided(t, pair, Replicate()) for t in (weight, bias)]
    pieces = [t.requires_grad_() for t in pieces]
    expected, found = (
        loss(*plain),
        torch.compile(loss, backend="aot_eager", fullgraph=True)(*pieces),
    )
    same(found, expected)
    for grad, whole in zip(
        torch.autograd.grad(found, pieces), torch.autograd.grad(expected, plain), strict=True
    ):
        same(grad, whole)


class Block(nn.Module):
    """Norm, a layer with its activation, a gated one, as a transformer has them."""

    def __init__(self):
        super().__init__()
        self.norm = FusedLayerNorm(16)
        self.up = nn.Linear(16, 32, bias=False)
        self.activation = FusedOp(32)
        self.gate = nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        x = self.norm(x)
        return self.down(ops.swiglu(self.gate(x), self.activation(self.up(x))))


def test_layers_in_tensor_and_sequence_parallel(mesh):
    """As parallelize_module divides PyTorch's own; a bias goes with the columns of its layer."""
    pair = mesh["two"]
    plain = Block()
    nn.init.normal_(plain.activation.bias)
    block = copy.deepcopy(plain)

    def divide_bias(name, module, mesh):
        bias = nn.Parameter(distribute_tensor(module.bias, mesh, [Shard(0)]))
        module.register_parameter("bias", bias)

    distribute_module(block.activation, pair, divide_bias)
    columns = ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
    parallelize_module(
        block,
        pair,
        {
            "norm": SequenceParallel(use_local_output=False),
            "up": columns,
            "gate": columns,
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        },
    )
    x = torch.randn(3, 10, 16)
    expected, found = plain(x), block(divided(x, pair, Shard(1)))
    assert found.placements == (Shard(1),)
    same(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    for parameter, other in zip(block.parameters(), plain.parameters(), strict=True):
        same(parameter.grad, other.grad)


def test_a_norm_of_a_sum_whose_parameters_are_distributed(mesh):
    """What SequenceParallel, which hands over one tensor, cannot do."""
    pair = mesh["two"]
    plain = AddRMSNorm(16)
    nn.init.normal_(plain.weight)
    norm = distribute_module(copy.deepcopy(plain), pair)
    x, residual = torch.randn(3, 10, 16), torch.randn(3, 10, 16)
    pieces = [divided(t, pair, Shard(1)) for t in (x, residual)]
    for found, expected in zip(norm(*pieces), plain(x, residual), strict=True):
        assert found.placements == (Shard(1),)
        same(found, expected)


# The first as long as the module is not imported.
TESTS = [name for name in globals() if name.startswith("test_")]


def run(rank, folder):
    """Runs all, and writes down what was raised."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pairs", "two"))
    found = {}
    for name in TESTS:
        torch.manual_seed(0)
        try:
            globals()[name](mesh)
        except BaseException:  # what pytest.raises has to say is no Exception
            found[name] = traceback.format_exc()
        # What others wait for after one has failed would not come.
        failed = [None] * WORLD
        with contextlib.suppress(RuntimeError):
            dist.all_gather_object(failed, name in found)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2])
