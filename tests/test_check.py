"""`python -m extension_cpp.testing OP`: what it says, what it returns, and what it survives."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from mutants import broken
from scratch import ROOT, copy_repository, python, python_with_torch

from extension_cpp import testing
from extension_cpp.command import build, program, tasks, text

# Operators in a package of their own, as people have them: PACKAGE:NAME.
SPECS = {
    "sound": "from mutants.sound import Centre; spec = Centre().spec()",
    "wrong": "from mutants.broken import WrongStrideInFake; spec = WrongStrideInFake().spec()",
    "crashing": """
import ctypes
from mutants.sound import FusedOp

class Crashes(FusedOp):
    def fused_op_kernel(self, input, bias, scale=1.0):
        if input.shape == (7,):
            print("the last words", flush=True)
            ctypes.string_at(0)
        return super().fused_op_kernel(input, bias, scale)

spec = Crashes().spec()
""",
    # Its samples are smaller than what is timed.
    "large": """
import ctypes
from mutants.sound import FusedOp

class Large(FusedOp):
    def fused_op_kernel(self, input, bias, scale=1.0):
        output = super().fused_op_kernel(input, bias, scale)
        return output if input.numel() < 1e6 else ctypes.string_at(0)

spec = Large().spec()
""",
    "compiling": """
import os, subprocess
from mutants.sound import FusedOp

class Compiles(FusedOp):
    def fused_op_kernel(self, input, bias, scale=1.0):
        subprocess.run(["sh", "-c", f"echo $$ > {os.environ['STARTED']}; exec sleep 150"])

spec = Compiles().spec()
""",
    "misspelt": "spec = nothing",
    "aborting": "import os; print('a schema that is none', flush=True); os.abort()",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    for name, source in SPECS.items():
        path = folder / "mine" / "operators" / name / "spec.py"
        path.parent.mkdir(parents=True)
        path.write_text(source)
    return folder


@pytest.fixture
def check(package):
    """Runs the program, over what is built: other tests are using it."""

    def run(*arguments):
        path = f"{ROOT}:{ROOT / 'tests'}:{package}"
        command = ("-m", "extension_cpp.testing", "--no-build", *arguments)
        return python_with_torch(*command, cwd=package, env={"PYTHONPATH": path})

    return run


def test_an_operator_that_passes(check):
    result = check("mine.operators:sound", "--only", "forward", "signature")
    assert result.returncode == 0, result.stdout
    assert re.search(r"^  forward +cpu +\d+\.\d\d s  pass$", result.stdout, re.M)
    assert re.search(r": (\d) of \1 checks pass \(", result.stdout.splitlines()[-1])
    if not torch.cuda.is_available():
        assert "not run, no GPU is visible: CUDA\n" in result.stdout


def test_what_is_wrong_and_where_to_look(check):
    result = check("mine.operators:wrong", "--only", "strides", "forward")
    problem = "fused_op: kernel and fake kernel disagree on the strides of output 0"
    assert result.returncode == 1, result.stdout
    assert re.search(rf"^  strides +cpu +\d+\.\d\d s  FAIL  {problem}$", result.stdout, re.M)
    assert re.search(r"^  forward +cpu +\d+\.\d\d s  pass$", result.stdout, re.M)
    assert f"\nstrides cpu:\n  {problem}\n    call: " in result.stdout
    assert re.search(r"^    look at: the fake kernel in .*sound.py", result.stdout, re.M)
    assert re.search(r"\d of \d checks failed: strides \(", result.stdout.splitlines()[-1])


def test_json_and_nothing_else(check):
    result = check("mine.operators:wrong", "--only", "strides", "forward", "--json")
    report = json.loads(result.stdout)  # and stderr
    assert result.returncode == 1
    assert (report["operator"], report["ok"]) == ("mine.operators:wrong", False)
    results = {c["name"]: c for c in report["checks"] if c["device"] == "cpu"}
    assert [results[name]["result"] for name in ("forward", "strides")] == ["pass", "fail"]
    assert "look at: " in results["strides"]["message"]
    assert report["versions"]["torch"] == torch.__version__
    assert "timings" not in report


def test_a_crash_is_a_failure_and_the_rest_goes_on(check):
    result = check("mine.operators:crashing", "--only", "forward", "backward", "signature")
    assert result.returncode == 1, result.stdout
    assert re.search(r"^  forward +cpu .* s  CRASH  .*crashed: SIGSEGV$", result.stdout, re.M)
    assert re.search(r"^  signature +cpu .* s  pass$", result.stdout, re.M)
    assert "    the last words\n    Fatal Python error: Segmentation fault\n" in result.stdout
    assert "in fused_op_kernel\n" in result.stdout  # where it was
    assert re.search(r"\d of \d checks failed: forward, backward \(", result.stdout)


def test_a_crash_while_it_is_timed_is_one_too(check):
    result = check("mine.operators:large", "--quick")
    assert result.returncode == 1, result.stdout
    assert "\ntiming:\n  mine.operators:large: the process crashed: SIGSEGV\n" in result.stdout
    assert "not timed: mine.operators:large: the process crashed: SIGSEGV\n" in result.stdout
    assert re.search(r": 1 of \d+ checks failed: timing \(", result.stdout.splitlines()[-1])


def test_a_broken_record_of_the_build_is_said_in_a_sentence(tmp_path):
    root = copy_repository(tmp_path)
    (root / "extension_cpp" / "_C.so").touch()
    record = root / "extension_cpp" / "_build_info.json"
    record.write_text('{"torch": ')
    command = ("-m", "extension_cpp.testing", "fused_op", "--no-build", "--only", "forward")
    result = python(*command, "--json", cwd=root)
    report = json.loads(result.stdout)
    (load,) = report["checks"]
    assert (result.returncode, report["ok"]) == (1, False)
    assert (load["name"], load["result"]) == ("load", "fail")
    assert load["message"].startswith(f"{record}, which the build writes beside the libraries, is")
    assert "\n" not in load["message"]
    assert text.header(report) == f"fused_op: as it was built; torch {torch.__version__}"


# Starts what compiles as torch's build does: ninja gives each compiler a group of its own.
SLOW_SETUP = """\
import os, subprocess, sys
with open("build.ninja", "w") as file:
    compiler = f"sh -c 'echo $$$$ > {os.environ['STARTED']}; exec sleep 150'"
    file.write(f"rule compile\\n  command = {compiler}\\nbuild a.o: compile\\n")
subprocess.run([sys.executable, "-m", "ninja"])
"""


@pytest.mark.parametrize(
    ("doing", "number"),
    [("build", signal.SIGTERM), ("build", signal.SIGINT), ("check", signal.SIGTERM)],
)
def test_what_was_started_ends_with_the_program(doing, number, package, tmp_path):
    started = tmp_path / "started"
    environment = {"STARTED": str(started), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{package}"}
    operator = ["--no-build", "mine.operators:compiling", "--only", "forward"]
    if doing == "build":
        root = copy_repository(tmp_path / "copy")
        (root / "setup.py").write_text(SLOW_SETUP)
        environment["PYTHONPATH"] = str(root)
        operator = ["fused_op"]
    program = subprocess.Popen(
        [sys.executable, "-m", "extension_cpp.testing", *operator],
        cwd=tmp_path,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Shells have what they start in the background ignore it, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_until(lambda: started.exists() and started.read_text())
        compiler = int(started.read_text())
        program.send_signal(number)
        assert program.wait(60) == (130 if number == signal.SIGINT else 128 + number)
        wait_until(lambda: not os.path.exists(f"/proc/{compiler}"))
    finally:
        program.kill()


def wait_until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("operator", "result", "says"),
    [
        ("misspelt", "fail", "NameError: name 'nothing' is not defined"),
        ("aborting", "crash", "a schema that is none"),
    ],
)
def test_what_does_not_load(operator, result, says, check):
    found = check(f"mine.operators:{operator}", "--only", "signature", "--json")
    (load,) = json.loads(found.stdout)["checks"]
    assert (found.returncode, load["name"], load["result"]) == (1, "load", result)
    assert says in load["message"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no operator given: make check OP="),
        ([""], "no operator given: make check OP="),
        (["one two"], "one operator at a time, not 'one two'"),
        (["one", "two"], "one operator at a time, not 'one two'"),
        (["sound"], "no operator 'sound'; there are: "),
        (["_fused_op"], "no operator '_fused_op'; there are: "),
        (["../fused_op"], "no operator '../fused_op'; there are: "),
    ],
)
def test_wrong_usage(arguments, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        program.main([*arguments, "--json"])
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mine.operators:nothing"], "there is no module mine.operators.nothing.spec"),
        (["not_there:sound"], "there is no module not_there.sound.spec"),
        (
            ["mine.operators:sound", "--only", "froward"],
            "no check 'froward'; there are: argument_twice, autocast",
        ),
    ],
)
def test_what_there_is_not(arguments, says, check):
    result = check(*arguments)
    assert result.returncode == 2, result.stdout
    assert says in result.stdout.splitlines()[-1]


def spec_named(name):
    return next(spec for spec in testing.find_specs() if spec.name == name)


def test_the_quick_look_is_a_part_of_all():
    spec = spec_named("fused_op")
    every, skipped = tasks.plan(spec, tasks.Request("fused_op"))
    quick, _ = tasks.plan(spec, tasks.Request("fused_op", quick=True))
    pairs = {(task.name, task.device) for task in every}
    assert {(task.name, task.device) for task in quick} < pairs
    assert {"forward", "backward", "strides"} < {task.name for task in quick}
    # Nothing is left out without a word.
    named = {name for name, _ in pairs} | {outcome.name for outcome in skipped}
    assert named == set(tasks.names())


@pytest.mark.slow
def test_the_quick_look_finds_nearly_every_mutant(monkeypatch):
    not_found = []
    for mutant in list(vars(broken).values()):
        if not (inspect.isclass(mutant) and getattr(mutant, "caught_by", None)):
            continue
        if getattr(mutant, "only_on", "cpu") != "cpu":
            continue
        # As it was made in this process already, where test_battery.py ran before.
        fresh = type(f"Quick{mutant.__name__}", (mutant,), {})
        found, _ = tasks.plan(fresh().spec(), tasks.Request(mutant.name, quick=True))
        if not any(tasks.outcome(task).result == "fail" for task in found):
            not_found.append(mutant.caught_by)
    # These compile, or take long.
    assert sorted(not_found) == [
        "check_dynamic",
        "check_export",
        "check_memory",
        "check_properties",
        "check_saved_tensors",
    ]


def report_of(messages, **parts):
    checks = [
        {"name": f"c{n}", "device": "cpu", "seconds": 1.0, "result": "fail", "message": message}
        for n, message in enumerate(messages)
    ]
    built = {"problem": "", "compiled": [], "seconds": 1.0}
    return {"operator": "f", "seconds": 2.0, "build": built, "checks": checks, **parts}


def test_what_is_wrong_fits_on_a_screen():
    long = [f"problem {n}\n" + "detail\n" * 100 + "  look at: the kernel" for n in range(9)]
    shown = text.conclusion(report_of(long), verbose=False)
    assert len(shown.splitlines()) <= text.SCREEN + 8
    assert shown.count("look at: the kernel") == shown.count("problem") == 3
    assert "6 more: --verbose" in shown
    whole = text.conclusion(report_of(long), verbose=True)
    assert whole.count("look at: the kernel") == 9
    assert whole.count("detail") == 900


def test_what_is_said_twice_is_shown_once():
    same = ["wrong\n  call: f(1)", "wrong\n  call: f(2)", "other"]
    shown = text.conclusion(report_of(same), verbose=False)
    assert "c0 cpu, c1 cpu:\n  wrong\n    call: f(1)\n\nc2 cpu:\n  other\n" in shown


def test_times_are_shown_beside_each_other():
    row = {"form": "", "shape": "4x4", "dtype": "float32", "device": "cpu", "pass": "forward"}
    right = row | {"us": {"ours": 2.0, "eager": 5.0}, "failed": {}}
    wrong = row | {"us": {"eager": 5.0}, "failed": {"ours": "wrong: all"}}
    shown = text.conclusion(report_of([], timings={"rows": [right, wrong]}), verbose=False)
    assert re.search(r"4x4 float32 cpu, forward +2\.0 us +eager +5\.0 us \(2\.50x\)$", shown, re.M)
    assert re.search(r"not timed +eager +5\.0 us\n +ours: wrong: all$", shown, re.M)
    why = text.conclusion(report_of([], timings={"rows": [], "why": "no GPU"}), verbose=False)
    assert "not timed: no GPU\n" in why


def test_schemas_that_a_test_does_not_expect_are_said(tmp_path, monkeypatch):
    assert tasks.changed_schemas() == ()
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    assert tasks.changed_schemas() == ()  # of a package without tests
    expected = (ROOT / "tests" / "test_schemas.py").read_text()
    # The first of those that there are.
    there = re.search(r'"""\\\n(\w+)\(', expected)[1]
    edited = expected.replace(f"\n{there}(", f"\ngone() -> ()\n{there}(int added, ")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_schemas.py").write_text(edited)
    assert tasks.changed_schemas() == tuple(sorted(("gone", there)))
    shown = text.conclusion(report_of([], schemas=("gone", "square")), verbose=False)
    assert "tests/test_schemas.py expects other schemas of gone, square; those that" in shown
    assert "test_schemas" not in text.conclusion(report_of([], schemas=()), verbose=False)


def test_compilers_are_quoted_without_their_commands():
    output = f"""\
[1/2] c++ -MMD -c {ROOT}/b.cpp -o b.o
FAILED: [code=1] a.o
c++ -MMD -c {ROOT}/a.cpp -o a.o
{ROOT}/a.h: In instantiation of 'void g() [with T = int]':
{ROOT}/a.h:7:1:   required from 'void f()'
{ROOT}/a.cpp:3:9: error: expected ';'
    3 | return 1
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
  File "setup.py"
"""
    found = build.diagnostics(output.splitlines(), ROOT)
    assert found == "a.cpp:3:9: error: expected ';'\n    3 | return 1"
