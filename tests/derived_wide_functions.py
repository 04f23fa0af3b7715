"""Definitions some of whose tensors or results are float32 beside half types."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

Wide = Annotated[Tensor, torch.float32]

# ----- elementwise


def moving_average(x: Tensor, state: Wide, decay: float = 0.9) -> Tensor:
    return decay * state + (1 - decay) * x


def tanh_in_float32(x: Tensor) -> Tensor:
    return torch.tanh(x.float())


def layer_scale(x: Tensor, residual: Tensor, gamma: Wide) -> Tensor:
    return (residual + x * gamma).to(x.dtype)


def moments(
    gradient: Tensor, first: Wide, second: Wide, beta1: float = 0.9, beta2: float = 0.999
) -> tuple[Tensor, Tensor, Tensor]:
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * gradient.float().square()
    return first, second, (first / (second.sqrt() + 1e-3)).to(gradient.dtype)


def kept_in_float32(x: Tensor, kept: Wide, mask: torch.BoolTensor) -> tuple[Tensor, Tensor]:
    return torch.where(mask, x.float(), kept), x > kept


def optional_shift(
    x: Tensor, shift: Annotated[Tensor | None, torch.float32] = None, negate: bool = False
) -> Tensor:
    y = x.float()
    if shift is not None:
        y = y + shift
    return (-y if negate else y).to(x.dtype)


# ----- of rows


def mean_square(x: Tensor) -> Annotated[Tensor, torch.float32]:
    return x.float().square().mean(-1)


def norm_of_float32_weight(x: Tensor, weight: Wide, eps: float = 1e-6) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def layer_norm_in_float32(x: Tensor, weight: Wide, bias: Wide, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:], weight, bias, eps).type_as(x)


def softmax_left_in_float32(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1, dtype=torch.float32)


def loss_in_float32(logits: Tensor, target: Tensor) -> Tensor:
    return -(F.log_softmax(logits.float(), -1) * target).sum(-1)


def residual_in_float32(x: Tensor, residual: Wide, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = residual + x
    rstd = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
    return (total * rstd * weight).to(x.dtype), total


def norm_and_total(x: Tensor, residual: Wide, eps: float = 0.1) -> tuple[Tensor, Tensor]:
    total = x + residual
    mean = total.mean(-1, keepdim=True)
    variance = (total - mean).square().mean(-1, keepdim=True)
    return (total - mean) * torch.rsqrt(variance + eps), total


def norms_of_wide(x: Tensor, state: Wide) -> tuple[Tensor, Tensor]:
    normed = F.layer_norm(state, state.shape[-1:], eps=0.1)
    return normed + 2 * x, normed * 3


def tempered(
    x: Tensor,
    temperature: Annotated[Tensor, torch.float32, "*rows 1"],
    scale: Annotated[Tensor, torch.float32, "1"],
) -> Tensor:
    return (torch.softmax(x * temperature, -1) * scale).to(x.dtype)


def masked_mean_in_float32(x: Tensor, other: Wide, mask: torch.BoolTensor) -> Tensor:
    return torch.where(mask, x * other, 0).sum(-1) / mask.sum(-1)


def state_first(state: Wide, x: Tensor, rate: float = 0.1) -> Tensor:
    return state + rate * (x - state)
