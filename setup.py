"""Builds the two compiled libraries: `_C` (schemas, CPU kernels) and `_C_cuda` (CUDA kernels).

What is static about the package stands in pyproject.toml. Sources are found by globbing: an operator that is added or
removed needs no change here. Environment variables:

    USE_CUDA=0|1              unset: CUDA is built where nvcc and a CUDA build of torch are both there
    TORCH_CUDA_ARCH_LIST=...  unset: the visible GPUs, else GPU_TARGETS below
    DEBUG=1                   no optimisation, debug symbols, assertions on the host and the device
    EXTENSION_CPP_ABI=aten    the ABI of this one torch version, with all of ATen; default: stable
    MAX_JOBS=N                compilers run at once; unset: as many as the processors and the free memory allow
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

# Compiled for when no GPU is visible; the last one also as PTX, for what comes later. A binary for x.0 runs on x.y.
GPU_TARGETS = ("8.0", "9.0", "10.0", "12.0")
# What `make check-cuda` compiles for: the oldest and the newest instruction set that kernels commonly special-case.
CHECK_TARGETS = ("8.0", "9.0")
# The oldest torch that a stable-ABI build runs on. Raising it opens more of torch/csrc/stable to the sources.
MIN_TORCH = (2, 11)

PACKAGE = "extension_cpp"
ROOT = Path(__file__).resolve().parent
BUILD_INFO = "_build_info.json"


def fail(message: str) -> SystemExit:
    return SystemExit(f"\n{PACKAGE}: {message}\n")


def version_pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


# pip installs ninja beside the interpreter, a folder that is on PATH only in an activated environment.
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
        f"the build needs torch, which {sys.executable} cannot import ({error}). Install it first "
        f"(pip install 'torch>={MIN_TORCH[0]}.{MIN_TORCH[1]}'), or drop --no-build-isolation to let pip fetch it."
    ) from None

if version_pair(torch.__version__) < MIN_TORCH:
    raise fail(
        f"torch {torch.__version__} is too old: the stable ABI that the sources use exists from torch "
        f"{MIN_TORCH[0]}.{MIN_TORCH[1]} on. Upgrade it: pip install -U torch"
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
        """The toolkit of CUDA_HOME, else that of the nvcc on PATH, else the one in /usr/local/cuda."""
        home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
        if home:
            nvcc = shutil.which(os.path.join(home, "bin", "nvcc"))
        else:
            nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        if nvcc is None:
            return None
        if not home:
            # The nvcc on PATH may be a script that calls the real one: only nvcc itself knows where its libraries are.
            dryrun = run_tool(nvcc, "--dryrun", "-x", "cu", os.devnull)
            top = re.search(r"^#\$ TOP=(.+)$", dryrun, re.MULTILINE)
            home = (
                os.path.realpath(top[1])
                if top
                else os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
            )
        release = re.search(r"release (\d+\.\d+)", run_tool(nvcc, "--version"))
        return cls(nvcc, home, release[1] if release else "0.0")

    @property
    def library_dirs(self) -> list[str]:
        # lib64: NVIDIA's installers; lib: conda.
        return [
            path
            for name in ("lib64", "lib")
            if os.path.isdir(path := os.path.join(self.home, name))
        ]

    @functools.cached_property
    def targets(self) -> list[str]:
        """The compute capabilities that this nvcc compiles for, oldest first."""
        numbers = map(
            int,
            re.findall(r"^compute_(\d+)$", run_tool(self.nvcc, "--list-gpu-arch"), re.MULTILINE),
        )
        return [f"{number // 10}.{number % 10}" for number in sorted(numbers)]


def run_tool(*command: str) -> str:
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

    @classmethod
    def from_environment(cls) -> Config:
        abi = os.environ.get("EXTENSION_CPP_ABI") or "stable"
        if abi not in ("stable", "aten"):
            raise fail(f"EXTENSION_CPP_ABI must be 'stable' or 'aten', got '{abi}'.")
        use_cuda = environment_flag("USE_CUDA")
        obstacle = "USE_CUDA=0" if use_cuda is False else cuda_obstacle()
        if use_cuda and obstacle:
            raise fail(
                f"USE_CUDA=1, but {obstacle}\nUnset USE_CUDA, or set it to 0, to build for the CPU alone."
            )
        architectures, reason = (None, obstacle) if obstacle else cuda_architectures()
        toolkit = Toolkit.find()
        return cls(
            torch=torch.__version__,
            abi=abi,
            min_torch=".".join(
                map(str, MIN_TORCH if abi == "stable" else version_pair(torch.__version__))
            ),
            cuda=toolkit.version if toolkit and not obstacle else None,
            architectures=architectures,
            reason=reason,
            debug=bool(environment_flag("DEBUG")),
        )

    def summary(self) -> str:
        cuda = f"CUDA {self.cuda} for {self.architectures}" if self.cuda else "CPU only"
        debug = ", debug" if self.debug else ""
        return f"{PACKAGE}: torch {self.torch}, {self.abi} ABI, {cuda} ({self.reason.splitlines()[0]}){debug}"


def environment_flag(name: str) -> bool | None:
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise fail(f"{name} must be 0 or 1, got '{value}'.")
    return value == "1" if value else None


def cuda_obstacle() -> str | None:
    """What keeps CUDA from being built, and what to do about it; None where nothing does."""
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} is built without CUDA.\n"
            "Install a CUDA build of torch (https://pytorch.org/get-started/locally); `make check-cuda` "
            "compiles the CUDA sources without one, but cannot link them."
        )
    toolkit = Toolkit.find()
    if toolkit is None:
        return (
            "no nvcc was found.\nInstall the CUDA toolkit "
            f"{torch.version.cuda} (https://developer.nvidia.com/cuda-downloads) and set CUDA_HOME to its folder, "
            "or put its nvcc on PATH."
        )
    if toolkit.version.split(".")[0] != torch.version.cuda.split(".")[0]:
        return (
            f"nvcc {toolkit.version} does not match torch {torch.__version__}, built with CUDA {torch.version.cuda}.\n"
            f"Set CUDA_HOME to a toolkit of version {torch.version.cuda.split('.')[0]}.x."
        )
    return None


def cuda_architectures() -> tuple[str, str]:
    """The value of TORCH_CUDA_ARCH_LIST to build for, and where it comes from."""
    if os.environ.get("TORCH_CUDA_ARCH_LIST", "native") != "native":
        return os.environ["TORCH_CUDA_ARCH_LIST"], "TORCH_CUDA_ARCH_LIST"
    toolkit = Toolkit.find()
    assert toolkit is not None
    gpus = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    wanted = [f"{major}.{minor}" for major, minor in sorted(gpus)] or list(GPU_TARGETS)
    # A GPU newer than the toolkit runs the toolkit's newest PTX.
    targets = [target for target in wanted if target in toolkit.targets] or toolkit.targets[-1:]
    return ";".join(
        targets
    ) + "+PTX", "visible GPUs" if gpus else "no GPU visible: GPU_TARGETS of setup.py"


def gencode_flags(architectures: str) -> list[str]:
    """nvcc's flags for a value of TORCH_CUDA_ARCH_LIST.

    torch would add them itself, but not where any flag holds the letters "arch": a path through "research" is enough.
    """
    from torch.utils.cpp_extension import _get_cuda_arch_flags

    os.environ["TORCH_CUDA_ARCH_LIST"] = architectures
    try:
        return _get_cuda_arch_flags()
    except ValueError as error:
        raise fail(f"TORCH_CUDA_ARCH_LIST={architectures}: {error}") from None


def common_flags(config: Config) -> list[str]:
    """Flags of every compiler. None sets the C++ standard: torch's headers know theirs, and torch adds it."""
    stable = [
        # Hides whatever later versions added to the stable ABI, so that one build serves every torch from MIN_TORCH on.
        f"-DTORCH_TARGET_VERSION=0x{MIN_TORCH[0]:02x}{MIN_TORCH[1]:02x}000000000000",
    ]
    return [
        f"-DEXTENSION_CPP_STABLE_ABI={int(config.abi == 'stable')}",
        *(stable if config.abi == "stable" else []),
        # Assertions in debug builds alone. Said for both: Python's own flags come before, nvcc gets none of them.
        "-UNDEBUG" if config.debug else "-DNDEBUG",
    ]


def host_flags(config: Config) -> list[str]:
    """Flags of the host compiler, for .cpp files and for the host half of .cu files."""
    from torch.utils.cpp_extension import include_paths

    return [
        # Two extensions built from this template must not see each other's symbols.
        "-fvisibility=hidden",
        # Messages and assertions name files as the repository does, not as the machine that built the wheel does.
        f"-ffile-prefix-map={ROOT}/=",
        *(f"-ffile-prefix-map={path}/=" for path in include_paths("cpu")),
    ]


def cxx_flags(config: Config) -> list[str]:
    release = [
        # -O2 of GCC before 12 does not vectorise, and later ones do so only where it costs no size: up to 8 times slower.
        "-O3",
        # Nobody reads floating-point exception flags here. Changes no value; without it the Half conversion does not
        # vectorise below AVX-512 (up to 15 times slower).
        "-fno-trapping-math",
        # Python's own flags ask for debug symbols: ten times the size of the library.
        "-g0",
    ]
    # at::parallel_for is a template over OpenMP pragmas; the stable ABI's parallel_for runs inside torch.
    openmp = ["-fopenmp"] if config.abi == "aten" and sys.platform == "linux" else []
    optimisation = ["-O0", "-g"] if config.debug else release
    return [*common_flags(config), *optimisation, *openmp, *host_flags(config)]


def nvcc_flags(config: Config, gencode: list[str]) -> list[str]:
    # No --use_fast_math: it flushes denormals to zero and approximates division, beyond the tolerances of the tests.
    return [
        *common_flags(config),
        # Opens the stream and launch helpers of torch/csrc/stable.
        "-DUSE_CUDA",
        # The device code stays optimised in debug builds, which take -lineinfo instead of -G: with -G, blocks of 1024
        # threads run out of registers.
        *(["-O0", "-g", "-lineinfo"] if config.debug else ["-O3"]),
        *gencode,
        *(f"--compiler-options={flag}" for flag in host_flags(config)),
    ]


def sources(suffix: str) -> list[str]:
    package = ROOT / PACKAGE
    found = [*package.glob(f"csrc/**/*{suffix}"), *package.glob(f"operators/*/*{suffix}")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def extensions(config: Config) -> list[Extension]:
    """Plain Extensions: BuildExtension takes nvcc by the .cu suffix, and the libraries stay ours to list."""
    from torch.utils.cpp_extension import TORCH_LIB_PATH, include_paths

    aten = config.abi == "aten"
    common = {
        # C++ even where there are only .cu files: the C linker would leave libstdc++ out.
        "language": "c++",
        "include_dirs": [str(ROOT / PACKAGE / "csrc"), *include_paths("cpu")],
        # Without ninja, which finds dependencies itself, an edited header rebuilds everything.
        "depends": [*sources(".h"), *sources(".cuh")],
    }
    # A missing symbol stops the build, not the import on somebody else's machine.
    link_args = ["-Wl,--no-undefined"] if sys.platform == "linux" else []
    built = [
        Extension(
            f"{PACKAGE}._C",
            sources(".cpp"),
            library_dirs=[TORCH_LIB_PATH],
            libraries=["torch_cpu", *(["c10"] if aten else [])],
            extra_compile_args={"cxx": cxx_flags(config)},
            extra_link_args=[
                *link_args,
                *(["-fopenmp"] if aten and sys.platform == "linux" else []),
            ],
            **common,
        )
    ]
    if config.architectures and sources(".cu"):
        toolkit = Toolkit.find()
        assert toolkit is not None
        built.append(
            Extension(
                f"{PACKAGE}._C_cuda",
                sources(".cu"),
                library_dirs=[TORCH_LIB_PATH, *toolkit.library_dirs],
                # The static runtime ties the wheel to no CUDA version of torch's, only to a driver as new as the
                # toolkit; rt, dl and pthread are what it needs.
                libraries=[
                    *("torch_cuda", "torch_cpu", *(["c10_cuda", "c10"] if aten else [])),
                    *("cudart_static", "rt", "dl", "pthread"),
                ],
                extra_compile_args={
                    "nvcc": nvcc_flags(config, gencode_flags(config.architectures))
                },
                extra_link_args=link_args,
                **common,
            )
        )
    return built


def default_jobs(config: Config) -> int:
    """Compilers to run at once: a processor each, within the free memory."""
    # Peak of one compiler on this package's largest file, with some room.
    gib_per_job = 4.0 if config.abi == "aten" else 1.5
    try:
        meminfo = Path("/proc/meminfo").read_text()
        free = int(re.search(r"MemAvailable:\s*(\d+) kB", meminfo)[1]) * 1024  # type: ignore[index]
        limit = Path(
            "/sys/fs/cgroup/memory.max"
        )  # a container's limit, of which meminfo knows nothing
        if limit.exists() and limit.read_text().strip().isdigit():
            free = min(
                free, int(limit.read_text()) - int(limit.with_name("memory.current").read_text())
            )
    except (OSError, TypeError):
        return os.cpu_count() or 1
    processors = len(os.sched_getaffinity(0))
    return max(1, min(processors, int(free / 2**30 / gib_per_job)))


def make_build_ext(config: Config) -> type[Command]:
    # torch.utils.cpp_extension looks for the toolkit when it is imported, and takes a wrapper script's folder for it.
    toolkit = Toolkit.find()
    if toolkit is not None:
        os.environ["CUDA_HOME"] = toolkit.home
    from torch.utils.cpp_extension import BuildExtension

    class BuildExt(BuildExtension):
        def finalize_options(self) -> None:
            super().finalize_options()
            # Editable installs would build in a temporary folder, and so compile everything every time.
            flavour = f"{config.abi}-debug" if config.debug else config.abi
            self.build_temp = str(ROOT / "build" / "temp" / flavour)

        def run(self) -> None:
            print(config.summary(), flush=True)
            check_compiler()
            os.environ.setdefault("MAX_JOBS", str(default_jobs(config)))
            recorded = Path(self.build_lib, PACKAGE, BUILD_INFO)
            record = json.dumps(asdict(config), indent=2) + "\n"
            # Without ninja, which compares command lines, other settings would go unnoticed.
            if not recorded.exists() or recorded.read_text() != record:
                self.force = True
            # From here on no library stands beside a record of another build, even if this one fails.
            self.remove_libraries(recorded.parent)
            super().run()
            recorded.write_text(record)
            if self.inplace:
                self.finish_inplace(record)

        def remove_libraries(self, folder: Path) -> None:
            made = {
                Path(self.get_ext_filename(extension.name)).name for extension in self.extensions
            }
            for path in [*folder.glob("_C*.so"), folder / BUILD_INFO]:
                if path.name not in made:
                    path.unlink(missing_ok=True)

        def finish_inplace(self, record: str) -> None:
            self.remove_libraries(ROOT / PACKAGE)
            (ROOT / PACKAGE / BUILD_INFO).write_text(record)
            self.write_compile_commands()

        def write_compile_commands(self) -> None:
            if not self.use_ninja:
                print("no compile_commands.json: ninja writes it, and is not installed")
                return
            commands: list[dict[str, str]] = []
            for extension in self.extensions:
                folder = str(Path(self.build_temp, extension.name))
                listed = subprocess.run(
                    ["ninja", "-C", folder, "-t", "compdb"], capture_output=True, check=True
                )
                commands += json.loads(listed.stdout)
            (ROOT / "compile_commands.json").write_text(json.dumps(commands, indent=2) + "\n")

        def build_extension(self, extension: Extension) -> None:
            # A folder each: ninja keeps one log per folder, and forgets files that its present build does not list.
            root = self.build_temp
            self.build_temp = str(Path(root, extension.name))
            try:
                super().build_extension(extension)
            finally:
                self.build_temp = root

        def get_ext_filename(self, name: str) -> str:
            # The libraries never call Python: the same file serves every version of it.
            return os.path.join(*name.split(".")) + ".so"

    return BuildExt


def check_compiler() -> None:
    # torch compiles with CXX, else with c++; setuptools links with the compiler that built Python. Make them one.
    compiler = os.environ.setdefault("CXX", "c++")
    if shutil.which(shlex.split(compiler)[0]) is None:
        raise fail(
            f"no C++ compiler: '{compiler}' was not found. Install one (Debian, Ubuntu: apt install g++; "
            "Fedora: dnf install gcc-c++), or set CXX to yours."
        )


class BuildPy(build_py):
    """Starts from an empty folder: whatever an earlier build left there would be packed into the wheel."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BdistWheel(bdist_wheel):
    def run(self) -> None:
        shutil.rmtree(self.bdist_dir, ignore_errors=True)
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        # The libraries are tied to a platform, but to no Python.
        return "py3", "none", super().get_tag()[2]


class CheckCuda(Command):
    """Compiles every .cu file for CHECK_TARGETS with plain nvcc: needs neither a GPU nor a CUDA build of torch."""

    description = "compile the CUDA sources without linking them"
    user_options: list[tuple[str, str | None, str]] = []

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        toolkit = Toolkit.find()
        if toolkit is None:
            raise fail(
                "no nvcc was found: install the CUDA toolkit, and set CUDA_HOME to its folder."
            )
        from torch.utils.cpp_extension import include_paths

        # ATen's CUDA headers come with CUDA builds of torch alone.
        config = Config(
            torch.__version__, "stable", "", toolkit.version, ";".join(CHECK_TARGETS), "", False
        )
        includes = [f"-I{path}" for path in (ROOT / PACKAGE / "csrc", *include_paths("cpu"))]
        flags = [
            "--compiler-options=-fPIC",
            # What torch adds in a real build, where 2.11 chooses C++17 and later ones C++20: the stricter one here.
            *(
                "--expt-relaxed-constexpr",
                "-D__CUDA_NO_HALF_OPERATORS__",
                "-D__CUDA_NO_HALF_CONVERSIONS__",
            ),
            *("-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__"),
            "-std=c++17",
            *nvcc_flags(config, gencode_flags(";".join(CHECK_TARGETS))),
        ]
        files = sources(".cu")
        compile_one = functools.partial(
            self.compile, command=[toolkit.nvcc, "-c", *includes, *flags]
        )
        with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or default_jobs(config))) as pool:
            failed = [
                file for file, ok in zip(files, pool.map(compile_one, files), strict=True) if not ok
            ]
        if failed:
            raise fail(
                f"{len(failed)} of {len(files)} CUDA sources do not compile: {', '.join(failed)}"
            )
        print(
            f"{PACKAGE}: {len(files)} CUDA sources compile for {' and '.join(CHECK_TARGETS)} (nvcc {toolkit.version})"
        )

    def compile(self, source: str, command: list[str]) -> bool:
        target = (ROOT / "build" / "check-cuda" / source).with_suffix(".o")
        depfile, stamp = target.with_suffix(".d"), target.with_suffix(".cmd")
        command = [*command, "-MD", "-MF", str(depfile), str(ROOT / source), "-o", str(target)]
        if (
            stamp.exists()
            and stamp.read_text() == shlex.join(command)
            and not is_outdated(target, depfile)
        ):
            return True
        print(f"nvcc -c {source}", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        result = subprocess.run(command, check=False)
        if result.returncode == 0:
            stamp.write_text(shlex.join(command))
        return result.returncode == 0


def is_outdated(target: Path, depfile: Path) -> bool:
    """Whether a file named in the make rule that the compiler wrote is newer than the target, or gone."""
    built = target.stat().st_mtime
    prerequisites = depfile.read_text().split(":", 1)[1].replace("\\\n", " ")
    paths = [path.replace("\\ ", " ") for path in re.findall(r"(?:\\ |\S)+", prerequisites)]
    return any(not os.path.exists(path) or os.path.getmtime(path) > built for path in paths)


def main() -> None:
    # Sources and folders are named from the repository's root.
    os.chdir(ROOT)
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
