"""register_autocast: what each policy casts."""

from __future__ import annotations

import pytest
import torch
from small_operators import GATE, NAMESPACE, define, ops
from torch.func import (
    jvp,
)

from extension_cpp.registration import (
    register_autocast,
    register_autograd,
)

for policy in ("lower_precision", "float32", "promote"):
    define(
        f"dtypes_{policy}(Tensor a, Tensor[] bs, Tensor? c=None) -> Tensor[]",
        lambda a, bs, c=None: [t.clone() for t in (a, *bs, c) if t is not None],
    )
    register_autocast(f"{NAMESPACE}::dtypes_{policy}", policy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "given", "expected"),
    [
        ("lower_precision", "f4 f2 f4", "b2 b2 b2"),
        ("lower_precision", "f8 i8 f4", "f8 i8 b2"),
        ("float32", "b2 f2 f4", "f4 f4 f4"),
        ("float32", "f8 i8 b2", "f8 i8 f4"),
        ("promote", "b2 b2 f4", "f4 f4 f4"),
        ("promote", "b2 b2 b2", "b2 b2 b2"),
        ("promote", "b2 f2 b2", "f4 f4 f4"),
        ("promote", "f8 i8 b2", "f8 i8 b2"),
        ("promote", "f8 i8 i8", "f8 i8 i8"),
    ],
)
def test_autocast(policy: str, given: str, expected: str) -> None:
    dtypes = {
        "f8": torch.float64,
        "f4": torch.float32,
        "f2": torch.float16,
        "b2": torch.bfloat16,
        "i8": torch.int64,
    }
    a, b, c = (torch.ones(2).to(dtypes[name]) for name in given.split())
    op = getattr(ops, f"dtypes_{policy}")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [t.dtype for t in op(a, [b], c)] == [dtypes[name] for name in expected.split()]
    assert [t.dtype for t in op(a, [b], c)] == [dtypes[name] for name in given.split()]


def test_autocast_casts_before_autograd() -> None:
    name = define("scaled(Tensor x) -> Tensor", lambda x: x * 2)
    register_autograd(name, lambda ctx, grad: grad * 2)
    register_autocast(name, "lower_precision")
    x = torch.ones(3, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.scaled(x)
        tangent = jvp(ops.scaled, (x.detach(),), (x.detach(),))[1]
        compiled = torch.compile(lambda x: ops.scaled(x), backend="aot_eager", fullgraph=True)(x)
    assert y.dtype == tangent.dtype == compiled.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_autocast_refuses_an_unknown_policy() -> None:
    with pytest.raises(ValueError, match="library_test::gate: the autocast policy must be"):
        register_autocast(GATE, "fastest")  # type: ignore[arg-type]
