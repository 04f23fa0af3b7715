"""What the libraries, the wheel and the source distribution hold."""

import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from scratch import ROOT, copy_repository, make_project, python, quickly, run, under_git
from test_templates_built import remove_worked_operators
from torch.utils.cpp_extension import TORCH_LIB_PATH

import extension_cpp

PACKAGE = Path(extension_cpp.__file__).parent
INFO = json.loads((PACKAGE / "_build_info.json").read_text())
LIBRARIES = sorted(PACKAGE.glob("_C*.so"))


def nm(library: Path, *options: str) -> set[str]:
    """The names in a library's symbol table, without their versions."""
    command = ["nm", "--format=posix", *options, str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[0].split("@")[0] for line in listing.splitlines()}


def undefined(library: Path) -> set[str]:
    return nm(library, "--dynamic", "--undefined-only")


@pytest.mark.skipif(INFO["abi"] != "stable", reason="the aten build uses all of torch")
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_torch_is_called_through_the_stable_shims_alone(library: Path):
    torch_symbols = set()
    for name in ("libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so"):
        if (path := Path(TORCH_LIB_PATH, name)).exists():
            torch_symbols |= nm(path, "--dynamic", "--defined-only")
    used = undefined(library) & torch_symbols
    # Templates of the C++ library, which torch happens to have instantiated too.
    used = {name for name in used if not re.match("_Z(N[KRO]*)?S", name)}
    assert "torch_library_impl" in used or "aoti_torch_library_impl" in used
    assert {name for name in used if not re.match("(aoti_)?torch_", name)} == set()


@pytest.mark.skipif(
    sys.platform != "linux", reason="of symbols that a script of GNU's linker hides"
)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_no_function_of_ours_is_exported(library: Path):
    names = nm(library, "--dynamic", "--defined-only")
    ours = {name for name in names if "extension_cpp" in name}
    for_python = {"extension_cpp_operators", "extension_cpp_fill_new_tensors"}
    assert ours - for_python == set()


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_python_is_not_called(library: Path):
    assert {name for name in undefined(library) if re.match("_?Py", name)} == set()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="clones are made for x86-64 alone")
@pytest.mark.skipif(INFO["debug"], reason="a debug build")
def test_cpu_kernels_are_compiled_for_avx2_and_avx512():
    names = nm(PACKAGE / "_C.so")
    avx512, avx2, base = (
        {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
        for suffix in (".arch_x86_64_v4", ".arch_x86_64_v3", ".default")
    )
    assert avx512 == avx2 == base
    # Loops in blocks of a register: a function for each instruction set.
    blocks = {
        isa: {
            name.replace(isa, "")
            for name in names
            if isa in name and ("blocks_of" in name or "compiled_for" in name)
        }
        for isa in ("6Avx512", "4Avx2")
    }
    assert blocks["6Avx512"] == blocks["4Avx2"]
    # Loops over rows, in blocks, and over rows that scan, of operators that are here.
    for operator, function, where in (
        ("fused_layer_norm", "LayerNorm", avx512),
        ("fused_layer_norm", "LayerNorm", blocks["4Avx2"]),
        ("fused_op", "FusedOp", blocks["4Avx2"]),
        ("linear_scan", "LinearScan", {name for name in names if "4Avx2" in name}),
    ):
        if (PACKAGE / "operators" / operator).is_dir():
            assert any(function in name for name in where), operator


def test_the_version_is_stated_once_in_two_places():
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{extension_cpp.__version__}"\n' in pyproject


# From a clone to an installed package, not optimised: what is built is not what is looked at.
USE = """
import torch, extension_cpp
x, bias = torch.randn(3, 4), torch.randn(4)
torch.testing.assert_close(extension_cpp.ops.fused_op(x, bias), torch.relu(x + bias))
print(extension_cpp.__file__)
"""


@pytest.fixture(scope="session")
def few_operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with the one operator that USE calls: `make build` is what builds all."""
    root = under_git(copy_repository(tmp_path_factory.mktemp("few_operators")))
    remove_worked_operators(root)
    return root


@pytest.fixture
def clone(tmp_path: Path, few_operators: Path) -> Path:
    return shutil.copytree(few_operators, tmp_path / "my clone")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that sees this one's packages; its interpreter."""
    result = run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    interpreter = tmp_path / "env" / "bin" / "python"
    found = python("-c", "import site; print(*site.getsitepackages(), sep='\\n')", cwd=tmp_path)
    (folder,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # Not as addsitedir, which would also run what is installed there in editable mode.
    (folder / "outer.pth").write_text(found.stdout)
    return interpreter


def pip(environment: Path, command: str, project: Path) -> str:
    """Runs one of the documents' `pip install` lines in the environment, fetching nothing."""
    words = command.split()
    start = words.index("pip")
    settings = dict(word.split("=") for word in words[:start])
    result = python(
        *("-m", "pip", "--python", environment, *words[start + 1 :], "--no-deps", "--no-index"),
        cwd=project,
        env=quickly() | settings,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["USE_CUDA=0 pip install --no-build-isolation .", "pip install --no-build-isolation ."],
)
def test_pip_install(tmp_path: Path, clone: Path, environment: Path, command: str):
    pip(environment, command, clone)
    result = run(environment, "-c", USE, cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    installed = Path(result.stdout.strip()).parent
    assert tmp_path / "env" in installed.parents
    assert not [path for path in installed.rglob("*") if path.suffix in (".cpp", ".cu", ".h")]


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is not None, reason="here CUDA can be built")
def test_pip_install_with_cuda_says_what_is_missing(clone: Path, environment: Path):
    command = "USE_CUDA=1 pip install --no-build-isolation ."
    with pytest.raises(AssertionError, match=r"USE_CUDA=1, but torch .* is built without CUDA"):
        pip(environment, command, clone)


@pytest.mark.slow
def test_pip_install_editable(tmp_path: Path, clone: Path, environment: Path):
    pip(environment, "pip install --no-build-isolation -e .", clone)
    result = run(environment, "-c", USE, cwd=tmp_path)
    assert result.stdout.strip() == f"{clone}/extension_cpp/__init__.py"
    # Installing again compiles what changed alone.
    objects = {path: path.stat().st_mtime_ns for path in clone.glob("build/temp/**/*.o")}
    source = clone / "extension_cpp" / "csrc" / "library.cpp"
    source.write_text(source.read_text() + "\n")
    pip(environment, "pip install --no-build-isolation -e .", clone)
    changed = {path.stem for path in objects if path.stat().st_mtime_ns != objects[path]}
    assert changed == {"library"}


def make_build(command: str, project: Path, env: dict[str, str]) -> str:
    """Runs a `make build` line; the ABI that it says it built."""
    result = run("sh", "-c", command, cwd=project, env=env | {"PYTHON": sys.executable})
    assert result.returncode == 0, result.stdout
    info = json.loads((project / "extension_cpp" / "_build_info.json").read_text())
    return info["abi"]


@pytest.mark.slow
def test_make_build(clone: Path):
    assert make_build("make build", clone, quickly()) == "stable"
    assert python("-c", USE, cwd=clone).stdout == f"{clone}/extension_cpp/__init__.py\n"


@pytest.mark.slow
def test_make_build_of_the_other_abi(tmp_path: Path):
    """The setting reaches the build; that of all operators is what `make test-aten` tests."""
    project = make_project(tmp_path / "my project")
    shutil.copy(ROOT / "Makefile", project)
    assert make_build("EXTENSION_CPP_ABI=aten make build", project, {}) == "aten"
    assert "-DEXTENSION_CPP_STABLE_ABI=0" in (project / "compile_commands.json").read_text()


def unpacked_source_distribution(project: Path, folder: Path) -> Path:
    result = python("setup.py", "-q", "sdist", cwd=project)
    assert result.returncode == 0, result.stdout
    (archive,) = (project / "dist").iterdir()
    with tarfile.open(archive) as content:
        content.extractall(folder)
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.mark.slow
def test_the_source_distribution_holds_all_sources(tmp_path: Path):
    whole = copy_repository(tmp_path / "whole")
    unpacked = unpacked_source_distribution(whole, tmp_path)
    kept = {path.relative_to(whole) for path in (whole / "extension_cpp").rglob("*.[chp]*")}
    assert kept <= {path.relative_to(unpacked) for path in unpacked.rglob("*")}


@pytest.mark.slow
def test_the_source_distribution_builds(tmp_path: Path, clone: Path):
    unpacked = unpacked_source_distribution(clone, tmp_path)
    command = ("make", "build", f"PYTHON={sys.executable}")
    result = run(*command, cwd=unpacked, env=quickly())
    assert result.returncode == 0, result.stdout
    assert python("-c", USE, cwd=unpacked).returncode == 0
