"""`make sanitize-cuda` needs a GPU; what it calls is the same on the CPU."""

import dataclasses
import re

import pytest
import sanitize_cuda
import torch

from extension_cpp import testing
from extension_cpp.battery.calls import Recorder
from extension_cpp.battery.tensors import tensors_in
from extension_cpp.operators.bn_relu.spec import spec as bn_relu
from extension_cpp.operators.fused_op.spec import spec
from extension_cpp.operators.mymul.spec import spec as mymul
from extension_cpp.testing import OpSpec


def recorded(spec: OpSpec, *, exact: bool) -> Recorder:
    small = dataclasses.replace(spec, dtypes=(torch.float32,))
    with Recorder(spec.namespace) as recorder:
        for case in sanitize_cuda.calls([small], "cpu", exact=exact):
            sanitize_cuda.call(case)
    return recorder


@pytest.mark.parametrize("exact", [False, True])
def test_the_operator_and_its_backward_are_called(exact: bool) -> None:
    calls = recorded(spec, exact=exact).calls
    called = {op.name().removeprefix(f"{spec.namespace}::") for op, _, _ in calls}
    assert called == {"fused_op", "fused_op_backward"}
    given = [t for op, args, _ in calls if op == spec.op for t in tensors_in(args)]
    strided = [t for t in given if not t.is_contiguous()]
    ragged = [t for t in given if t.numel() * t.element_size() % sanitize_cuda.WORD]
    assert (not strided and not ragged) if exact else (strided and ragged)


@pytest.mark.parametrize("spec", [bn_relu, mymul], ids=lambda spec: spec.name)
def test_backwards_of_some_gradients_are_called(spec: OpSpec) -> None:
    """They are operators of their own."""
    called = {op.name() for op, _, _ in recorded(spec, exact=True).calls}
    operator = f"{spec.namespace}::{spec.name}"
    own = {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name == operator or re.fullmatch(rf"{operator}(_\w+)?_backward", schema.name)
    }
    assert len(own) == 3
    assert called == own


@pytest.mark.parametrize(
    ("arguments", "devices", "gpu", "said"),
    [
        (["fused"], ("cpu", "cuda"), True, "no operator fused; there are"),
        (["fused_op"], ("cpu", "cuda"), False, "there is no GPU"),
        (["fused_op"], ("cpu",), True, "no sample to call of fused_op"),
        ([], ("cpu",), True, "no sample to call of fused_op"),
    ],
)
def test_what_cannot_be_called_is_said(
    arguments: list[str],
    devices: tuple[str, ...],
    gpu: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed = dataclasses.replace(spec, devices=devices)
    monkeypatch.setattr(testing, "find_specs", lambda: [changed])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("sys.argv", ["sanitize_cuda.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        sanitize_cuda.main()
    assert ended.value.code
    assert said in capsys.readouterr().err
