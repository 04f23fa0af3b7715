"""fused_op: what the battery cannot know of it."""

import re

import pytest
import torch

from extension_cpp.ops import fused_op


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
