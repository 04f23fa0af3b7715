"""Definitions that reduce over everything."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

Wide = Annotated[Tensor, torch.float32]


def mean_charbonnier(x: Tensor, target: Tensor, eps: float = 1e-3) -> Tensor:
    """A smooth absolute difference, its mean."""
    return torch.sqrt((x - target) ** 2 + eps * eps).mean()


def rmse(x: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(x, target).sqrt()


def dice_loss(logits: Tensor, target: Tensor, smooth: float = 1.0) -> Tensor:
    p = torch.sigmoid(logits).flatten()
    t = target.flatten()
    overlap = (p * t).sum()
    return 1 - (2 * overlap + smooth) / (p.sum() + t.sum() + smooth)


def focal_loss(x: Tensor, target: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    p = torch.sigmoid(x)
    entropy = F.binary_cross_entropy_with_logits(x, target, reduction="none")
    missed = p + target - 2 * p * target
    weight = alpha * target + (1 - alpha) * (1 - target)
    return (weight * entropy * missed**gamma).mean()


def masked_mse(x: Tensor, target: Tensor, mask: torch.BoolTensor) -> Tensor:
    return (F.mse_loss(x, target, reduction="none") * mask).sum() / mask.sum()


def loss_and_error(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return F.smooth_l1_loss(x, target, reduction="sum"), F.l1_loss(x.detach(), target)


def mse_in_float32(x: Tensor, target: Tensor) -> Tensor:
    """A mean that half types do not round."""
    return F.mse_loss(x.float(), target.float())


def standardized(x: Tensor, eps: float = 1e-6) -> Tensor:
    var, mean = torch.var_mean(x)
    return (x - mean) * torch.rsqrt(var + eps)


def clipped(grad: Tensor, most: float = 1.0) -> tuple[Tensor, Tensor]:
    norm = torch.linalg.vector_norm(grad)
    return grad * (most / (norm + 1e-6)).clamp(max=1.0), norm


def squares_or_not(x: Tensor, target: Tensor, squared: bool = True) -> Tensor:
    d = x - target
    return d.square().sum() / d.numel() if squared else d.abs().mean()


def mean_of_all(x: Tensor) -> Tensor:
    return x.mean()


def sum_of_all(x: Tensor) -> Tensor:
    return x.sum()


def weighted_mean(x: Tensor, weight: Wide) -> Tensor:
    return ((x * weight).sum() / weight.sum()).to(x.dtype)


def loss_of_codes(x: Tensor, label: Annotated[Tensor, torch.int8], wanted: int = 3) -> Tensor:
    """The mean where a label is the one, and how many there are."""
    is_it = label == wanted
    return torch.where(is_it, x.square(), 0).sum() / (is_it.sum() + 1)


def above_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    above = x > x.mean()
    return torch.where(above, x, 0.0), above


def straight_scale(x: Tensor, y: Tensor) -> Tensor:
    return x * (y / y.square().mean().sqrt().detach())


def shadowed(
    double: Tensor, numel: Tensor, sums: float = 1.0, x_first: int = 2, inputs: float = 0.5
) -> Tensor:
    """Arguments that are called as what is generated."""
    numbers = double.mean()
    return ((double - numbers) * numel * sums + inputs).mean() * x_first


def limited(x: Tensor, most: float) -> Tensor:
    """A choice by what there is one of."""
    norm = x.norm()
    return torch.where(norm > most, x * (most / norm), x)


def sum_and_squares(x: Tensor, y: Tensor) -> Tensor:
    """One gradient is a number, the other is not."""
    return x.sum() + y.square().sum()


def moved_by_mean(x: Tensor, y: Tensor) -> Tensor:
    """A gradient that is a sum, one number for all elements."""
    return x + y.mean()


def masks_alone(x: Tensor, mask: torch.BoolTensor) -> tuple[Tensor, Tensor]:
    """A pass that reads nothing of the operator's dtype, and a sum that is a result."""
    others = (~mask).sum().to(x.dtype)
    count = mask.sum().to(x.dtype)
    return x / (others + 1), count


def where_positive(x: Tensor, mask: torch.BoolTensor) -> tuple[Tensor, Tensor]:
    """Elements of bools alone, and a number."""
    new = x.sum()
    return mask & (new > 0), new


def weighted_or_not(x: Tensor, target: Tensor, weight: Tensor, weighted: bool = False) -> Tensor:
    """Without a switch one has no gradient."""
    loss = (x - target).square()
    if weighted:
        loss = loss * weight
    return loss.mean()
