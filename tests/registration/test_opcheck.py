"""torch.library.opcheck of everything that is registered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_operators import inputs, ops


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("op", "shapes", "extra"),
    [
        ("gate", [(2, 3), (3,)], ()),
        ("gate", [(2, 3), (3,)], (0.5,)),
        ("gate_backward", [(2, 3), (2, 3), (3,)], (0.5,)),
        ("standardize", [(2, 3)], ()),
        ("standardize", [(2, 3), (3,)], ()),
        ("referenced", [(2, 3), (3,)], ()),
        ("referenced_backward", [(2, 3), (2, 3), (3,)], (0.5,)),
        ("standardize_referenced", [(2, 3)], ()),
        ("no_formula", [(2, 3)], ([torch.ones(1)],)),
        ("myadd_out", [(2, 3)] * 3, ()),
    ],
)
def test_opcheck(op: str, shapes: Any, extra: tuple[Any, ...], requires_grad: bool) -> None:
    arguments = inputs(*shapes, requires_grad=requires_grad and op != "no_formula")
    torch.library.opcheck(getattr(ops, op).default, (*arguments, *extra))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_lists(requires_grad: bool) -> None:
    x, y = inputs((2, 3), (2, 3), requires_grad=requires_grad)
    for op in (ops.spread.default, ops.spread_referenced.default):
        torch.library.opcheck(op, ([x, y], [y, None]), {"alpha": 0.5})
