"""The benchmark of host time: who is timed, and that what is wrong is not."""

import functools
import re
import sys

import pytest
import torch
from scratch import ROOT

from extension_cpp.testing import find_specs

sys.path.insert(0, str(ROOT / "benchmarks"))

import host
from cases import own

SPECS = [spec for spec in find_specs() if not spec.mutates]
QUICK = ["--rounds", "2"]


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(host, "CALLS", 2)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_operator_is_timed_with_and_without_gradients(spec, few, capsys):
    host.main([spec.name, *QUICK])
    heads, rows = [], []
    for line in capsys.readouterr().out.splitlines()[1:]:
        if line.startswith(spec.name):
            heads.append(line[: line.index("  ")])
            rows.append([])
        elif line:
            rows[-1].append(re.fullmatch(r" {4}(.*\S) +[\d.]+ +[\d.]+ - [\d.]+ +[\d.]+x", line)[1])
    passes = ["no gradients", "forward and backward"] if spec.differentiable else ["no gradients"]
    assert heads == [f"{spec.name}, {each}" for each in passes]
    both = ["torch", "public function", "torch.ops", "torch.ops, overload"]
    both += ["autograd.Function"] if hasattr(own(spec), "classic") else []
    assert rows == [[*both, "inference_mode"], both][: len(passes)]


def test_what_is_wrong_is_not_timed(few, monkeypatch):
    spec = SPECS[0]
    right = host.contenders

    def doubled(results):
        return 2 * results if isinstance(results, torch.Tensor) else tuple(map(doubled, results))

    def contenders(*args):
        found = right(*args)
        return found | {"torch.ops": lambda *a: doubled(found["torch"](*a))}

    monkeypatch.setattr(host, "contenders", contenders)
    with pytest.raises(AssertionError, match=r"^torch.ops: "):
        host.main([spec.name, *QUICK])


def test_time_is_that_of_one_call(monkeypatch):
    ticks = iter([0.0, 1.0, 10.0, 12.0])
    monkeypatch.setattr(host.time, "perf_counter", lambda: next(ticks))
    seen = []
    calls = {
        "one": host.Timed(lambda: seen.append(torch.is_inference_mode_enabled())),
        "twenty": host.Timed(lambda: seen.append(None), calls=20),
    }
    assert host.once_each(calls, cuda=False) == {"one": 1 / 100, "twenty": 2 / 100}
    assert seen == [False] * 100 + [None] * 5


def test_single_calls_come_after_something(monkeypatch):
    seen = []

    def clock():
        seen.append("clock")
        return float(len(seen))

    monkeypatch.setattr(host.time, "perf_counter", clock)
    calls = {name: host.Timed(functools.partial(seen.append, name)) for name in ("one", "two")}
    seconds = host.once_each(calls, cuda=False, before=lambda: seen.append("copy"))
    assert seen == ["copy", "clock", "one", "clock", "copy", "clock", "two", "clock"]
    assert seconds == {"one": 2, "two": 2}


def test_modes_are_entered_once(few):
    seen = []
    call = host.Timed(lambda: seen.append(torch.is_inference_mode_enabled()), torch.inference_mode)
    host.once_each({"inference": call}, cuda=False)
    assert seen == [True] * host.CALLS
    assert not torch.is_inference_mode_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_is_timed_on_a_gpu(few, capsys):
    host.main([SPECS[0].name, *QUICK, "--device", "cuda"])
    assert capsys.readouterr().out.count("CUDA graph") == 2
