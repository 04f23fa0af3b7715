"""torch_abi.h in both ABIs: what each carries, what only aten can call, what only aten checks.

And what PyTorch says of a failure within: it reaches Python through either.
"""

import contextlib
import subprocess
from pathlib import Path

import pytest
import torch
from scratch import ROOT, compile_library, python_with_torch
from torch._subclasses.fake_tensor import FakeTensorMode

from extension_cpp import _loader, ops
from extension_cpp.registration import forward_mode
from extension_cpp.testing import devices


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return python_with_torch("-c", code, cwd=ROOT)


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
    assert result.stdout == "solved\n"


@pytest.mark.slow
def test_aten_checks_signatures(tmp_path: Path) -> None:
    library, result = compile_library("signature", "aten", tmp_path)
    assert result.returncode == 0, result.stderr
    result = run_python(f"import torch; torch.ops.load_library({str(library)!r})")
    assert result.returncode != 0
    assert "extension_cpp_signature::scaled" in result.stdout


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
    assert result.stdout == f"({full}, 2)\n({bare}, 2)\n[1.0, 1.0, 1.0]\n"


# Torch's stable ABI can tell what went wrong from 2.13 on.
TELLS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)


def out_of_memory(function, *args) -> str:
    with pytest.raises(RuntimeError) as info:
        function(*args)
    return str(info.value)


@pytest.mark.parametrize("device", devices())
def test_out_of_memory_says_what_pytorch_says(device: str, capfd: pytest.CaptureFixture) -> None:
    x = torch.zeros(1, device=device).expand(2**57)  # more bytes than there are addresses for
    expected = out_of_memory(torch.relu, x).splitlines()[0].partition(". GPU")[0]
    assert "tried to allocate" in expected.lower()
    allocated = out_of_memory(ops.relu, x)
    copied = out_of_memory(ops.fused_op, x, x)
    if TELLS:
        assert allocated.startswith(expected)
        assert copied.startswith(expected)
        assert capfd.readouterr() == ("", "")
    for text in (allocated, copied):
        assert "out of memory" in text if device == "cuda" else "memory" in text
        assert "torch_" not in text
        assert "csrc" not in text


@pytest.mark.parametrize("abi", ["stable", pytest.param("aten", marks=pytest.mark.slow)])
def test_failures_of_pytorch_are_told(abi: str, tmp_path: Path) -> None:
    # As in torch before 2.13, which lacks the symbol.
    flags = ["-Dtorch_exception_get_what_without_backtrace=not_there"] if abi == "stable" else []
    library, result = compile_library("failure", abi, tmp_path, *flags)
    assert result.returncode == 0, result.stderr
    result = run_python(
        f"import torch; torch.ops.load_library({str(library)!r})\n"
        "try:\n    torch.ops.extension_cpp_failure.allocate(torch.zeros(1), 2**57)\n"
        "except RuntimeError as error:\n    print(error)"
    )
    told = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 576460752303423488"
    assert (
        told if abi == "aten" else "out of memory. (Or another failure of a call"
    ) in result.stdout


@pytest.mark.parametrize("asks_for_tangents", [False, True])
@pytest.mark.parametrize("fake", [False, True])
def test_sparse_tensors_are_refused(
    fake: bool, asks_for_tangents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_mode, "graphs_have_tangents", asks_for_tangents)
    dense = torch.eye(3)
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        for function in (
            lambda x: ops.relu(x),
            lambda x: ops.mymul(dense, x),
            lambda x: ops.fused_op(x, dense[0]),
            lambda x: ops.fused_layer_norm(dense, x),
            lambda x: ops.reduce_sum(x),
        ):
            mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext()
            # Torch 2.11 says what it cannot do, and not for whom.
            names = r"relu|mymul|fused|reduce_sum|SparseTensorImpl|SparseCsrTensorImpl"
            with mode, pytest.raises(NotImplementedError, match=names):
                function(mode.from_tensor(sparse) if fake else sparse)


@pytest.mark.parametrize("device", devices())
def test_every_dtype_is_refused_by_its_name(device: str) -> None:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    # A newer torch may have dtypes that the headers of the build did not know.
    other = "" if _loader.build_info()["torch"] == torch.__version__ else r"|torch\.unknown_scalar"
    named = 0
    for dtype in dtypes - {torch.float64, torch.float32, torch.float16, torch.bfloat16}:
        try:
            x = torch.empty(4, dtype=dtype, device=device)
        except RuntimeError:  # a dtype of which torch itself makes no tensor here
            continue
        if x.is_quantized:
            continue  # refused by the dispatcher
        for args in ((x, torch.ones(4, device=device)), (torch.ones(4, device=device), x)):
            with pytest.raises(RuntimeError, match=rf"^mymul: .*, got ({dtype}{other})$") as error:
                ops.mymul(*args)
            named += str(error.value).endswith(f"got {dtype}")
    assert named > 40  # each as two arguments
