from collections.abc import Sequence

from torch import Tensor, fx, nn

from extension_cpp.normalized_shape import add_and_normalize
from extension_cpp.operators.add_layer_norm.ops import add_layer_norm


# A leaf for torch.fx.symbolic_trace, which cannot follow its decisions on shapes.
@fx.wrap
def _add_layer_norm(
    layer: str,
    normalized_shape: Sequence[int],
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    tensors = (input, residual, weight, bias)
    return add_and_normalize(add_layer_norm, layer, normalized_shape, *tensors, eps=eps)


class AddLayerNorm(nn.LayerNorm):
    """Adds a residual, then applies layer normalisation over the last dimensions.

    Arguments, attributes and state dict are those of `torch.nn.LayerNorm`.

    Shapes: `(..., *normalized_shape)`, twice, to the same, twice: what is normalised, and the sum.

    Raises:
        RuntimeError: tensors whose last dimensions are not `normalized_shape`, or that
            `add_layer_norm` refuses.
    """

    # Of two tensors.
    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        name, shape = type(self).__name__, self.normalized_shape
        return _add_layer_norm(name, shape, input, residual, self.weight, self.bias, self.eps)
