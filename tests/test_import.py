"""`import extension_cpp` where something is missing or in the way: one clear ImportError."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scratch import ROOT, fake_torch, make_project, python, python_with_torch

VERSION = ".".join(torch.__version__.split(".")[:2])
NEW_TORCH = """
from types import SimpleNamespace
__version__ = '2.99.0'
version = SimpleNamespace(cuda=None)
"""
OLD_TORCH = NEW_TORCH.replace("2.99", "2.11")


def write_build(project: Path, **info: object) -> None:
    """Leaves what a build leaves: a library, here no real one, and the record beside it."""
    package = project / "extension_cpp"
    (package / "_C.so").write_text("no library")
    (package / "_build_info.json").write_text(
        json.dumps(
            {
                "torch": "2.13.0+cpu",
                "abi": "stable",
                "min_torch": "2.11",
                "cuda": None,
                "architectures": None,
                "reason": "USE_CUDA=0",
                "debug": False,
                "sanitize": False,
                **info,
            }
        )
    )


def no_torch(project: Path) -> tuple[dict[str, str], str]:
    env = fake_torch(project / "fake", "raise ModuleNotFoundError(\"No module named 'torch'\")")
    return env, "No module named 'torch'"


def not_built(project: Path) -> tuple[dict[str, str], str]:
    return fake_torch(project / "fake", NEW_TORCH), (
        f"extension_cpp is not built: there is no {project}/extension_cpp/_C.so. Run `make build` "
        "in a clone of the repository, or install it: `pip install --no-build-isolation .`"
    )


def built_for_a_newer_torch(project: Path) -> tuple[dict[str, str], str]:
    write_build(project, min_torch="2.12")
    return fake_torch(project / "fake", OLD_TORCH), (
        "extension_cpp was built for torch 2.12 or newer (with torch 2.13.0+cpu); the running "
        "torch is 2.11.0. Upgrade torch, or build extension_cpp for this one."
    )


def aten_build_of_another_torch(project: Path) -> tuple[dict[str, str], str]:
    write_build(project, abi="aten", min_torch="2.13")
    return fake_torch(project / "fake", NEW_TORCH), (
        "extension_cpp was built with EXTENSION_CPP_ABI=aten and torch 2.13.0+cpu, which ties it "
        "to torch 2.13; the running torch is 2.99.0. Build it again for this torch, or with the "
        "stable ABI."
    )


def library_that_does_not_load(project: Path) -> tuple[dict[str, str], str]:
    write_build(project, torch="2.12.0+other")
    library = project / "extension_cpp" / "_C.so"
    return {}, (
        f"{library} was built with torch 2.12.0+other and does not load in torch "
        f"{torch.__version__}: {library}: file too short. Build extension_cpp again for this "
        "torch: `make build`, or `pip install --no-build-isolation .`"
    )


def library_that_loads_in_no_torch(project: Path) -> tuple[dict[str, str], str]:
    write_build(project, torch=torch.__version__)
    library = project / "extension_cpp" / "_C.so"
    return {}, (
        f"{library} does not load in torch {torch.__version__}, with which it was built: "
        f"{library}: file too short. Build extension_cpp again: `make build`, or "
    )


def folder_for_a_library(project: Path) -> tuple[dict[str, str], str]:
    write_build(project, torch=torch.__version__)
    library = project / "extension_cpp" / "_C.so"
    library.unlink()
    library.mkdir()
    return {}, (
        f"{library} does not load in torch {torch.__version__}, with which it was built: "
        f"[Errno 21] Is a directory: '{library}'. Build extension_cpp again: `make build`, or "
    )


def library_cut_short(project: Path) -> tuple[dict[str, str], str]:
    write_build(project, torch=torch.__version__)
    library = project / "extension_cpp" / "_C.so"
    whole = (ROOT / "extension_cpp" / "_C.so").read_bytes()
    library.write_bytes(whole[: len(whole) // 2])
    return {}, (
        f"{library} does not load in torch {torch.__version__}, with which it was built: the file "
        f"was cut short, it has {len(whole) // 2} bytes of at least "
    )


def library_cut_short_in_its_headers(project: Path) -> tuple[dict[str, str], str]:
    library_cut_short(project)
    library = project / "extension_cpp" / "_C.so"
    library.write_bytes(library.read_bytes()[:100])
    return {}, (
        f"{library} does not load in torch {torch.__version__}, with which it was built: the file "
        "was cut short, it has 100 bytes of at least "
    )


def record_cut_short(project: Path) -> tuple[dict[str, str], str]:
    write_build(project)
    path = project / "extension_cpp" / "_build_info.json"
    path.write_text(path.read_text()[:20])
    return fake_torch(project / "fake", NEW_TORCH), (
        f"{path}, which the build writes beside the libraries, is broken: Unterminated string"
    )


def record_that_is_none(project: Path) -> tuple[dict[str, str], str]:
    write_build(project)
    path = project / "extension_cpp" / "_build_info.json"
    path.write_text("[]")
    return fake_torch(project / "fake", NEW_TORCH), (
        f"{path}, which the build writes beside the libraries, is broken: it lacks torch, abi, "
        "min_torch, cuda, architectures, reason, debug, sanitize. Build extension_cpp again: "
        "`make build`, or `pip install --no-build-isolation .`"
    )


def record_without_a_version(project: Path) -> tuple[dict[str, str], str]:
    write_build(project, min_torch=None)
    path = project / "extension_cpp" / "_build_info.json"
    return fake_torch(project / "fake", NEW_TORCH), (
        f"{path}, which the build writes beside the libraries, is broken: "
    )


CASES = [
    no_torch,
    not_built,
    built_for_a_newer_torch,
    aten_build_of_another_torch,
    library_that_does_not_load,
    library_that_loads_in_no_torch,
    folder_for_a_library,
    *(
        pytest.param(case, marks=pytest.mark.skipif(sys.platform != "linux", reason="of ELF files"))
        for case in (library_cut_short, library_cut_short_in_its_headers)
    ),
    record_cut_short,
    record_that_is_none,
    record_without_a_version,
]
Case = Callable[[Path], tuple[dict[str, str], str]]


@pytest.mark.parametrize("case", CASES)
def test_import_says_what_is_wrong(tmp_path: Path, case: Case):
    project = make_project(tmp_path)
    env, message = case(project)
    code = """
try:
    import extension_cpp
except ImportError as error:
    print(error)
"""
    result = python("-c", code, cwd=project, env=env)
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith(message)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "arguments", [("-m", "extension_cpp"), ("-W", "error", "-mextension_cpp", "-v")]
)
def test_the_program_reports_what_is_wrong(tmp_path: Path, case: Case, arguments: tuple[str, ...]):
    project = make_project(tmp_path)
    env, message = case(project)
    result = python(*arguments, cwd=project, env=env)
    assert result.returncode == 1
    assert "Traceback" not in result.stdout
    assert f"\nnot loaded     {message}" in result.stdout


def test_a_zip_file_is_said_to_hold_no_libraries(tmp_path: Path):
    project = make_project(tmp_path)
    write_build(project)
    archive = shutil.make_archive(str(tmp_path / "app"), "zip", project, "extension_cpp")
    env = fake_torch(tmp_path / "fake", NEW_TORCH)
    env["PYTHONPATH"] += f":{archive}"
    (tmp_path / "elsewhere").mkdir()
    result = python("-m", "extension_cpp", cwd=tmp_path / "elsewhere", env=env)
    assert result.returncode == 1
    assert "Traceback" not in result.stdout
    says = f"\nnot loaded     extension_cpp cannot be loaded from {archive}/extension_cpp: "
    assert says in result.stdout


def test_another_program_gets_the_error(tmp_path: Path):
    project = make_project(tmp_path)
    env, _ = not_built(project)
    (project / "program").mkdir()
    (project / "program" / "__init__.py").write_text("import extension_cpp\n")
    (project / "program" / "__main__.py").touch()
    result = python("-m", "program", "-m", "extension_cpp", cwd=project, env=env)
    assert result.returncode == 1
    assert "extension_cpp is not built" in result.stdout.splitlines()[-1]


def test_the_program_reports_what_is_there():
    result = python("-m", "extension_cpp", cwd=ROOT)
    assert result.returncode == 0, result.stdout
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert f"in {ROOT}/extension_cpp" in rows["extension_cpp"]
    assert rows["torch"].startswith(torch.__version__)
    assert rows["built"].startswith("with")
    assert "fused_op" in rows["operators"].split(", ")


# Another definition of the namespace


def import_after(code: str) -> str:
    """Runs code, then the import, which has to fail with an ImportError: its text."""
    result = python_with_torch(
        "-c",
        f"import torch\n{code}\ntry:\n    import extension_cpp\n"
        "except ImportError as error:\n    print('ImportError:', error)\n",
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith("ImportError: extension_cpp cannot be loaded: ")
    return result.stdout


def test_the_namespace_is_taken_by_a_library(tmp_path: Path):
    # As when someone keeps the namespace in a package made from this one.
    other = shutil.copy(ROOT / "extension_cpp" / "_C.so", tmp_path / "_C.so")
    message = import_after(f"torch.ops.load_library({str(other)!r})")
    assert f"{other} has already defined operators in the namespace 'extension_cpp'" in message
    assert f"and {ROOT}/extension_cpp/_C.so defines it too" in message
    assert "(extension_cpp::" in message


def test_the_namespace_is_taken_from_python():
    message = import_after(
        "library = torch.library.Library('extension_cpp', 'DEF')\n"
        "library.define('mine(Tensor x) -> Tensor')"
    )
    assert "<string>:2 has already defined operators in the namespace" in message
    assert "(extension_cpp::mine)" in message


@pytest.mark.parametrize("ways", [("DEF",), ("IMPL", "DEF"), ("DEF", "FRAGMENT")], ids=str)
def test_the_namespace_is_claimed_for_operators_to_come(ways: tuple[str, ...]):
    message = import_after(
        f"libraries = [torch.library.Library('extension_cpp', way) for way in {ways}]"
    )
    assert "<string>:2 has already claimed the namespace 'extension_cpp', with no oper" in message


def test_the_namespace_is_free_after_the_question():
    code = """
import torch
fragment = torch.library.Library("extension_cpp", "FRAGMENT")
import extension_cpp
print(extension_cpp.ops.relu(torch.ones(1)).item())
"""
    assert python_with_torch("-c", code, cwd=ROOT).stdout == "1.0\n"


def test_a_failed_import_can_be_repeated():
    code = """
import sys
sys.modules["extension_cpp.nn"] = None
try:
    import extension_cpp
except ImportError:
    del sys.modules["extension_cpp.nn"]
import extension_cpp
print(extension_cpp.ops.fused_op.__name__)
"""
    result = python_with_torch("-c", code, cwd=ROOT)
    assert result.stdout == "fused_op\n"


def test_the_package_needs_none_of_the_test_tools():
    code = """
import sys
sys.modules |= dict.fromkeys(["pytest", "hypothesis", "expecttest"])
import extension_cpp, extension_cpp.testing
"""
    result = python_with_torch("-c", code, cwd=ROOT)
    assert (result.returncode, result.stdout) == (0, "")


def test_import_anew():
    # As some tools reload a package: what was registered before is replaced.
    code = """
import sys
import torch
for _ in range(3):
    import extension_cpp
    from extension_cpp.ops import fused_op, myadd_out
    x, out = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3)
    fused_op(x, torch.zeros(3)).sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 3))
    myadd_out(x, x, out)
    try:
        out.sum().backward()
    except RuntimeError as error:
        assert "extension_cpp::myadd_out: a derivative" in str(error)
    else:
        raise AssertionError
    for name in [name for name in sys.modules if name.startswith("extension_cpp")]:
        del sys.modules[name]
"""
    result = python_with_torch("-c", code, cwd=ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("passes", [False, True])
def test_what_tests_lack_is_said_where_some_fail(tmp_path: Path, passes: bool):
    (tmp_path / "tests").mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path / "tests")
    (tmp_path / "requirements.txt").write_text("# form\npytest==9.2.0\nno-such_tool==1.0\n")
    (tmp_path / "tests" / "test_one.py").write_text(f"def test_one():\n    assert {passes}\n")
    result = python_with_torch("-m", "pytest", "-q", "tests", cwd=tmp_path)
    assert (result.returncode == 0) == passes, result.stdout
    assert ("Not installed: no-such_tool. What needs them" in result.stdout) != passes
