"""Layers over several last dimensions, as PyTorch's norms have them, on operators that know one."""

from collections.abc import Callable

from torch import Tensor, nn


def add_and_normalize(
    layer: nn.LayerNorm | nn.RMSNorm,
    operator: Callable[..., tuple[Tensor, Tensor]],
    input: Tensor,
    residual: Tensor,
    *parameters: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`operator(input, residual, *parameters, layer.eps)` over the layer's `normalized_shape`.

    Raises:
        RuntimeError: an `input` or `residual` whose last dimensions are others.
    """
    shape = tuple(layer.normalized_shape)
    for name, tensor in (("input", input), ("residual", residual)):
        if not shape or tuple(tensor.shape[-len(shape) :]) != shape:
            raise RuntimeError(
                f"{type(layer).__name__}: the last dimensions of {name} must be {list(shape)}, "
                f"got shape {tuple(tensor.shape)}"
            )
    tensors = (input, residual, *parameters)
    flat = [None if tensor is None else tensor.flatten(-len(shape)) for tensor in tensors]
    normalised, sum = operator(*flat, layer.eps)
    return normalised.view(input.shape), sum.view(input.shape)
