"""How the torch at hand shares a gradient out where values are equal: versions of it differ."""

from __future__ import annotations

from functools import cache

import torch


@cache
def is_halved(name: str) -> bool:
    """Whether both arguments of fmax, fmin, clamp_min or clamp_max get half of the gradient where
    they are equal, as of torch 2.14; before, the first got all of it.
    """
    first, second = (torch.ones((), requires_grad=True) for _ in range(2))
    (gradient,) = torch.autograd.grad(getattr(torch, name)(first, second), first)
    return gradient.item() == 0.5


@cache
def passes_bounds() -> bool:
    """Whether clamp has a gradient at a bound that is a number, as before torch 2.14."""
    x = torch.ones((), requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.clamp(x, min=1.0), x)
    return gradient.item() == 1
