"""templates/: every kind and shape of operator is built and passes the battery as it was made."""

import os
import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from definitions import PLACES
from scratch import EVERY, ROOT, copy_repository, git, python, quickly, run, under_git
from template_cases import (
    CASES,
    DTYPES,
    KINDS,
    NAMES,
    OF_ROWS,
    OTHER_SHAPES,
    SCHEMAS,
    TYPED,
    name,
    without_repeated,
)

pytestmark = pytest.mark.slow

SHAPES = [*KINDS, *SCHEMAS]
BUILT_NAMES, BUILT_OTHERS = NAMES, OTHER_SHAPES
if not EVERY:
    BUILT_NAMES, BUILT_OTHERS = without_repeated(NAMES), without_repeated(OTHER_SHAPES)
# What takes seconds for each operator is run for all kinds, and in part for the shapes of schema
# that it sees.
BY_SCHEMA = "opcheck or vmap or strides or mutation or double_backward"
COSTLY = (
    "compile or inductor or dynamic or export or memory or properties or determinism or layouts or "
    f"gradcheck or saved_tensors or transforms or {BY_SCHEMA}"
)
SEEN = ["three", "tensor_lists", "writes", "masked_rows"]
# `make test-all` traces all kinds, and asks of derived operators all there is: twice as long.
# What traces whole programs, and of the kinds those whose Python differs most.
TRACED = "opcheck or compile or inductor or dynamic or export or memory"
TRACED_KINDS = [*KINDS] if EVERY else [case for case in KINDS if name(case) in ("m", "i")]
FORMULAS = "(forward or backward) and (float32 or double_backward) or signature"
# All dtypes go through the same lines; gradcheck has float64.
FLOAT32 = "not (float16 or float64)"


def succeed(*command: str | Path, cwd: Path, **env: str) -> str:
    result = run(*command, cwd=cwd, env={"PYTHONPATH": str(cwd), **env})
    assert result.returncode == 0, result.stdout[-20000:]
    return result.stdout


def tool(root: Path, *requests: list[str]) -> None:
    """Calls new_op.py for each request, in one process: importing torch takes longest."""
    code = "import sys; sys.path.insert(0, 'templates'); import new_op\n"
    code += "".join(f"new_op.main({request!r})\n" for request in requests)
    succeed(sys.executable, "-c", code, cwd=root)


def build(root: Path, **env: str) -> None:
    cuda = "1" if torch.cuda.is_available() and env.get("EXTENSION_CPP_ABI") != "aten" else "0"
    succeed(sys.executable, "setup.py", "build_ext", "--inplace", cwd=root, USE_CUDA=cuda, **env)


def battery(root: Path, selected: str) -> None:
    pytest_(root, "-x", "-k", selected, "tests/test_operators.py")


def pytest_(root: Path, *arguments: str) -> None:
    """On all processors, unless this test already shares them with others."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    jobs = min(8, len(os.sched_getaffinity(0))) if alone else 0
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-n", str(jobs)]
    succeed(*command, *arguments, cwd=root)


def keep_operators(root: Path, kept: Collection[str]) -> None:
    """Removes all others."""
    folders = [path for path in (root / "extension_cpp" / "operators").iterdir() if path.is_dir()]
    unwanted = {folder.name for folder in folders} - {*kept, "__pycache__"}
    tool(root, *(["--remove", op] for op in sorted(unwanted)))


def remove_worked_operators(root: Path) -> None:
    keep_operators(root, {"fused_op", *map(name, CASES)})


def select(names: list[str]) -> str:
    # Ids are [operator-device-dtype]; a name may be the end of another's.
    return " or ".join(f"[{op}-" for op in names)


def check_types(root: Path, *arguments: str) -> None:
    """By mypy, which `make lint` may have told of torch: reading that takes most of its time."""
    known = ROOT / ".mypy_cache"
    if known.exists() and not (root / known.name).exists():
        shutil.copytree(known, root / known.name, ignore_dangling_symlinks=True)
    succeed(sys.executable, "-m", "mypy", *arguments, cwd=root)


def make(root: Path, cases: list[list[str]]) -> None:
    """Without optimisation, which the worked operators have."""
    tool(root, *cases)
    remove_worked_operators(root)
    build(root, **quickly())
    check_types(root)


def test_every_kind_shape_and_name_passes_as_it_was_made(tmp_path: Path) -> None:
    root = under_git(copy_repository(tmp_path))
    make(root, [*SHAPES, *BUILT_NAMES, *BUILT_OTHERS, *TYPED])
    succeed(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=root)
    succeed(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=root)
    pytest_(root, "-n", "0", "tests/test_schemas.py")
    battery(root, f"({select([*map(name, SHAPES)])}) and not ({COSTLY}) and {FLOAT32}")
    untraced = f"({COSTLY}) and not ({TRACED})"
    kinds = (
        f"({select([*map(name, KINDS)])}) and (({untraced}) and {FLOAT32} or forward and bfloat16)"
    )
    traced = f"({select([*map(name, TRACED_KINDS)])}) and ({TRACED}) and {FLOAT32}"
    seen = f"({select(SEEN)}) and ({BY_SCHEMA}) or ({select(['plain'])}) and vmap"
    battery(root, f"{kinds} or {traced} or ({seen}) and {FLOAT32}")
    # Kernels and formulas are what the name of an argument might break.
    battery(root, f"({select([*map(name, BUILT_NAMES)])}) and ({FORMULAS})")
    refuses_shapes_that_its_kernel_is_not_for(root)
    reads_and_writes_the_types_that_a_line_says(root)
    notices_arguments_that_change_places(root)


# Calls of operators and of their backward operators, with tensors of which `x` is the smallest.
CALLS = """
import sys
import extension_cpp
import torch

def given(argument):
    x, y = torch.ones(1000, 10), torch.ones(1000, 10, 100)
    if "List" in str(argument.type):
        return [y]
    return 2.0 if str(argument.type) == "float" else x if argument.name == "x" else y

for name in sys.argv[1:]:
    if not hasattr(torch.ops.extension_cpp, name):
        continue
    arguments = getattr(torch.ops.extension_cpp, name).default._schema.arguments
    keywords = {a.name: given(a) for a in arguments if a.kwarg_only}
    try:
        positional = [given(a) for a in arguments if not a.kwarg_only]
        getattr(torch.ops.extension_cpp, name)(*positional, **keywords)
        print(name, "ran")
    except RuntimeError as error:
        print(error)
"""


def refuses_shapes_that_its_kernel_is_not_for(root: Path) -> None:
    """Where it would read and write what is not there."""
    names = [each for case in BUILT_OTHERS for each in (name(case), f"{name(case)}_backward")]
    said = succeed(sys.executable, "-c", CALLS, *names, cwd=root).splitlines()
    # Those with a backward operator of their own.
    no_backward = ("--backward", "--no-grad")
    derived = [c for c in BUILT_OTHERS if "(a!)" not in c[0] and not {*c} & {*no_backward}]
    assert len(said) == len(BUILT_OTHERS) + len(derived), said
    for line in said:
        assert re.fullmatch(r"other_\w+: its (kernel|formula) is the template's, for .*", line), (
            line
        )


# Calls of operators whose tensors have dtypes of their own, of rows that are constant: what their
# kernels compute of them is known.
TYPED_CALLS = """
import sys
import extension_cpp
import torch

ops = torch.ops.extension_cpp
DTYPES, OF_ROWS = ([getattr(torch, name) for name in names.split()] for names in sys.argv[1:])

def rows(value, dtype, cols=1):
    return torch.full((3, cols), value).to(dtype)

def check(result, value, dtype):
    assert result.dtype is dtype, (result.dtype, dtype)
    expected = torch.full(result.shape, value, dtype=torch.float64).to(dtype)
    compared = torch.complex128 if dtype.is_complex else torch.float64
    torch.testing.assert_close(result.to(compared), expected.to(compared), rtol=1e-6, atol=0)

for own in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
    arithmetic = torch.float64 if own is torch.float64 else torch.float32
    # Each of the others counts as much as it is divided by.
    others = [rows(k, dtype, 5) for k, dtype in enumerate(DTYPES, 1)]
    output, *means = ops.every_dtype(rows(3, own, 5), *others)
    check(output, len(DTYPES), torch.int8)
    for mean, dtype in zip(means, DTYPES, strict=True):
        check(mean, 3, dtype)
    others = [rows(k, dtype, 5) for k, dtype in enumerate([*OF_ROWS, arithmetic], 1)]
    output, *means = ops.row_dtypes(rows(3, own, 5), *others)
    check(output, len(others), torch.int8)
    for mean, dtype in zip(means, OF_ROWS, strict=True):
        check(mean, 3, dtype)
    for wide in {own, arithmetic}:
        for dtype in DTYPES:
            any = rows(1, dtype)
            output = ops.any_dtype(rows(3, own), rows(2, wide), [any, any], any, rows(4, own))
            check(output, 3 + 2 + 3 / 2 + 1 / 3 + 4 / 4, arithmetic)
    for x, more in ((rows(4, own), 4), (None, 0)):
        codes, sums = rows(5, torch.uint8), rows(9, arithmetic)
        ops.codes(codes, x, rows(6, own), sums)
        check(codes, 2 * 9 + 5 + more / 2 + 6 / 3, torch.uint8)
        check(sums, 2 * 9 + 5 + more / 2 + 6 / 3, arithmetic)
    cache = rows(5, torch.int8)
    ops.cache(cache, rows(-7, own))
    check(cache, 3, torch.int8)
output, mean = ops.whole_numbers(rows(3, torch.int64, 5), rows(1, torch.bool, 5))
check(output, 1, torch.int32)
check(mean, 3, torch.int64)
for dtype in DTYPES:
    output = ops.complex_numbers(rows(3 + 2j, torch.complex64), rows(1, dtype))
    check(output, 3 + 1, torch.complex128)
print("right")
"""


def reads_and_writes_the_types_that_a_line_says(root: Path) -> None:
    names = (" ".join(DTYPES), " ".join(OF_ROWS))
    said = succeed(sys.executable, "-c", TYPED_CALLS, *names, cwd=root)
    assert said.endswith("right\n"), said


def notices_arguments_that_change_places(root: Path) -> None:
    source = root / "extension_cpp/operators/no_defaults/no_defaults.cpp"
    text = source.read_text()
    wrong, count = re.subn(r"\bmode\.size\(\)", "maybe_mode->size()", text, count=1)
    assert count == 1
    source.write_text(wrong)
    build(root, **quickly())
    command = [sys.executable, "-m", "pytest", "-q", "-k", "forward and [no_defaults-cpu"]
    result = run(*command, "tests/test_operators.py", cwd=root)
    assert result.returncode == 1, result.stdout


# Tests of the tool that say nothing of the project around it, and take long.
IN_ANY_PROJECT = "in_form or nothing_of_the_template or refused or said_in_every_template"


def checks_what_was_edited(project: Path, **env: str) -> None:
    """`make check` builds first: of what it tests nothing is older than its source."""
    source = project / "my_kernels/operators/fused_op/fused_op.cpp"
    text = source.read_text()
    command = "make check OP=fused_op OPTIONS=--quick"
    settings = {"PYTHONPATH": str(project), "USE_CUDA": "0", "PYTHON": sys.executable, **env}
    for right, wrong, says in (
        ("{grad * scale}", "{grad}", "FAIL  fused_op: backward differs from the reference"),
        ("operator()", "operator(", "fused_op: the build failed\n"),
        ("", "", " compiled, "),
    ):
        assert right in text
        source.write_text(text.replace(right, wrong, 1))
        result = run("sh", "-ec", command, cwd=project, env=settings)
        assert (result.returncode == 0) == (right == wrong), result.stdout
        assert says in result.stdout


def test_a_new_project_is_built_and_passes(tmp_path: Path) -> None:
    root = under_git(copy_repository(tmp_path / "origin"))
    project = tmp_path / "my_kernels"
    succeed(sys.executable, "templates/new_project.py", "my_kernels", str(project), cwd=root)
    added = (
        ["sums(Tensor x, float a) -> Tensor", "--template", "reduction"],
        ["centers(Tensor x, Tensor? y, float a) -> (Tensor, Tensor)"],
    )
    tool(project, *added)
    # With optimisation in `make test-all`: the sources are those of here, or of templates.
    settings = {} if EVERY else quickly()
    build(project, **settings)
    # Of what is not optimised no times.
    speed = [] if EVERY else ["--no-speed"]
    succeed(sys.executable, "examples/quickstart.py", *speed, cwd=project)
    checks_what_was_edited(project, **settings)
    # Its sources are those of here, and the quickstart compiles it.
    few = "not compiled" if EVERY else f"(opcheck or vmap or not ({COSTLY}))"
    battery(project, f"[fused_op- and {few} and {FLOAT32}")
    battery(project, f"({select([*map(name, added)])}) and ({FORMULAS})")
    tool(project, *(["--remove", name(case)] for case in added))
    build(project, **settings)
    assert git(project, "status", "--porcelain") == ""
    # The rest of the suite is this one's, about the same sources: whole, it takes minutes.
    if EVERY:
        pytest_(project, "tests")
    else:
        # With those that ask for operators: it lacks most of those that are here. (`make test-all`
        # asks test_templates.py, too, which takes as long as all else.)
        names = ("schemas", "derived_benchmark")
        tests = [f"tests/test_{each}.py" for each in names]
        pytest_(project, "-x", "-k", f"not ({IN_ANY_PROJECT})", *tests)
    # Both packages in one process.
    # Of whole numbers, with which optimised code computes the same.
    both = "import extension_cpp, my_kernels, torch\n"
    both += "x = torch.arange(12.0).view(3, 4) - 5; b = torch.arange(4.0)\n"
    both += "a, b = extension_cpp.ops.fused_op(x, b), my_kernels.ops.fused_op(x, b)\n"
    both += "assert torch.equal(a, b); print('both')"
    here = Path(__file__).resolve().parent.parent
    result = python("-c", both, cwd=tmp_path, env={"PYTHONPATH": f"{here}:{project}"})
    assert result.stdout == "both\n"


# What torch_abi.h hands on may differ: values of every dtype, strides, layouts, errors, signatures.
# Strides and layouts are those of an operator of each kind: the code that asks for them is shared.
# So are values in float16 and float64, whose code differs by the type alone. In these two types the
# backward compares values of the forward, too, though not NaN and infinities. Left out are opcheck,
# which sees what is registered from Python, layouts in other dtypes, and the optimiser, which has
# seen the same sources.
OF_EACH_KIND = ["affine", "reduce_sum", "fused_layer_norm", "linear_scan", "myadd_out"]
OF_EACH_KIND += ["softmax_cross_entropy"]
OVER_ATEN = (
    "(forward or backward) and (float32 or bfloat16) or bad_inputs or signature "
    "or strides or layouts and float32 or backward or forward and [myadd_out-"
)


def test_worked_operators_of_each_kind_pass_over_the_aten_build(tmp_path: Path) -> None:
    """`make test-aten` asks all of them."""
    root = under_git(copy_repository(tmp_path))
    there = {path.parent.name for path in (root / "extension_cpp/operators").glob("*/ops.py")}
    # A project made from this one has others.
    chosen = sorted(there.intersection(OF_EACH_KIND)) or sorted(there)
    kept = {*chosen, "mymul"}  # of affine one takes what another registers
    keep_operators(root, there & kept)
    build(root, EXTENSION_CPP_ABI="aten", **quickly())
    battery(root, f"({select(chosen)}) and ({OVER_ATEN})")


def test_the_aten_build_accepts_the_signatures(tmp_path: Path) -> None:
    """Loading it compares each C++ signature with its schema; the stable ABI compares nothing."""
    root = under_git(copy_repository(tmp_path))
    chosen = [case for case in SCHEMAS if "--no-cpu" not in case]
    wanted = ("no_defaults", "tensor_lists", "several_lists", "three", "writes")
    tool(root, *(case for case in chosen if name(case) in wanted))
    remove_worked_operators(root)
    build(root, EXTENSION_CPP_ABI="aten", **quickly())
    battery(root, f"({select(list(wanted))}) and (forward or backward) and float32")


@pytest.mark.skipif(
    not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()), reason="needs nvcc"
)
def test_the_cuda_side_of_every_kind_compiles(tmp_path: Path) -> None:
    root = under_git(copy_repository(tmp_path))
    wanted = ("gelu_gate", "all_defaults", "tensor_lists", "row_names", "writes", "d", "no_cpu")
    wanted += ("writes_lists", "several_lists", "every_dtype", "complex_numbers", "cache")
    source = tmp_path / "mine.cu"
    source.write_text("__global__ void scale(float* x, float a) { x[threadIdx.x] *= a; }\n")
    own = ["own_kernel(Tensor x, float a) -> Tensor", "--cuda", str(source), "--no-grad"]
    tool(root, own, *(case for case in CASES if name(case) in wanted))
    tool(root, ["--from", PLACES["masked_mse"]])
    source.unlink()
    keep_operators(root, {*wanted, "own_kernel", "masked_mse"})
    # What operators share is the worked ones' as well, which `make test` compiles.
    for shared in (root / "extension_cpp" / "csrc" / "cuda").glob("*.cu"):
        shared.unlink()
    succeed(sys.executable, "setup.py", "check_cuda", "--ir", cwd=root)
