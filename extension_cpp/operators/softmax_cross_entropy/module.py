from torch import Tensor, fx, nn

from extension_cpp.operators.softmax_cross_entropy.ops import softmax_cross_entropy
from extension_cpp.shapes import sum_dtype


# A leaf for torch.fx.symbolic_trace, which cannot follow its decision on a dtype.
@fx.wrap
def _reduced(loss: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    total = loss.sum(dtype=sum_dtype(loss.dtype))
    if reduction == "mean":
        total = total / target.ne(ignore_index).sum()
    return total.to(loss.dtype)


class SoftmaxCrossEntropyLoss(nn.Module):
    """The cross entropy of logits and classes: `torch.nn.CrossEntropyLoss` with the classes last.

    Shapes: logits `(..., classes)` and target `(...)`, int64, to `()`; to `(...)` without a
    reduction. `torch.nn.CrossEntropyLoss` has the classes of `(batch, classes, ...)` in the second
    dimension instead; of `(batch, classes)` both are the same. Weights, label smoothing, and
    targets that are probabilities are for that one.

    Args:
        ignore_index: a row with this target has no part in the loss or the gradient.
        reduction: "mean" over the rows that are not ignored, NaN where there is none; "sum", or
            "none". Both are computed in float32 (float64 for float64) and rounded to the dtype of
            the logits.

    Raises:
        ValueError: another `reduction`.
    """

    def __init__(self, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(
                "SoftmaxCrossEntropyLoss: reduction must be 'mean', 'sum' or 'none', got "
                f"{reduction!r}"
            )
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = softmax_cross_entropy(logits, target, self.ignore_index)
        if self.reduction == "none":
            return loss
        return _reduced(loss, target, self.ignore_index, self.reduction)

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"
