import torch
from torch import Tensor, nn

from extension_cpp.checks import check_number
from extension_cpp.operators.fused_op.ops import fused_op


class FusedOp(nn.Module):
    """Applies `relu(input * scale + bias)` with a learnable bias.

    Shapes: `(..., features)` to `(..., features)`.

    Args:
        features: size of the last dimension of the input.
        scale: the number that multiplies the input; not learnable, not differentiable.
        device: of the bias.
        dtype: of the bias.

    Attributes:
        bias: parameter of shape `(features,)`, zero at the start.

    Raises:
        TypeError: a tensor for `scale`.
    """

    def __init__(
        self,
        features: int,
        scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_number("FusedOp", "scale", scale, constant=True)
        self.features = features
        self.scale = scale
        self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return fused_op(input, self.bias, self.scale)

    def extra_repr(self) -> str:
        return f"{self.features}, scale={self.scale}"
