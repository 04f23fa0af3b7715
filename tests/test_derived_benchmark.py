"""benchmarks/derived.py: what it makes, when it makes it again, and what it asks run.py for."""

import dataclasses
import re
import subprocess
import sys

import pytest
from scratch import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import contenders
import derived
import report
import results


@pytest.fixture
def calls(monkeypatch):
    """What would be run in the copy: commands that do nothing."""
    commands = []

    def run(command, **options):
        commands.append((command[1:], options))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(derived.subprocess, "run", run)
    return commands


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the copy of a smaller package is made."""
    source = tmp_path / "source"
    for name, text in {
        "setup.py": "",
        "extension_cpp/_C.so": "",
        "extension_cpp/operators/one/spec.py": "spec = 1\n",
        "extension_cpp/operators/one/ops.py": "from extension_cpp.operators.two.ops import two\n",
        "extension_cpp/operators/two/spec.py": "spec = 2\n",
        "extension_cpp/operators/three/spec.py": "spec = 3\n",
        "tests/derived_worked_functions.py": "def one_derived(x):\n    return x\n",
    }.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(derived, "ROOT", source)
    monkeypatch.setattr(derived, "COPIED", ("setup.py", "extension_cpp/**/*", "tests/*"))
    # As new_op.py would make it.
    (source / "extension_cpp/operators/one_derived").mkdir()
    (source / "extension_cpp/operators/one_derived/spec.py").touch()
    return tmp_path / "built"


def test_the_definitions_are_there():
    places = derived.definitions(ROOT)
    for name, place in places.items():
        path, _, function = place.partition(":")
        assert function == name
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), place
    assert len(places) >= 10


def test_what_is_chosen_is_made_and_built_once(folder, calls):
    places = {"one_derived": "tests/derived_worked_functions.py:one_derived"}
    derived.make(folder, places)
    ((_, code), options) = calls[0]
    assert options["cwd"] == folder
    assert options["env"]["PYTHONPATH"].startswith(f"{folder}")
    # What the worked operator imports is kept.
    assert "for name in ['one_derived', 'three']:" in code
    assert f"for place in {list(places.values())!r}:" in code
    assert not (folder / "extension_cpp/_C.so").exists()
    beside = folder / "extension_cpp/operators/one_derived/benchmark.py"
    assert "from extension_cpp.operators.one.spec import spec\n" in beside.read_text()
    derived.build(folder)
    assert calls[1][0] == ["setup.py", "-q", "build_ext", "--inplace"]
    for _ in range(2):
        derived.make(folder, places)
        derived.build(folder)
    assert len(calls) == 2


def test_what_changed_is_made_again(folder, calls):
    derived.make(folder, {})
    source = derived.ROOT / "extension_cpp/operators/one/spec.py"
    source.write_text("spec = 4\n")
    derived.make(folder, {})
    copy = folder / "extension_cpp/operators/one/spec.py"
    assert copy.read_text() == "spec = 4\n"
    derived.make(folder, {"other": "tests/other.py:other"})
    assert len(calls) == 3


def test_a_build_that_failed_is_tried_again(folder, calls, monkeypatch):
    derived.make(folder, {})
    failed = subprocess.CompletedProcess([], 1)
    with monkeypatch.context() as broken:
        broken.setattr(derived.subprocess, "run", lambda *args, **kwargs: failed)
        with pytest.raises(SystemExit) as stopped:
            derived.build(folder)
    assert stopped.value.code == 1
    derived.build(folder)
    assert len(calls) == 2


def test_a_folder_with_something_else_in_it_is_left_alone(folder, calls):
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(SystemExit, match="is not empty, and was not made by this command"):
        derived.make(folder, {})
    assert (folder / "mine").exists()
    assert calls == []


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(derived, "make", lambda folder, places: None)
    monkeypatch.setattr(derived, "build", lambda folder: None)


def test_the_benchmark_is_asked_for_derived_and_worked_operators(made, calls):
    assert derived.main(["softmax", "--", "--dtypes", "float16", "--resume"]) == 0
    ((script, *arguments), _) = calls[0]
    assert script == str(ROOT / "benchmarks" / "run.py")
    assert arguments[:4] == ["softmax", "--dtypes", "float16", "--resume"]
    assert arguments.count("--dtypes") == 1
    against = arguments[arguments.index("--against") + 1 :][:3]
    assert against == ["eager", "compile", contenders.WORKED]
    assert arguments[arguments.index("--results") + 1] == str(results.DERIVED)


def test_all_are_timed_unless_some_are_named(made, calls):
    derived.main(["--", "--seconds", "0.5"])
    ((_, *arguments), _) = calls[0]
    assert arguments[: arguments.index("--seconds")] == list(derived.definitions(ROOT))


def test_a_name_that_is_none(made):
    with pytest.raises(SystemExit, match=r"no definition softmaxx; there are softcap, .*softmax"):
        derived.main(["softmaxx"])


def test_the_worked_operator_is_a_contender(monkeypatch):
    from extension_cpp.testing import find_specs

    spec = find_specs()[0]
    # An operator that is not there has no line of shapes, from which samples follow.
    other = dataclasses.replace(spec, name="other", samples=lambda make, shape: ())
    monkeypatch.setattr(contenders, "own", lambda s: derived if s is spec else None)
    monkeypatch.setattr(derived, "others", {"worked": lambda: max}, raising=False)
    wanted = ["eager", contenders.WORKED]
    found, absent = contenders.contenders(spec, "cpu", wanted)
    assert (list(found), found["worked"], absent) == (["ours", "eager", "worked"], max, {})
    _, absent = contenders.contenders(other, "cpu", wanted)
    assert absent == {"worked": f"has no {other.name}"}


def test_documents_show_the_committed_results():
    """`python benchmarks/report.py` writes them."""
    found = results.committed(results.DERIVED)
    readme = report.DERIVED_README.read_text()
    assert readme == report.with_section(readme, report.derived_section(found))
    for one in found:
        assert one.path.with_suffix(".md").read_text() == report.document(one)
