"""`make sanitize-cuda` needs a GPU; what it calls is the same on the CPU."""

import dataclasses
import re

import pytest
import sanitize_cuda
import torch

from extension_cpp import testing
from extension_cpp.battery.calls import Recorder, samples
from extension_cpp.battery.case import Case
from extension_cpp.battery.tensors import tensors_in
from extension_cpp.operators.bn_relu.spec import spec as bn_relu
from extension_cpp.operators.fused_op.spec import spec
from extension_cpp.operators.myadd_out.spec import spec as myadd_out
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


def test_what_has_no_gradient_or_no_layout_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`myadd_out` has no derivative; without a tensor there is no layout."""
    small = dataclasses.replace(myadd_out, dtypes=(torch.float32,), shapes=((4, 8),))
    given = list(samples(small, "cpu", torch.float32, (4, 8)))
    assert len(list(sanitize_cuda.calls([small], "cpu", exact=True))) == len(given) > 0
    monkeypatch.setattr(Case, "layouts", lambda case: iter(()))
    assert len(list(sanitize_cuda.calls([small], "cpu", exact=False))) == len(given)


def test_that_no_sample_is_whole_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testing, "find_specs", lambda: [spec])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(sanitize_cuda, "calls", lambda *args, **kwargs: iter(()))
    monkeypatch.setattr("sys.argv", ["sanitize_cuda.py", "--exact", spec.name])
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    sanitize_cuda.main()
    assert capsys.readouterr().out == f"0 calls\nno sample to call of {spec.name}\n"
    # Of all operators some are.
    monkeypatch.setattr("sys.argv", ["sanitize_cuda.py", "--exact"])
    with pytest.raises(SystemExit):
        sanitize_cuda.main()


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
