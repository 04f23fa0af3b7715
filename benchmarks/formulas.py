"""Times formulas that call csrc/elementary.h against PyTorch's own operations, on the CPU.

    python benchmarks/formulas.py --shape 1024x1024 --dtype float32 bfloat16

Compiles formulas.cpp with the flags of setup.py. Timed as run.py does on a CPU: interleaved rounds,
and their medians. Only ratios mean anything where other programs run.
"""

import argparse
import functools
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import CpuTimer, Effort
from torch import Tensor
from torch.utils.cpp_extension import load

ROOT = Path(__file__).resolve().parents[1]
OPS = torch.ops.formulas
DTYPES = ("float32", "float16", "bfloat16", "float64")


def compile_formulas(folder: str) -> None:
    spec = importlib.util.spec_from_file_location("project_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = setup
    spec.loader.exec_module(setup)
    csrc = ROOT / setup.PACKAGE / "csrc"
    shared = [path for path in sorted(csrc.glob("**/*.cpp")) if path.name != "library.cpp"]
    load(
        "formulas",
        [str(path) for path in (Path(__file__).with_name("formulas.cpp"), *shared)],
        extra_cflags=setup.cxx_flags(setup.Config.from_environment()),
        extra_include_paths=[str(csrc)],
        build_directory=folder,
        is_python_module=False,
    )


FORMULAS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "softcap": (lambda x, up: OPS.softcap_formula(x, 5.0), lambda x, up: 5.0 * torch.tanh(x / 5.0)),
    "tanh_gelu": (
        lambda x, up: OPS.tanh_gelu_formula(x),
        lambda x, up: F.gelu(x, approximate="tanh"),
    ),
    "erf_gelu": (lambda x, up: OPS.erf_gelu_formula(x), lambda x, up: F.gelu(x)),
    "mish": (lambda x, up: OPS.mish_formula(x), lambda x, up: F.mish(x)),
    "swiglu": (lambda x, up: OPS.swiglu_formula(x, up), lambda x, up: F.silu(x) * up),
    "softmax": (lambda x, up: OPS.softmax_formula(x), lambda x, up: torch.softmax(x, -1)),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="*", default=["1024x1024", "4096x4096"])
    parser.add_argument("--dtype", nargs="*", choices=DTYPES, default=DTYPES)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--build", help="a folder that keeps what is compiled")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    timer = CpuTimer(Effort(arguments.rounds, fewest=arguments.rounds))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.build or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        compile_formulas(str(folder))
    for size in arguments.shape:
        shape = tuple(map(int, size.split("x")))
        for name in arguments.dtype:
            dtype = getattr(torch, name)
            inputs = tuple(4 * torch.randn(shape, dtype=torch.float64).to(dtype) for _ in range(2))
            for formula, (ours, eager) in FORMULAS.items():
                right = eager(*(x.double() for x in inputs))
                error = ((ours(*inputs) - right).abs() / right.abs().clamp_min(1)).max().item()
                if not error <= 16 * torch.finfo(dtype).eps:
                    raise SystemExit(f"{formula} {size} {name}: off by {error:.2g}")
                times = timer.time(
                    {
                        "ours": functools.partial(ours, *inputs),
                        "eager": functools.partial(eager, *inputs),
                    }
                )
                mine, theirs = (1e6 * times[who].median for who in ("ours", "eager"))
                label, ratio = f"{formula} {size} {name}", theirs / mine
                print(f"{label:<32} ours {mine:9.1f} us  eager {theirs:9.1f} us {ratio:6.2f}x")


if __name__ == "__main__":
    main()
