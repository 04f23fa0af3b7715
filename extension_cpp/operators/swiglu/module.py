import torch
from torch import Tensor, nn

from extension_cpp.operators.swiglu.ops import swiglu


class SwiGLU(nn.Module):
    """Applies the gated feed-forward layer `down(silu(gate(input)) * up(input))`.

    Shapes: `(..., features)` to `(..., features)`.

    Args:
        features: size of the last dimension of the input.
        hidden: size of the last dimension of what is gated.
        bias: whether the three linear layers have one.
        device: of the parameters.
        dtype: of the parameters.

    Attributes:
        gate: `nn.Linear(features, hidden)`.
        up: `nn.Linear(features, hidden)`.
        down: `nn.Linear(hidden, features)`.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(features, hidden, bias, device, dtype)
        self.up = nn.Linear(features, hidden, bias, device, dtype)
        self.down = nn.Linear(hidden, features, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return self.down(swiglu(self.gate(input), self.up(input)))
