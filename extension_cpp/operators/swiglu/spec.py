import torch.nn.functional as F
from torch import Tensor

from extension_cpp.testing import OpSpec


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


spec = OpSpec(name="swiglu", reference=swiglu, autocast="promote")
