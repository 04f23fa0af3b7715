"""setup.py: what it decides, what it rebuilds, what it packs, and how it fails."""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scratch import (
    ROOT,
    SETTINGS,
    STANDARD,
    build,
    fake_torch,
    make_project,
    python,
    python_with_torch,
    run,
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    # Flags with "arch" in them once switched off the GPU targets: build under such a path.
    return make_project(tmp_path / "research")


def symbols(library: Path) -> set[str]:
    listing = subprocess.run(["nm", library], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listing.stdout.splitlines()}


# What is rebuilt


def objects(project: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in project.glob("build/temp/**/*.o")}


def rebuilt(project: Path, **env: str) -> set[str]:
    before = objects(project)
    build(project, env)
    return {path.stem for path, time in objects(project).items() if time != before.get(path)}


@pytest.mark.skipif(shutil.which("ninja") is None, reason="needs ninja, which `make` installs")
def test_an_edit_recompiles_only_what_depends_on_it(project: Path):
    assert rebuilt(project) == {"library", "one_cpu", "two_cpu"}
    assert rebuilt(project) == set()
    package = project / "extension_cpp"
    (package / "operators" / "one" / "one_cpu.cpp").write_text("int uno() { return 2; }\n")
    assert rebuilt(project) == {"one_cpu"}
    assert "_Z3unov" in symbols(package / "_C.so")
    (package / "csrc" / "value.h").write_text("constexpr int value = 2;\n")
    assert rebuilt(project) == {"two_cpu"}


# A source of both backends


def add_shared_source(project: Path) -> Path:
    """An operator whose one source is compiled for the CPU and, where it is built, for CUDA."""
    source = project / "extension_cpp" / "operators" / "both" / "both.cpp"
    source.parent.mkdir()
    (source.parent / "__init__.py").touch()
    source.write_text(
        '#include "value.h"\n'
        "#ifdef __CUDACC__\n"
        "int both_cuda() { return value; }\n"
        "#else\n"
        "int both_cpu() { return value; }\n"
        "#endif\n"
    )
    return source


def test_a_shared_source_is_compiled_for_the_cpu_alone_without_nvcc(project: Path):
    add_shared_source(project)
    assert rebuilt(project) == {"library", "both", "one_cpu", "two_cpu"}
    names = symbols(project / "extension_cpp" / "_C.so")
    assert "_Z8both_cpuv" in names
    assert "_Z9both_cudav" not in names
    assert not (project / "build" / "cuda-sources").exists()


@pytest.fixture
def cuda(project: Path, tmp_path: Path) -> dict[str, str]:
    """An environment with a torch and a toolkit of CUDA 13.0, whose nvcc is the C++ compiler."""
    toolkit = fake_toolkit(tmp_path / "cuda", "13.0")
    nvcc = toolkit / "bin" / "nvcc"
    questions, _, _ = nvcc.read_text().partition("  *)\n")
    nvcc.write_text(
        questions
        + """  *)
    while [ $# -gt 0 ]; do
      case "$1" in
        -MF | --dependency-output) depfile=$2 ;;
        -o) target=$2 ;;
        -I*/csrc) include=$1 ;;
        *.cu) source=$1 ;;
      esac
      shift
    done
    exec c++ -fPIC -D__CUDACC__ "$include" -x c++ -MMD -MF "$depfile" -c "$source" -o "$target"
esac
"""
    )
    libraries = toolkit / "lib64"
    libraries.mkdir()
    for name in ("torch_cuda", "cudart_static"):
        command = ("c++", "-shared", "-x", "c++", os.devnull, "-o", f"lib{name}.so")
        assert run(*command, cwd=libraries).returncode == 0
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import torch\n"
        "torch.version.cuda = '13.0'\n"
        "torch.cuda._is_compiled = lambda: True\n"
        "torch.cuda.is_available = lambda: False\n"
        "torch.cuda.device_count = lambda: 0\n"
    )
    return {
        "CUDA_HOME": str(toolkit),
        "PYTHONPATH": str(tmp_path / "site"),
        "USE_CUDA": "1",
    }


@pytest.mark.skipif(shutil.which("ninja") is None, reason="needs ninja, which `make` installs")
def test_a_shared_source_is_compiled_for_both_backends(project: Path, cuda: dict[str, str]):
    source = add_shared_source(project)
    package = project / "extension_cpp"
    assert rebuilt(project, **cuda) == {
        *("library", "both", "one_cpu", "two_cpu"),
        *("one_cuda", "two_cuda"),
    }
    assert symbols(package / "_C.so") & {"_Z8both_cpuv", "_Z9both_cudav"} == {"_Z8both_cpuv"}
    assert symbols(package / "_C_cuda.so") & {"_Z8both_cpuv", "_Z9both_cudav"} == {"_Z9both_cudav"}

    def compiled() -> list[str]:
        before = objects(project)
        build(project, cuda)
        changed = [path for path, time in objects(project).items() if time != before.get(path)]
        return sorted(f"{path.relative_to(project).parts[3]} {path.stem}" for path in changed)

    both = ["extension_cpp._C both", "extension_cpp._C_cuda both"]
    assert compiled() == []
    source.write_text(source.read_text().replace("_cuda()", "_gpu()"))
    assert compiled() == both
    assert "_Z8both_gpuv" in symbols(package / "_C_cuda.so")
    (package / "csrc" / "value.h").write_text("constexpr int value = 2;\n")
    assert compiled() == [*both[:1], "extension_cpp._C two_cpu", *both[1:]]
    commands = json.loads((project / "compile_commands.json").read_text())
    assert {Path(entry["file"]).name for entry in commands} >= {"both.cpp", "both.cu"}

    shutil.rmtree(source.parent)
    build(project, cuda)
    for library in ("_C.so", "_C_cuda.so"):
        assert not any("both" in name for name in symbols(package / library))


@pytest.mark.skipif(shutil.which("ninja") is None, reason="needs ninja, which `make` installs")
def test_both_libraries_are_built_at_once(project: Path, cuda: dict[str, str], tmp_path: Path):
    """A compiler for the CPU waits until something is compiled for the GPU."""
    compiler = tmp_path / "waits"
    compiler.write_text(
        "#!/bin/sh\n"
        'case "$*" in *one_cpu.cpp*) ;; *) exec c++ "$@" ;; esac\n'
        "for i in $(seq 600); do\n"
        f'  [ -z "$(find {project}/build -name one_cuda.o)" ] || exec c++ "$@"\n'
        "  sleep 0.1\n"
        "done\n"
        "exit 1\n"
    )
    compiler.chmod(0o755)
    build(project, {**cuda, "CXX": str(compiler)})
    package = project / "extension_cpp"
    assert {"_Z3onev"} <= symbols(package / "_C.so")
    assert {"_Z8one_cudav"} <= symbols(package / "_C_cuda.so")


@pytest.mark.parametrize(
    ("broken", "says"),
    [("one_cpu.cpp", "extension_cpp._C was not built: see above."), ("one_cuda.cu", "")],
)
def test_either_library_that_does_not_compile_fails_the_build(
    project: Path, cuda: dict[str, str], broken: str, says: str
):
    source = project / "extension_cpp" / "operators" / "one" / broken
    source.write_text("this is no C++\n")
    result = python("setup.py", "build_ext", "--inplace", cwd=project, env=cuda)
    assert result.returncode != 0
    assert broken in result.stdout
    assert says in result.stdout
    assert not (project / "extension_cpp" / "_C_cuda.so").exists()


def test_one_library_after_the_other_where_memory_is_short(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    config = setup_py.Config.from_environment()
    monkeypatch.setattr(setup_py, "processors", lambda: 4)
    for gib, at_once, jobs in ((13.0, True, 4), (11.0, False, 4), (3.1, False, 2), (0.5, False, 1)):
        monkeypatch.setattr(setup_py, "free_memory", lambda gib=gib: gib * 2**30)
        assert (setup_py.side_by_side(config), setup_py.jobs(config)) == (at_once, jobs)
    monkeypatch.setattr(setup_py, "free_memory", lambda: float("inf"))
    assert setup_py.side_by_side(config)
    # As many as are asked for, and no more.
    monkeypatch.setenv("MAX_JOBS", "3")
    assert not setup_py.side_by_side(config)


@pytest.fixture
def without_ninja(tmp_path: Path) -> dict[str, str]:
    """An environment in which neither PATH nor Python has ninja."""
    (tmp_path / "hide" / "ninja").mkdir(parents=True)
    (tmp_path / "hide" / "ninja" / "__init__.py").write_text("raise ImportError\n")
    compiler = os.path.dirname(shutil.which("c++") or "")
    # A folder of links: ninja is left out of PATH, whatever else its folder holds.
    (tmp_path / "bin").mkdir()
    for tool in Path(compiler).iterdir():
        if tool.name != "ninja":
            (tmp_path / "bin" / tool.name).symlink_to(tool)
    return {"PATH": str(tmp_path / "bin"), "PYTHONPATH": str(tmp_path / "hide")}


def test_a_removed_operator_leaves_the_library(project: Path):
    build(project)
    assert {"_Z3onev", "_Z3twov"} <= symbols(project / "extension_cpp" / "_C.so")
    shutil.rmtree(project / "extension_cpp" / "operators" / "one")
    build(project)
    assert {"_Z3onev", "_Z3twov"} & symbols(project / "extension_cpp" / "_C.so") == {"_Z3twov"}


def test_other_settings_and_sources_rebuild_without_ninja(
    project: Path, without_ninja: dict[str, str]
):
    library = project / "extension_cpp" / "_C.so"
    one = project / "extension_cpp" / "operators" / "one" / "one_cpu.cpp"

    assert "could not find ninja" in build(project, without_ninja)
    assert rebuilt(project, **without_ninja) == set()
    assert rebuilt(project, **without_ninja, DEBUG="1") == {"library", "one_cpu", "two_cpu"}
    assert {"_Z3onev", "_Z3twov"} <= symbols(library)
    # One that is gone, and one that is there again with the date that it had.
    one.rename(project / "kept")
    build(project, without_ninja | {"DEBUG": "1"})
    assert {"_Z3onev", "_Z3twov"} & symbols(library) == {"_Z3twov"}
    (project / "kept").rename(one)
    build(project, without_ninja | {"DEBUG": "1"})
    assert {"_Z3onev", "_Z3twov"} <= symbols(library)
    assert rebuilt(project, **without_ninja, DEBUG="1") == set()


def test_without_ninja_no_older_compile_commands_are_left(
    project: Path, without_ninja: dict[str, str]
):
    path = project / "compile_commands.json"
    path.write_text("[]")
    assert "no ninja, hence no compile_commands.json" in build(project, without_ninja)
    assert not path.exists()


@pytest.mark.parametrize("header", ["sums.h", "columns.h", "scan.h", "rows.h"])
def test_other_processors_and_compilers_need_no_blocks(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, header: str
):
    monkeypatch.setenv("USE_CUDA", "0")
    (library,) = setup_py.extensions(setup_py.Config.from_environment())
    operators = [file for file in library.sources if "/operators/" in file]
    users = [file for file in operators if f'#include "{header}"' in (ROOT / file).read_text()]
    if not users:
        pytest.skip(f"no operator here includes {header}")
    file = users[0]
    flags = [STANDARD, "-fsyntax-only", "-DHAS_BLOCKS=0", *library.extra_compile_args["cxx"]]
    includes = [f"-I{folder}" for folder in library.include_dirs]
    outcome = run("c++", *flags, *includes, file, cwd=ROOT)
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.skipif(shutil.which("ninja") is None, reason="needs ninja, which `make` installs")
def test_compile_commands(project: Path):
    build(project)
    commands = json.loads((project / "compile_commands.json").read_text())
    assert {Path(entry["file"]).name for entry in commands} == {
        "library.cpp",
        "one_cpu.cpp",
        "two_cpu.cpp",
    }


@pytest.mark.skipif(platform.system() != "Linux", reason="preloads libraries as Linux does")
def test_sanitizers_find_an_overflow(project: Path):
    source = project / "extension_cpp" / "operators" / "one" / "one_cpu.cpp"
    source.write_text(
        'extern "C" __attribute__((visibility("default"))) int last(int n) {\n'
        "  int* values = new int[n]();\n"
        "  int value = values[n];\n"
        "  delete[] values;\n"
        "  return value;\n"
        "}\n"
    )
    build(project, {"SANITIZE": "1"})
    runtime = [
        run("c++", f"-print-file-name={name}.so", cwd=project).stdout.strip()
        for name in ("libasan", "libstdc++")
    ]
    result = python(
        "-c",
        "import ctypes, torch; print(ctypes.CDLL('extension_cpp/_C.so').last(4))",
        cwd=project,
        env={"LD_PRELOAD": " ".join(runtime), "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert result.returncode != 0
    # AddressSanitizer's words or, where that compiler's UBSan sees the block's size, UBSan's.
    assert "heap-buffer-overflow" in result.stdout or "insufficient space" in result.stdout
    assert "one_cpu.cpp:3" in result.stdout


# What a CUDA build leaves behind


def test_a_cpu_build_removes_the_cuda_library(project: Path):
    stale = project / "extension_cpp" / "_C_cuda.so"
    stale.touch()
    build(project)
    assert not stale.exists()
    info = json.loads((project / "extension_cpp" / "_build_info.json").read_text())
    assert (info["torch"], info["abi"], info["cuda"]) == (torch.__version__, "stable", None)


def test_a_wheel_holds_what_this_build_makes(project: Path):
    build(project)
    stale = [
        project / "extension_cpp" / "_C_cuda.so",
        *(folder / "extension_cpp" / "_C_cuda.so" for folder in project.glob("build/lib*")),
        *(folder / "extension_cpp" / "removed.py" for folder in project.glob("build/lib*")),
    ]
    assert len(stale) == 3
    for path in stale:
        path.touch()
    result = python_with_torch("setup.py", "bdist_wheel", cwd=project, env={"USE_CUDA": "0"})
    assert result.returncode == 0, result.stdout

    (wheel,) = (project / "dist").iterdir()
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    assert names == {
        f"extension_cpp/{name}"
        for name in (
            *("__init__.py", "__main__.py", "_loader.py", "py.typed", "ops.py", "nn.py"),
            *("_C.so", "_build_info.json"),
            *(f"operators/{name}__init__.py" for name in ("", "one/", "two/")),
        )
    }


# How it fails


def failure(project: Path, *command: str, **env: str) -> str:
    # A torch that is none stands there.
    run_setup = python if "PYTHONPATH" in env else python_with_torch
    result = run_setup("setup.py", *(command or ("build_ext", "--inplace")), cwd=project, env=env)
    assert result.returncode != 0
    assert "Traceback" not in result.stdout
    (message,) = [line for line in result.stdout.split("\n\n") if "extension_cpp: " in line][-1:]
    return message.strip().removeprefix("extension_cpp: ")


def test_unknown_abi(project: Path):
    message = failure(project, EXTENSION_CPP_ABI="fast")
    assert message == "EXTENSION_CPP_ABI must be 'stable' or 'aten', got 'fast'."


@pytest.mark.parametrize("name", ["USE_CUDA", "DEBUG", "SANITIZE"])
def test_unknown_flag(project: Path, name: str):
    assert failure(project, **{name: "maybe"}) == f"{name} must be 0 or 1, got 'maybe'."


@pytest.mark.parametrize("value", ["all", "0", "-1"])
def test_unknown_number_of_jobs(project: Path, value: str):
    message = failure(project, MAX_JOBS=value)
    assert message.splitlines()[-1] == f"MAX_JOBS must be a positive number, got '{value}'."


def test_no_compiler(project: Path):
    message = failure(project, CXX="/nonexistent/c++")
    assert message.splitlines()[-2:] == [
        "no C++ compiler: '/nonexistent/c++' was not found.",
        "Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), "
        "or set CXX to yours.",
    ]


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_compiler_counts_as_unset(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, value: str
):
    monkeypatch.setenv("CXX", value)
    setup_py.check_compiler()
    assert os.environ["CXX"] == "c++"


def test_old_torch(project: Path, tmp_path: Path):
    env = fake_torch(tmp_path / "old", "__version__ = '2.10.1+cpu'")
    assert failure(project, **env) == (
        "torch 2.10.1+cpu is too old: the sources use the stable ABI of torch 2.11 or newer.\n"
        "Upgrade it: pip install -U torch"
    )


def test_old_setuptools(project: Path, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        "import setuptools; setuptools.__version__ = '65.5.0'"
    )
    message = failure(project, PYTHONPATH=str(tmp_path))
    assert message == (
        "setuptools 65.5.0 is too old: the build needs 77 or newer.\n"
        f"Upgrade it: {sys.executable} -m pip install -U setuptools"
    )


def test_no_torch(project: Path, tmp_path: Path):
    env = fake_torch(tmp_path / "none", "raise ModuleNotFoundError(\"No module named 'torch'\")")
    message = failure(project, **env)
    assert "the build needs torch, which" in message
    assert "pip install 'torch>=2.11'" in message


# What it decides


@pytest.fixture
def setup_py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """setup.py as a module, on a machine with CUDA 13.0's nvcc, a torch of CUDA 13.0 and no GPU."""
    spec = importlib.util.spec_from_file_location("project_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # setup.py adds to it
    for name in (*SETTINGS, "CUDA_PATH", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    spec.loader.exec_module(module)
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda", "13.0")))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return module


def fake_toolkit(folder: Path, version: str) -> Path:
    """A folder whose bin/nvcc answers questions, and "compiles" by copying."""
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(
        f"""#!/bin/sh
case "$*" in
  *--version*) echo "Cuda compilation tools, release {version}, V{version}.88" ;;
  *--dryrun*) echo "#$ _SPACE_=" >&2; echo "#$ TOP={folder}/bin/.." >&2 ;;
  *--help*) echo "--Ofast-compile <level>" ;;
  *--list-gpu-arch*) printf 'compute_75\\ncompute_80\\ncompute_90\\ncompute_100\\n' ;;
  *)
    while [ $# -gt 0 ]; do
      case "$1" in
        -MF) depfile=$2 ;;
        -o) target=$2 ;;
        *.cu | *.cpp) source=$1 ;;
      esac
      shift
    done
    grep -q broken "$source" && exit 2
    cp "$source" "$target"
    echo "$target : $source \\\\" >"$depfile"
    echo "  $(dirname "$source")/../../csrc/value.h" >>"$depfile"
esac
"""
    )
    nvcc.chmod(0o755)
    return folder


def test_cuda_is_built_where_nvcc_and_a_cuda_torch_are(setup_py: ModuleType):
    config = setup_py.Config.from_environment()
    assert (config.cuda, config.architectures) == ("13.0", "8.0;9.0;10.0+PTX")
    assert config.summary() == (
        f"extension_cpp: torch {torch.__version__}, stable ABI, CUDA 13.0 for 8.0;9.0;10.0+PTX "
        "(no GPU visible: GPU_TARGETS of setup.py)"
    )


def test_use_cuda_0_builds_for_the_cpu(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("USE_CUDA", "0")
    assert setup_py.Config.from_environment().summary() == (
        f"extension_cpp: torch {torch.__version__}, stable ABI, CPU only (USE_CUDA=0)"
    )


@pytest.mark.parametrize("case", ["CPU-only torch", "no nvcc", "wrong CUDA_HOME", "another CUDA"])
def test_what_keeps_cuda_from_being_built(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
):
    if case == "CPU-only torch":
        monkeypatch.setattr(torch.version, "cuda", None)
        reason = f"torch {torch.__version__} is built without CUDA"
        advice = "Install a CUDA build of torch: https://pytorch.org/get-started/locally "
    elif case == "no nvcc":
        monkeypatch.delenv("CUDA_HOME")
        monkeypatch.setattr(setup_py.shutil, "which", lambda name: None)
        reason = "no nvcc was found"
        advice = "Install the CUDA toolkit 13.0: https://developer.nvidia.com/cuda-downloads "
    elif case == "wrong CUDA_HOME":
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
        reason = f"no nvcc was found in CUDA_HOME={tmp_path}/nowhere"
        advice = (
            "Set CUDA_HOME to the folder of a CUDA toolkit 13.0, or unset CUDA_HOME: then the nvcc "
        )
    else:
        monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda12", "12.8")))
        reason = (
            f"nvcc 12.8 does not match torch {torch.__version__}, which is built with CUDA 13.0"
        )
        advice = "Set CUDA_HOME to the folder of a toolkit 13.x."
    # Left to itself the build goes on without CUDA, and says why; told to build CUDA, it stops.
    assert setup_py.Config.from_environment().summary().endswith(f"CPU only ({reason})")
    monkeypatch.setenv("USE_CUDA", "1")
    with pytest.raises(SystemExit) as stopped:
        setup_py.Config.from_environment()
    message = str(stopped.value).strip().splitlines()
    assert message[0] == f"extension_cpp: USE_CUDA=1, but {reason}."
    assert message[1].startswith(advice)
    assert message[2] == "To build for the CPU alone, leave USE_CUDA out or set it to 0."


@pytest.mark.parametrize(
    ("given", "gpus", "architectures", "source"),
    [
        ("7.5;8.6", [(9, 0)], "7.5;8.6", "TORCH_CUDA_ARCH_LIST"),
        (None, [(9, 0), (8, 0), (9, 0)], "8.0;9.0+PTX", "visible GPUs"),
        ("native", [(9, 0)], "9.0+PTX", "visible GPUs"),
        (None, [(12, 0)], "10.0+PTX", "visible GPUs"),  # newer than this nvcc
        (None, [], "8.0;9.0;10.0+PTX", "no GPU visible: GPU_TARGETS of setup.py"),
    ],
)
def test_architectures(
    setup_py: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    gpus: list[tuple[int, int]],
    architectures: str,
    source: str,
):
    if given:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", given)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: gpus[index])
    config = setup_py.Config.from_environment()
    assert (config.architectures, config.reason) == (architectures, source)


def test_targets_reach_nvcc_under_any_path(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0+PTX")
    monkeypatch.setattr(setup_py, "ROOT", Path("/home/me/research"))
    flags = setup_py.nvcc_flags(
        setup_py.Config.from_environment(), setup_py.gencode_flags("9.0+PTX")
    )
    assert "-gencode=arch=compute_90,code=sm_90" in flags
    assert "-gencode=arch=compute_90,code=compute_90" in flags


def test_unknown_architecture(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "")  # restores it afterwards
    with pytest.raises(SystemExit, match=r"TORCH_CUDA_ARCH_LIST=1\.0: Unknown CUDA arch"):
        setup_py.gencode_flags("1.0")


def test_the_toolkit_behind_a_script_named_nvcc(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    real = fake_toolkit(tmp_path / "real", "13.0")
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {real}/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", f"{wrapper.parent}:/usr/bin:/bin")
    assert setup_py.Toolkit.find() == setup_py.Toolkit(str(wrapper), str(real), "13.0")


@pytest.mark.parametrize(
    ("abi", "gib", "jobs"), [("stable", 100, 4), ("stable", 3.1, 2), ("aten", 3.1, 1)]
)
def test_jobs_fit_the_free_memory(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, abi: str, gib: float, jobs: int
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    monkeypatch.setattr(setup_py, "free_memory", lambda: gib * 2**30)
    monkeypatch.setenv("EXTENSION_CPP_ABI", abi)
    assert setup_py.jobs(setup_py.Config.from_environment()) == jobs


def test_free_memory_is_read(setup_py: ModuleType):
    assert 2**20 < setup_py.free_memory() < 2**50


# make check-cuda


def test_check_cuda_recompiles_only_what_changed(project: Path, tmp_path: Path):
    env = {"CUDA_HOME": str(fake_toolkit(tmp_path / "cuda", "13.0"))}
    add_shared_source(project)

    def check() -> list[str]:
        result = python_with_torch("setup.py", "-q", "check_cuda", cwd=project, env=env)
        assert result.returncode == 0, result.stdout
        lines = result.stdout.splitlines()
        assert lines[-1] == "extension_cpp: all CUDA sources (3) compile for 8.0 and 9.0"
        return sorted(line.split("/")[-1] for line in lines if line.startswith("nvcc -c"))

    assert check() == ["both.cpp", "one_cuda.cu", "two_cuda.cu"]
    assert check() == []
    shared = project / "extension_cpp" / "operators" / "both" / "both.cpp"
    shared.write_text("int ambo;\n")
    assert check() == ["both.cpp"]
    one = project / "extension_cpp" / "operators" / "one" / "one_cuda.cu"
    one.write_text("int uno;\n")
    assert check() == ["one_cuda.cu"]
    (project / "extension_cpp" / "csrc" / "value.h").touch()
    assert check() == ["both.cpp", "one_cuda.cu", "two_cuda.cu"]
    oldest = python_with_torch("setup.py", "-q", "check_cuda", "--oldest", cwd=project, env=env)
    assert oldest.stdout.count("nvcc -c") == 3
    assert oldest.stdout.endswith("all CUDA sources (3) compile for 8.0\n")
    ir = python_with_torch("setup.py", "-q", "check_cuda", "--ir", cwd=project, env=env)
    assert ir.stdout.count("nvcc -ltoir") == 3
    assert ir.stdout.endswith("all CUDA sources (3) compile to LTO IR for 8.0\n")
    assert check() == []

    one.write_text("broken\n")
    only = ("--operator=two",)
    alone = python_with_torch("setup.py", "-q", "check_cuda", *only, cwd=project, env=env)
    assert alone.returncode == 0
    assert alone.stdout.endswith("all CUDA sources of two (1) compile for 8.0 and 9.0\n")
    assert failure(project, "check_cuda", "--operator=one", **env).startswith("1 of 1 CUDA sources")
    message = failure(project, "check_cuda", **env)
    assert message.endswith(
        "1 of 3 CUDA sources do not compile: ['extension_cpp/operators/one/one_cuda.cu']"
    )


def test_check_cuda_compiles_fast_where_nvcc_can(setup_py: ModuleType):
    toolkit = setup_py.Toolkit.find()
    assert toolkit.fast_compile() == ["--Ofast-compile=mid"]
    nvcc = Path(toolkit.nvcc)
    nvcc.write_text(nvcc.read_text().replace("--Ofast-compile", "--optimize"))
    older = setup_py.Toolkit(toolkit.nvcc, toolkit.home, "12.0")
    assert older.fast_compile() == []


def test_check_cuda_without_nvcc(project: Path):
    env = {"CUDA_HOME": "/nonexistent"}
    assert failure(project, "check_cuda", **env) == (
        "no nvcc was found in CUDA_HOME=/nonexistent.\n"
        "Set CUDA_HOME to the folder of a CUDA toolkit, or unset CUDA_HOME: then the nvcc on PATH "
        "is taken."
    )
    message = failure(project, "check_cuda", **env, CUDA_PATH="/opt/cuda")
    assert "or unset CUDA_HOME and CUDA_PATH: then" in message
    result = python_with_torch("setup.py", "-q", "check_cuda", "--optional", cwd=project, env=env)
    assert result.returncode == 0
    assert result.stdout.endswith(
        "no nvcc was found in CUDA_HOME=/nonexistent, hence the CUDA sources are not compiled\n"
    )
