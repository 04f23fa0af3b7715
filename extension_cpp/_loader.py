"""Loads the compiled libraries, or says in one sentence why they cannot be loaded."""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path
from typing import Any

NAMESPACE = "extension_cpp"
FOLDER = Path(__file__).resolve().parent
RECORDED = ("torch", "abi", "min_torch", "cuda", "architectures", "reason", "debug", "sanitize")
# Of an ELF file: type, flags, offset, two addresses, size in the file and in memory, alignment.
PROGRAM_HEADER = struct.Struct("<2I6Q")

# Why the libraries are not loaded. Only `python -m extension_cpp` goes on without them.
failure: ImportError | None = None


def running_as_program(module: str) -> bool:
    """Whether Python is importing the package for `python -m MODULE`."""
    # While Python looks for __main__, sys.argv[0] is "-m"; the module is named just before the
    # program's own arguments.
    if sys.argv[:1] != ["-m"]:
        return False
    given = sys.orig_argv[-len(sys.argv)]
    return given == module or (given[0] == "-" and given.endswith(f"m{module}"))


def build_info() -> dict[str, Any]:
    """What setup.py recorded about the libraries beside it; empty where they are not built.

    Raises:
        ImportError: the record is broken.
    """
    path = FOLDER / "_build_info.json"
    try:
        info = json.loads(path.read_text())
        missing = [key for key in RECORDED if key not in info]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        version_pair(info["min_torch"])
    except (FileNotFoundError, NotADirectoryError):  # the latter within a zip file
        return {}
    except (AttributeError, TypeError, ValueError) as error:
        raise ImportError(
            f"{path}, which the build writes beside the libraries, is broken: {error}. Build "
            "extension_cpp again: `make build`, or `pip install --no-build-isolation .`"
        ) from error
    return info


def load() -> None:
    """Loads `_C`, and `_C_cuda` where it was built and the running torch has CUDA.

    Raises:
        ImportError: torch is missing, the libraries are not built, they need another torch,
            another library has already defined the namespace, or an operator's line of shapes says
            nothing.
    """
    import torch

    libraries = [FOLDER / "_C.so"]
    # By torch, not by torch.cuda.is_available(): the operators also exist where no GPU is. ROCm's
    # torch says None.
    if torch.version.cuda is not None and (FOLDER / "_C_cuda.so").exists():
        libraries.append(FOLDER / "_C_cuda.so")

    if not libraries[0].exists():
        if not FOLDER.is_dir():
            raise ImportError(
                f"extension_cpp cannot be loaded from {FOLDER}: libraries are loaded from files, "
                "and there is no such folder. Unpack the archive that it lies in."
            )
        raise ImportError(
            f"extension_cpp is not built: there is no {libraries[0]}. Run `make build` in a clone "
            "of the repository, or install it: `pip install --no-build-isolation .`"
        )
    check_torch_version(torch.__version__, build_info())
    # An earlier import may have got this far and failed later.
    if str(libraries[0]) not in torch.ops.loaded_libraries:
        check_namespace_is_free()
    for library in libraries:
        try:
            check_whole(library)
            torch.ops.load_library(library)
        except OSError as error:
            raise ImportError(does_not_load(library, torch.__version__, error)) from error
    problems = [problem for _, _, problem in declared_operators(libraries[0]) if problem]
    if problems:
        raise ImportError("\n".join(problems))


def check_whole(library: Path) -> None:
    """Looks for a library that was cut short: loading it may end the process by SIGBUS.

    Raises:
        OSError: the file cannot be read or, as ELF files tell, ends before what is loaded of it.
    """
    with library.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or not header.startswith(b"\x7fELF\2\1"):
            return  # not ELF of 64 bits, little-endian: loading it says what is wrong, if anything
        start, count = struct.unpack("<32xQ16xH6x", header)  # of the program headers
        file.seek(start)
        table = file.read(count * PROGRAM_HEADER.size)
    needed = start + count * PROGRAM_HEADER.size
    if len(table) == count * PROGRAM_HEADER.size:
        segments = PROGRAM_HEADER.iter_unpack(table)
        needed = max([needed, *(offset + size for _, _, offset, _, _, size, _, _ in segments)])
    if (there := library.stat().st_size) < needed:
        raise OSError(f"the file was cut short, it has {there} bytes of at least {needed}")


def does_not_load(library: Path, running: str, error: OSError) -> str:
    """What to say of a library that the running torch does not load."""
    built_with = build_info().get("torch", "(unknown)")
    if built_with == running:
        versions, again = f"does not load in torch {running}, with which it was built", "again"
    else:
        versions = f"was built with torch {built_with} and does not load in torch {running}"
        again = "again for this torch"
    # Torch itself says no more than that it could not load the library.
    return (
        f"{library} {versions}: {error.__cause__ or error}. Build extension_cpp {again}: "
        "`make build`, or `pip install --no-build-isolation .`"
    )


def declared_operators(library: Path, namespace: str = NAMESPACE) -> list[tuple[str, str, str]]:
    """The operators of a loaded library that have a line of shapes (see csrc/operator.h).

    Returns:
        For each the schema, the line, and what is wrong with it: nothing, as a rule.
    """
    function = getattr(ctypes.CDLL(str(library)), f"{namespace}_operators", None)
    if function is None:
        return []
    function.restype = ctypes.c_char_p
    records = (record.split("\x1f") for record in function().decode().split("\x1e"))
    return [(record[0], record[1], record[2]) for record in records if len(record) == 3]


def fill_new_tensors(filled: bool) -> bool:
    """Whether C++ fills the CPU tensors that it makes (csrc/torch_abi.h), in all loaded libraries.

    Returns:
        Whether it did before. False where there is nothing to switch: the aten build does as the
        deterministic mode says.
    """
    import torch

    before = False
    for library in torch.ops.loaded_libraries:
        function = getattr(ctypes.CDLL(library), f"{NAMESPACE}_fill_new_tensors", None)
        if function is not None:
            function.argtypes, function.restype = [ctypes.c_bool], ctypes.c_bool
            before |= function(filled)
    return before


def check_torch_version(running: str, info: dict[str, Any]) -> None:
    """Compares the running torch with what the build recorded, where it recorded anything."""
    if not info:
        return
    needed = info["min_torch"]
    if info["abi"] == "aten" and version_pair(running) != version_pair(needed):
        raise ImportError(
            f"extension_cpp was built with EXTENSION_CPP_ABI=aten and torch {info['torch']}, which "
            f"ties it to torch {needed}; the running torch is {running}. Build it again for this "
            "torch, or with the stable ABI."
        )
    if version_pair(running) < version_pair(needed):
        raise ImportError(
            f"extension_cpp was built for torch {needed} or newer (with torch {info['torch']}); "
            f"the running torch is {running}. Upgrade torch, or build extension_cpp for this one."
        )


def version_pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def operators() -> list[str]:
    """The names of the operators that are defined in the namespace, whoever defined them."""
    import torch

    names = torch._C._dispatch_get_all_op_names()
    return sorted(name for name in names if name.startswith(f"{NAMESPACE}::"))


def check_namespace_is_free() -> None:
    """Defining the namespace a second time would end the process without a word."""
    taken = operators()
    if taken:
        names = f"{', '.join(taken[:3])}{', ...' if taken[3:] else ''}"
        what = f"{owner(taken[0])} has already defined operators in"
        which = f"'{NAMESPACE}' ({names})"
    else:
        place = claimant()
        if place is None:
            return
        what = f"{place} has already claimed"
        which = f"'{NAMESPACE}', with no operators in it so far"
    raise ImportError(
        f"extension_cpp cannot be loaded: {what} the namespace {which}, and {FOLDER / '_C.so'} "
        "defines it too. Import only one of the two in a process; a package made from this one "
        "needs a namespace of its own."
    )


def claimant() -> str | None:
    """Where the namespace was claimed, if it was: torch tells whoever claims it too."""
    import torch

    try:
        torch._C._dispatch_library("DEF", NAMESPACE, "", __file__, 1)  # given up as it is dropped
    except RuntimeError as error:
        _, _, place = str(error).partition(
            "Previous registration of TORCH_LIBRARY was registered at "
        )
        return place.partition(";")[0] or "another package"
    return None


def owner(operator: str) -> str:
    """Who defined an operator: a library where one is found, else the place torch recorded."""
    import torch

    name = operator.split("::")[1].split(".")[0]
    for path in sorted(loaded_libraries()):
        content = path.read_bytes()
        if NAMESPACE.encode() in content and name.encode() in content:
            return str(path)
    marker = "debug: registered at "
    for line in torch._C._dispatch_dump(operator).splitlines():
        if line.startswith(marker):
            return line.removeprefix(marker)
    return "another package"


def loaded_libraries() -> set[Path]:
    """The shared libraries in this process, without torch's own."""
    import torch

    paths = {Path(path) for path in torch.ops.loaded_libraries}
    maps = Path("/proc/self/maps")
    if maps.exists():
        # The path is the sixth column, and may hold spaces.
        rows = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
        paths |= {Path(row[5]) for row in rows if len(row) == 6 and ".so" in row[5]}
    torch_folder = Path(torch.__file__).parent
    return {path for path in paths if path.is_file() and torch_folder not in path.parents}
