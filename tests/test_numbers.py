"""A tensor given for a number: its derivative would be lost, and never in silence."""

import functools
import re
import sys

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from scratch import ROOT
from torch import nn

from extension_cpp import ops
from extension_cpp.nn import FusedLayerNorm, FusedOp

sys.path.insert(0, str(ROOT / "templates"))

import instantiate
import schema

x, row = torch.rand(3, 4), torch.ones(4)
NUMBERS = [
    ("fused_op", "scale", lambda s: ops.fused_op(x, row, s)),
    ("mymuladd", "c", lambda s: ops.mymuladd(x, x, s)),
    ("add_rms_norm", "eps", lambda s: ops.add_rms_norm(x, x, row, s)[0]),
    ("add_layer_norm", "eps", lambda s: ops.add_layer_norm(x, x, row, row, s)[0]),
    ("fused_layer_norm", "eps", lambda s: ops.fused_layer_norm(x, row, row, s)),
]
on_each_number = pytest.mark.parametrize(("op", "name", "function"), NUMBERS)


def forward_mode(function, tensor):
    with fwAD.dual_level():
        function(fwAD.make_dual(tensor, tensor))


ASK = {
    "a parameter": lambda function, s: function(nn.Parameter(s)),
    "a parameter, without autograd": lambda function, s: torch.no_grad()(function)(nn.Parameter(s)),
    "a dual tensor": forward_mode,
    "torch.func.grad": lambda function, s: torch.func.grad(lambda t: function(t).sum())(s),
    "torch.func.jvp": lambda function, s: torch.func.jvp(function, (s,), (s,)),
    "torch.vmap": lambda function, s: torch.vmap(function)(s.expand(2)),
}


@on_each_number
@pytest.mark.parametrize("ask", ASK)
def test_a_derivative_or_a_batch_is_not_dropped(op, name, function, ask):
    message = f"{op}: {name} must be a number, which is not differentiable, got a tensor"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}.* give {name}.item()"):
        ASK[ask](function, torch.tensor(2.0))


@on_each_number
def test_numbers_of_every_kind_are_taken(op, name, function):
    expected = function(2.0)
    numpy = pytest.importorskip("numpy")
    for number in (2, True + 1, numpy.float32(2), numpy.int64(2), torch.tensor(2.0)):
        assert torch.equal(function(number), expected)


@on_each_number
def test_the_check_compiles(op, name, function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    for number in (0.5, 0.75, 3):
        torch.testing.assert_close(compiled(number), function(number))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (functools.partial(FusedOp, 3), "scale"),
        (functools.partial(FusedLayerNorm, 3), "eps"),
    ],
)
@pytest.mark.parametrize("tensor", [torch.tensor(2.0), nn.Parameter(torch.tensor(2.0))])
def test_modules_take_no_tensor_for_a_constant(module, name, tensor):
    message = rf"^{module.func.__name__}: {name} must be a number, which is not differentiable, got"
    with pytest.raises(TypeError, match=message):
        module(**{name: tensor})


@pytest.mark.parametrize("kind", instantiate.KINDS)
def test_operators_from_templates_check_their_numbers(kind):
    writes = instantiate.KINDS[kind].schema.mutates
    several = instantiate.KINDS[kind].schema.outputs > 1
    returns = "()" if writes else "(Tensor, Tensor)" if several else "Tensor"
    x = "Tensor(a!) x" if writes else "Tensor x"
    parsed = schema.parse(
        f"f({x}, Tensor? w, float a, int[] b, SymInt c, *, float? d=None, bool e=True) -> {returns}"
    )
    files = instantiate.instantiate(kind, parsed, instantiate.Options())
    (source,) = (text for path, text in files.items() if path.endswith("ops.py"))
    assert re.findall(r"check_number\((.*)\)", source) == [f'"f", "{n}", {n}' for n in "acd"]
