"""The layer around swiglu, and one gradient alone.

What is checked of every operator is in test_operators.py.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from called import Called

from extension_cpp import ops
from extension_cpp.nn import SwiGLU
from extension_cpp.testing import devices


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_is_the_composition_of_its_parts(device: str, bias: bool):
    layer = SwiGLU(16, 40, bias, device=device, dtype=torch.float64)
    input = torch.randn(3, 5, 16, device=device, dtype=torch.float64, requires_grad=True)
    output = layer(input)
    expected = layer.down(F.silu(layer.gate(input)) * layer.up(input))
    torch.testing.assert_close(output, expected)
    inputs = [input, *layer.parameters()]
    cotangent = torch.randn_like(output)
    gradients = torch.autograd.grad(output, inputs, cotangent)
    for ours, theirs in zip(
        gradients, torch.autograd.grad(expected, inputs, cotangent), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_state_is_that_of_its_parts():
    layer = SwiGLU(16, 40)
    shapes = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    assert shapes == {"gate.weight": (40, 16), "up.weight": (40, 16), "down.weight": (16, 40)}


def test_the_layer_compiles_whole_and_trains():
    torch.manual_seed(0)
    layer = SwiGLU(8, 24)
    compiled = torch.compile(layer, fullgraph=True)
    input, target = torch.randn(64, 8), torch.randn(64, 8)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss = F.mse_loss(compiled(input), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(compiled(input), layer(input))
    assert losses[-1] < 0.7 * losses[0]


def test_of_a_constant_gate_one_gradient_is_computed():
    gate, grad_output = torch.randn(2, 5, 9).unbind()
    up = torch.randn(5, 9, requires_grad=True)
    output = ops.swiglu(gate, up)
    up.data.fill_(math.nan)  # it is not read again
    with Called() as called:
        (gradient,) = torch.autograd.grad(output, up, grad_output)
    assert called.names == ["extension_cpp::swiglu"]
    torch.testing.assert_close(gradient, F.silu(gate) * grad_output)
    row = torch.randn(9, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.swiglu(gate, row), row, grad_output)
    torch.testing.assert_close(gradient, (F.silu(gate) * grad_output).sum(0))
