from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from extension_cpp.normalized_shape import add_and_normalize
from extension_cpp.operators.add_rms_norm.ops import add_rms_norm
from extension_cpp.shapes import sum_dtype


# A leaf for torch.fx.symbolic_trace, which cannot follow its decisions on shapes.
@fx.wrap
def _add_rms_norm(
    layer: str,
    normalized_shape: Sequence[int],
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    if eps is None:
        eps = torch.finfo(sum_dtype(input.dtype)).eps
    tensors = (input, residual, weight)
    return add_and_normalize(add_rms_norm, layer, normalized_shape, *tensors, eps=eps)


class AddRMSNorm(nn.RMSNorm):
    """Adds a residual, then divides by the root mean square over the last dimensions.

    Arguments, attributes and state dict are those of `torch.nn.RMSNorm`, but for a number as the
    default of `eps`: that of `add_rms_norm`. None is the step of 1 in the type of the arithmetic,
    `torch.finfo(torch.float32).eps`, or of float64 for float64.

    Shapes: `(..., *normalized_shape)`, twice, to the same, twice: what is normalised, and the sum.

    Raises:
        RuntimeError: tensors whose last dimensions are not `normalized_shape`, or that
            `add_rms_norm` refuses.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = 1e-6,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    # Of two tensors.
    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        name, shape = type(self).__name__, self.normalized_shape
        return _add_rms_norm(name, shape, input, residual, self.weight, self.eps)
