"""Builds the two compiled libraries: `_C` (schemas, CPU kernels) and `_C_cuda` (CUDA kernels).

What is static about the package stands in pyproject.toml. Sources are found by globbing: an
operator that is added or removed needs no change here. In an operator's folder `x.cpp` is compiled
for both backends, `x_cpu.cpp` for the CPU and `x_cuda.cu` for CUDA. Environment variables:

    USE_CUDA=0|1              unset: CUDA is built where nvcc and a CUDA build of torch both are
    TORCH_CUDA_ARCH_LIST=...  unset: the visible GPUs, else GPU_TARGETS below
    DEBUG=1                   no optimisation, debug symbols, assertions on host and device
    SANITIZE=1                AddressSanitizer and UBSan in the CPU kernels: see `make sanitize`
    EXTENSION_CPP_ABI=aten    the ABI of this one torch version, with all of ATen; default: stable
    MAX_JOBS=N                compilers run at once; unset: what processors and free memory allow
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import setuptools
from setuptools import Command, Extension, setup
from setuptools.command.build_py import build_py

# Compiled for where no GPU is visible; the last one also as PTX, for what comes later. A binary for
# x.0 runs on every x.y.
GPU_TARGETS = ("8.0", "9.0", "10.0", "12.0")
# What `make check-cuda` compiles for: two show code that compiles for one of them alone. With
# --oldest, the first: a compilation takes most of its time once for each. With --ir it ends where a
# linker would go on, before there are instructions, which take most of it: it finds what is wrong
# with the C++.
CHECK_TARGETS = ("8.0", "9.0")
# The oldest torch that a stable-ABI build runs on. Raising it opens more of torch/csrc/stable.
MIN_TORCH = (2, 11)

SANITIZERS = ["-fsanitize=address,undefined"]

# As in pyproject.toml, which pip does not compare under --no-build-isolation.
MIN_SETUPTOOLS = 77

PACKAGE = "extension_cpp"
ROOT = Path(__file__).resolve().parent
BUILD_INFO = "_build_info.json"
# Beside the objects: what the libraries were made of.
SOURCES = "sources.json"
# Where the CUDA build finds the sources that both backends share: see wrapper_of.
WRAPPERS = "build/cuda-sources"
# A script of the linker's that hides what -fvisibility=hidden does not: the clones of a function,
# and what chooses among them.
EXPORTS = "build/exports.map"


def fail(message: str) -> SystemExit:
    return SystemExit(f"\n{PACKAGE}: {message}\n")


def version_pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


if version_pair(setuptools.__version__)[0] < MIN_SETUPTOOLS:
    raise fail(
        f"setuptools {setuptools.__version__} is too old: the build needs {MIN_SETUPTOOLS} or "
        f"newer.\nUpgrade it: {sys.executable} -m pip install -U setuptools"
    )

from setuptools.command.bdist_wheel import bdist_wheel  # noqa: E402 (old ones have none)

# pip installs ninja beside the interpreter: on PATH only where the environment is activated.
try:
    import ninja
except ImportError:
    pass
else:
    os.environ["PATH"] = os.pathsep.join([ninja.BIN_DIR, os.environ["PATH"]])

try:
    import torch
except ImportError as error:
    raise fail(
        f"the build needs torch, which {sys.executable} cannot import ({error}).\n"
        f"Install it first: pip install 'torch>={MIN_TORCH[0]}.{MIN_TORCH[1]}'. Or leave out "
        "--no-build-isolation, and pip fetches it for the build."
    ) from None

if version_pair(torch.__version__) < MIN_TORCH:
    raise fail(
        f"torch {torch.__version__} is too old: the sources use the stable ABI of torch "
        f"{MIN_TORCH[0]}.{MIN_TORCH[1]} or newer.\nUpgrade it: pip install -U torch"
    )


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: its nvcc, its folder and its version."""

    nvcc: str
    home: str
    version: str

    @classmethod
    @functools.cache
    def find(cls) -> Toolkit | None:
        """The toolkit of CUDA_HOME, else of the nvcc on PATH, else the one in /usr/local/cuda."""
        home = next((os.environ[name] for name in home_variables()), "")
        if home:
            nvcc = shutil.which(os.path.join(home, "bin", "nvcc"))
        else:
            nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        if nvcc is None:
            return None
        if not home:
            # It may be a script that calls the real nvcc, which alone knows where its folder is.
            dryrun = output_of(nvcc, "--dryrun", "-x", "cu", os.devnull)
            top = re.search(r"^#\$ TOP=(.+)$", dryrun, re.MULTILINE)
            home = os.path.realpath(top[1] if top else os.path.join(nvcc, "..", ".."))
        release = re.search(r"release (\d+\.\d+)", output_of(nvcc, "--version"))
        return cls(nvcc, home, release[1] if release else "0.0")

    @property
    def library_dirs(self) -> list[str]:
        # lib64: NVIDIA's installers; lib: conda.
        folders = (os.path.join(self.home, name) for name in ("lib64", "lib"))
        return [folder for folder in folders if os.path.isdir(folder)]

    @functools.cached_property
    def targets(self) -> list[str]:
        """The compute capabilities that this nvcc compiles for, oldest first."""
        listed = output_of(self.nvcc, "--list-gpu-arch")
        numbers = sorted(map(int, re.findall(r"^compute_(\d+)$", listed, re.MULTILINE)))
        return [f"{number // 10}.{number % 10}" for number in numbers]

    def fast_compile(self) -> list[str]:
        """Flags for code that nobody runs: compiled in half the time, where this nvcc can."""
        option = "--Ofast-compile"
        # At its "max" the rows' kernels are so long that ptxas takes five times as long for them.
        return [f"{option}=mid"] if option in output_of(self.nvcc, "--help") else []


def home_variables() -> list[str]:
    """The variables that name the toolkit's folder, of which the first counts."""
    return [name for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]


def no_nvcc(version: str = "") -> str:
    """What to say where no toolkit was found; the first line says what is missing."""
    if names := home_variables():
        return (
            f"no nvcc was found in {names[0]}={os.environ[names[0]]}.\n"
            f"Set {names[0]} to the folder of a CUDA toolkit{version}, or unset "
            f"{' and '.join(names)}: then the nvcc on PATH is taken."
        )
    return (
        "no nvcc was found.\n"
        f"Install the CUDA toolkit{version}: https://developer.nvidia.com/cuda-downloads "
        "and put its nvcc on PATH, or set CUDA_HOME to its folder."
    )


def output_of(*command: str) -> str:
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return result.stdout


@dataclass(frozen=True)
class Config:
    """What this build makes: decided once, printed, and recorded beside the libraries."""

    torch: str
    abi: str
    min_torch: str  # the oldest torch that will load the libraries
    cuda: str | None  # the toolkit's version
    architectures: str | None
    reason: str  # why CUDA is built or is not
    debug: bool
    sanitize: bool

    @classmethod
    def from_environment(cls) -> Config:
        abi = os.environ.get("EXTENSION_CPP_ABI") or "stable"
        if abi not in ("stable", "aten"):
            raise fail(f"EXTENSION_CPP_ABI must be 'stable' or 'aten', got '{abi}'.")
        min_torch = MIN_TORCH if abi == "stable" else version_pair(torch.__version__)
        use_cuda = environment_flag("USE_CUDA")
        obstacle = "USE_CUDA=0" if use_cuda is False else cuda_obstacle()
        if use_cuda and obstacle:
            raise fail(
                f"USE_CUDA=1, but {obstacle}\n"
                "To build for the CPU alone, leave USE_CUDA out or set it to 0."
            )
        toolkit = Toolkit.find() if obstacle is None else None
        architectures, reason = cuda_architectures(toolkit) if toolkit else (None, obstacle or "")
        return cls(
            torch=torch.__version__,
            abi=abi,
            min_torch=f"{min_torch[0]}.{min_torch[1]}",
            cuda=toolkit.version if toolkit else None,
            architectures=architectures,
            reason=reason.splitlines()[0].rstrip("."),
            debug=bool(environment_flag("DEBUG")),
            sanitize=bool(environment_flag("SANITIZE")),
        )

    def summary(self) -> str:
        cuda = f"CUDA {self.cuda} for {self.architectures}" if self.cuda else "CPU only"
        kind = "".join(f", {name}" for name in self.kind)
        return f"{PACKAGE}: torch {self.torch}, {self.abi} ABI, {cuda} ({self.reason}){kind}"

    @property
    def kind(self) -> list[str]:
        return [name for name in ("debug", "sanitize") if getattr(self, name)]


def environment_flag(name: str) -> bool | None:
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise fail(f"{name} must be 0 or 1, got '{value}'.")
    return value == "1" if value else None


def cuda_obstacle() -> str | None:
    """What keeps CUDA from being built, and what to do about it; None where nothing does."""
    built_with = torch.version.cuda
    if built_with is None:
        return (
            f"torch {torch.__version__} is built without CUDA.\n"
            "Install a CUDA build of torch: https://pytorch.org/get-started/locally "
            "(`make check-cuda` compiles the CUDA sources without one, but cannot link them)."
        )
    toolkit = Toolkit.find()
    if toolkit is None:
        return no_nvcc(f" {built_with}")
    if toolkit.version.split(".")[0] != built_with.split(".")[0]:
        return (
            f"nvcc {toolkit.version} does not match torch {torch.__version__}, "
            f"which is built with CUDA {built_with}.\n"
            f"Set CUDA_HOME to the folder of a toolkit {built_with.split('.')[0]}.x."
        )
    return None


def cuda_architectures(toolkit: Toolkit) -> tuple[str, str]:
    """The value of TORCH_CUDA_ARCH_LIST to build for, and where it comes from."""
    given = os.environ.get("TORCH_CUDA_ARCH_LIST") or "native"
    if given != "native":
        return given, "TORCH_CUDA_ARCH_LIST"
    gpus = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    wanted = [f"{major}.{minor}" for major, minor in sorted(gpus)] or GPU_TARGETS
    # A GPU newer than the toolkit runs the toolkit's newest PTX.
    targets = [target for target in wanted if target in toolkit.targets] or toolkit.targets[-1:]
    source = "visible GPUs" if gpus else "no GPU visible: GPU_TARGETS of setup.py"
    return ";".join(targets) + "+PTX", source


def gencode_flags(architectures: str) -> list[str]:
    """The flags of nvcc for a value of TORCH_CUDA_ARCH_LIST.

    torch would add them, but not where any other flag contains "arch": a path through a folder
    named "research" is enough.
    """
    from torch.utils.cpp_extension import _get_cuda_arch_flags

    os.environ["TORCH_CUDA_ARCH_LIST"] = architectures
    try:
        return _get_cuda_arch_flags()
    except ValueError as error:
        raise fail(f"TORCH_CUDA_ARCH_LIST={architectures}: {error}") from None


def common_flags(config: Config) -> list[str]:
    """Flags of both compilers. None sets the C++ standard: torch adds what its headers need."""
    flags = [
        "-DEXTENSION_CPP_STABLE_ABI=" + ("1" if config.abi == "stable" else "0"),
        # Assertions in debug builds alone. Python's own flags, which come before, reach g++ only.
        "-UNDEBUG" if config.debug else "-DNDEBUG",
    ]
    if config.abi == "stable":
        # Hides what later versions added to the stable ABI: one build serves all from MIN_TORCH on.
        flags.append(f"-DTORCH_TARGET_VERSION=0x{MIN_TORCH[0]:02x}{MIN_TORCH[1]:02x}000000000000")
    return flags


def host_flags() -> list[str]:
    """Flags of g++, which also compiles the host half of CUDA sources."""
    from torch.utils.cpp_extension import include_paths

    return [
        # Two extensions made from this template must not take each other's functions.
        "-fvisibility=hidden",
        # Messages name files as the repository does, not as the machine that built the wheel.
        *(f"-ffile-prefix-map={path}/=" for path in (ROOT, *include_paths("cpu"))),
    ]


def cxx_flags(config: Config) -> list[str]:
    flags = [*common_flags(config), *host_flags()]
    if config.sanitize:
        # Frame pointers give whole call stacks; what UBSan finds ends the process.
        flags += [*SANITIZERS, "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-g"]
        return [*flags, "-O0" if config.debug else "-O1"]
    if config.debug:
        return [*flags, "-O0", "-g"]
    return [
        *flags,
        # -O2 hardly vectorises: 4 to 8 times slower.
        "-O3",
        # Nobody here reads the flags that floating-point exceptions set. Changes no value; without
        # it conversions of Half do not vectorise below AVX-512 (up to 15 times slower).
        "-fno-trapping-math",
        # Nor errno after a call of std::sqrt, which with it is a branch.
        "-fno-math-errno",
        # Python's own flags ask for debug symbols: ten times the size of the library.
        "-g0",
    ]


def nvcc_flags(config: Config, gencode: list[str]) -> list[str]:
    # No --use_fast_math: kernels that wait for memory gain nothing, and denormals would be lost.
    return [
        *common_flags(config),
        *gencode,
        # Opens the stream and launch helpers of torch/csrc/stable.
        "-DUSE_CUDA",
        # Debug builds keep the device code optimised, with line numbers: under -G, blocks of 1024
        # threads run out of registers.
        *(["-O0", "-g", "-lineinfo"] if config.debug else ["-O3"]),
        # nvcc takes them apart at commas and spaces: where the path has any, messages show it.
        *(f"--compiler-options={flag}" for flag in host_flags() if not re.search("[ ,]", flag)),
    ]


def sources(suffix: str) -> list[str]:
    package = ROOT / PACKAGE
    found = [*package.glob(f"csrc/**/*{suffix}"), *package.glob(f"operators/*/*{suffix}")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def cpu_sources() -> list[str]:
    return sources(".cpp")


def shared_sources() -> list[str]:
    """What is compiled for both backends: the `x.cpp` of operators, which may be called `x_cpu`."""
    operators = f"{PACKAGE}/operators/"
    return [
        file
        for file in sources(".cpp")
        if file.startswith(operators)
        and (not file.endswith("_cpu.cpp") or Path(file).stem == Path(file).parent.name)
    ]


def cuda_sources() -> list[str]:
    return sorted([*sources(".cu"), *shared_sources()])


def wrapper_of(source: str) -> str:
    """A .cu file that includes the source: BuildExtension takes nvcc by the suffix alone."""
    return Path(WRAPPERS, source).with_suffix(".cu").as_posix()


def write_wrappers() -> None:
    for source in shared_sources():
        wrapper = ROOT / wrapper_of(source)
        write(wrapper, f'#include "{os.path.relpath(ROOT / source, wrapper.parent)}"\n')


def write_exports() -> None:
    write(ROOT / EXPORTS, f"{{ global: {PACKAGE}_*; local: _Z*{PACKAGE}*; }};\n")


def write(path: Path, text: str) -> None:
    """Not where it is there already: what is new would be compiled, or linked, again."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def extensions(config: Config) -> list[Extension]:
    """Plain Extensions: BuildExtension takes nvcc by the .cu suffix, and libraries stay ours."""
    from torch.utils.cpp_extension import TORCH_LIB_PATH, include_paths

    linux, aten = sys.platform == "linux", config.abi == "aten"
    # at::parallel_for is a template over OpenMP pragmas; the stable ABI's runs inside torch.
    openmp = ["-fopenmp"] if linux and aten else []
    # A missing symbol stops the build, not the import on somebody else's machine. Those of the
    # sanitizers come from the process.
    link_flags = SANITIZERS if config.sanitize else ["-Wl,--no-undefined"] if linux else []
    if linux:
        link_flags = [*link_flags, f"-Wl,--version-script={ROOT / EXPORTS}"]
    common: dict[str, Any] = {
        # Also where there are only .cu files: the C linker would leave out libstdc++.
        "language": "c++",
        "include_dirs": [str(ROOT / PACKAGE / "csrc"), *include_paths("cpu")],
        # Without ninja, which finds dependencies itself, an edited header rebuilds everything, and
        # so does an edited source behind a wrapper.
        "depends": [*sources(".h"), *sources(".cuh"), *shared_sources()],
        "extra_link_args": [*link_flags, *openmp],
    }
    built = [
        Extension(
            f"{PACKAGE}._C",
            cpu_sources(),
            library_dirs=[TORCH_LIB_PATH],
            libraries=["torch_cpu", "c10"] if aten else ["torch_cpu"],
            extra_compile_args={"cxx": [*cxx_flags(config), *openmp]},
            **common,
        )
    ]
    toolkit = Toolkit.find()
    if config.architectures and toolkit and cuda_sources():
        # The static runtime ties the library to no CUDA version of torch's, only to a driver as new
        # as the toolkit; rt, dl and pthread are what the runtime needs.
        runtime = ["cudart_static", "rt", "dl", "pthread"]
        built.append(
            Extension(
                f"{PACKAGE}._C_cuda",
                [*sources(".cu"), *map(wrapper_of, shared_sources())],
                library_dirs=[TORCH_LIB_PATH, *toolkit.library_dirs],
                libraries=[
                    *("torch_cuda", "torch_cpu"),
                    *(["c10_cuda", "c10"] if aten else []),
                    *runtime,
                ],
                extra_compile_args={
                    "nvcc": nvcc_flags(config, gencode_flags(config.architectures))
                },
                **common,
            )
        )
    return built


def jobs(config: Config) -> int:
    """Compilers to run at once: MAX_JOBS, else one per processor, within the free memory."""
    given = os.environ.get("MAX_JOBS")
    if given:
        # torch would take what is no number for no limit, and ninja takes 0 for that.
        if not given.isdecimal() or int(given) == 0:
            raise fail(f"MAX_JOBS must be a positive number, got '{given}'.")
        return int(given)
    return max(1, min(processors(), compilers_in_memory(config)))


def processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def compilers_in_memory(config: Config) -> int:
    """As many as the free memory holds at once."""
    # The peak of one compiler, with some room.
    gib_per_job = 4.0 if config.abi == "aten" else 1.5
    return int(min(free_memory() / 2**30 / gib_per_job, 1000))


def side_by_side(config: Config) -> bool:
    """Whether both libraries are built at once, each by as many compilers as there are processors.

    At the end of either most processors wait for the last sources, of which some take minutes.
    """
    room = compilers_in_memory(config) >= 2 * processors()
    return room and sys.platform == "linux" and not os.environ.get("MAX_JOBS")


class Beside:
    """A process that does something while this one goes on."""

    def __init__(self, task: Callable[[], None]) -> None:
        sys.stdout.flush()
        with warnings.catch_warnings():
            # This process may have threads, of NumPy's, which the other one has no use for.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = os.fork()
        if self.process == 0:
            status = 1
            try:
                os.nice(10)  # the other one takes longer
                task()
                status = 0
            except Exception as error:
                print(f"error: {error}", file=sys.stderr)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)

    def join(self) -> bool:
        """Waits for its end; whether it did what it should."""
        return os.waitpid(self.process, 0)[1] == 0


def free_memory() -> float:
    """Bytes; infinite where the system does not say."""
    free = float("inf")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        available = re.search(r"MemAvailable:\s*(\d+) kB", meminfo.read_text())
        free = int(available[1]) * 1024 if available else free
    # In a container, /proc/meminfo speaks of the whole machine.
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def check_compiler() -> None:
    # torch compiles with CXX, else with c++, and setuptools links with the compiler that built
    # Python: make them one.
    compiler = os.environ["CXX"] = os.environ.get("CXX", "").strip() or "c++"
    if shutil.which(shlex.split(compiler)[0]) is None:
        raise fail(
            f"no C++ compiler: '{compiler}' was not found.\nInstall one (Debian, Ubuntu: "
            "apt install g++; Fedora: dnf install gcc-c++), or set CXX to yours."
        )


def make_build_ext(config: Config) -> type[Command]:
    # torch.utils.cpp_extension looks for the toolkit when it is imported, and would take the folder
    # of a script named nvcc.
    toolkit = Toolkit.find()
    if toolkit is not None:
        os.environ["CUDA_HOME"] = toolkit.home
    from torch.utils.cpp_extension import BuildExtension

    class BuildExt(BuildExtension):
        def finalize_options(self) -> None:
            super().finalize_options()
            # Editable installs would compile in a temporary folder: everything, every time.
            self.build_temp = str(ROOT / "build" / "temp" / "-".join([config.abi, *config.kind]))

        def run(self) -> None:
            print(config.summary(), flush=True)
            check_compiler()
            self.side_by_side = side_by_side(config)
            os.environ["MAX_JOBS"] = str(jobs(config))
            folder = Path(self.build_lib, PACKAGE)
            info = json.dumps(asdict(config), indent=2) + "\n"
            sources = json.dumps([[*ext.sources, *ext.depends] for ext in self.extensions])
            # Without ninja, which compares command lines, other settings would go unnoticed, and so
            # would a source that is gone or came with an old date.
            kept = {folder / BUILD_INFO: info, Path(self.build_temp, SOURCES): sources}
            if any(not path.exists() or path.read_text() != text for path, text in kept.items()):
                self.force = True
            self.remove_stale(folder)
            write_exports()
            if config.architectures:
                write_wrappers()
            super().run()
            for path, text in kept.items():
                path.write_text(text)
            if self.inplace:
                self.remove_stale(ROOT / PACKAGE)
                (ROOT / PACKAGE / BUILD_INFO).write_text(info)
                self.write_compile_commands()

        def remove_stale(self, folder: Path) -> None:
            """Removes the libraries that this build does not make, and the record of another."""
            made = [Path(self.get_ext_filename(ext.name)).name for ext in self.extensions]
            for path in [*folder.glob("_C*.so"), folder / BUILD_INFO]:
                if path.name not in made:
                    path.unlink(missing_ok=True)

        def build_extension(self, ext: Extension) -> None:
            first, last = self.extensions[0], self.extensions[-1]
            if not self.side_by_side or first is last:
                self.build_in_folder(ext)
            elif ext is first:
                self.beside = Beside(lambda: self.build_in_folder(first))
            else:
                try:
                    self.build_in_folder(last)
                finally:
                    built = self.beside.join()
                if not built:
                    raise fail(f"{first.name} was not built: see above.")

        def build_in_folder(self, ext: Extension) -> None:
            # One each: ninja's log forgets the files that its present run does not build.
            root = self.build_temp
            self.build_temp = str(Path(root, ext.name))
            try:
                super().build_extension(ext)
            finally:
                self.build_temp = root

        def get_ext_filename(self, fullname: str) -> str:
            # The libraries never call Python: one file serves every version of it.
            return os.path.join(*fullname.split(".")) + ".so"

        def write_compile_commands(self) -> None:
            """For editors: how each file is compiled. Without ninja, which tells, none is left."""
            path = ROOT / "compile_commands.json"
            if not self.use_ninja:
                path.unlink(missing_ok=True)
                print(f"{PACKAGE}: no ninja, hence no {path.name}")
                return
            commands = []
            for ext in self.extensions:
                folder = Path(self.build_temp, ext.name)
                commands += json.loads(output_of("ninja", "-C", str(folder), "-t", "compdb"))
            path.write_text(json.dumps(commands, indent=2) + "\n")

    return BuildExt


class BuildPy(build_py):
    """Starts from an empty folder: what an earlier build left there would go into the wheel."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BdistWheel(bdist_wheel):
    def run(self) -> None:
        shutil.rmtree(self.bdist_dir, ignore_errors=True)  # left behind by an interrupted build
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        # The libraries are tied to a platform, but to no Python.
        return "py3", "none", super().get_tag()[2]


class CheckCuda(Command):
    """Compiles the CUDA sources for CHECK_TARGETS; needs no GPU and no CUDA build of torch."""

    description = "compile the CUDA sources without linking them"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("optional", None, "where there is no nvcc, say so and succeed"),
        ("operator=", None, "those of one operator alone"),
        ("oldest", None, "for the oldest of CHECK_TARGETS alone"),
        ("ir", None, "to LTO IR, for one of them: neither to instructions nor for the host"),
    ]

    def initialize_options(self) -> None:
        self.optional = False
        self.operator: str | None = None
        self.oldest = False
        self.ir = False

    def finalize_options(self) -> None:
        self.oldest = bool(self.oldest or self.ir)

    def run(self) -> None:
        toolkit = Toolkit.find()
        if toolkit is None and self.optional:
            missing = no_nvcc().splitlines()[0].rstrip(".")
            print(f"{PACKAGE}: {missing}, hence the CUDA sources are not compiled")
            return
        if toolkit is None:
            raise fail(no_nvcc())
        from torch.utils.cpp_extension import include_paths

        targets = CHECK_TARGETS[:1] if self.oldest else CHECK_TARGETS
        # The stable ABI: ATen's CUDA headers come with CUDA builds of torch alone.
        config = Config(torch.__version__, "stable", "", toolkit.version, None, "", False, False)
        command = [
            toolkit.nvcc,
            self.how,
            "-x=cu",  # .cpp files too
            *(f"-I{path}" for path in (ROOT / PACKAGE / "csrc", *include_paths("cpu"))),
            "--compiler-options=-fPIC",
            # Of the standards that torch passes in a real build, the stricter: that of 2.11.
            "-std=c++17",
            # As torch does in a real build.
            "--expt-relaxed-constexpr",
            "-D__CUDA_NO_HALF_OPERATORS__",
            "-D__CUDA_NO_HALF_CONVERSIONS__",
            "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
            "-D__CUDA_NO_HALF2_OPERATORS__",
            *self.quick(nvcc_flags(config, gencode_flags(";".join(targets)))),
            *([] if self.ir else toolkit.fast_compile()),
        ]
        folder = f"{PACKAGE}/operators/{self.operator}/" if self.operator else ""
        files = [file for file in cuda_sources() if file.startswith(folder)]
        with ThreadPoolExecutor(jobs(config)) as pool:
            compiled = list(pool.map(lambda file: self.compile(file, command), files))
        failed = [file for file, ok in zip(files, compiled, strict=True) if not ok]
        if failed:
            raise fail(f"{len(failed)} of {len(files)} CUDA sources do not compile: {failed}")
        whose = f" of {self.operator}" if self.operator else ""
        what = f"all CUDA sources{whose} ({len(files)})"
        to = " to LTO IR" if self.ir else ""
        print(f"{PACKAGE}: {what} compile{to} for {' and '.join(targets)}")

    @property
    def how(self) -> str:
        return "-ltoir" if self.ir else "-c"

    def quick(self, flags: list[str]) -> list[str]:
        """The same, but for the optimisation of the host's code, which nobody runs."""
        flags = ["-O0" if flag == "-O3" else flag for flag in flags]
        return [flag.replace("code=sm_", "code=lto_") for flag in flags] if self.ir else flags

    def compile(self, source: str, command: list[str]) -> bool:
        # A folder each: those who compile now for one, now for both, compile what changed alone.
        kind = "ir" if self.ir else "oldest" if self.oldest else "all"
        target = (ROOT / "build" / "check-cuda" / kind / source).with_suffix(".o")
        depfile, done = target.with_suffix(".d"), target.with_suffix(".cmd")
        command = [*command, "-MD", "-MF", str(depfile), str(ROOT / source), "-o", str(target)]
        same_command = done.exists() and done.read_text() == shlex.join(command)
        if same_command and not is_outdated(target, depfile):
            return True
        # In one write: another thread may be at it, too.
        print(f"nvcc {self.how} {source}\n", end="", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        done.unlink(missing_ok=True)
        if subprocess.run(command, check=False).returncode != 0:
            return False
        done.write_text(shlex.join(command))
        return True


def is_outdated(target: Path, depfile: Path) -> bool:
    """Whether a file that the compiler listed for the target is newer than it, or gone."""
    built = target.stat().st_mtime
    listed = depfile.read_text().split(":", 1)[1].replace("\\\n", " ")
    paths = [path.replace("\\ ", " ") for path in re.findall(r"(?:\\ |\S)+", listed)]
    return any(not os.path.exists(path) or os.path.getmtime(path) > built for path in paths)


def main() -> None:
    os.chdir(ROOT)  # sources are named from here
    config = Config.from_environment()
    build_ext = make_build_ext(config)  # first: it tells torch where the toolkit is
    setup(
        ext_modules=extensions(config),
        cmdclass={
            "bdist_wheel": BdistWheel,
            "build_ext": build_ext,
            "build_py": BuildPy,
            "check_cuda": CheckCuda,
        },
    )


if __name__ == "__main__":
    main()
