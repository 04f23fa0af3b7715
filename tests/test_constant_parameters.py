"""Norms whose parameters have no gradient: frozen, or none at all."""

import math

import pytest
import torch
import torch.nn.functional as F
from called import Called
from torch import Tensor

from extension_cpp import ops
from extension_cpp.testing import devices


def layer_norm(sum, weight, bias):
    return F.layer_norm(sum, sum.shape[-1:], weight, bias, 0.1)


def rms_norm(sum, weight):
    return F.rms_norm(sum, sum.shape[-1:], weight, 0.1)


# A public function, of how many inputs and parameters, and what it does to their sum.
NORMS = {
    "fused_layer_norm": (1, 2, layer_norm),
    "add_layer_norm": (2, 2, layer_norm),
    "add_rms_norm": (2, 1, rms_norm),
}

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", NORMS)
# Of inputs and, if there are any, parameters.
@pytest.mark.parametrize(
    ("dtype", "of_parameters"),
    [
        *zip(DTYPES, DTYPES, strict=True),
        (torch.bfloat16, torch.float32),
        (torch.float32, None),
        (torch.bfloat16, None),
    ],
)
# On a GPU: of a warp's part, a warp's, a block's, ragged, and too long for the registers of one.
@pytest.mark.parametrize(
    "shape", [(7, 1), (40, 33), (700, 256), (3, 8, 1024), (9, 4095), (5, 16384), (3, 40001)]
)
@pytest.mark.parametrize("aligned", [True, False])
def test_the_gradient_of_inputs_is_computed_without_those_of_parameters(
    device, name, dtype, of_parameters, shape, aligned
):
    inputs, parameters, reference = NORMS[name]
    torch.manual_seed(0)

    def placed() -> Tensor:
        memory = torch.randn(1 + math.prod(shape)).to(device, dtype)
        return (memory[:-1] if aligned else memory[1:]).view(shape)

    given, grads = ([placed() for _ in range(inputs)] for _ in range(2))
    constants = [
        None if of_parameters is None else torch.randn(shape[-1]).to(device, of_parameters)
        for _ in range(parameters)
    ]
    given = [input.requires_grad_() for input in given]
    results = getattr(ops, name)(*given, *constants, eps=0.1)
    results = results if isinstance(results, tuple) else (results,)
    with Called() as called:
        gradients = torch.autograd.grad(results, given, grads)
    assert called.names == [f"extension_cpp::{name}_input_backward"]

    exact = [input.detach().double().requires_grad_() for input in given]
    sum = exact[0] + exact[1] if inputs == 2 else exact[0]
    wide = [None if constant is None else constant.double() for constant in constants]
    expected = (reference(sum, *wide), sum)[: len(results)]
    right = torch.autograd.grad(expected, exact, [grad.double() for grad in grads])
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5}.get(dtype, 4e-2)
    for actual, wanted in zip(gradients, right, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=2 * tolerance)


def test_what_is_needed_of_parameters_is_computed():
    input = torch.randn(5, 8, requires_grad=True)
    weight, bias = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    grad = torch.randn(5, 8)
    every = torch.autograd.grad(ops.fused_layer_norm(input, weight, bias), [weight, bias], grad)
    for given, expected in (
        ((weight, bias.detach()), every[0]),
        ((weight.detach(), bias), every[1]),
    ):
        (wanted,) = (p for p in given if p.requires_grad)
        (gradient,) = torch.autograd.grad(ops.fused_layer_norm(input, *given), wanted, grad)
        assert torch.equal(gradient, expected)
