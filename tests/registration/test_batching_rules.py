"""register_vmap: batching rules are called once, whatever the batch."""

from __future__ import annotations

import pytest
import small_operators
import torch
from small_operators import TRANSFORMS, gate_reference, inputs, ops
from torch.func import (
    vmap,
)


@pytest.mark.parametrize("transform", ["vmap", "per-sample gradients", "vmap of jvp", "jacfwd"])
def test_kernel_calls_do_not_grow_with_the_batch(transform: str) -> None:
    def calls(batch: int) -> int:
        small_operators.kernel_calls = 0
        x, w, t = inputs((batch, 3), (3,), (batch, 3))
        TRANSFORMS[transform](ops.gate, x, w, t)
        return small_operators.kernel_calls

    assert calls(7) == calls(2) > 0


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 0), (-1, None), (2, -1)])
def test_vmap_in_dims(in_dims: tuple[int | None, int | None]) -> None:
    x, w = inputs((3, 3, 3), (3, 3))
    if in_dims[0] is None:
        x = x[0]
    actual = vmap(ops.gate, in_dims)(x, w)
    torch.testing.assert_close(actual, vmap(gate_reference, in_dims)(x, w))


def test_vmap_with_nothing_batched_for_the_operator() -> None:
    x, w, t = inputs((2, 3), (3,), (2, 3))
    actual = vmap(lambda t: ops.gate(x, w) * t)(t)
    torch.testing.assert_close(actual, gate_reference(x, w) * t[:, None])
