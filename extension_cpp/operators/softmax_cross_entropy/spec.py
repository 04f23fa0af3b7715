import math

import torch
import torch.nn.functional as F

from extension_cpp.testing import DEFAULT_SHAPES, OpSpec, Sample


def op_reference(logits, target, ignore_index=-100):
    ignored = target == ignore_index
    x = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    # Of nothing but -inf the logsumexp is that, as in PyTorch, and of infinities NaN.
    logsumexp = x.logsumexp(-1).masked_fill((x == math.inf).any(-1), math.nan)
    if x.shape[-1] == 0:
        return logsumexp.new_zeros(target.shape, dtype=logits.dtype), logsumexp
    kept = x.masked_fill(ignored.unsqueeze(-1), 0.0)
    index = target.masked_fill(ignored, 0).unsqueeze(-1)
    loss = -F.log_softmax(kept, -1).gather(-1, index).squeeze(-1).masked_fill(ignored, 0.0)
    return loss.to(logits.dtype), logsumexp


def counterpart(logits, target, ignore_index=-100):
    loss = F.cross_entropy(
        logits.flatten(0, -2), target.flatten(), ignore_index=ignore_index, reduction="none"
    )
    return loss.view(target.shape)


def samples(make, shape):
    if not shape:
        return
    *rows, classes = shape

    def target():
        if classes == 0:  # there is nothing but what is ignored
            return make(rows, dtype=torch.int64, low=-100, high=-99)
        return make(rows, dtype=torch.int64, high=classes)

    yield Sample(make(shape), target())
    some = make(rows, dtype=torch.bool)
    yield Sample(make(shape), target().masked_fill(some, -100))
    if classes:
        yield Sample(make(shape), target(), ignore_index=classes // 2)


spec = OpSpec(
    name="softmax_cross_entropy",
    op_reference=op_reference,
    samples=samples,
    # Rows for part of a warp, a warp, several, and several blocks, in vectors and one by one.
    shapes=(
        *DEFAULT_SHAPES,
        (3, 24),
        (5, 500),
        (3, 8192),
        (2, 16384),
        (2, 70000),
        (1, 70001),
    ),
    autocast="float32",
    counterpart=counterpart,
)
