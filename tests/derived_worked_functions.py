"""Definitions of worked operators, of which the tests derive operators to compare with them."""

import torch
import torch.nn.functional as F
from torch import Tensor


def square_derived(input: Tensor) -> Tensor:
    return input * input


def relu_derived(input: Tensor) -> Tensor:
    return torch.relu(input)


def fused_op_derived(input: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    return torch.relu(input * scale + bias)


def mymuladd_derived(a: Tensor, b: Tensor, c: float) -> Tensor:
    return a * b + c


def affine_derived(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    return a * x + b


def swiglu_derived(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def fused_layer_norm_derived(
    input: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5
) -> Tensor:
    mean = input.mean(-1, keepdim=True)
    centered = input - mean
    variance = (centered * centered).mean(-1, keepdim=True)
    return centered * torch.rsqrt(variance + eps) * weight + bias
