from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, fx, nn

from extension_cpp.checks import check_number
from extension_cpp.operators.fused_layer_norm.ops import fused_layer_norm


# A leaf for torch.fx.symbolic_trace, which cannot follow its decisions on shapes; torch.jit.script
# compiles it.
@fx.wrap
def _layer_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    dims = len(normalized_shape)
    last = list(input.shape)[input.dim() - dims :]
    if input.dim() < dims or last != list(normalized_shape):
        # torch.jit.script knows no tuples of any length.
        shape = str(input.shape if torch.jit.is_scripting() else tuple(input.shape))
        raise RuntimeError(
            f"FusedLayerNorm: the last dimensions of input must be {normalized_shape}, "
            f"got shape {shape}"
        )
    if dims == 1:
        return fused_layer_norm(input, weight, bias, eps)
    output = fused_layer_norm(
        input.flatten(-dims),
        None if weight is None else weight.flatten(),
        None if bias is None else bias.flatten(),
        eps,
    )
    return output.view(input.shape)


class FusedLayerNorm(nn.Module):
    """Layer normalisation over the last dimensions: a drop-in for `torch.nn.LayerNorm`, with the
    same state-dict keys.

    Shapes: `(..., *normalized_shape)` to the same.

    Args:
        normalized_shape: the last dimensions of the input, or the last one as a number.
        eps: the number that is added to the variance; not differentiable.
        elementwise_affine: whether there are parameters at all.
        bias: whether there is a `bias` beside the `weight`.
        device: of the parameters.
        dtype: of the parameters: that of the inputs, or float32 for half inputs.

    Attributes:
        weight: parameter of shape `normalized_shape`, one at the start; None without
            `elementwise_affine`.
        bias: parameter of shape `normalized_shape`, zero at the start; None without
            `elementwise_affine` or `bias`.

    Raises:
        ValueError: a `normalized_shape` of no dimensions.
        TypeError: a tensor for `eps`.
    """

    # For torch.jit.script, as in PyTorch's layer.
    __constants__ = ("elementwise_affine", "eps", "normalized_shape")
    normalized_shape: Any  # tuple[int, ...], of which torch.jit.script makes a list
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
        check_number("FusedLayerNorm", "eps", eps, constant=True)
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
        return _layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )
