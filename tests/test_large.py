"""More than 2^31 elements: every operator on CUDA, forward and backward, compared piece by piece.

tests/test_index_math.py checks the index arithmetic itself, without a GPU.
"""

import pytest
import torch
from torch import Tensor

from extension_cpp.testing import Make, OpSpec, Sample, find_specs

COLS = 4096
ROWS = (1 << 31) // COLS + 3
PIECE = 1 << 14  # rows that the reference computes at a time
BYTES_NEEDED = 60 << 30


class MakeOnDevice(Make):
    """Makes large tensors where they are needed; `Make` goes through float64 on the CPU."""

    def __call__(self, shape, *, dtype=None, device=None, requires_grad=None, low=None, high=None):
        values = torch.empty(tuple(shape), dtype=dtype or self.dtype, device=device or self.device)
        if not values.is_floating_point():
            high = 2 if values.dtype == torch.bool else 10 if high is None else high
            return values.random_(0 if low is None else low, high)
        values.uniform_(-2 if low is None else low, 2 if high is None else high)
        return values.requires_grad_(self.requires_grad if requires_grad is None else requires_grad)


def is_large(tensor: Tensor) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == ROWS


def first_of(result: object) -> Tensor:
    return result[0] if isinstance(result, (tuple, list)) else result


def sample_by_rows(spec: OpSpec) -> Sample:
    """A call whose output has a row for each row of the input, so that pieces of it make sense."""
    small = Make("cpu", torch.float32, requires_grad=False)
    for index, sample in enumerate(spec.samples(small, (3, COLS))):
        output = (
            sample.args[-1]
            if spec.mutates
            else first_of(spec.reference(*sample.args, **sample.kwargs))
        )
        if spec.mutates or output.shape[:1] == (3,):
            torch.manual_seed(0)
            make = MakeOnDevice("cuda", torch.bfloat16, requires_grad=spec.differentiable)
            for number, large in enumerate(spec.samples(make, (ROWS, COLS))):
                if number == index:
                    return large
                del large
    raise AssertionError(f"{spec.name}: no sample with one row of output for each row of input")


def piece(value: object, rows: slice) -> object:
    if not isinstance(value, Tensor):
        return value
    value = value.detach()[rows] if is_large(value) else value.detach()
    return value.float().requires_grad_() if value.is_floating_point() else value


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.mem_get_info()[1] < BYTES_NEEDED,
    reason="needs a GPU with 60 GB of memory",
)
@pytest.mark.parametrize("spec", [s for s in find_specs() if "cuda" in s.devices], ids=repr)
def test_large(spec: OpSpec):
    sample = sample_by_rows(spec)
    # Everything by position: pieces replace tensors wherever they stand.
    arguments = {"args": sample.args, "kwargs": sample.kwargs}
    output = spec.function(*sample.args, **sample.kwargs)
    output = sample.args[-1] if spec.mutates else first_of(output)
    values = [*arguments["args"], *arguments["kwargs"].values()]
    inputs = [v for v in values if isinstance(v, Tensor) and v.requires_grad]
    grads: tuple[Tensor, ...] = ()
    if spec.differentiable:
        grad_output = torch.empty_like(output).uniform_(-1, 1)
        grads = torch.autograd.grad(output, inputs, grad_output)
        output = output.detach()
    # Gradients of what all rows share, summed over the pieces.
    sums = [None if is_large(g) else torch.zeros_like(g, dtype=torch.float64) for g in grads]

    for start in range(0, ROWS, PIECE):
        rows = slice(start, start + PIECE)
        args = [piece(value, rows) for value in sample.args]
        kwargs = {name: piece(value, rows) for name, value in sample.kwargs.items()}
        if spec.mutates:
            args = [a.detach() if isinstance(a, Tensor) else a for a in args]
            spec.reference(*args, **kwargs)
            expected = args[-1]
        else:
            expected = first_of(spec.reference(*args, **kwargs))
        torch.testing.assert_close(output[rows].float(), expected, rtol=2e-2, atol=2e-2)
        if not grads:
            continue
        leaves = [
            v
            for v, whole in zip((*args, *kwargs.values()), values, strict=True)
            if isinstance(v, Tensor) and whole.requires_grad
        ]
        expected_grads = torch.autograd.grad(expected, leaves, grad_output[rows].float())
        for grad, expected_grad, total in zip(grads, expected_grads, sums, strict=True):
            if total is None:
                torch.testing.assert_close(grad[rows].float(), expected_grad, rtol=2e-2, atol=2e-2)
            else:
                total += expected_grad
    for grad, total in zip(grads, sums, strict=True):
        if total is not None:
            # bfloat16 keeps 8 bits of the sum, whose terms cancel.
            torch.testing.assert_close(grad.double(), total, rtol=2e-2, atol=2.0)
