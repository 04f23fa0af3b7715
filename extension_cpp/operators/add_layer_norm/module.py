from torch import Tensor, nn

from extension_cpp.normalized_shape import add_and_normalize
from extension_cpp.operators.add_layer_norm.ops import add_layer_norm


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
        parameters = self.weight, self.bias
        return add_and_normalize(self, add_layer_norm, input, residual, *parameters)
