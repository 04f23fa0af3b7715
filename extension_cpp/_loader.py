"""Loads the compiled libraries, and says in one sentence what is wrong where they cannot be loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NAMESPACE = "extension_cpp"
FOLDER = Path(__file__).resolve().parent

# Why the libraries are not loaded; only `python -m extension_cpp`, which reports it, ever sees one.
failure: ImportError | None = None


def running_as_program() -> bool:
    """Whether Python is importing the package for `python -m extension_cpp`."""
    # While it looks for __main__, sys.argv[0] is "-m"; the module's name is the last argument of Python's own.
    if sys.argv[:1] != ["-m"]:
        return False
    module = sys.orig_argv[-len(sys.argv)]
    return module == __package__ or (module.startswith("-") and module.endswith(f"m{__package__}"))


def build_info() -> dict[str, Any]:
    """What setup.py recorded about the libraries beside it; empty where it left nothing."""
    try:
        return json.loads((FOLDER / "_build_info.json").read_text())
    except FileNotFoundError:
        return {}


def load() -> None:
    """Loads `_C`, and `_C_cuda` where the build made one and the running torch has CUDA.

    Raises:
        ImportError: torch is missing, the libraries are not built, they need another torch, or another library has
            already defined their operators.
    """
    import torch

    libraries = [FOLDER / "_C.so"]
    # Not torch.cuda.is_available(): the operators exist on a machine without a GPU too. None also with ROCm.
    if torch.version.cuda is not None and (FOLDER / "_C_cuda.so").exists():
        libraries.append(FOLDER / "_C_cuda.so")

    if not libraries[0].exists():
        raise ImportError(
            f"extension_cpp is not built: {libraries[0]} does not exist. In a clone of the repository run `make build`, "
            "or install the package with `pip install --no-build-isolation .`"
        )
    check_torch_version(torch.__version__, build_info())
    if (
        str(libraries[0]) not in torch.ops.loaded_libraries
    ):  # else an earlier import got this far, and failed later
        check_namespace_is_free()
    for library in libraries:
        try:
            torch.ops.load_library(library)
        except OSError as error:
            built_with = build_info().get("torch", "an unknown torch")
            raise ImportError(
                f"{library.name} was built with torch {built_with} and does not load in torch {torch.__version__}: {error}. "
                "Build it again for this torch: `make build`, or `pip install --no-build-isolation .`"
            ) from error


def check_torch_version(running: str, info: dict[str, Any]) -> None:
    if not info:
        return
    needed = info["min_torch"]
    if info["abi"] == "aten" and version_pair(running) != version_pair(needed):
        raise ImportError(
            f"extension_cpp was built with torch {info['torch']} and EXTENSION_CPP_ABI=aten, which ties it to torch "
            f"{needed}; the running torch is {running}. Build it again for this torch, or with the stable ABI."
        )
    if version_pair(running) < version_pair(needed):
        raise ImportError(
            f"extension_cpp was built for torch {needed} or newer (with torch {info['torch']}); the running torch is "
            f"{running}. Upgrade torch, or build extension_cpp again for this one."
        )


def version_pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_namespace_is_free() -> None:
    """Loading a second definition of the namespace would crash the process, with no message."""
    import torch

    taken = [
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{NAMESPACE}::")
    ]
    if taken:
        raise ImportError(
            f"extension_cpp cannot be loaded: the operator namespace '{NAMESPACE}' already belongs to {owner(taken[0])} "
            f"({', '.join(sorted(taken)[:3])}{', ...' if len(taken) > 3 else ''}). Only one of the two can be used in one process; "
            "a package made from this one needs a namespace of its own."
        )


def owner(operator: str) -> str:
    """Names who defined an operator: its library if it has one, else the place that torch recorded."""
    import torch

    name = operator.split("::")[1].split(".")[0].encode()
    for path in sorted(loaded_libraries()):
        if NAMESPACE.encode() in (content := path.read_bytes()) and name in content:
            return str(path)
    for line in torch._C._dispatch_dump(operator).splitlines():
        if line.startswith("debug: registered at "):
            return line.removeprefix("debug: registered at ")
    return "another package"


def loaded_libraries() -> set[Path]:
    """The shared libraries in this process, without torch's own."""
    import torch

    paths = {Path(path) for path in torch.ops.loaded_libraries}
    maps = Path("/proc/self/maps")
    if maps.exists():
        # The sixth column, of which a path may hold spaces.
        columns = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
        paths |= {Path(column[5]) for column in columns if len(column) == 6 and ".so" in column[5]}
    torch_folder = Path(torch.__file__).parent
    return {path for path in paths if path.is_file() and torch_folder not in path.parents}
