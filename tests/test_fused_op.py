"""fused_op: what the battery cannot know of it."""

import re

import pytest
import torch

from extension_cpp.ops import fused_op
from extension_cpp.testing import devices


# Its batching rule joins the batch to the features, where these would pass for valid.
@pytest.mark.parametrize(
    ("input", "bias", "message"),
    [
        ((3, 5, 4), (3, 2, 2), "bias must have shape (4,), got (2, 2)"),
        ((3, 5, 1), (3,), "bias must have shape (1,), got ()"),
        ((3, 5, 4), (3, 2), "bias must have shape (4,), got (2,)"),
        ((3,), (3, 3), "input must have at least 1 dimension, got shape ()"),
    ],
)
def test_vmap_checks_the_examples(input, bias, message):
    with pytest.raises(RuntimeError, match=re.escape(f"fused_op: {message}")):
        torch.vmap(fused_op)(torch.randn(input), torch.randn(bias))


def test_vmap_checks_an_example_whose_bias_is_shared():
    with pytest.raises(RuntimeError, match="fused_op: input must have at least 1 dimension"):
        torch.vmap(fused_op, in_dims=(0, None))(torch.randn(4), torch.randn(4))


# On a GPU: partial sums of a few columns, clusters of a small matrix and of a large one, and more
# columns than blocks run at once, which take turns or leave it to another kernel.
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8203, 256), (2051, 1024), (5003, 4096), (259, 13312)], ids=str)
def test_gradients_of_large_matrices(device, shape, dtype):
    torch.manual_seed(0)
    # Whole numbers, of which every sum is exact.
    grad, output = (
        torch.randint(-1, 3, shape, device=device, dtype=torch.int8).to(dtype) for _ in range(2)
    )
    output[-1, -1] = torch.nan
    grad_input, grad_bias = torch.ops.extension_cpp.fused_op_backward(grad, output, 2.0)
    expected = torch.where(output <= 0, 0, grad)
    assert torch.equal(grad_input, expected * 2)
    assert torch.equal(grad_bias, expected.double().sum(0).to(dtype))
