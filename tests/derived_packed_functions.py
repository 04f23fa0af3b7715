"""Definitions of functions of tensors that hold several, of which the tests derive operators."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

Mask = Annotated[Tensor, torch.bool]
Codes = Annotated[Tensor, torch.float8_e4m3fn]

# ----- Gates


def packed_swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def packed_geglu(x: Tensor) -> Tensor:
    up, gate = torch.chunk(x, 2, -1)
    return up * F.gelu(gate, approximate="tanh")


def packed_reglu(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return F.relu(x[..., :half]) * x[..., half:]


def packed_glu(x: Tensor) -> Tensor:
    return F.glu(x, dim=-1)


def clamped_swiglu(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    gate, up = x.tensor_split(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def biased_gate(x: Tensor, mask: Mask, bias: Tensor | None = None, tanh: bool = False) -> Tensor:
    h = x if bias is None else x + bias
    gate, up = h.split(h.size(-1) // 2, dim=-1)
    gated = torch.tanh(gate) * up if tanh else torch.sigmoid(gate) * up
    return gated.masked_fill(~mask, 0)


def three_gates(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    forget, write, read = x.chunk(3, dim=-1)
    c = torch.sigmoid(forget) * c + torch.tanh(write)
    return torch.sigmoid(read) * torch.tanh(c), c


def gate_and_residual(x: Tensor, residual: Tensor, scale: Tensor) -> Tensor:
    gate, up = (x * scale).chunk(2, -1)
    return residual + F.mish(gate) * up


def gate_codes(x: Tensor, scale: float = 0.05) -> tuple[Tensor, Tensor]:
    gate, up = x.chunk(2, -1)
    gated = F.silu(gate) * up
    return gated, (gated / scale).round().clamp(-127, 127).to(torch.int8)


def of_packed_codes(codes: Codes, scale: Tensor) -> Tensor:
    gate, up = codes.to(scale.dtype).chunk(2, -1)
    return F.silu(gate * scale) * (up * scale)


def only_two_of_three(x: Tensor) -> Tensor:
    query, _, value = x.chunk(3, -1)
    return torch.exp(query) * value


def halves_of_halves(x: Tensor, y: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    c, d = a.chunk(2, -1)
    return torch.cat((c * d, c + d), -1) * b * y


# ----- Rotations


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin


def rotary_of_constants(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos.detach() + torch.cat((-x2, x1), dim=-1) * sin.detach()


def rotate_half(x: Tensor) -> Tensor:
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rotary_of_both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


def rotary_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.split([x.shape[-1] // 2, x.shape[-1] // 2], -1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)


# ----- Put together alone


def sum_and_difference(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.concat((x + y, x - y), dim=-1), x > y


def written_halves(x: Tensor, y: Tensor) -> Tensor:
    both = torch.cat([x.exp(), y], -1)
    both *= 2.0
    return both.clamp(max=3.0)
