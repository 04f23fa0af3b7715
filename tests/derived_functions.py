"""Definitions of elementwise functions, of which the tests derive operators."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

# ----- Of one tensor


def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


def exp2(x: Tensor) -> Tensor:
    return torch.exp2(x)


def expm1(x: Tensor) -> Tensor:
    return torch.expm1(x)


def log(x: Tensor) -> Tensor:
    return torch.log(x)


def log1p(x: Tensor) -> Tensor:
    return torch.log1p(x)


def log2(x: Tensor) -> Tensor:
    return torch.log2(x)


def log10(x: Tensor) -> Tensor:
    return torch.log10(x)


def sqrt(x: Tensor) -> Tensor:
    return torch.sqrt(x)


def rsqrt(x: Tensor) -> Tensor:
    return torch.rsqrt(x)


def reciprocal(x: Tensor) -> Tensor:
    return torch.reciprocal(x)


def sin(x: Tensor) -> Tensor:
    return torch.sin(x)


def cos(x: Tensor) -> Tensor:
    return torch.cos(x)


def tan(x: Tensor) -> Tensor:
    return torch.tan(x)


def asin(x: Tensor) -> Tensor:
    return torch.asin(x)


def acos(x: Tensor) -> Tensor:
    return torch.acos(x)


def atan(x: Tensor) -> Tensor:
    return torch.atan(x)


def sinh(x: Tensor) -> Tensor:
    return torch.sinh(x)


def cosh(x: Tensor) -> Tensor:
    return torch.cosh(x)


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


def asinh(x: Tensor) -> Tensor:
    return torch.asinh(x)


def acosh(x: Tensor) -> Tensor:
    return torch.acosh(x)


def atanh(x: Tensor) -> Tensor:
    return torch.atanh(x)


def erf(x: Tensor) -> Tensor:
    return torch.erf(x)


def erfc(x: Tensor) -> Tensor:
    return torch.erfc(x)


def sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def absolute(x: Tensor) -> Tensor:
    return torch.abs(x)


def sign(x: Tensor) -> Tensor:
    return torch.sign(x)


def rounded(x: Tensor) -> Tensor:
    return torch.round(x)


def frac(x: Tensor) -> Tensor:
    return torch.frac(x)


def squared(x: Tensor) -> Tensor:
    return torch.square(x)


def deg2rad(x: Tensor) -> Tensor:
    return torch.deg2rad(x)


def logit(x: Tensor) -> Tensor:
    return torch.logit(x)


def special_entr(x: Tensor) -> Tensor:
    return torch.special.entr(x)


def special_ndtr(x: Tensor) -> Tensor:
    return torch.special.ndtr(x)


# ----- Of one tensor and numbers


def power(x: Tensor, p: float) -> Tensor:
    return x**p


def integer_power(x: Tensor, p: int) -> Tensor:
    return x**p


def two_to_x(x: Tensor) -> Tensor:
    return 2**x


def second_power(x: Tensor) -> Tensor:
    return x**2


def third_inverse(x: Tensor) -> Tensor:
    return x**-3


def half_power(x: Tensor) -> Tensor:
    return x**0.5


def a_to_x(x: Tensor, a: float) -> Tensor:
    return a**x


def between(x: Tensor, lo: float, hi: float) -> Tensor:
    return x.clamp(lo, hi)


def at_least(x: Tensor, lo: float) -> Tensor:
    return x.clamp(min=lo)


def logit_eps(x: Tensor, eps: float = 0.01) -> Tensor:
    return torch.logit(x, eps)


def math_of_number(x: Tensor, a: float) -> Tensor:
    return x * math.sqrt(a) + math.exp(-a)


def counted(x: Tensor, k: int) -> Tensor:
    return x * k + k // 2


def where_number(x: Tensor, a: float) -> Tensor:
    return torch.where(x > 0, x, a)


def snake(x: Tensor, a: float) -> Tensor:
    return x + torch.sin(a * x) ** 2 / a


def softcap(x: Tensor, cap: float = 30.0) -> Tensor:
    """Limits `x` smoothly to (-cap, cap).

    Args:
        x: logits.
        cap: the bound.
    """
    return cap * torch.tanh(x / cap)


def gaussian_pdf(x: Tensor, mu: float, sigma: float) -> Tensor:
    return torch.exp(-0.5 * ((x - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def exp_or_sin(x: Tensor, f: bool) -> Tensor:
    return torch.exp(x) if f else torch.sin(x)


# ----- Activations


def rectified(x: Tensor) -> Tensor:
    return torch.relu(x)


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def softplus(x: Tensor) -> Tensor:
    return F.softplus(x)


def softplus_bt(x: Tensor, beta: float, threshold: float) -> Tensor:
    return F.softplus(x, beta, threshold)


def mish(x: Tensor) -> Tensor:
    return F.mish(x)


def elu(x: Tensor) -> Tensor:
    return F.elu(x)


def elu_a(x: Tensor, alpha: float) -> Tensor:
    return F.elu(x, alpha)


def selu(x: Tensor) -> Tensor:
    return F.selu(x)


def celu_a(x: Tensor, alpha: float) -> Tensor:
    return F.celu(x, alpha)


def celu_by_tenths(x: Tensor) -> Tensor:
    return F.celu(x, 0.3)


def chosen_by_numbers(x: Tensor, a: float, k: int, flag: bool) -> Tensor:
    both = (a > 0) & (k > 1) ^ flag
    return torch.sin(x) * both + x * (a < 3) + torch.where((k > 1) & (x > 0), x, 2 * x)


def hardswish(x: Tensor) -> Tensor:
    return F.hardswish(x)


def hardtanh(x: Tensor) -> Tensor:
    return F.hardtanh(x)


def hardtanh_between(x: Tensor, lo: float, hi: float) -> Tensor:
    return F.hardtanh(x, lo, hi)


def logsigmoid(x: Tensor) -> Tensor:
    return F.logsigmoid(x)


def softsign(x: Tensor) -> Tensor:
    return F.softsign(x)


def tanhshrink(x: Tensor) -> Tensor:
    return F.tanhshrink(x)


def relu6(x: Tensor) -> Tensor:
    return F.relu6(x)


def leaky_a(x: Tensor, slope: float) -> Tensor:
    return F.leaky_relu(x, slope)


def softshrink(x: Tensor) -> Tensor:
    return F.softshrink(x)


def hardshrink_l(x: Tensor, lambd: float) -> Tensor:
    return F.hardshrink(x, lambd)


def soft_threshold(x: Tensor, lambd: float = 0.5) -> Tensor:
    return torch.sign(x) * torch.relu(torch.abs(x) - lambd)


def threshold(x: Tensor, t: float, v: float) -> Tensor:
    return F.threshold(x, t, v)


def squared_relu(x: Tensor) -> Tensor:
    return torch.relu(x) ** 2


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


# ----- Gates, of tensors that broadcast


def gated_residual(x: Tensor, residual: Tensor, gate: Tensor) -> Tensor:
    return residual + torch.sigmoid(gate) * x


def reglu(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x) * y


def geglu(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x) * y


def swish_gate(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def glu2(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.sigmoid(y)


def swish_beta(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.sigmoid(y * x)


def lru_gate(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-8 * F.softplus(x) * torch.sigmoid(y)) * z


# ----- Of several tensors


def added(x: Tensor, y: Tensor) -> Tensor:
    return torch.add(x, y)


def apart(x: Tensor, y: Tensor) -> Tensor:
    return torch.sub(x, y)


def multiplied(x: Tensor, y: Tensor) -> Tensor:
    return torch.mul(x, y)


def ratio(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y)


def powers(x: Tensor, y: Tensor) -> Tensor:
    return x**y


def atan2(x: Tensor, y: Tensor) -> Tensor:
    return torch.atan2(x, y)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y)


def maximum(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x, y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(x, y)


def fmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.fmax(x, y)


def fmin(x: Tensor, y: Tensor) -> Tensor:
    return torch.fmin(x, y)


def copysign(x: Tensor, y: Tensor) -> Tensor:
    return torch.copysign(x, y)


def fmod(x: Tensor, y: Tensor) -> Tensor:
    return torch.fmod(x, y)


def remainder(x: Tensor, y: Tensor) -> Tensor:
    return torch.remainder(x, y)


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    return torch.logaddexp(x, y)


def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    return torch.logaddexp2(x, y)


def xlogy(x: Tensor, y: Tensor) -> Tensor:
    return torch.xlogy(x, y)


def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    return torch.special.xlog1py(x, y)


def add_alpha(x: Tensor, y: Tensor, a: float) -> Tensor:
    return torch.add(x, y, alpha=a)


def lerp_number(x: Tensor, y: Tensor, w: float) -> Tensor:
    return torch.lerp(x, y, w)


def lerp_tensor(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.lerp(x, y, z)


def addcmul(x: Tensor, y: Tensor, z: Tensor, v: float) -> Tensor:
    return torch.addcmul(x, y, z, value=v)


def addcdiv(x: Tensor, y: Tensor, z: Tensor, v: float) -> Tensor:
    return torch.addcdiv(x, y, z, value=v)


def between_tensors(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.clamp(x, y, z)


def adam_dir(m: Tensor, v: Tensor, eps: float) -> Tensor:
    return m / (v.abs().sqrt() + eps)


def two_norm(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(x * x + y * y)


def div_trunc(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


# ----- Choices


def select_by_a_number(x: Tensor, y: Tensor, a: float = 1.0) -> Tensor:
    return torch.where(torch.tensor(a) > 0, torch.tanh(x), y)


def select(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.where(x > 0, y, z)


def where_exp(x: Tensor) -> Tensor:
    return torch.where(x > 0, x * x, torch.exp(x))


def masked_fill(x: Tensor, y: Tensor) -> Tensor:
    return x.masked_fill(y > 0, 0.5)


def safe_sqrt(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.sqrt(x.clamp(min=0.1)), 0.0)


def logical(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x > 0) & ~(y > 0) | torch.isnan(x), x, y)


def mul_mask(x: Tensor, y: Tensor) -> Tensor:
    return x * (y > 0)


def isclose_eq(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x == y, x, -y)


def sum_ge(x: Tensor, y: Tensor) -> Tensor:
    return (x >= y).to(x.dtype) * x


# ----- Losses, of each element


def mse(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, y, reduction="none")


def l1(x: Tensor, y: Tensor) -> Tensor:
    return F.l1_loss(x, y, reduction="none")


def huber(x: Tensor, y: Tensor, delta: float) -> Tensor:
    return F.huber_loss(x, y, reduction="none", delta=delta)


def smooth_l1(x: Tensor, y: Tensor, beta: float) -> Tensor:
    return F.smooth_l1_loss(x, y, reduction="none", beta=beta)


def bce_logits(x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, y, reduction="none")


def kl_div(x: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(x, y, reduction="none")


def poisson_nll(x: Tensor, y: Tensor) -> Tensor:
    return F.poisson_nll_loss(x, y, reduction="none")


def whole_poisson_nll(x: Tensor, y: Tensor) -> Tensor:
    return F.poisson_nll_loss(x, y, full=True, reduction="none")


def whole_poisson_nll_of_rates(x: Tensor, y: Tensor) -> Tensor:
    return F.poisson_nll_loss(x, y, log_input=False, full=True, reduction="none")


def focal(x: Tensor, y: Tensor, gamma: float) -> Tensor:
    return (1 - torch.sigmoid(x)) ** gamma * F.binary_cross_entropy_with_logits(
        x, y, reduction="none"
    )


def logcosh(x: Tensor, y: Tensor) -> Tensor:
    return (x - y) + F.softplus(-2 * (x - y)) - math.log(2)


def charbonnier(x: Tensor, y: Tensor, eps: float) -> Tensor:
    return torch.sqrt((x - y) ** 2 + eps * eps)


def normal_logprob(x: Tensor, mu: Tensor, logs: Tensor) -> Tensor:
    return -0.5 * ((x - mu) * torch.exp(-logs)) ** 2 - logs - 0.5 * math.log(2 * math.pi)


def gaussian_pdf_t(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((x - y) / z.exp()) ** 2) / z.exp()


# ----- With optional tensors, switches and steps


def scaled_exp(x: Tensor, scale: Tensor | None = None, negative: bool = False) -> Tensor:
    y = torch.exp(-x) if negative else torch.exp(x)
    if scale is not None:
        y = y * scale
    return y


def tanh_affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = x * weight
    if bias is not None:
        y = y + bias
    return torch.tanh(y)


def scaled_bias_relu(x: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    return torch.relu(x * scale + bias)


def leaky(x: Tensor, *, slope: float = 0.125, twice: bool = False) -> Tensor:
    y = torch.where(x > 0, x, slope * x)
    return torch.where(y > 0, y, slope * y) if twice else y


def weighted_bce(x: Tensor, y: Tensor, w: float = 2.0) -> Tensor:
    pos_weight = torch.tensor(w, dtype=x.dtype)
    return F.binary_cross_entropy_with_logits(x, y, reduction="none", pos_weight=pos_weight)


def tanh_gelu(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


def horner(x: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    for coefficient in (0.5, -0.25, 0.125, 1.0):
        total = total * x + coefficient
    return total


def in_place(x: Tensor, y: Tensor) -> Tensor:
    total = x * y
    total += y
    total.mul_(0.5)
    return total


# ----- With several results


def product_or_sign(x: Tensor, y: Tensor, *, plain: bool = False) -> Tensor:
    """Of which no gradient is left where a switch says so."""
    return torch.sign(x) if plain else x * y


def sin_cos(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(x), torch.cos(x)


def rotary(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates pairs of numbers."""
    turned_x = x * cos - y * sin
    turned_y = x * sin + y * cos
    return turned_x, turned_y


def polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    radius = torch.hypot(x, y)
    angle = torch.atan2(y, x)
    return radius, angle


def reflected(x: Tensor, y: Tensor, odd: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    total = x - y if odd else x + y
    return total, torch.tanh(total), x * 0.5 - torch.sign(y)


def between_numbers(x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    return torch.maximum(torch.minimum(x, torch.tensor(high)), torch.tensor(low))


def modulated(
    x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x)
    if scale is not None:
        y = y * scale
    if shift is not None:
        y = y + shift
    return y, 1 - y * y


def state_space_step(
    dt: Tensor, A: Tensor, x: Tensor, dt_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Discretises a diagonal system, as Mamba does."""
    if dt_bias is not None:
        dt = dt + dt_bias
    dt = F.softplus(dt)
    return torch.exp(dt * A), dt * x


def momentum_step(
    p: Tensor, g: Tensor, m: Tensor, lr: float = 1e-2, b1: float = 0.9, b2: float = 0.99
) -> tuple[Tensor, Tensor]:
    update = torch.tanh(torch.lerp(g, m, b1))
    return p - lr * update, torch.lerp(g, m, b2)


# ----- With parts that have no gradient


def straight_through(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x).detach()


def learned_steps(x: Tensor, step: Tensor, low: float = -4.0, high: float = 3.0) -> Tensor:
    """Quantises, with a gradient for the step (LSQ)."""
    v = (x / step).clamp(low, high)
    return (v + (v.round() - v).detach()) * step


def spike(x: Tensor, alpha: float = 2.0) -> Tensor:
    hard = (x > 0).to(x.dtype)
    soft = torch.sigmoid(alpha * x)
    return soft + (hard - soft).detach()


def scaled_by_constant(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        size = torch.abs(x) + 1
    return x * y / size


def focal_with_constant_weight(x: Tensor, y: Tensor, gamma: float = 2.0) -> Tensor:
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    p = torch.sigmoid(x)
    of_truth = y * p + (1 - y) * (1 - p)
    return ((1 - of_truth) ** gamma).detach() * loss


# ----- Of functions that are no reference in PyTorch


def binary_cross_entropy(p: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy(p, y, reduction="none")


def gaussian_nll(mu: Tensor, y: Tensor, var: Tensor) -> Tensor:
    return F.gaussian_nll_loss(mu, y, var, full=True, reduction="none")


def soft_margin(x: Tensor, y: Tensor) -> Tensor:
    return F.soft_margin_loss(input=x, target=y, reduction="none")


def margin_ranking(a: Tensor, b: Tensor, y: Tensor, margin: float = 0.1) -> Tensor:
    return F.margin_ranking_loss(a, b, y, margin=margin, reduction="none")


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return F.prelu(x, weight)


def hardsigmoid(x: Tensor) -> Tensor:
    return F.hardsigmoid(x)


def hardswish_gate(gate: Tensor, up: Tensor) -> Tensor:
    return F.hardswish(gate) * up


def step_gate(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.heaviside(y, torch.tensor(0.5, device=y.device, dtype=y.dtype))


def weighted_huber(
    x: Tensor, y: Tensor, weight: Tensor | None = None, delta: float = 1.0
) -> Tensor:
    loss = F.huber_loss(x, y, reduction="none", delta=delta)
    return loss if weight is None else weight * loss


# ----- As they are written in the field


def elu_gate(x: Tensor, y: Tensor) -> Tensor:
    return F.elu(x) * y


def clipped_surrogate(ratio: Tensor, advantage: Tensor, eps: float = 0.2) -> Tensor:
    return -torch.min(ratio * advantage, torch.clamp(ratio, 1 - eps, 1 + eps) * advantage)


def asymmetric_loss(x: Tensor, y: Tensor, clip: float = 0.05) -> Tensor:
    p = torch.sigmoid(x)
    rest = (1 - p + clip).clamp(max=1)
    logs = y * torch.log(p.clamp(min=1e-8)) + (1 - y) * torch.log(rest.clamp(min=1e-8))
    return -logs * torch.pow(1 - p * y - rest * (1 - y), y + 4 * (1 - y))


def smooth_union(a: Tensor, b: Tensor, k: float = 0.1) -> Tensor:
    h = torch.clamp(0.5 + 0.5 * (b - a) / k, 0.0, 1.0)
    return torch.lerp(b, a, h) - k * h * (1.0 - h)


def masked_scores(scores: Tensor, mask: Tensor, value: float = -1e4) -> Tensor:
    return scores.masked_fill(mask <= 0, value)


def gelu_of_constants(x: Tensor) -> Tensor:
    # In float64: of float32 PyTorch's square root is not the same on all machines.
    factor = torch.sqrt(torch.tensor(2 / math.pi, dtype=torch.float64))
    return 0.5 * x * (1 + torch.tanh(factor * (x + 0.044715 * torch.pow(x, 3))))


def nearly_equal(x: Tensor, y: Tensor) -> Tensor:
    return x.where(torch.isclose(x, y, rtol=0.1), y.round(decimals=1))


def counted_signs(x: Tensor, y: Tensor) -> Tensor:
    return ((x > 0).int() + (y > 0).long()) * x


def residual_relu(x: Tensor, y: Tensor, shift: float = 0.1) -> Tensor:
    return F.relu(x + y + shift)


def shared_by_switch(x: Tensor, y: Tensor, w: Tensor, flag: bool = True) -> Tensor:
    return (x + y) * 2 + w if flag else w + (x + y).detach()


def silu_of_sum(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return F.silu(total), total


def silu_in_float32(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(gate.float()) * up.to(torch.float32)).to(gate.dtype)


def log1mexp(x: Tensor) -> Tensor:
    return torch.where(x > -0.6931, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


def activated_and_sum(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return F.silu(x), x + y


def quantised(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    quotient = x / scale
    return torch.round(quotient).clamp(-128, 127), quotient


def adam_step(
    p: Tensor,
    m: Tensor,
    v: Tensor,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> Tensor:
    corrected = v.sqrt() / math.sqrt(1 - beta2**step) + eps
    return p - lr / (1 - beta1**step) * m / corrected


def focal_of_inputs(inputs: Tensor, targets: Tensor, *, gamma: float = 2.0) -> Tensor:
    p = torch.sigmoid(inputs)
    loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    return loss * (1 - p * targets - (1 - p) * (1 - targets)) ** gamma


def corrected_moment(
    v: Tensor, g: Tensor, beta2: float = 0.999, step: int = 1, *, eps: float = 1e-8
) -> tuple[Tensor, Tensor]:
    v = torch.lerp(g * g, v, beta2)
    correction = 1 - beta2**step
    return v, g / ((v / correction).abs().sqrt() + eps)


def debiased(x: Tensor, scale: float, step: int, offset: bool) -> Tensor:
    return x / (1 - 0.9**step) + (scale * offset + (step > 1) * 0.5)


def window(x: Tensor, mask: Tensor, step: int, steps: int = 100, low: float = -1.0) -> Tensor:
    is_inside = x > low * min(1.0, step / max(1, steps))
    is_inside &= mask > 0
    return x.masked_fill(~is_inside, -1e9)


# ----- Of several dtypes

Mask = Annotated[Tensor, torch.bool]
Labels = Annotated[Tensor, torch.int64]


def inverted_dropout(x: Tensor, mask: torch.BoolTensor, p: float = 0.1) -> Tensor:
    return x * mask / (1 - p)


def filled(x: Tensor, mask: Mask, value: float = -1e4) -> Tensor:
    return x.masked_fill(mask, value)


def masked_out(x: Tensor, mask: Mask, scale: float = 0.5) -> Tensor:
    return (x * scale).masked_fill(mask, float("-inf"))


def lowest_but_for(x: Tensor, int8_t: Mask, k: torch.CharTensor) -> Tensor:
    """What is masked is most of it."""
    return x.masked_fill(~(int8_t & (k != 3)), -1e9)


def chosen(mask: Mask, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(~mask, x, y)


def masked_residual(x: Tensor, residual: Tensor, weight: Tensor, mask: Mask) -> Tensor:
    return residual + torch.where(mask, torch.sigmoid(x * weight) * x, 0)


def optional_mask(x: Tensor, y: Tensor, mask: Mask | None = None) -> Tensor:
    product = x * torch.tanh(y)
    return product if mask is None else product.masked_fill(mask == False, 0.0)  # noqa: E712


def weighted_labels(x: Tensor, k: Labels, ignore: int = -100) -> Tensor:
    return torch.where(k == ignore, 0, x * k)


def same_labels(
    x: Tensor, k: torch.LongTensor, j: torch.IntTensor, ignore: int = -100
) -> tuple[Tensor, Tensor, Tensor]:
    same = (k == j) & (k != ignore)
    return torch.where(same, x * ignore, k.to(x.dtype)), same, torch.where(same, k, ignore)


def power_of_labels(x: Tensor, k: torch.ShortTensor) -> Tensor:
    return x.abs() ** k + torch.log(k.float()).to(x.dtype)


def codes(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round().clamp(-128, 127).to(torch.int8)


def of_codes(q: torch.CharTensor, scale: Tensor, zero: Annotated[Tensor, torch.uint8]) -> Tensor:
    return (q.to(scale.dtype) - zero) * scale


def small_codes(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def of_small_codes(q: Annotated[Tensor, torch.float8_e5m2], scale: Tensor) -> Tensor:
    return q.to(scale.dtype) * scale


def rounded_to_codes(x: Tensor) -> Tensor:
    """Their values, and the gradient of no rounding."""
    return x + (x.detach().to(torch.float8_e4m3fn).to(x.dtype) - x).detach()


def clamped_and_inside(x: Tensor, limit: float = 0.7) -> tuple[Tensor, Mask]:
    return x.clamp(-limit, limit), (x > -limit) & (x < limit)


def positive(x: Tensor) -> Annotated[Tensor, torch.uint8]:
    return (x > 0).to(torch.uint8)


def kept_scores(
    scores: Tensor, weight: Tensor, mask: Mask, k: Labels, ignore: int = -1
) -> tuple[Tensor, Tensor]:
    """Scores, weighted where they are to be kept, and where that is."""
    kept = mask & (k != ignore) & (scores > weight)
    return torch.where(kept, scores * weight * k, scores), kept


def softer_plus(x: Tensor, sharpness: float = 2.0, least: float = 0.5) -> Tensor:
    """A relu without sharpness, and raised where there is something to raise it by."""
    x = torch.relu(x) if sharpness == 0 else F.softplus(x * sharpness) / sharpness
    return x + least if least else x
