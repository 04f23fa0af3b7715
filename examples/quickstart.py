"""The main job on real input: fused_op against plain PyTorch, in every mode, with its speed.

Uses one operator: fused_op. Runs on the GPU if there is one, else on the CPU. Exit status 1 if
anything is wrong.

    python examples/quickstart.py
    python examples/quickstart.py --no-speed    without the times
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import extension_cpp
from extension_cpp.nn import FusedOp
from extension_cpp.ops import fused_op

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, FEATURES, SCALE = 4096, 1024, 1.7
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def reference(input: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    return torch.relu(input * scale + bias)


def inputs(
    dtype: torch.dtype, rows: int = ROWS, features: int = FEATURES, requires_grad: bool = False
):
    generator = torch.Generator(DEVICE).manual_seed(0)
    return tuple(
        torch.randn(
            shape, dtype=dtype, device=DEVICE, generator=generator, requires_grad=requires_grad
        )
        for shape in ((rows, features), (features,))
    )


def weights_of(output: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 1.5, output.numel(), device=DEVICE, dtype=torch.float64)
    return weights.view_as(output).to(output.dtype)


def gradients(function: Callable[..., Tensor], input: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Gradients with respect to both inputs, of a sum that weighs every element differently."""
    output = function(input, bias, SCALE)
    return torch.autograd.grad(output, (input, bias), weights_of(output))


def worst(actual: Tensor, expected: Tensor) -> float:
    """The largest error, in units of one rounding of `actual`'s dtype (of the largest value)."""
    unit = torch.finfo(actual.dtype).eps * expected.abs().max().item()
    return (actual.double() - expected).abs().max().item() / unit


def check_forward(dtype: torch.dtype) -> str:
    input, bias = inputs(dtype)
    error = worst(fused_op(input, bias, SCALE), reference(input.double(), bias.double(), SCALE))
    assert error <= 2, f"off by {error:.1f} roundings"
    return f"within {error:.2f} roundings of float64"


def check_backward(dtype: torch.dtype) -> str:
    input, bias = inputs(dtype, requires_grad=True)
    grad_input, grad_bias = gradients(fused_op, input, bias)
    # The mask comes from the rounded output, so the reference starts from the same numbers.
    output = fused_op(input, bias, SCALE).double()
    masked = torch.where(output > 0, weights_of(output).to(dtype).double(), 0)
    expected_input, expected_bias = masked * SCALE, masked.sum(0)
    error = max(worst(grad_input, expected_input), worst(grad_bias, expected_bias))
    # Sums of thousands of terms in the wide types; one more rounding in the half types.
    limit = 64 if dtype in (torch.float32, torch.float64) else 2
    assert error <= limit, f"off by {error:.1f} roundings"
    return f"within {error:.2f} roundings of float64"


def check_double_backward() -> str:
    input, bias = inputs(torch.float64, 3, 5, requires_grad=True)
    torch.autograd.gradcheck(lambda i, b: fused_op(i, b, SCALE), (input, bias))
    torch.autograd.gradgradcheck(lambda i, b: fused_op(i, b, SCALE), (input, bias))
    return "gradcheck and gradgradcheck pass in float64"


def check_compile() -> str:
    compiled = torch.compile(fused_op, fullgraph=True)
    input, bias = inputs(torch.float32, requires_grad=True)
    torch.testing.assert_close(compiled(input, bias, SCALE), fused_op(input, bias, SCALE))
    for actual, expected in zip(
        gradients(compiled, input, bias), gradients(fused_op, input, bias), strict=True
    ):
        torch.testing.assert_close(actual, expected)
    return "one graph, forward and backward, same values as eager"


def check_opcheck() -> str:
    input, bias = inputs(torch.float32, 64, 48, requires_grad=True)
    results = torch.library.opcheck(torch.ops.extension_cpp.fused_op.default, (input, bias, SCALE))
    return ", ".join(name.removeprefix("test_") for name in results)


def check_training() -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), FusedOp(64, scale=0.5), nn.Linear(64, 1)).to(DEVICE)
    inputs = torch.randn(512, 32, device=DEVICE)
    targets = inputs.square().mean(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10, f"loss went from {losses[0]:.4f} to {losses[-1]:.4f} only"
    return f"loss from {losses[0]:.4f} to {losses[-1]:.4f} in {len(losses)} steps"


def seconds(function: Callable[[], object], cache: Tensor) -> float:
    if DEVICE == "cpu":
        start = time.perf_counter()
        function()
        return time.perf_counter() - start
    # Overwriting the cache also keeps the GPU busy while Python prepares the call.
    cache.zero_()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    function()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3


def times(*functions: Callable[[], object], rounds: int = 25) -> list[float]:
    """Median seconds of each function, interleaved: a change of load meets them all."""
    cache = torch.empty(1 << 30 if DEVICE == "cuda" else 0, dtype=torch.int8, device=DEVICE)
    measured = [[seconds(function, cache) for function in functions] for _ in range(rounds + 3)]
    # The first rounds warm up.
    return [statistics.median(column) for column in zip(*measured[3:], strict=True)]


def check_speed(dtype: torch.dtype) -> str:
    rows = 16384 if DEVICE == "cuda" else ROWS
    input, bias = inputs(dtype, rows, 4096 if DEVICE == "cuda" else FEATURES, requires_grad=True)
    ours, theirs = fused_op(input, bias, SCALE), reference(input, bias, SCALE)
    grad_output = torch.randn_like(ours)

    def backward(output: Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(output, (input, bias), grad_output, retain_graph=True)

    with torch.no_grad():
        forward = times(lambda: fused_op(input, bias, SCALE), lambda: reference(input, bias, SCALE))
    both = [("forward", *forward), ("backward", *times(backward(ours), backward(theirs)))]
    return ", ".join(
        f"{name} {fused * 1e6:.0f} us, PyTorch {separate * 1e6:.0f} us ({separate / fused:.1f}x)"
        for name, fused, separate in both
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="fused_op against plain PyTorch, in every mode.")
    parser.add_argument("--no-speed", action="store_true", help="leave the times out")
    arguments = parser.parse_args()
    name = (
        torch.cuda.get_device_name()
        if DEVICE == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    print(f"extension_cpp {extension_cpp.__version__}, torch {torch.__version__}, {name}")
    short = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}
    checks: list[tuple[str, Callable[[], str]]] = [
        *(
            (f"forward {short[dtype]}", lambda dtype=dtype: check_forward(dtype))
            for dtype in DTYPES
        ),
        *(
            (f"backward {short[dtype]}", lambda dtype=dtype: check_backward(dtype))
            for dtype in DTYPES
        ),
        ("double backward", check_double_backward),
        ("torch.compile", check_compile),
        ("opcheck", check_opcheck),
        ("training", check_training),
        *(
            (f"speed {short[dtype]}", lambda dtype=dtype: check_speed(dtype))
            for dtype in ([] if arguments.no_speed else DTYPES[1:])
        ),
    ]
    failures = 0
    for label, check in checks:
        try:
            result, detail = "ok", check()
        except Exception as error:  # every other row still tells something
            failures += 1
            result, detail = (
                "WRONG",
                f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0]}",
            )
        print(f"{label:<18} {result:<6} {detail}", flush=True)
    print(
        f"{len(checks) - failures} of {len(checks)} right"
        + (f", {failures} WRONG" if failures else "")
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
