from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.module import _has_any_global_hook

from extension_cpp.operators.bn_relu.ops import bn_relu

_CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_NORMS: dict[int, Any] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
# How many dimensions their inputs have, of which the second are the channels.
_DIMS: dict[type, tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
    nn.BatchNorm3d: (5,),
    nn.SyncBatchNorm: (2, 3, 4, 5),
}


class ConvBnRelu(nn.Module):
    """Applies `relu(bn(conv(input)))`, at inference with all but the convolution in one pass.

    In training mode, and where the batch normalisation has no running statistics, lacks a
    parameter, has hooks, or is of a class of one's own, it is the plain composition. At inference
    too it is channels-last where the convolution's output is. State dict and hooks are those of its
    parts.

    Shapes: `(batch, in_channels, ...)` to what the convolution makes of it.

    Args:
        in_channels: of the input.
        out_channels: of the output.
        kernel_size: of the convolution: a number, or one for each of its dimensions.
        stride: of the convolution.
        padding: of the convolution.
        dilation: of the convolution.
        groups: of the convolution.
        bias: whether the convolution has one, which the normalisation takes away again.
        eps: of the batch normalisation.
        momentum: of the batch normalisation.
        dim: how many dimensions the convolution has, 1, 2 or 3.
        device: of the parameters.
        dtype: of the parameters.

    Attributes:
        conv: `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d`.
        bn: `nn.BatchNorm1d`, `nn.BatchNorm2d` or `nn.BatchNorm3d`.

    Raises:
        ValueError: another `dim`.
    """

    conv: Any
    bn: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = False,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        dim: int = 2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim not in _CONVOLUTIONS:
            raise ValueError(f"ConvBnRelu: dim must be 1, 2 or 3, got {dim}")
        self.conv = _CONVOLUTIONS[dim](
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            device=device,
            dtype=dtype,
        )
        self.bn = _NORMS[dim](out_channels, eps, momentum, device=device, dtype=dtype)

    @classmethod
    def of(cls, conv: nn.Module, bn: nn.Module) -> "ConvBnRelu":
        """The layer around a convolution and a batch normalisation that are there, not copied."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.conv, layer.bn = conv, bn
        layer.training = bn.training
        return layer

    def forward(self, input: Tensor) -> Tensor:
        output = self.conv(input)
        bn = self.bn
        if bn.training or not _is_plain(bn):
            return torch.relu(bn(output))
        statistics = (bn.running_mean, bn.running_var)
        return _bn_relu(output, bn.weight, bn.bias, *statistics, bn.eps, _DIMS[type(bn)])


def _is_plain(bn: Any) -> bool:
    """Whether a call of it does what `bn_relu` does, and no more.

    Its class and its hooks may see the call, or change what comes of it.
    """
    if type(bn) not in _DIMS or "forward" in vars(bn):
        return False
    tensors = (bn.weight, bn.bias, bn.running_mean, bn.running_var)
    hooks = (
        *(bn._forward_hooks, bn._forward_pre_hooks),
        *(bn._backward_hooks, bn._backward_pre_hooks),
    )
    seen = any(hooks) or _has_any_global_hook()
    return all(tensor is not None for tensor in tensors) and not seen


# A leaf for torch.fx.symbolic_trace, which cannot follow a decision on dimensions.
@fx.wrap
def _bn_relu(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
    dims: tuple[int, ...],
) -> Tensor:
    if input.dim() not in dims:  # in PyTorch's words
        expected = " or ".join(f"{dim}D" for dim in dims)
        raise ValueError(f"expected {expected} input (got {input.dim()}D input)")
    return bn_relu(input, weight, bias, running_mean, running_var, eps)
