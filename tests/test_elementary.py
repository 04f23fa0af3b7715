"""`csrc/elementary.h` over all exponents, for each instruction set, against float64 or mpmath."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import mpmath as mp
import pytest
import torch
from elementary_coefficients import coefficients, coefficients_of_double
from torch import Tensor

import extension_cpp

CSRC = Path(extension_cpp.__file__).parent / "csrc"
if not CSRC.exists():  # an installed package
    CSRC = Path(__file__).parents[1] / "extension_cpp" / "csrc"

# Units in the last place by which a result is off at most, on the CPU: a little more than was seen
# over every 23rd float32, with and without fused multiply-add.
LARGEST_ERROR = {
    "exp": 1.3,
    "expm1": 1.3,
    "log": 1.0,
    "log1p": 1.3,
    "tanh": 1.4,
    "erf": 1.8,
    "sigmoid": 1.8,
    "softplus": 2.0,
    "rsqrt": 1.5,
}
FUNCTIONS = tuple(LARGEST_ERROR)
# CUDA's documentation promises 2 of each of its own, and tanh is by its means; two are some more
# operations on one of them.
TWO = dict.fromkeys(FUNCTIONS, 2.0)
LARGEST_ERROR_ON_DEVICE = {**TWO, "sigmoid": 3.0, "softplus": 3.0}

# One function of arrays for each of FUNCTIONS and each type.
SOURCE = """
#include "elementary.h"

#ifdef __CUDACC__
#define ARRAYS(name, A)                                                          \\
  __global__ void name##_kernel(const A* x, A* y, long n) {                      \\
    const long i = blockIdx.x * long{blockDim.x} + threadIdx.x;                  \\
    if (i < n) y[i] = extension_cpp::math::name(x[i]);                           \\
  }                                                                              \\
  extern "C" int name##_##A(const A* x, A* y, long n) {                          \\
    A *from, *to;                                                                \\
    cudaMalloc(&from, n * sizeof(A));                                            \\
    cudaMalloc(&to, n * sizeof(A));                                              \\
    cudaMemcpy(from, x, n * sizeof(A), cudaMemcpyHostToDevice);                  \\
    name##_kernel<<<(n + 255) / 256, 256>>>(from, to, n);                        \\
    cudaMemcpy(y, to, n * sizeof(A), cudaMemcpyDeviceToHost);                    \\
    cudaFree(from);                                                              \\
    cudaFree(to);                                                                \\
    return cudaGetLastError();                                                   \\
  }
#else
#define ARRAYS(name, A)                                                          \\
  extern "C" int name##_##A(const A* __restrict__ x, A* __restrict__ y, long n) { \\
    for (long i = 0; i < n; ++i) y[i] = extension_cpp::math::name(x[i]);         \\
    return 0;                                                                    \\
  }
#endif
"""


def exact(name: str) -> Callable[[Tensor], Tensor]:
    """In PyTorch, whose own softplus is x from 20 on."""
    if name == "softplus":
        return lambda x: torch.logaddexp(x, torch.zeros_like(x))
    return getattr(torch, name)


def instruction_sets() -> list[str]:
    """Those of CPU_CLONES that this processor has, and CUDA."""
    known = ["baseline"]
    capability = torch.backends.cpu.get_cpu_capability()
    if capability in ("AVX2", "AVX512"):
        known.append("x86-64-v3")
    if capability == "AVX512":
        known.append("x86-64-v4")
    return known + ["cuda"] * torch.cuda.is_available()


def compile_arrays(folder: Path, target: str, types: tuple[str, ...]) -> tuple[Path, str]:
    """The library, and what the compiler said."""
    cuda = target == "cuda"
    source = folder / ("arrays.cu" if cuda else "arrays.cpp")
    lines = (f"ARRAYS({name}, {type})\n" for type in types for name in FUNCTIONS)
    source.write_text(SOURCE + "".join(lines))
    # As setup.py compiles, as far as it matters here.
    command = ["-O3", "-std=c++17", "-shared", f"-I{CSRC}", str(source), "-o", str(folder / "a.so")]
    if cuda:
        compiler = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        command += ["-Xcompiler=-fPIC", "-arch=native", "--expt-relaxed-constexpr"]
    else:
        compiler = shutil.which("c++")
        command += ["-fPIC", "-Wall", "-Werror", "-fno-trapping-math", "-fno-math-errno"]
        command += [f"-march={target}"] if target != "baseline" else []
        command += ["-fopt-info-vec-optimized"] if is_gcc() else []
    if compiler is None:
        pytest.skip(f"needs {'nvcc' if cuda else 'a C++ compiler, named c++'}")
    ran = subprocess.run([compiler, *command], check=True, capture_output=True, text=True)
    return folder / "a.so", ran.stderr


def is_gcc() -> bool:
    version = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=False)
    return "Free Software Foundation" in version.stdout


class Arrays:
    def __init__(self, path: Path, target: str) -> None:
        self.library = ctypes.CDLL(str(path))
        self.largest_error = LARGEST_ERROR_ON_DEVICE if target == "cuda" else LARGEST_ERROR
        self.largest_error_of_double = LARGEST_ERROR_ON_DEVICE if target == "cuda" else TWO

    def __call__(self, name: str, x: Tensor) -> Tensor:
        suffix = {torch.float32: "float", torch.float64: "double"}[x.dtype]
        y = torch.empty_like(x)
        count = ctypes.c_long(x.numel())
        pointers = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
        assert self.library[f"{name}_{suffix}"](*pointers, count) == 0
        return y


@pytest.fixture(scope="module", params=instruction_sets())
def arrays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    folder = tmp_path_factory.mktemp(request.param)
    path, _ = compile_arrays(folder, request.param, ("float", "double"))
    return Arrays(path, request.param)


def units_off(result: Tensor, exact: Tensor) -> Tensor:
    """The error in units of float32's last place; infinity for a wrong NaN, infinity or zero."""
    # Infinity counts as the number after the largest: where the exact value is finite in float64,
    # and beyond float32, it is right, and the largest number a unit off.
    largest = 2.0**128
    result, target = result.double().clamp(-largest, largest), exact.clamp(-largest, largest)
    unit = torch.frexp(target.abs().clamp(2.0**-126, 2.0**127))[1].double().sub(24).exp2()
    error = ((result - target) / unit).abs()
    error = torch.where(target.isnan() & result.isnan(), 0.0, error)
    of_other_sign = (target == 0) & (result.signbit() != target.signbit())
    beyond = exact.isinf() & (result != target)
    return torch.where(error.isnan() | of_other_sign | beyond, torch.inf, error)


def float32s(step: int) -> Tensor:
    """Every step-th number, of both signs, with NaN, and both ends of each exponent."""
    bits = torch.arange(-(2**31), 2**31, step, dtype=torch.int64)
    ends = torch.arange(-(2**31), 2**31, 2**23).view(-1, 1) + torch.arange(-2, 3)
    bits = torch.cat([bits, ends.flatten().clamp(-(2**31), 2**31 - 1)])
    return bits.to(torch.int32).view(torch.float32)


# Where a function's own way of working changes, overflows or ends.
PLACES = (
    0.3466,
    0.55,
    0.6,
    0.9,
    1.0,
    4.0,
    10.0,
    17.33,
    18.0,
    87.34,
    88.376,
    88.7229,
    89.0,
    103.98,
    104.0,
)


def neighbours(places: tuple[float, ...], count: int = 3000) -> Tensor:
    bits = torch.tensor(places).view(torch.int32).view(-1, 1) + torch.arange(-count, count)
    x = bits.flatten().to(torch.int32).view(torch.float32)
    return torch.cat([x, -x])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_two_units_in_the_last_place(arrays: Arrays, name: str):
    x = torch.cat([float32s(step=1999), neighbours(PLACES)])
    error = units_off(arrays(name, x), exact(name)(x.double()))
    worst = error.argmax()
    assert error[worst] <= arrays.largest_error[name], f"{name}({x[worst].item()!r})"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(arrays: Arrays, name: str):
    """One by one, which is a loop's remainder, and not vectorised."""
    inf, nan = float("inf"), float("nan")
    for value in (0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 2.0**-149, -(2.0**-149), 3e38, -3e38):
        x = torch.tensor([value])
        assert units_off(arrays(name, x), exact(name)(x.double())).item() <= 2, value


# By mpmath, which has no name for these.
BY_MPMATH = {
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "softplus": lambda x: max(x, mp.mpf(0)) + mp.log1p(mp.exp(-abs(x))),
    "rsqrt": lambda x: 1 / mp.sqrt(x),
}
# Where exp overflows, its result becomes subnormal, and 0; where ways of working change; and where
# a result of tanh lies in another exponent than what it is made of.
PLACES_OF_DOUBLE = (
    0.3466,
    1.0,
    5.9,
    6.0,
    22.0,
    36.7,
    38.0,
    708.4,
    709.79,
    710.0,
    744.4,
    745.14,
    746.0,
    *map(float.fromhex, ("0x1.fa5bbc60ae8f4p-7", "0x1.fb7c1f6d643eep-6")),
)


def float64s(count: int) -> Tensor:
    """Of all exponents, most of them between 2^-60 and 2^10; and some near each place."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.cat([torch.arange(-1074, 1024, 2), torch.arange(-60, 10).repeat(count)])
    significands = 1 + torch.rand(len(exponents), dtype=torch.float64, generator=generator)
    x = significands * exponents.double().exp2()
    steps = torch.arange(-20.0, 20.0, dtype=torch.float64)
    places = torch.tensor(PLACES_OF_DOUBLE, dtype=torch.float64).view(-1, 1)
    places = torch.cat([places * (1 + steps * 2.0**-52), places + steps / 200]).flatten()
    largest = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    x = torch.cat([x, places, largest])
    return torch.cat([x, -x])


def units_off_of_double(result: float, exact: mp.mpf) -> float:
    """The error in units of the last place."""
    exponent = max(mp.frexp(exact)[1], -1021)
    if abs(result) == float("inf"):  # counts as the number after the largest
        result = mp.ldexp(mp.sign(result), 1024)
    exact = mp.sign(exact) * min(abs(exact), mp.ldexp(1, 1024))
    return float(abs(result - exact) / mp.ldexp(1, min(exponent, 1024) - 53))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double_is_within_units_in_the_last_place(arrays: Arrays, name: str):
    x = float64s(count=12)
    x = {"log": x[x > 0], "rsqrt": x[x > 0], "log1p": x[x > -1]}.get(name, x)
    exact_value = BY_MPMATH.get(name) or getattr(mp, name)
    with mp.workprec(160):
        for value, result in zip(x.tolist(), arrays(name, x).tolist(), strict=True):
            error = units_off_of_double(result, exact_value(mp.mpf(value)))
            assert error <= arrays.largest_error_of_double[name], (value, result)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double(arrays: Arrays, name: str):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10000, dtype=torch.float64, generator=generator)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([x, 30 * x, 1e-9 * x, special])
    result, expected = arrays(name, x), exact(name)(x)
    torch.testing.assert_close(result, expected, rtol=1e-14, atol=0, equal_nan=True)
    zeros = expected == 0
    assert torch.equal(result[zeros].signbit(), expected[zeros].signbit())


@pytest.mark.parametrize("target", [t for t in instruction_sets() if t != "cuda"])
@pytest.mark.skipif(not is_gcc(), reason="reads what GCC says of each loop")
def test_loops_are_vectorised(tmp_path: Path, target: str):
    _, said = compile_arrays(tmp_path, target, ("float", "double"))
    vectorised = re.findall(r"arrays.cpp:(\d+):\d+: optimized: loop vectorized", said)
    assert len(set(vectorised)) == 2 * len(FUNCTIONS), said


def test_coefficients_are_those_of_the_derivation():
    header = (CSRC / "elementary.h").read_text()
    for digits, end, found in ((9, "f", coefficients()), (17, "", coefficients_of_double())):
        written = re.findall(rf"-?\d\.\d*(?:e-?\d+)?(?={end}[;,) ])", header)
        numbers = {float(number) for number in written}
        for name, values in found.items():
            rounded = {float(f"{value:.{digits}g}") for value in values}
            assert rounded <= numbers, name
