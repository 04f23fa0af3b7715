"""Layers over several last dimensions, as PyTorch's norms have them, on operators that know one."""

from collections.abc import Callable, Sequence

from torch import Tensor


def add_and_normalize(
    operator: Callable[..., tuple[Tensor, Tensor]],
    layer: str,
    normalized_shape: Sequence[int],
    input: Tensor,
    residual: Tensor,
    *parameters: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """`operator(input, residual, *parameters, eps)` over dimensions of `normalized_shape`.

    Args:
        operator: of tensors that it normalises over the last dimension.
        layer: the name of the one that calls, for messages.
        normalized_shape: the last dimensions of the tensors; at least one.
        input: the first summand.
        residual: the second one.
        parameters: of that shape, or None.
        eps: the operator's.

    Raises:
        RuntimeError: an `input` or `residual` whose last dimensions are others.
    """
    shape = tuple(normalized_shape)
    for name, tensor in (("input", input), ("residual", residual)):
        if not shape or tuple(tensor.shape[-len(shape) :]) != shape:
            raise RuntimeError(
                f"{layer}: the last dimensions of {name} must be {list(shape)}, "
                f"got shape {tuple(tensor.shape)}"
            )
    tensors = (input, residual, *parameters)
    flat = [None if tensor is None else tensor.flatten(-len(shape)) for tensor in tensors]
    normalised, sum = operator(*flat, eps)
    return normalised.view(input.shape), sum.view(input.shape)
