from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor, nn

from extension_cpp.operators.fused_layer_norm.ops import fused_layer_norm


class FusedLayerNorm(nn.Module):
    """Layer normalisation over the last dimensions: a drop-in for `torch.nn.LayerNorm`, with the
    same state-dict keys.

    Shapes: `(..., *normalized_shape)` to the same.

    Args:
        normalized_shape: the last dimensions of the input, or the last one as a number.
        eps: added to the variance.
        elementwise_affine: whether there are parameters at all.
        bias: whether there is a `bias` beside the `weight`.
        device: of the parameters.
        dtype: of the parameters: that of the inputs, or float32 for half inputs.

    Attributes:
        weight: parameter of shape `normalized_shape`, one at the start; None without
            `elementwise_affine`.
        bias: parameter of shape `normalized_shape`, zero at the start; None without
            `elementwise_affine` or `bias`.
    """

    normalized_shape: tuple[int, ...]
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(normalized_shape, (int, Integral)):
            normalized_shape = (normalized_shape,)
        self.normalized_shape = tuple(normalized_shape)
        if not self.normalized_shape:
            raise ValueError("FusedLayerNorm: normalized_shape must name at least one dimension")
        self.eps = eps
        self.elementwise_affine = elementwise_affine

        def parameter() -> nn.Parameter:
            return nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype))

        self.register_parameter("weight", parameter() if elementwise_affine else None)
        self.register_parameter("bias", parameter() if elementwise_affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        dims = len(self.normalized_shape)
        if dims == 1 and input.shape[-1:] == self.normalized_shape:
            return fused_layer_norm(input, self.weight, self.bias, self.eps)
        if input.dim() < dims or input.shape[input.dim() - dims :] != self.normalized_shape:
            raise RuntimeError(
                f"FusedLayerNorm: the last dimensions of input must be {self.normalized_shape}, "
                f"got shape {tuple(input.shape)}"
            )
        output = fused_layer_norm(
            input.flatten(-dims),
            None if self.weight is None else self.weight.flatten(),
            None if self.bias is None else self.bias.flatten(),
            self.eps,
        )
        return output.view(input.shape)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )
