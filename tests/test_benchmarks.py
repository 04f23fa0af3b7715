"""The benchmark: its clock against a GPU that is not there, its checks, its files."""

import dataclasses
import json
import math
import platform
import re
import sys
import types

import pytest
import torch
from scratch import ROOT, python, run

from extension_cpp.testing import Sample, find_specs

sys.path.insert(0, str(ROOT / "benchmarks"))

import ahead
import cases
import contenders
import correctness
import glance
import goals
import limits
import machine
import report
import results
import run as benchmark
import table
import timing

# Nearly all is asked on the CPU, which some operator may have no kernel for.
SPECS = [spec for spec in find_specs() if "cpu" in spec.devices]
# Of those whose tensors have another number of dimensions, calls stand in a benchmark.py.
TIMED = [s for s in SPECS if cases.own(s) or any(len(shape) == 2 for shape in s.shapes)]
NAMES = [spec.name for spec in TIMED]


# ----- timing

LAUNCH = 5e-6  # of the host, for everything that it queues


class FakeGpu:
    """A GPU with a queue and a clock: what it is asked for takes as long as it is told."""

    def __init__(self):
        self.now = 0.0  # of the host
        self.free = 0.0  # when the GPU has done all that is queued
        self.cached = set()
        self.spins = []

    def clock(self):
        return self.now

    def queue(self, seconds):
        self.now += LAUNCH
        self.free = max(self.free, self.now) + seconds
        return self.free

    def kernel(self, name, seconds, launches=1, cached_seconds=None):
        def call():
            warm = name in self.cached and cached_seconds is not None
            for _ in range(launches):
                self.queue((cached_seconds if warm else seconds) / launches)
            self.cached.add(name)

        return call

    def spin(self, seconds):
        self.spins.append(seconds)
        self.queue(seconds)

    def evict(self):
        self.cached.clear()
        self.queue(60e-6)

    def record(self):
        return self.queue(0.0)

    def passed(self, event):
        return event <= self.now

    def between(self, start, end):
        return end - start

    def synchronize(self):
        self.now = max(self.now, self.free)


def cuda_timer(gpu, rounds=9):
    return timing.CudaTimer(gpu, timing.Effort(rounds, seconds=10.0), gpu.clock)


def test_launches_do_not_show_behind_a_full_queue():
    gpu = FakeGpu()
    calls = {
        "one kernel": gpu.kernel("one kernel", 2e-6),
        "many": gpu.kernel("many", 10e-6, launches=20),
    }
    times = cuda_timer(gpu).time(calls)
    assert times["one kernel"].median == pytest.approx(2e-6)
    assert times["many"].median == pytest.approx(10e-6)
    # Without a queue its 20 launches are what one measures.
    gpu.synchronize()
    start = gpu.record()
    calls["many"]()
    assert gpu.between(start, gpu.record()) > 90e-6


def test_a_round_whose_queue_ran_empty_does_not_count():
    gpu = FakeGpu()
    timer = cuda_timer(gpu, rounds=3)
    # The host needs 5 ms, the first spin lasts one.
    times = timer.time({"slow to launch": gpu.kernel("slow to launch", 1e-6, launches=1000)})
    assert gpu.spins[:4] == [1e-3, 2e-3, 4e-3, 8e-3]
    assert times["slow to launch"].high == pytest.approx(1e-6)
    # The next calls begin with the shortest again.
    del gpu.spins[:]
    timer.time({"quick": gpu.kernel("quick", 1e-6)})
    assert set(gpu.spins) == {1e-3}


def test_a_call_that_waits_for_the_gpu_is_refused():
    gpu = FakeGpu()
    with pytest.raises(RuntimeError, match="one of patient, waiting waits for the GPU"):
        cuda_timer(gpu).time({"patient": gpu.kernel("patient", 1e-6), "waiting": gpu.synchronize})


def test_each_call_is_timed_from_memory_and_from_the_cache():
    gpu = FakeGpu()
    calls = {name: gpu.kernel(name, 9e-6, cached_seconds=3e-6) for name in ("a", "b")}
    timer = cuda_timer(gpu)
    assert timer.time(calls)["a"].median == pytest.approx(9e-6)
    assert timer.warm(calls)["a"].median == pytest.approx(3e-6)


def test_host_time_is_that_of_queueing():
    gpu = FakeGpu()
    host = cuda_timer(gpu).host({"a": gpu.kernel("a", 1e-3, launches=3)})
    assert host["a"].median == pytest.approx(3 * LAUNCH)


def test_the_spin_is_calibrated(monkeypatch):
    """Seconds become cycles of a clock whose rate is measured; events say milliseconds."""
    clock, cycles = 1.98e9, []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.seconds = sum(cycles) / clock

        def query(self):
            return True

        def elapsed_time(self, end):
            return (end.seconds - self.seconds) * 1e3

    properties = types.SimpleNamespace(L2_cache_size=50)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(torch.cuda, "_sleep", cycles.append, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))
    gpu = timing.Cuda()
    start = gpu.record()
    gpu.spin(0.25)
    assert cycles[-1] == pytest.approx(0.25 * clock, rel=1e-6)
    assert gpu.between(start, gpu.record()) == pytest.approx(0.25)
    assert gpu.passed(start)
    assert gpu._evicting.nbytes == 4 * 50


def test_rounds_are_interleaved_in_an_order_of_their_own():
    seen = []

    def once(calls):
        seen.append(list(calls))
        return {name: float(len(seen)) for name in calls}

    calls = dict.fromkeys("abc", lambda: None)
    times = timing.interleaved(once, calls, timing.Effort(rounds=30), clock=lambda: 0.0)
    warming, timed = seen[:2], seen[2:]
    assert warming == [list("abc")] * 2
    assert times["a"] == timing.Spread(median=17.5, low=10.25, high=24.75, rounds=30)
    # What one call leaves in the caches serves every other one.
    assert all(sorted(order) == list("abc") for order in timed)
    assert {first + second for first, second, _ in timed} == {"ab", "ac", "ba", "bc", "ca", "cb"}


@pytest.mark.parametrize(
    ("seconds_a_round", "rounds"), [(1e-4, 30), (0.1, 10), (0.5, 7), (100.0, 7)]
)
def test_slow_rounds_are_fewer(seconds_a_round, rounds):
    assert timing.Effort(rounds=30, seconds=1.0).of(seconds_a_round) == rounds
    assert timing.Effort(rounds=2, seconds=1.0).of(seconds_a_round) == 2


def test_cpu_time_is_of_each_call():
    gpu = FakeGpu()  # for its clock

    def call(seconds):
        def wait():
            gpu.now += seconds

        return wait

    timer = timing.CpuTimer(timing.Effort(5), gpu.clock)
    times = timer.time({"a": call(2e-3), "b": call(5e-3)})
    assert times["a"].median == pytest.approx(2e-3)
    assert times["b"].median == pytest.approx(5e-3)


def test_warm_time_on_the_cpu_is_that_of_a_call_right_after_itself():
    gpu = FakeGpu()  # for its clock
    before = []

    def call(name):
        def run():
            gpu.now += 2e-3 if before[-1:] == [name] else 5e-3
            before.append(name)

        return run

    timer = timing.CpuTimer(timing.Effort(5), gpu.clock)
    calls = {name: call(name) for name in "ab"}
    assert timer.warm(calls)["a"].median == pytest.approx(2e-3)
    # Orders differ, so that here and there a round ends with the call that begins the next one.
    assert timer.time(calls)["a"].high == pytest.approx(5e-3)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc is told to keep memory")
def test_results_on_the_cpu_are_not_new_pages():
    """In a process of its own: among what others freed there may be no room for an aligned one."""
    code = """
import resource
import torch
from timing import CpuTimer, Effort

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

CpuTimer(Effort(1))
for _ in range(20):
    before = faults()
    torch.ones(64 << 20, dtype=torch.uint8)
    print(faults() - before)
"""
    result = python("-c", code, cwd=ROOT, env={"PYTHONPATH": str(ROOT / "benchmarks")})
    assert min(map(int, result.stdout.split())) < 100, result.stderr


# ----- what the memory gives


@pytest.mark.parametrize("size", [3 * 4096, 12 << 20])
def test_floors_move_as_many_bytes_as_the_row(size):
    memory = limits.Memory("cpu")
    moved = {name: count_bytes(call) for name, call in memory.moving(size).items()}
    assert set(moved) == {"copy", "relu", "add", "sum"}
    for name, count in moved.items():
        assert count == pytest.approx(size, abs=64), name


def count_bytes(call):
    """The bytes of all tensors that an operation is given and gives."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counted = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            # A result is among the arguments where it is written to; a sum is of no account.
            found = [*args, *(kwargs or {}).values()]
            counted.extend(t.nbytes for t in found if isinstance(t, torch.Tensor))
            return func(*args, **(kwargs or {}))

    with Count():
        call()
    return sum(counted)


class FakeTimer:
    """Every call takes as long as its name says, else a second."""

    def __init__(self, seconds):
        self.seconds = seconds

    def time(self, calls):
        for call in calls.values():
            call()
        return {name: timing.spread([self.seconds.get(name, 1.0)]) for name in calls}

    def warm(self, calls):
        return {name: timing.spread([0.5]) for name in calls}

    def host(self, calls):
        return {name: timing.spread([0.25]) for name in calls}


def test_the_ceiling_is_that_of_the_fastest_operation(monkeypatch):
    monkeypatch.setattr(limits, "CEILING_BYTES", 1 << 10)
    timer = FakeTimer({"copy": 1.0, "relu": 1.1, "add": 1.4, "sum": 0.6})
    assert benchmark.ceiling(timer, limits.Memory("cpu")) == (3 * 1024 / 1.4, "add")


# ----- what is timed


def test_the_sets_hold_the_shapes_that_matter():
    full, quick = cases.SETS["cuda", "full"], cases.SETS["cuda", "quick"]
    grid = {(rows, n) for rows in (4096, 65536) for n in (256, 1024, 4096, 8192, 16384)}
    odd = {(16384, 4095), (2048, 65536), (16, 4194304), (4096, 1024), (1024, 2048)}
    assert grid | odd <= set(full.plain)
    assert set(quick.plain) <= set(full.plain)
    # On a CPU from 4 MiB on.
    for name in ("quick", "full"):
        plain = cases.SETS["cpu", name].plain
        assert all(rows * columns * 2 >= 4 << 20 for rows, columns in plain)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("which", ["quick", "full"])
def test_every_operator_has_calls(device, which):
    """A plan allocates nothing: here the tensors of one would not fit."""
    planned = cases.plan(TIMED, device, cases.SETS[device, which], ["bfloat16"])
    assert {cell.spec.name for cell in planned} == {s.name for s in TIMED if device in s.devices}
    keys = [cell.key for cell in planned]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_right(name):
    """Each is called as the benchmark calls it, by all contenders but the compiler."""
    (spec,) = (spec for spec in SPECS if spec.name == name)
    shapes = cases.Shapes(plain=((6, 9),), forms=((6, 9), (3, 4, 5)))
    planned = cases.plan([spec], "cpu", shapes, ["float32", "bfloat16"])
    assert any(cell.form == "misaligned" for cell in planned)
    for cell in planned:
        call = cases.realise(cell, "cpu")
        found, _ = contenders.contenders(spec, "cpu", ["eager"])
        found = {name: call.of(function) for name, function in found.items()}
        traffic = call.traffic(spec)
        assert traffic.forward > 0
        grads = (
            correctness.cotangents(spec, found["eager"], call.sample) if traffic.backward else []
        )
        assert benchmark.compare(cell, call, found, grads) == {}, str(cell)


def test_values_are_drawn_on_the_device_and_are_never_constant():
    make = cases.DeviceMake("cpu", torch.bfloat16, requires_grad=True)
    x, y = make((64, 64)), make((64, 64), low=0.5, high=1.0, requires_grad=False)
    assert x.dtype == torch.bfloat16
    assert x.requires_grad
    assert -2 <= x.min() < -1.5
    assert 1.5 < x.max() <= 2
    assert not y.requires_grad
    assert y.min() >= 0.5
    assert make((3,), dtype=torch.int64).dtype == torch.int64


# ----- contenders


@pytest.fixture
def with_others(monkeypatch):
    """A spec whose folder has functions of other libraries, and a way to install these."""
    spec = SPECS[0]
    own = types.SimpleNamespace(others={"liger": lambda: __import__("liger_kernel").function})
    monkeypatch.setattr(contenders, "own", lambda spec: own)
    monkeypatch.delitem(sys.modules, "liger_kernel", raising=False)

    def install(**content):
        module = types.ModuleType("liger_kernel")
        module.__spec__ = types.SimpleNamespace()
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, "liger_kernel", module)

    return spec, install


def test_why_a_library_is_not_there(with_others, monkeypatch):
    spec, _ = with_others
    assert contenders.library("quack", spec, "cuda") == f"has no {spec.name}"
    assert contenders.library("liger", spec, "cpu") == "runs on CUDA alone"
    monkeypatch.setattr(contenders.importlib.util, "find_spec", lambda name: None)
    missing = "is not installed (pip install liger-kernel)"
    assert contenders.library("liger", spec, "cuda") == missing
    monkeypatch.undo()


def test_a_library_that_is_there_is_timed(with_others):
    spec, install = with_others
    install(function=spec.reference)
    found, absent = contenders.contenders(spec, "cuda", ["eager", "liger", "quack"])
    assert found["liger"] is spec.reference
    assert list(found) == ["ours", "eager", "liger"]
    assert absent == {"quack": f"has no {spec.name}"}


def test_the_backward_is_timed_alone():
    calls = []

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls.append("forward")
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            calls.append("backward")
            return grad * 2

    sample = Sample(torch.ones(3, requires_grad=True))
    backward = contenders.backward(Counted.apply, sample, [torch.ones(3)])
    assert calls == ["forward"]
    backward()
    assert backward()[0].tolist() == [2.0, 2.0, 2.0]
    assert calls == ["forward", "backward", "backward"]
    contenders.both(Counted.apply, sample, [torch.ones(3)])()
    assert calls[3:] == ["forward", "backward"]


# ----- correctness


def element(result, change):
    """The result with another number in its last place."""
    changed = result.clone()
    changed.view(-1)[-1] = change(changed.view(-1)[-1].item())
    return changed


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda x: x * 1.1, "output 0"),
        (lambda x: element(x, lambda value: value + 0.5), "1 of 4096 elements are wrong, at (63,"),
        (lambda x: element(x, lambda _: float("nan")), "nan"),
        (lambda x: x[:-1], "shape (63, 64), expected (64, 64)"),
        (lambda x: x.detach(), "0 outputs require grad, 1 of the reference do"),
        (lambda x: (x, x), "output 1"),
        (WrongGradient.apply, "the gradient of"),
    ],
    ids=[
        "scaled",
        "one element",
        "NaN",
        "shape",
        "no graph",
        "two outputs",
        "gradient",
    ],
)
def test_a_wrong_contender_is_said(dtype, wrong, problem):
    spec, call, cell = differentiable_call(dtype)

    def contender(*args, **kwargs):
        return wrong(spec.reference(*args, **kwargs))

    grads = correctness.cotangents(spec, spec.reference, call.sample)
    found = {"ours": spec.function, "eager": spec.reference, "other": contender}
    failed = benchmark.compare(cell, call, found, grads)
    assert list(failed) == ["other"]
    assert problem in failed["other"]


def differentiable_call(dtype=torch.float32, shape=(64, 64)):
    """Of an operator that is elementwise in its first input, with a gradient."""
    for spec in SPECS:
        name = str(dtype).removeprefix("torch.")
        planned = cases.plan([spec], "cpu", cases.Shapes((shape,), ()), [name])
        call = cases.realise(planned[0], "cpu")
        result = spec.function(*call.sample.args, **call.sample.kwargs)
        is_one = isinstance(result, torch.Tensor) and result.shape == shape
        if is_one and call.traffic(spec).backward:
            return spec, call, planned[0]
    pytest.skip("no operator is elementwise and has a backward that moves something")


def test_a_contender_that_raises_is_said_with_its_first_line():
    _, call, cell = differentiable_call()

    def refuses(*args, **kwargs):
        raise ValueError("too many columns\nand more")

    failed = benchmark.compare(cell, call, {"other": refuses}, [])
    assert failed == {"other": "ValueError: too many columns"}


def test_what_is_wrong_is_not_timed(monkeypatch):
    spec, _, cell = differentiable_call()
    wrong = dataclasses.replace(spec, counterpart=lambda *args, **kwargs: args[0] * 3 + 1)
    cell = dataclasses.replace(cell, spec=wrong)
    arguments = benchmark.parse(["--against", "eager", "--device", "cpu"])
    rows = list(
        benchmark.time_cell(cell, "cpu", arguments, FakeTimer({}), limits.Memory("cpu"), "now")
    )
    assert [row.direction for row in rows] == ["forward", "backward", "both"]
    for row in rows:
        assert list(row.times) == ["ours"]
        assert row.failed["eager"].startswith("wrong: output 0")
        assert "wrong" in table.cells(row, 1e12, ["eager"])


def test_a_result_that_is_not_there_is_said():
    right = {"output 0": torch.ones(3), "the gradient of x": torch.ones(3)}
    problem = correctness.mistake([("output 0", torch.ones(3))], right, 3)
    assert problem == "the gradient of x: there is none"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_errors_of_all_elements_are_said(dtype):
    """Each could be one of rounding; all together could not."""
    right = torch.linspace(1, 2, 1000, dtype=torch.float64)
    eps = torch.finfo(dtype).eps
    assert correctness.difference((right * (1 + 2 * eps)).to(dtype), right, 1000) is None
    drifted = (right * (1 + 6 * eps)).to(dtype)
    assert re.search("off by .* in norm", correctness.difference(drifted, right, 1000))


def test_terms_of_a_sum_may_be_rounded():
    """A composition rounds each of 64 to bfloat16, and they nearly cancel."""
    right, eps = torch.tensor([0.25], dtype=torch.float64), torch.finfo(torch.bfloat16).eps
    off = (right + 4 * eps).to(torch.bfloat16)
    assert correctness.difference(off, right, 64) is None
    assert re.search("off by .* in norm", correctness.difference(off, right, 1))


def test_codes_of_float8_may_be_the_next_one():
    """A composition rounds before; what saturates is no number."""
    dtype = torch.float8_e4m3fn
    right = torch.tensor([1.0, -2.0, 0.0, 448.0, 2000.0], dtype=torch.float64)
    near = torch.tensor([1.125, -2.0, 2**-9, 416.0, 448.0]).to(dtype)
    assert correctness.difference(near, right.to(dtype), 5) is None
    far = torch.tensor([1.5, -2.0, 0.25, 448.0, 448.0]).to(dtype)
    assert correctness.difference(far, right.to(dtype), 5) == "2 of 5 codes are wrong"


def test_a_wrong_number_is_said():
    problem = correctness.difference(torch.tensor(3.0), torch.tensor(2.0).double(), 1)
    assert problem == "1 of 1 elements are wrong, at () 3 where 2 is expected"
    nothing = torch.ones(0)
    assert correctness.difference(nothing, nothing.double(), 0) is None


def test_sums_may_round_and_yet_not_be_wrong():
    values = torch.rand(1 << 20, dtype=torch.float64) * 4 - 2
    right = values.sum()
    one_by_one = values.float().cumsum(0)[-1]
    assert correctness.difference(one_by_one, right, values.numel()) is None
    assert "wrong" in correctness.difference(right.float() + 100, right, values.numel())


# ----- files


def fake_row(operator="op", shape="64x64", dtype="float32", direction="forward", **changes):
    size = 8 * math.prod(int(n) for n in shape.split("x"))
    values = {
        "form": "",
        "run": "2026-01-01T00:00:00+00:00",
        "bytes": size,
        "floor_us": size / 1e6,
        "floor_of": "add",
        "rounds": 30,
        "times": {
            "ours": results.Time(size / 0.9e6, (size / 0.91e6, size / 0.89e6), 1.5, 12.0),
            "eager": results.Time(size / 0.6e6, (size / 0.61e6, size / 0.59e6), 2.5, 6.0),
        },
        "failed": {"quack": "AssertionError: odd"},
    }
    return results.Row(operator, shape=shape, dtype=dtype, direction=direction, **values | changes)


def fake_run(**changes):
    run = {
        "device": "cuda",
        "hardware": "NVIDIA H9",
        "versions": {"torch": "2.99.1+cu999"},
        "commit": "0123456789abcdef",
        "dirty": False,
        "effort": {"rounds": 30, "seconds": 1.0},
        "ceiling": 1.25e12,
        "ceiling_of": "add",
    }
    return run | changes


@pytest.fixture
def fake_results(tmp_path):
    found = results.Results(tmp_path / "nvidia-h9-torch2.99.json")
    found.runs["2026-01-01T00:00:00+00:00"] = fake_run()
    for operator in ("first", "second"):
        for shape in ("64x64", "16384x4096", "32768x16384"):
            for dtype in ("bfloat16", "float32"):
                for direction in ("forward", "backward", "both"):
                    found.put(fake_row(operator, shape, dtype, direction))
    found.put(fake_row("first", form="misaligned"))
    found.save()
    return found


def test_results_are_read_as_they_were_written(fake_results):
    again = results.Results(fake_results.path)
    assert list(again) == list(fake_results)
    assert again.runs == fake_results.runs
    before = fake_results.path.read_text()
    again.save()
    assert fake_results.path.read_text() == before


def test_the_summary_shows_plain_calls_whatever_was_measured_first(tmp_path):
    found = results.Results(tmp_path / "nvidia-h9-torch2.99.json")
    found.put(fake_row("first", form="misaligned"))
    found.put(fake_row("second", form="dim 0"))
    found.put(fake_row("first", direction="backward"))
    found.put(fake_row("first"))
    shown = [(row.operator, row.form, row.direction) for row in report.typical(found)]
    assert shown == [
        ("first", "", "forward"),
        ("first", "", "backward"),
        ("second", "dim 0", "forward"),
    ]


def test_a_row_is_replaced_and_a_run_without_rows_forgotten(fake_results):
    count = len(list(fake_results))
    fake_results.runs["2026-01-02T00:00:00+00:00"] = fake_run(commit="f" * 40)
    fake_results.put(fake_row("first", "64x64", run="2026-01-02T00:00:00+00:00"))
    assert len(list(fake_results)) == count
    for row in list(fake_results):
        fake_results.put(dataclasses.replace(row, run="2026-01-02T00:00:00+00:00"))
    fake_results.save()
    assert list(results.Results(fake_results.path).runs) == ["2026-01-02T00:00:00+00:00"]


def test_rows_that_are_measured_anew_are_forgotten_first(fake_results):
    cell = ("first", "", "64x64", "float32")
    fake_results.drop(cell, ["forward", "both"])
    assert [row.direction for row in fake_results if row.key[:4] == cell] == ["backward"]
    assert any(row.key[:4] == ("second", *cell[1:]) for row in fake_results)


@pytest.mark.parametrize(
    ("change", "measured"),
    [
        ({}, True),
        ({"commit": "other"}, False),
        ({"commit": None}, False),
        ({"dirty": True}, False),
        ({"versions": {"torch": "2.100"}}, False),
        ({"effort": {"rounds": 5, "seconds": 1.0}}, False),
        ({"ceiling": 1.0}, True),
    ],
)
def test_what_was_measured_of_the_same_is_not_measured_again(change, measured, fake_results):
    run = fake_run(**change)
    assert fake_results.measured(("first", "", "64x64", "float32"), run) == measured
    assert not fake_results.measured(("third", "", "64x64", "float32"), run)


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        ("NVIDIA H200", "nvidia-h200-torch2.11.json"),
        (
            "Intel(R) Xeon(R) CPU @ 2.00GHz, 2 threads",
            "intel-xeon-cpu-2-00ghz-2-threads-torch2.11.json",
        ),
    ],
)
def test_file_names(hardware, name):
    assert results.file_name(hardware, "2.11.0+cu130") == name


def test_a_run_says_what_it_was_made_of():
    versions = machine.versions()
    assert versions["torch"] == torch.__version__
    assert versions["liger-kernel"] is None or versions["liger-kernel"][0].isdigit()
    assert re.search(r", [A-Z0-9 ]+, \d+ threads$", machine.hardware("cpu"))
    assert machine.state("cpu").keys() == {"clock_mhz", "load"}


def test_the_driver_is_asked_for_its_state(monkeypatch):
    asked = []

    def answer(*command):
        asked.append(command)
        return "580.1, 1980, 1980, 3201, 700.00, 41"

    monkeypatch.setattr(machine, "_run", answer)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(uuid="ab-c")
    )
    state = machine.state("cuda")
    assert (state["driver"], state["sm_clock_mhz"]) == ("580.1", "1980")
    assert ["--id=GPU-ab-c" in command for command in asked] == [True]
    monkeypatch.setattr(machine, "_run", lambda *command: None)
    assert set(machine.state("cuda").values()) == {None}


# ----- table, plots, README


def test_a_row_of_the_table(fake_results):
    row = fake_row(shape="1000x1000")
    columns = dict(
        zip(
            table.header(["eager", "quack"]),
            table.cells(row, fake_results.ceiling(row), ["eager", "quack"]),
            strict=True,
        )
    )
    assert columns == {
        "operator": "op",
        "form": "",
        "shape": "1000x1000",
        "dtype": "float32",
        "pass": "forward",
        "MB": "8.0",
        "us": "8.9",
        "quartiles": "8.8 to 9.0",
        "TB/s": "0.900",
        "of ceiling": "72.0%",
        "of floor": "90.0%",
        "eager": "13.3 1.50x",
        "quack": "failed",
        "warm us": "1.5 / 2.5",
        "host us": "12.0 / 6.0",
    }


def test_columns_stand_under_their_names():
    others = ["eager", "quack"]
    names = table.header(others)
    head = table.line(names, others)
    row = table.line(table.cells(fake_row(shape="4096x1024"), 1e12, others), others)
    assert head.index("pass") == row.index("forward")
    assert head.index("TB/s") + 4 == row.index("0.900") + 5
    assert len(head) <= 240


def test_plots_are_drawn(fake_results):
    pytest.importorskip("matplotlib", reason="draws the plots; in requirements.txt")
    import plots

    rows = [row for row in fake_results if row.direction == "forward" and row.dtype == "float32"]
    # An operator has three sizes; what is about as large as one is drawn with it.
    like = fake_row("third", "64x65")
    sizes, rates = plots.series([*rows, like], "ours")
    assert sizes == sorted(sizes)
    assert rates == pytest.approx([0.9] * 3)
    written = plots.draw(fake_results, fake_results.path.parent)
    names = ["nvidia-h9-torch2.99-first.png", "nvidia-h9-torch2.99-second.png"]
    assert [path.name for path in written] == [*names, "nvidia-h9-torch2.99.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_the_section_of_a_readme(fake_results, tmp_path):
    text = report.section([fake_results], tmp_path.parent)
    assert f"![TB/s over size]({tmp_path.name}/nvidia-h9-torch2.99.png)" in text
    assert "NVIDIA H9, torch 2.99.1+cu999, commit 0123456; ceiling 1.25 TB/s" in text
    # One shape and dtype, forward and backward, of each operator.
    rows = re.findall(r"^\| (\w+) \| 16384x4096 \| (\w+) \| (\w+) \|", text, re.M)
    assert [(op, direction) for op, _, direction in rows] == [
        (op, direction) for op in ("first", "second") for direction in ("forward", "backward")
    ]
    assert "| 0.90 | 90% | 1.50 |  |" in text
    # Nothing is said of a GPU where none was measured.
    (run,) = fake_results.runs.values()
    run["device"] = "cpu"
    assert report.section([fake_results], tmp_path) == ""
    assert report.section([], tmp_path) == ""


def test_of_many_commits_the_first_and_the_last_are_named():
    runs = [{"commit": f"{letter}1234567"} for letter in "dcabba"]
    assert report.commits(runs[:1]) == "commit d123456"
    assert report.commits(runs[:3]) == "commit d123456, c123456, a123456"
    assert report.commits(runs) == "4 commits, from d123456 to b123456"


def test_the_newest_results_of_a_gpu_are_shown(fake_results, tmp_path):
    for name, start, device in (
        ("old.json", "2025-01-01T00:00:00+00:00", "cuda"),
        ("cpu.json", "2027-01-01T00:00:00+00:00", "cpu"),
    ):
        other = results.Results(tmp_path / name)
        other.runs[start] = fake_run(device=device)
        other.put(fake_row(run=start))
        other.save()
    found = [found.path.name for found in results.committed(tmp_path)]
    assert found == ["nvidia-h9-torch2.99.json", "old.json", "cpu.json"]


def test_a_document_is_written_between_its_marks_alone():
    text = f"before\n{report.BEGIN}old\n{report.END}after\n"
    expected = f"before\n{report.BEGIN}new \\1\n{report.END}after\n"
    assert report.with_section(text, "new \\1\n") == expected
    with pytest.raises(ValueError, match="must be there once"):
        report.with_section("no marks", "new")


def test_documents_show_the_committed_results():
    """`python benchmarks/report.py` writes them."""
    found = results.committed()
    readme = report.README.read_text()
    assert readme == report.with_section(readme, report.section(found))
    for one in found:
        assert one.path.with_suffix(".md").read_text() == report.document(one)
        assert one.path.with_suffix(".png").exists()
        assert report.goals_path(one).read_text() == report.goals_document(one)
    written = set(results.FOLDER.glob("*.md"))
    of_goals = {report.goals_path(one) for one in found}
    assert written == {one.path.with_suffix(".md") for one in found} | of_goals


def times(**us):
    return {name: results.Time(value, (value, value)) for name, value in us.items()}


def test_what_rows_shall_reach():
    def work(*of, **changes):
        return goals.goal_of(fake_row(*of, **changes), "cuda").work

    assert work("relu", "16384x4096") == work("mymul", form="other operands rows") == "elementwise"
    assert work("relu", "4096x1024") == work("fused_layer_norm", "1024x2048") == "small ones"
    assert work("mymul", form="last operand transposed") == "one operand transposed"
    assert work("fused_op", "65536x256", direction="backward") == "fused_op backward, 256 columns"
    assert work("fused_op", "65536x256", direction="both") == "both passes"
    assert work("fused_layer_norm", "16384x4095") == "layer norm, 256 and 4095 columns"
    last = work("fused_layer_norm", "16384x4095", direction="backward")
    assert last == "layer norm backward, 256, 4095 and 16384 columns"
    # 128 MiB of float32, and of bfloat16 half as much.
    assert work("reduce_sum", "32768x1024") == "sums, from 128 MiB"
    assert work("reduce_sum", "32768x1024", "bfloat16") == "smaller sums"
    # Of a scan over time outside, the channels are what is left.
    assert work("linear_scan", "65536x512", form="dim 0") == "linear_scan, few channels"
    assert work("linear_scan", "2048x32768", form="dim 0") == "linear_scan"
    assert work("linear_scan", "8x4096x4096", form="dim 1") == "linear_scan"
    assert goals.goal_of(fake_row("one of another package"), "cuda") is None


def test_what_rows_of_a_cpu_shall_reach():
    def work(*of, **changes):
        return goals.goal_of(fake_row(*of, **changes), "cpu").work

    assert work("relu") == work("mymul", form="misaligned", direction="backward") == "elementwise"
    assert work("fused_op", direction="backward") == "fused_op backward"
    assert work("fused_op", direction="both") == "both passes"
    assert work("fused_layer_norm") == "layer norm"
    assert work("one of another package") == "others"


@pytest.mark.parametrize(
    ("eager_us", "compile_us", "is_reached"),
    [(149.6, 100, True), (149.4, 100, False), (150, 99, False)],
)
def test_a_goal_may_ask_for_more_than_eager(eager_us, compile_us, is_reached):
    others = times(ours=100, eager=eager_us, compile=compile_us)
    row = fake_row("fused_op", floor_us=1, times=others)
    goal = goals.goal_of(row, "cpu")
    assert (goal.floor, goal.best, goal.eager) == (0, 1.0, 1.5)
    assert goals.reached(row, goal) == is_reached
    summary, short = goals.table([row], "cpu").split("Rows that do not reach theirs:")
    assert f"| 1 | {int(is_reached)} |" in summary
    assert "| us | best other | eager | why |" in short  # and no floor, which no goal asks for


@pytest.mark.parametrize(
    ("floor_us", "others", "is_reached"),
    [
        (97, {"eager": 200, "compile": 98}, True),
        (96.6, {"compile": 97.6}, True),  # as printed
        (96.4, {"compile": 98}, False),
        (97, {"eager": 200, "compile": 97.4}, False),
        (97, {}, True),
    ],
)
def test_rows_that_do_not_reach_their_goal_are_shown(floor_us, others, is_reached):
    row = fake_row("square", "16384x4096", floor_us=floor_us, times=times(ours=100, **others))
    goal = goals.goal_of(row, "cuda")
    assert (goal.floor, goal.best) == (0.97, 0.98)
    assert goals.reached(row, goal) == is_reached
    summary, short = goals.table([row], "cuda").split("Rows that do not reach theirs:")
    assert f"| 1 | {int(is_reached)} |" in summary
    assert ("| square | 16384x4096 | float32 | forward | 100.0 |" in short) != is_reached


def test_reasons_are_given_where_they_hold():
    row = fake_row("square", "16384x4096", floor_us=96, times=times(ours=100, compile=99.5))
    assert goals.reason_for(row, "cuda").startswith("as fast as others")
    slower = dataclasses.replace(row, times=times(ours=100, compile=98))
    assert goals.reason_for(slower, "cuda") == "not known"
    far = dataclasses.replace(row, floor_us=90)
    assert goals.reason_for(far, "cuda") == "not known"


def test_rows_that_take_longer_than_eager_are_shown():
    """Those whose quartiles do not overlap; the others are counted."""

    def row(operator, ours, quartiles):
        of = {"ours": results.Time(ours, quartiles), "eager": results.Time(100, (98, 102))}
        return fake_row(operator, "16384x4096", times=of | times(compile=1))

    faster, same, slower = (
        row("relu", 90, (88, 92)),
        row("relu", 101, (99, 103)),
        row("square", 104, (103, 106)),
    )
    without = fake_row("relu", times=times(ours=100, compile=50))
    textbook = row("vector_add", 200, (199, 201))
    text = goals.below_eager([faster, same, slower, without, textbook])
    assert "Of 3 rows that eager PyTorch has, too, ours take longer in 2; in 1 the" in text
    line = "| square | 16384x4096 | float32 | forward | 0.962 | 103.0 to 106.0 | 98.0 to 102.0 |"
    assert text.endswith(f"| ---: |\n{line}")
    assert text in goals.table([faster, same, slower, without, textbook], "cuda")
    assert goals.below_eager([faster, same]).endswith("in 1; in 0 the quartiles do not overlap.")


# A project that starts from this one has no results yet, but the goals.
@pytest.mark.parametrize("device", sorted({results.device(of) for of in results.committed()}))
def test_each_reason_is_that_of_a_row(device):
    used = {
        goals.reason_for(row, device)
        for found in results.committed()
        if results.device(found) == device
        for goal, rows in goals.rows_by_goal(found, device).items()
        for row in rows
        if not goals.reached(row, goal)
    }
    assert used - {"not known"} == {reason.text for reason in goals.MODULES[device].REASONS}


# ----- the command

SMALL = ["--shapes", "32x48", "--dtypes", "float32", "--rounds", "2", "--device", "cpu"]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(limits, "CEILING_BYTES", 1 << 16)


def test_an_operator_is_timed_from_end_to_end(small, tmp_path, capsys):
    """With torch.compile too, and a graph that it must keep."""
    spec, _, cell = differentiable_call(shape=(32, 48))
    command = [spec.name, *SMALL, "--forms", cell.form, "--results", str(tmp_path)]
    assert benchmark.main([*command, "--commit", "abc"]) == 0
    (path,) = tmp_path.glob("*.json")
    content = json.loads(path.read_text())
    assert [row["direction"] for row in content["rows"]] == ["forward", "backward", "both"]
    for row in content["rows"]:
        assert row["times"].keys() == {"ours", "eager", "compile"}
        assert row["failed"] == {}
        assert row["floor_us"] > 0
        assert row["floor_of"] in ("copy", "relu", "add", "sum")
    (run,) = content["runs"].values()
    assert run["commit"] == "abc"
    assert run["ceiling"] > 0
    assert run["versions"]["torch"] == torch.__version__
    assert set(run["absent"]) == {"liger", "quack"}
    output = capsys.readouterr().out
    assert "1 calls, up to 3 rows" in output
    assert len(re.findall(rf"^{spec.name} .* 32x48 ", output, re.M)) == 3
    # Once more: there is nothing to do.
    assert benchmark.main([*command, "--commit", "abc", "--resume"]) == 0
    assert "0 calls" in capsys.readouterr().out
    assert json.loads(path.read_text()) == content


def test_a_run_ends_at_its_limit_and_keeps_what_it_has(small, tmp_path, capsys, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(benchmark.time, "monotonic", lambda: float(next(clock)))
    command = [NAMES[0], *SMALL, "--against", "eager", "--results", str(tmp_path)]
    benchmark.main([*command, "--time-limit", "15"])
    assert "are left: --resume goes on with them" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    forms = {row.form for row in results.Results(path)}
    assert len(forms) == 1


def test_a_wrong_operator_fails_the_run(small, tmp_path, capsys, monkeypatch):
    spec, _, _ = differentiable_call(shape=(32, 48))
    broken = dataclasses.replace(spec, function=lambda *a, **k: spec.function(*a, **k) + 1)
    monkeypatch.setattr(benchmark, "find_specs", lambda: [broken])
    monkeypatch.setattr(benchmark, "plan", lambda specs, *rest: cases.plan(specs, *rest)[:1])
    command = [*SMALL, "--against", "eager", "--results", str(tmp_path)]
    assert benchmark.main(command) == 1
    output = capsys.readouterr().out
    assert "ours: wrong: output 0" in output


def test_one_call_that_cannot_be_timed_does_not_end_the_run(small, tmp_path, capsys, monkeypatch):
    timed = []

    def time_cell(cell, *rest):
        timed.append(cell)
        if len(timed) == 1:
            raise torch.OutOfMemoryError("too large")
        yield fake_row(run=rest[-1])

    monkeypatch.setattr(benchmark, "time_cell", time_cell)
    command = [NAMES[0], *SMALL, "--against", "eager", "--results", str(tmp_path)]
    assert benchmark.main(command) == 1
    assert f"{timed[0]} was not timed: too large" in capsys.readouterr().out
    assert len(timed) > 1


def test_a_run_on_a_gpu(small, tmp_path, capsys, monkeypatch, with_others):
    """All that does not ask the GPU itself: contenders, columns, record."""
    spec, install = with_others
    install(function=spec.reference)
    monkeypatch.setattr(benchmark, "realise", lambda cell, device: cases.realise(cell, "cpu"))
    monkeypatch.setattr(benchmark, "Memory", lambda device: limits.Memory("cpu"))
    monkeypatch.setattr(benchmark, "timer", lambda *_: FakeTimer({"ours": 0.5, "floor add": 0.4}))
    monkeypatch.setattr(machine, "release", lambda device: None)
    monkeypatch.setattr(machine, "hardware", lambda device: "NVIDIA H9")
    monkeypatch.setattr(machine, "state", lambda device: {"driver": "1.2"})
    against = ["--against", "eager", "liger", "quack"]
    command = [spec.name, *SMALL[:-1], "cuda", *against, "--results", str(tmp_path)]
    assert benchmark.main(command) == 0
    output = capsys.readouterr().out
    assert f"quack has no {spec.name}" in output
    (path,) = tmp_path.glob("nvidia-h9-torch*.json")
    record = results.Results(path)
    (run,) = record.runs.values()
    assert run["driver"] == "1.2"
    assert run["absent"] == {"quack": [f"has no {spec.name}"]}
    for row in record:
        assert row.times.keys() == {"ours", "eager", "liger"}
        assert row.times["ours"] == results.Time(5e5, (5e5, 5e5), 5e5, 2.5e5)
        assert (row.floor_us, row.floor_of) == (4e5, "add")
        assert row.of_floor("ours") == 0.8


def test_unknown_operators_are_refused():
    with pytest.raises(SystemExit, match="no operator nothing; there are"):
        benchmark.main(["nothing"])
    with pytest.raises(SystemExit, match="a shape is written as 16384x4096, not 4096"):
        benchmark.main([NAMES[0], "--shapes", "4096by3"])


def test_processes_compile_ahead_each_its_part(small, tmp_path, capsys, monkeypatch):
    started, compiled = [], []

    class Process:
        def __init__(self, command, **options):
            started.append(command)
            monkeypatch.setattr(ahead, "contenders", compile_nothing)
            assert benchmark.main(command[2:]) == 0

        def wait(self):
            return 1 if len(started) == 3 else 0

    def compile_nothing(spec, device, against):
        assert against == ["compile"]
        return {"ours": spec.function, "compile": function}, {}

    def function(*args, **kwargs):
        compiled.append([tuple(a.shape) for a in args if isinstance(a, torch.Tensor)])
        raise ValueError("said where it is timed")

    processes = types.SimpleNamespace(Popen=Process, DEVNULL=None)
    monkeypatch.setattr(ahead, "subprocess", processes)
    monkeypatch.setattr(benchmark, "time_cell", lambda *rest: [])
    command = [NAMES[0], *SMALL, "--against", "eager", "compile", "--jobs", "3"]
    assert benchmark.main([*command, "--results", str(tmp_path)]) == 0
    assert [words[1] for words in started] == [str(ROOT / "benchmarks" / "run.py")] * 3
    assert [words[-2:] for words in started] == [["--part", f"{k}/3"] for k in range(3)]
    shapes = cases.Shapes(((32, 48),), ((32, 48),))
    planned = cases.plan([SPECS[0]], "cpu", shapes, ["float32"])
    assert len(planned) >= 2
    assert len(compiled) == len(planned)
    assert "3 of them failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("make bench OPTIONS=--list", "--list"),
        ("make bench OPERATORS='one two' OPTIONS='--set full'", "one two --set full"),
    ],
)
def test_make_bench_runs_it(command, words):
    environment = {"MAKEFLAGS": "n"}  # says what it would do
    result = run("sh", "-ec", f"{command} PYTHON={sys.executable}", cwd=ROOT, env=environment)
    assert result.returncode == 0, result.stdout
    assert re.search(rf"benchmarks/run.py *{words}$", result.stdout, re.M), result.stdout


def test_the_benchmark_needs_none_of_its_own_dependencies():
    """Those are for the bar, the plots, and other contenders."""
    code = """
import sys
for name in ("matplotlib", "tqdm", "liger_kernel", "quack"):
    sys.modules[name] = None  # importing it raises ImportError
sys.path.insert(0, "benchmarks")
import run
sys.exit(run.main(["--list", "--device", "cpu"]))
"""
    result = python("-c", code, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("quick", [False, True])
def test_a_glance_at_one_operator(quick, monkeypatch):
    """What `python -m extension_cpp.testing` shows."""
    monkeypatch.setattr(glance, "SMALL_SHAPES" if quick else "SHAPES", {"cpu": (32, 48)})
    # Compiling takes seconds for each.
    for spec in TIMED if quick else TIMED[:2]:
        found = glance.times(spec, "cpu", quick)
        passes = [row["pass"] for row in found["rows"]]
        assert passes in (["forward", "both"], ["forward"]), spec
        assert not any(row["failed"] for row in found["rows"]), spec
        names = {"ours", "eager"} if quick else {"ours", "eager", "compile"}
        assert all(row["us"].keys() == names for row in found["rows"]), spec
    only_cuda = dataclasses.replace(SPECS[0], devices=("cuda",))
    assert glance.times(only_cuda, "cpu") == {"rows": [], "why": "it does not run on cpu"}


def test_a_glance_without_samples_says_where_they_come_from(monkeypatch):
    for spec in SPECS:
        says = "cases(make, shape) of a benchmark.py beside spec.py may yield one of any other"
        if hasattr(cases.own(spec), "cases"):
            monkeypatch.setattr(cases.own(spec), "cases", lambda make, shape: ())
            says = "cases() of its benchmark.py yields none"
        bare = dataclasses.replace(spec, samples=lambda make, shape: ())
        expected = f"no sample of shape (1024, 2048): {says}"
        assert glance.times(bare, "cpu", quick=True) == {"rows": [], "why": expected}, spec


def test_other_operands_have_their_dtypes(monkeypatch):
    """A mask that broadcasts stays one."""

    def samples(make, shape):
        yield Sample(make(shape), make(shape, dtype=torch.bool))

    spec = dataclasses.replace(SPECS[0], samples=samples)
    monkeypatch.delattr(cases.own(spec), "cases", raising=False)
    make = cases.DeviceMake("meta", torch.bfloat16, requires_grad=False)
    calls = {call.form: call for call in cases.calls(spec, make, (6, 9), all_forms=True)}
    rows = calls["other operands rows"].sample.args[1]
    assert (rows.shape, rows.dtype) == ((9,), torch.bool)


def test_samples_are_asked_for_shapes_of_their_ranks(monkeypatch):
    def samples(make, shape):
        assert len(shape) == 4
        yield Sample(make(shape), make(shape))

    spec = dataclasses.replace(SPECS[0], samples=samples, shapes=((2, 3, 4, 5),))
    monkeypatch.delattr(cases.own(spec), "cases", raising=False)
    assert "no sample of shape" in glance.times(spec, "cpu", quick=True)["why"]
