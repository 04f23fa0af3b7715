"""torch_abi.h in both ABIs: what each carries, what only aten can call, what only aten checks."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import TORCH_LIB_PATH, include_paths

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests" / "abi"
# As torch.utils.cpp_extension chooses.
STANDARD = "-std=c++20" if torch.__version__ >= "2.13" else "-std=c++17"


def compile_library(
    source: str, abi: str, folder: Path
) -> tuple[Path, subprocess.CompletedProcess[str]]:
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
        ),
        *(f"-I{path}" for path in (ROOT / "extension_cpp" / "csrc", *include_paths("cpu"))),
        *(str(SOURCES / f"{source}.cpp"), "-o", str(library)),
        *(f"-L{TORCH_LIB_PATH}", "-ltorch_cpu", *(["-lc10"] if abi == "aten" else [])),
    ]
    return library, subprocess.run(command, capture_output=True, text=True, check=False)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_aten_only_operator(tmp_path: Path) -> None:
    _, result = compile_library("aten_only", "stable", tmp_path)
    assert result.returncode != 0
    assert "'at' has not been declared" in result.stderr or "at::pinverse" in result.stderr

    library, result = compile_library("aten_only", "aten", tmp_path)
    assert result.returncode == 0, result.stderr
    result = run_python(
        f"import torch; torch.ops.load_library({str(library)!r})\n"
        "torch.set_default_dtype(torch.float64)\n"
        "matrix, rhs = torch.randn(5, 3), torch.randn(5, 2)\n"
        "actual = torch.ops.extension_cpp_aten_only.least_squares(matrix, rhs)\n"
        "torch.testing.assert_close(actual, torch.linalg.lstsq(matrix, rhs).solution)\n"
        "print('solved')"
    )
    assert result.stdout == "solved\n", result.stderr


@pytest.mark.slow
def test_aten_checks_signatures(tmp_path: Path) -> None:
    library, result = compile_library("signature", "aten", tmp_path)
    assert result.returncode == 0, result.stderr
    result = run_python(f"import torch; torch.ops.load_library({str(library)!r})")
    assert result.returncode != 0
    assert "extension_cpp_signature::scaled" in result.stderr


@pytest.mark.parametrize("abi", ["stable", pytest.param("aten", marks=pytest.mark.slow)])
def test_types(abi: str, tmp_path: Path) -> None:
    library, result = compile_library("types", abi, tmp_path)
    assert result.returncode == 0, result.stderr
    result = run_python(
        f"import torch; torch.ops.load_library({str(library)!r})\n"
        "describe = torch.ops.extension_cpp_types.describe\n"
        "x, y = torch.zeros(2), torch.ones(3)\n"
        "print(describe(x, y, [x, y], 0.25, 4, True, [1, 2], [5, 6], torch.float16, 0.75)[1:])\n"
        "print(describe(x, None, [], 0.25, 4, False, [], None, torch.float32)[1:])\n"
        "print(describe(x, y, [], 0.25, 4, False, [], None, torch.float32)[0].tolist())"
    )
    # 2 * scale + 3 * count + 5 * flag + maybe_scale + 7 * sum(dims) + 11 * len(maybe_dims) + 13
    # + 17 * elements of the list
    full = 2 * 0.25 + 3 * 4 + 5 + 0.75 + 7 * 3 + 11 * 2 + 13 + 17 * 5
    bare = 2 * 0.25 + 3 * 4 + 0.5
    assert result.stdout == f"({full}, 2)\n({bare}, 2)\n[1.0, 1.0, 1.0]\n", result.stderr
