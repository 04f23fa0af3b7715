"""How the torch at hand shares a gradient out at ties and beside NaN: versions of it differ."""

from __future__ import annotations

import math
from functools import cache

import torch


@cache
@torch.enable_grad()
def _first_gradient(name: str, x: float, y: float) -> float:
    """The gradient that the first of two tensors gets of a function."""
    first, second = (torch.tensor(value, requires_grad=True) for value in (x, y))
    (gradient,) = torch.autograd.grad(getattr(torch, name)(first, second), first)
    return gradient.item()


def is_halved(name: str) -> bool:
    """Whether both arguments of fmax, fmin, clamp_min or clamp_max get half of the gradient where
    they are equal, as of torch 2.14; before, the first got all of it.
    """
    return _first_gradient(name, 1.0, 1.0) == 0.5


def reaches_nan(name: str) -> bool:
    """Whether fmax or fmin gives the gradient to a NaN that is not taken, too, as in torch 2.14."""
    return _first_gradient(name, math.nan, 1.0) == 1


@cache
@torch.enable_grad()
def passes_bounds() -> bool:
    """Whether clamp has a gradient at a bound that is a number, as before torch 2.14."""
    x = torch.ones((), requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.clamp(x, min=1.0), x)
    return gradient.item() == 1
