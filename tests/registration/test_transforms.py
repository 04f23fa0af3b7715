"""Derivatives of small operators under every transform, compiled too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from _pytest.mark import ParameterSet
from small_operators import FUNCTIONS, NOT_TRACED_BY_DYNAMO, TRANSFORMS, gate_reference, inputs, ops
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import (
    functional_call,
    grad,
    vmap,
)

# Not spread_referenced: Dynamo stumbles over its reference itself, below two levels of jacfwd.
COMPILED = ["gate", "standardize", "spread", "referenced", "standardize_referenced"]
# A formula and a reference go through all transforms; the others through one of each kind, and
# through the rest in `make test-all`.
EVERY_TRANSFORM = ["gate", "referenced"]
ONE_OF_EACH_KIND = ["grad", "jvp", "hessian", "jacfwd of jacfwd", "per-sample gradients"]


def compiled_cases() -> Iterator[ParameterSet]:
    for function in COMPILED:
        for transform in TRANSFORMS:
            if transform not in NOT_TRACED_BY_DYNAMO:
                few = function in EVERY_TRANSFORM or transform in ONE_OF_EACH_KIND
                marks = () if few else pytest.mark.slow
                yield pytest.param(function, transform, marks=marks)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_transform(function: str, transform: str) -> None:
    actual, reference = FUNCTIONS[function]
    x, w, t = inputs((2, 3), (3,), (2, 3))
    apply = TRANSFORMS[transform]
    torch.testing.assert_close(apply(actual, x, w, t), apply(reference, x, w, t))


@pytest.mark.parametrize(("function", "transform"), [*compiled_cases()])
def test_compiled_transform(function: str, transform: str) -> None:
    actual, reference = FUNCTIONS[function]
    x, w, t = inputs((2, 3), (3,), (2, 3))
    apply = TRANSFORMS[transform]
    compiled = torch.compile(
        lambda x, w, t: apply(lambda x, w: actual(x, w), x, w, t),
        backend="aot_eager",
        fullgraph=True,
    )
    expected = apply(reference, x, w, t)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w, t), expected)


@pytest.mark.parametrize("transform", ["jvp", "forward AD", "grad", "jacrev"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_backend(backend: str, transform: str) -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    apply = TRANSFORMS[transform]
    compiled = torch.compile(
        lambda x, w, t: apply(lambda x, w: ops.gate(x, w), x, w, t), backend=backend, fullgraph=True
    )
    expected = apply(gate_reference, x, w, t)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w, t), expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_compiled_backward(function: str) -> None:
    actual, reference = FUNCTIONS[function]
    compiled = torch.compile(lambda x, w: actual(x, w), backend="aot_eager", fullgraph=True)
    arguments = inputs((2, 3), (3,), requires_grad=True)
    (t,) = inputs((2, 3))
    gradients = torch.autograd.grad((compiled(*arguments) * t).sum(), arguments)
    expected = torch.autograd.grad((reference(*arguments) * t).sum(), arguments)
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck(function: str) -> None:
    actual, _ = FUNCTIONS[function]
    arguments = inputs((2, 3), (3,), requires_grad=True)
    gradcheck(
        actual,
        arguments,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )
    gradgradcheck(
        actual,
        arguments,
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_batched_grad=True,
        check_undefined_grad=True,
    )


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, dtype=torch.float64)
        self.weight = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.op: Callable[..., Tensor] = ops.gate

    def forward(self, x: Tensor) -> Tensor:
        return self.op(self.linear(x), self.weight, 0.5)


def test_per_sample_gradients_of_a_module() -> None:
    module = Gated()
    parameters = dict(module.named_parameters())
    (x,) = inputs((5, 3))

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, parameters, (x,)).sin().sum()

    actual = vmap(grad(loss), (None, 0))(parameters, x)
    module.op = gate_reference
    torch.testing.assert_close(actual, vmap(grad(loss), (None, 0))(parameters, x))
