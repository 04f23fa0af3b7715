"""Definitions of row-wise functions, of which the tests derive operators."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

# ----- Softmax and its like


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def tempered_softmax(x: Tensor, temperature: float = 2.0) -> Tensor:
    return F.softmax(x / temperature, dim=-1)


def softmax_by_hand(x: Tensor) -> Tensor:
    largest = x.amax(-1, keepdim=True)
    exponential = torch.exp(x - largest)
    return exponential / exponential.sum(-1, keepdim=True)


def softmax_of_softmax(x: Tensor) -> Tensor:
    return torch.softmax(torch.softmax(x, -1), -1)


def softmin(x: Tensor) -> Tensor:
    return F.softmin(x, dim=-1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, dim=-1)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def minus_logsumexp(x: Tensor) -> Tensor:
    return x - torch.logsumexp(x, -1, keepdim=True)


def relative_to_the_largest(x: Tensor) -> Tensor:
    """With a constant shift, of which the index is not used."""
    largest, _ = torch.max(x.detach(), dim=-1, keepdim=True)
    return torch.exp(x - largest)


def scaled_codes(x: Tensor) -> Annotated[Tensor, torch.int8]:
    scale = x.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-3) / 127
    return (x / scale).round().to(torch.int8)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the distribution of each row, in nats."""
    probabilities = torch.softmax(logits, -1)
    return -(probabilities * torch.log_softmax(logits, -1)).sum(-1)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * F.log_softmax(logits, dim=-1)).sum(-1)


# ----- Norms


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Divides each row by its root mean square.

    Args:
        x: the rows
        weight: of the features
        eps: keeps rows of zeros from being divided by zero
    """
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rms_norm_of_torch(x: Tensor, weight: Tensor, eps: float = 0.1) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float = 1e-2) -> Tensor:
    y = x * F.silu(gate)
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight


def residual_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-2) -> Tensor:
    h = x + residual
    scale = torch.rsqrt((h * h).mean(-1, keepdim=True) + eps)
    return h * scale * (1 + weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    centered = x - mean
    variance = (centered * centered).mean(-1, keepdim=True)
    return centered * torch.rsqrt(variance + eps) * weight + bias


def layer_norm_of_torch(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def layer_norm_by_var(x: Tensor, eps: float = 0.1) -> Tensor:
    variance = x.var(-1, unbiased=False, keepdim=True)
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(variance + eps)


def standardised(x: Tensor, eps: float = 0.5) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, correction=0, keepdim=True) + eps)


def normalised(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def unit_length(x: Tensor, eps: float = 1e-2) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)


def length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def taxicab(x: Tensor) -> Tensor:
    return x.norm(p=1, dim=-1, keepdim=True)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return F.cosine_similarity(x, y, dim=-1)


# ----- Sums, means, the largest and the smallest


def centered(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def total(x: Tensor) -> Tensor:
    return x.sum(-1)


def weighted_sum(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).sum(-1)


def average_loss(x: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(x, y, reduction="none").mean(-1)


def variance(x: Tensor) -> Tensor:
    return x.var(-1, correction=0)


def spread(x: Tensor) -> Tensor:
    return x.amax(-1) - x.amin(-1)


def scaled_by_largest(x: Tensor, low: float = 1e-2) -> Tensor:
    return x / x.abs().amax(-1, keepdim=True).clamp(min=low)


def squeezed_and_back(x: Tensor) -> Tensor:
    mean = x.mean(-1)
    return torch.tanh(x) * (mean * mean).unsqueeze(-1)


def attention_scale(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True) / math.sqrt(x.shape[-1])


# ----- With several results, optional tensors and switches


def log_softmax_and_logsumexp(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.log_softmax(x, -1), torch.logsumexp(x, -1)


def rms_norm_and_rstd(x: Tensor, weight: Tensor, *, eps: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Divides each row by its root mean square; says by what."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    y = x * rstd * weight
    return y, rstd.squeeze(-1)


def mean_and_variance(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1)
    variance = x.var(-1, correction=0, keepdim=True)
    return mean, variance


def residual_step(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 0.1) * weight, total


def layer_norm_of_sum(
    x: Tensor, residual: Tensor, shift: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    h = x + residual + shift
    return F.layer_norm(h, h.shape[-1:], weight, bias, eps=0.1), h


def norm_with_two_shifts(
    x: Tensor,
    a: Annotated[Tensor | None, "n"] = None,
    b: Annotated[Tensor | None, "n"] = None,
) -> Tensor:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.1)
    if a is not None:
        y = y + a
    if b is not None:
        y = y + b
    return y


def softmax_of_sum(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    return torch.softmax(h, -1), h


def optional_layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 0.1
) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    y = centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def standardised_or_scaled(x: Tensor, weight: Tensor, centered: bool, eps: float = 0.1) -> Tensor:
    if centered:
        x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def softmax_or_log(x: Tensor, *, logarithm: bool = False) -> Tensor:
    return torch.log_softmax(x, -1) if logarithm else torch.softmax(x, -1)


def gated_softmax(x: Tensor, gate: Tensor, weight: Tensor, gated: bool = True) -> Tensor:
    """Of which some arguments have no part in the result without gates."""
    y = torch.softmax(x, -1)
    return y * torch.tanh(gate) * weight if gated else y


def offset_rms_norm(
    x: Tensor, weight: Tensor | None = None, *, plain: bool = False, eps: float = 1e-2
) -> tuple[Tensor, Tensor]:
    """Scales by one more than a weight, or does not."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    y = x if plain else x * rstd
    if weight is not None:
        y = y * (1 + weight)
    return y, rstd


def affine_of_mean(x: Tensor, gamma: Tensor, beta: Tensor, slope: float = 0.5) -> Tensor:
    scores = torch.sigmoid(x * gamma + beta)
    return slope * scores + scores.mean(-1, keepdim=True) * gamma


# ----- With parts that have no gradient


def softmax_less_a_constant(x: Tensor) -> Tensor:
    exponential = torch.exp(x - x.amax(dim=-1, keepdim=True).detach())
    return exponential / exponential.sum(dim=-1, keepdim=True)


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    log_p = F.log_softmax(student / temperature, dim=-1)
    q = F.softmax(teacher.detach() / temperature, dim=-1)
    return (q * (q.log() - log_p)).sum(-1)


def hard_choice(logits: Tensor, noise: Tensor, tau: float = 1.0) -> Tensor:
    """One-hot with the gradient of a softmax (straight-through Gumbel-softmax)."""
    soft = F.softmax((logits + noise) / tau, dim=-1)
    hard = (soft == soft.amax(-1, keepdim=True)).to(soft.dtype)
    return hard - soft.detach() + soft


# ----- As they are written in the field


def prelu_columns(x: Tensor, weight: Tensor) -> Tensor:
    return F.prelu(x, weight) - x.mean(axis=-1, keepdims=True)


def distance(x: Tensor, y: Tensor) -> Tensor:
    return F.pairwise_distance(x, y)


def layer_norm_by_var_mean(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, dim=-1, keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(var + 0.1) * weight + bias


def between_extremes(x: Tensor, eps: float = 1e-6) -> Tensor:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return (x - low) / (high - low + eps)


def soft_maximum(x: Tensor, r: float = 5.0) -> Tensor:
    return (torch.logsumexp(r * x, -1) - math.log(x.shape[-1])) / r


def scaled_by_constant_weight(x: Tensor, weight: Tensor | None = None) -> Tensor:
    y = torch.softmax(x, -1)
    return y if weight is None else y * weight.detach()


def rms_norm_in_float32(x: Tensor, weight: Tensor, eps: float = 1e-2) -> Tensor:
    dtype = x.dtype
    x = x.to(torch.float32)
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)).to(dtype)


def softmax_in_float32(scores: Tensor, scale: float = 0.5) -> Tensor:
    return F.softmax(scores * scale, dim=-1, dtype=torch.float32).to(scores.dtype)


def layer_norm_of_the_shape_of_weight(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    # By no simple fraction, of which halves would fall between two integers.
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-3) / (40 * math.pi)
    return torch.round(x / scale), scale.squeeze(-1)


def softmax_and_residual(x: Tensor, residual: Tensor) -> Tensor:
    return torch.softmax(x, -1) + residual


def counted_positives(x: Tensor) -> Tensor:
    return (x > 0).sum(-1).to(x.dtype)


def greatest_magnitude(x: Tensor) -> Tensor:
    return x.norm(p=math.inf, dim=-1)


def length_of_torch(x: Tensor) -> Tensor:
    return torch.norm(x, p=2, dim=-1)


def select_by_a_number_of_rows(x: Tensor, y: Tensor, a: float = -1.0) -> Tensor:
    mean = torch.where(torch.tensor(a) > 0, x.mean(-1, keepdim=True), 0.5)
    return torch.where(torch.tensor(a) < 0, mean, y) * y


def softmax_of_the_unmasked(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask > 0, x, -torch.inf).softmax(-1)


def sum_for_each(x: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(x) + y.sum(-1, keepdim=True)


# ----- Of several dtypes

Mask = Annotated[Tensor, torch.bool]
Labels = Annotated[Tensor, torch.int64]


def masked_softmax(x: Tensor, mask: Mask, fill: float = -1e9) -> Tensor:
    return x.masked_fill(mask, fill).softmax(-1)


def masked_logsumexp(x: Tensor, mask: Mask, fill: float = -1e9) -> Tensor:
    return torch.where(mask, fill, x).logsumexp(-1)


def masked_log_softmax(x: Tensor, mask: Mask, scale: float = 0.5) -> Tensor:
    return (x * scale).masked_fill(mask, float("-inf")).log_softmax(-1)


def softmax_of_the_kept(x: Tensor, keep: Mask) -> Tensor:
    return torch.where(keep, x, -torch.inf).softmax(-1)


def mean_of_the_unmasked(mask: Mask, x: Tensor) -> Tensor:
    """Of a row without any there is none."""
    return torch.where(mask, x, 0).sum(-1) / mask.sum(-1)


def masked_rms_norm(x: Tensor, weight: Tensor, mask: Mask, eps: float = 1e-2) -> Tensor:
    kept = torch.where(mask, x, 0)
    count = mask.to(x.dtype).sum(-1, keepdim=True).clamp(min=1)
    return kept * torch.rsqrt(kept.square().sum(-1, keepdim=True) / count + eps) * weight


def masked_layer_norm(
    x: Tensor, mask: Mask, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    count = mask.to(x.dtype).sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(mask, x, 0).sum(-1, keepdim=True) / count
    apart = torch.where(mask, x - mean, 0)
    y = apart * torch.rsqrt((apart * apart).sum(-1, keepdim=True) / count + 0.1)
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def softmax_with_dropout(x: Tensor, keep: torch.BoolTensor, rate: float = 0.1) -> Tensor:
    return x.softmax(-1) * keep / (1 - rate)


def mean_of_two_masks(x: Tensor, padding: Mask, keep: Mask) -> Tensor:
    there = keep & ~padding
    return (x * there).sum(-1, keepdim=True) / there.sum(-1, keepdim=True)


def loss_of_labels(x: Tensor, y: Tensor, k: Labels, ignore: int = -100) -> Tensor:
    there = k != ignore
    return ((x - y).square() * there).sum(-1) / there.sum(-1)


def softmax_of_products(x: Tensor, k: torch.IntTensor) -> Tensor:
    return (x * k.to(x.dtype)).softmax(-1)


def row_codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of each row, and what they are multiples of."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-3) / 127
    return (x / scale).round().to(torch.int8), scale.squeeze(-1)


def norm_and_codes(x: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """A norm, codes of it in float8, and what they are multiples of."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-3) / 448
    return y, (y / scale).to(torch.float8_e4m3fn), scale.squeeze(-1)


def softmax_of_codes(x: Tensor, q: Annotated[Tensor, torch.float8_e5m2]) -> Tensor:
    return (x * q.to(x.dtype)).softmax(-1)


def above_the_mean(x: Tensor) -> tuple[Mask, Mask]:
    above = x > x.mean(-1, keepdim=True) + 1
    return above, above.any(-1)


def counted_labels(x: Tensor, k: Labels, weight: Tensor) -> tuple[Tensor, Labels, Labels]:
    """Scaled rows, how many labels there are of each, and these."""
    there = k > 0
    y = x / (1 + there.sum(-1, keepdim=True)) * weight
    return y, there.sum(-1).to(torch.int64), torch.where(there, k, -1)


def kept_codes(
    x: Tensor, weight: Tensor, mask: Mask, k: torch.CharTensor, none: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    """A norm of what is kept, codes of it, and whether there is anything."""
    kept = mask & (k != none)
    y = torch.where(kept, x, 0)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 0.1) * weight
    return y, (y * k).clamp(-100, 100).to(torch.int8), kept.any(-1, keepdim=True)


# ----- With a value for each row

OfRow = Annotated[Tensor, "*rows"]
OfRowKept = Annotated[Tensor, "*rows 1"]
One = Annotated[Tensor, "()"]


def softmax_with_sinks(scores: Tensor, sinks: OfRowKept) -> Tensor:
    """A softmax over scores and one more, whose share of the row is left out."""
    largest = torch.maximum(scores.amax(-1, keepdim=True), sinks).detach()
    exponential = torch.exp(scores - largest)
    return exponential / (exponential.sum(-1, keepdim=True) + torch.exp(sinks - largest))


def weighted_loss(logits: Tensor, target: Tensor, weight: OfRow) -> Tensor:
    return -(target * F.log_softmax(logits, -1)).sum(-1) * weight


def softmax_of_temperatures(x: Tensor, temperature: OfRowKept) -> Tensor:
    return torch.softmax(x / (1 + temperature * temperature), -1)


def scaled_rms_norm(
    x: Tensor, scale: OfRow, gain: One, weight: Tensor, eps: float = 1e-2
) -> Tensor:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * rstd * scale.unsqueeze(-1) * weight * torch.exp(gain)


def advantage_loss(x: Tensor, old: Tensor, advantage: OfRowKept, clip: float = 0.2) -> Tensor:
    ratio = torch.exp(x - old)
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean(-1)


def pinball(predicted: Tensor, target: OfRow, q: float = 0.3) -> tuple[Tensor, Tensor]:
    """The loss of predictions of a row's target, and how far their mean is from it."""
    apart = target.unsqueeze(-1) - predicted
    return torch.maximum(q * apart, (q - 1) * apart), predicted.mean(-1) - target


def scale_norm(x: Tensor, g: One, eps: float = 1e-2) -> Tensor:
    return g * x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + eps)


def contrastive(x: Tensor, y: Tensor, temperature: Annotated[Tensor, "1"]) -> Tensor:
    return torch.logsumexp((x - y) * torch.exp(temperature), -1, keepdim=True) * temperature


# ----- With labels, lengths, and masks for each row or column

OfEach = Annotated[Tensor, torch.int64, "*rows"]


def token_loss(logits: Tensor, target: OfEach) -> Tensor:
    return -F.log_softmax(logits, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1)


def smoothed_loss(logits: Tensor, target: OfEach, smoothing: float = 0.1) -> Tensor:
    log_p = F.log_softmax(logits, dim=-1)
    nll = -log_p.gather(dim=-1, index=target[..., None]).squeeze(-1)
    return (1 - smoothing) * nll - smoothing * log_p.mean(-1)


def z_loss(logits: Tensor, target: OfEach, weight: float = 1e-2) -> Tensor:
    lse = torch.logsumexp(logits, -1)
    picked = torch.gather(logits, -1, target.unsqueeze(-1)).squeeze(-1)
    return lse - picked + weight * lse * lse


def focal_loss_of_labels(logits: Tensor, target: OfEach, gamma: float = 2.0) -> Tensor:
    log_p = F.log_softmax(logits, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return -((1 - log_p.exp()) ** gamma) * log_p


def ignoring_loss(logits: Tensor, target: OfEach, ignore_index: int = -100) -> Tensor:
    safe = torch.where(target == ignore_index, 0, target)
    loss = -F.log_softmax(logits, -1).gather(-1, safe[..., None]).squeeze(-1)
    return torch.where(target == ignore_index, 0, loss)


def adjusted_loss(logits: Tensor, bias: Tensor, target: OfEach) -> tuple[Tensor, Tensor]:
    """With a bias for each class, and none of the loss of negative targets."""
    there = target >= 0
    log_p = F.log_softmax(logits + bias, -1)
    loss = -log_p.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return loss * there, there


def weighted_by_class(logits: Tensor, weight: Tensor, target: OfEach) -> Tensor:
    classes = torch.arange(logits.shape[-1], device=logits.device)
    own = torch.where(classes == target[..., None], weight, 0).sum(-1)
    return -own * F.log_softmax(logits, -1).gather(-1, target[..., None]).squeeze(-1)


def probability_of_labels(logits: Tensor, target: OfEach) -> Tensor:
    return logits.softmax(-1).gather(-1, target.unsqueeze(-1))


def unit_element(x: Tensor, k: OfEach) -> Tensor:
    return F.normalize(x, dim=-1).gather(-1, k.unsqueeze(-1)).squeeze(-1)


def sum_of_span(x: Tensor, start: OfEach, stop: OfEach) -> Tensor:
    columns = torch.arange(x.shape[-1], device=x.device)
    there = (columns >= start[..., None]) & (columns < stop[..., None])
    return torch.where(there, x, 0).sum(-1)


def masked_by_length(scores: Tensor, length: OfEach) -> Tensor:
    columns = torch.arange(scores.shape[-1], device=scores.device)
    return torch.where(columns < length[..., None], scores, float("-inf")).softmax(-1)


def norm_up_to(
    x: Tensor, weight: Tensor, length: Annotated[Tensor, torch.int32, "*rows 1"]
) -> Tensor:
    there = torch.arange(start=0, end=x.size(-1), device=x.device) < length
    kept = torch.where(there, x, 0)
    mean_square = kept.square().sum(-1, keepdim=True) / length.clamp(min=1)
    return kept * torch.rsqrt(mean_square + 1e-2) * weight


def column_masked(x: Tensor, keep: Annotated[Tensor, torch.bool, "n"]) -> Tensor:
    return torch.where(keep, x, float("-inf")).softmax(-1)


def row_masked(x: Tensor, valid: Annotated[Tensor, torch.bool, "*rows 1"]) -> Tensor:
    return torch.where(valid, x.softmax(-1), 0)


def brier_score(logits: Tensor, target: OfEach) -> Tensor:
    classes = torch.arange(logits.shape[-1], device=logits.device)
    apart = logits.softmax(-1) - (classes == target[..., None]).to(logits.dtype)
    return apart.square().sum(-1)


def margin_of_one_hot(x: Tensor, target: OfEach, margin: float = 0.5) -> Tensor:
    own = F.one_hot(target, x.shape[-1]).to(x.dtype)
    return torch.logsumexp(x - margin * own, -1) - (x * own).sum(-1)


def weighted_columns(
    x: Tensor,
    weight: Tensor,
    kind: Annotated[Tensor, torch.int16, "n"],
    valid: Annotated[Tensor, torch.bool, "*rows"],
) -> Tensor:
    """Of several kinds of columns, of which one has a weight."""
    scaled = torch.where(kind == 3, x * weight, x)
    return torch.where(valid, scaled.square().mean(-1), 0)


def norm_distance(x: Tensor, y: Tensor, weight: Tensor, p: float = 3.0) -> Tensor:
    """By one of several norms, of weighted columns."""
    d = ((x - y) * weight).abs()
    if p == 1:
        return d.sum(-1)
    if p == 2:
        return (d.square().sum(-1) + 1e-6).sqrt()
    return (d.pow(p).sum(-1) + 1e-6).pow(1 / p)
