"""Definitions that write to their arguments."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

Wide = Annotated[Tensor, torch.float32]


def ema_(average: Tensor, value: Tensor, decay: float = 0.9) -> None:
    average.lerp_(value, 1 - decay)


def sgd_step(
    param: Tensor,
    grad: Tensor,
    velocity: Tensor,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = False,
) -> None:
    """A step of stochastic gradient descent with momentum."""
    velocity.mul_(momentum).add_(grad)
    direction = grad + momentum * velocity if nesterov else velocity
    param -= lr * direction


def adamw_step(
    param: Tensor,
    grad: Tensor,
    first: Wide,
    second: Wide,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> None:
    """A step of AdamW, the first being 1."""
    with torch.no_grad():
        grad = grad.float()
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        size = lr / (1 - beta1**step)
        root = (second / (1 - beta2**step)).sqrt().add_(eps)
        param.copy_(param * (1 - lr * weight_decay) - size * first / root)


def accumulate_(total: Wide, x: Tensor, kept: torch.BoolTensor, y: Tensor | None = None) -> None:
    x = x.float() if y is None else x.float() * y
    total += torch.where(kept, x, 0)


def clamp_and_clear_(x: Tensor, y: Tensor) -> None:
    x.clamp_(-1, 1).mul_(y)
    y.zero_()


def silu_(x: Tensor) -> None:
    x.copy_(F.silu(x))


def decayed_step_(
    param: Tensor, grad: Tensor, momentum: Wide, rate: float, decay: float = 0.25, damp: float = 0.0
) -> None:
    if decay != 0:
        grad = grad + decay * param
    momentum.mul_(0.9).add_(grad, alpha=1 - damp)
    if damp > 0:
        param -= rate * (grad + damp * momentum)
    else:
        param -= rate * momentum
