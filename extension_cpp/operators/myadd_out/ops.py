"""myadd_out: `a + b` written to an argument, as in PyTorch's tutorial on custom operators."""

import torch
from torch import Tensor

from extension_cpp import registration
from extension_cpp.batching import to_front
from extension_cpp.shapes import operator

_ops = torch.ops.extension_cpp


def myadd_out(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Writes `a + b` to `out`.

    Args:
        a: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        b: shape, dtype and device of `a`.
        out: shape, dtype and device of `a`, of any layout in which no two elements share memory. It
            may be `a` or `b` itself, but overlap neither in part.

    Not differentiable: a derivative through what it wrote raises an error.

    Under `torch.compile` and `torch.export`, which see no memory, an `out` that overlaps an input
    in part is no error: they compute on copies where a write could reach another tensor.

    Raises:
        RuntimeError: a dtype, device, shape or overlap other than the above.
    """
    _ops.myadd_out(a, b, out)


def _vmap(info, in_dims, a, b, out):
    if in_dims[2] is None:
        raise RuntimeError(
            "myadd_out: out must be batched under vmap where a or b is: "
            "a sum per example does not fit into it"
        )
    operator("extension_cpp::myadd_out").check_examples(in_dims, a, b, out)
    _ops.myadd_out(*to_front(info.batch_size, in_dims, a, b, out))
    return None, None


registration.register_fake("extension_cpp::myadd_out")
registration.register_mutation("extension_cpp::myadd_out")
registration.register_vmap("extension_cpp::myadd_out", _vmap)
# No autocast rule: a cast copy of out would be written in its place.
