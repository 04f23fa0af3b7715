"""Small projects to build in: this repository's build and loader around sources of a few bytes."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import quick_compiler
import torch
from quick_compiler import ROOT

BUILD_FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
LOADER_FILES = ("__init__.py", "__main__.py", "_loader.py", "py.typed")
# Whether `make test-all` asks: all is built, where CI builds some.
EVERY = bool(os.environ.get("EVERY_BUILT"))
# As torch.utils.cpp_extension chooses.
STANDARD = "-std=c++20" if torch.__version__ >= "2.13" else "-std=c++17"
# What changes a build or an import; the tests start from none of it.
SETTINGS = (
    "USE_CUDA",
    "TORCH_CUDA_ARCH_LIST",
    "DEBUG",
    "SANITIZE",
    "EXTENSION_CPP_ABI",
    "PYTHONPATH",
)


def make_project(folder: Path) -> Path:
    """A project with the operators `one` and `two`, which compiles in a moment."""
    package = folder / "extension_cpp"
    for name in ("csrc", "operators/one", "operators/two"):
        (package / name).mkdir(parents=True)
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, folder / name)
    for name in LOADER_FILES:
        shutil.copy(ROOT / "extension_cpp" / name, package / name)
    for name in ("ops.py", "nn.py", "operators/__init__.py"):
        (package / name).touch()
    (package / "csrc" / "library.cpp").write_text('extern "C" int library() { return 0; }\n')
    (package / "csrc" / "value.h").write_text("constexpr int value = 1;\n")
    for name in ("one", "two"):
        operator = package / "operators" / name
        (operator / "__init__.py").touch()
        (operator / f"{name}_cpu.cpp").write_text(f"int {name}() {{ return 1; }}\n")
        (operator / f"{name}_cuda.cu").write_text(f"int {name}_cuda() {{ return 1; }}\n")
    (package / "operators" / "two" / "two_cpu.cpp").write_text(
        '#include "value.h"\nint two() { return value; }\n'
    )
    return folder


def copy_repository(folder: Path) -> Path:
    """The repository as a clone would have it, with what is not committed yet."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listing.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def checkout_of(folder: Path) -> Path:
    """A copy of the repository under git, without the operator that templates/README.md makes."""
    root = copy_repository(folder)
    # Who follows it has that one.
    if (root / "extension_cpp" / "operators" / "softcap").exists():
        result = python("templates/new_op.py", "--remove", "softcap", cwd=root)
        assert result.returncode == 0, result.stdout
    return under_git(root)


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=b", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout


def under_git(root: Path) -> Path:
    """The folder, as the first commit of a repository of its own."""
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "start")
    return root


def fake_torch(folder: Path, source: str) -> dict[str, str]:
    """An environment in which `import torch` runs the source instead."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(source)
    return {"PYTHONPATH": str(folder)}


def run(
    *command: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command without the settings of these tests' own run; its output holds its errors."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=_without_settings() | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in SETTINGS}


def python(
    *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, *arguments, cwd=cwd, env=env)


# What has imported what takes seconds, and nothing that looks at the environment as it is imported.
# A child goes on where it was forked, finds what PYTHONPATH adds, and ends as a program does. Of
# several threads something might be left half done in it: then nothing is forked.
_IMPORTED = """
import contextlib, json, os, runpy, sys
import setuptools, torch
assert "torch.utils.cpp_extension" not in sys.modules
threads = "/proc/self/task"
forks = os.path.isdir(threads) and len(os.listdir(threads)) == 1
print("ready" if forks else "", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    arguments, folder, environment, output = json.loads(line)
    written = os.open(output, os.O_WRONLY)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        import sitecustomize
    if arguments[0] == "-c":
        _, code, *sys.argv[1:] = arguments
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        _, module, *sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    break
"""


@functools.cache
def _imported() -> subprocess.Popen[str] | None:
    """A process that has imported torch and can be forked, where there is one."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", _IMPORTED],
        env=_without_settings() | one_thread,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    if server.stdout.readline() == "ready\n":
        return server
    server.kill()
    server.wait()
    return None


def python_with_torch(
    *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As `python` with a script, `-c` or `-m`, in a process that has imported torch: in a moment.

    Not with what counts where a process starts, such as LD_PRELOAD or another torch.
    """
    server = _imported()
    if server is None:
        return python(*arguments, cwd=cwd, env=env)
    assert server.stdin is not None
    assert server.stdout is not None
    environment = _without_settings() | (env or {})
    with tempfile.NamedTemporaryFile("r") as output:
        request = [[str(argument) for argument in arguments], str(cwd), environment, output.name]
        print(json.dumps(request), file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, status, output.read())


def build(project: Path, env: dict[str, str] | None = None) -> str:
    """`make build` in a project, for the CPU; its output."""
    result = python_with_torch(
        "setup.py", "build_ext", "--inplace", cwd=project, env={"USE_CUDA": "0", **(env or {})}
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def quickly() -> dict[str, str]:
    """Settings of a build that neither optimises nor compiles what another build has compiled."""
    return {"DEBUG": "1", "CXX": quick_compiler.make()}


def compile_library(
    source: str, abi: str, folder: Path, *flags: str
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Makes a library of one of the sources in tests/abi."""
    from torch.utils.cpp_extension import TORCH_LIB_PATH, include_paths

    library = folder / f"{source}_{abi}.so"
    stable = ["-DTORCH_TARGET_VERSION=0x020b000000000000"] if abi == "stable" else []
    command = [
        *(
            "c++",
            "-shared",
            "-fPIC",
            "-O0",
            STANDARD,
            f"-DEXTENSION_CPP_STABLE_ABI={int(abi == 'stable')}",
            *stable,
            *flags,
        ),
        *(f"-I{path}" for path in (ROOT / "extension_cpp" / "csrc", *include_paths("cpu"))),
        str(ROOT / "tests" / "abi" / f"{source}.cpp"),
        *(f"-L{TORCH_LIB_PATH}", "-ltorch_cpu", *(["-lc10"] if abi == "aten" else [])),
    ]
    own = [*(ROOT / "tests" / "abi").iterdir(), *(ROOT / "extension_cpp" / "csrc").rglob("*.h")]
    own += (ROOT / "extension_cpp" / "csrc").rglob("*.cpp")
    return library, quick_compiler.library_once(command, library, sorted(own))


def load_library(source: str, folder: Path, *, has_blocks: bool) -> Any:
    """Operators of one of the sources in tests/abi, in a namespace of their own."""
    namespace = f"extension_cpp_{source}_{'blocks' if has_blocks else 'elements'}"
    flags = [f"-DNAMESPACE={namespace}", *["-DHAS_BLOCKS=0"] * (not has_blocks)]
    library, result = compile_library(source, "stable", folder, *flags)
    assert result.returncode == 0, result.stderr
    torch.ops.load_library(str(library))
    return getattr(torch.ops, namespace)


def package(program: Any, path: Path) -> str:
    """An exported program, packaged by AOTInductor for a few calls."""
    from torch._inductor import aoti_compile_and_package

    settings = {
        # Headers are compiled for this package alone.
        "aot_inductor.precompile_headers": False,
        "aot_inductor.compile_wrapper_opt_level": "O0",
    }
    return aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
