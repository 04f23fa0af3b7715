"""reduce_sum: the sum over any dimensions, equal bits from run to run."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.batching import first_example
from extension_cpp.sharding import SUM

_ops = torch.ops.extension_cpp

# In this order: to ask an abstract class takes as long as the rest of the function.
_SEQUENCES = (list, tuple, Sequence)


def reduce_sum(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """Computes the sum over the given dimensions.

    Half types are summed in float32. Long sums are added up in blocks, so that rounding errors
    grow far slower than the number of terms. On one machine the same input gives the same bits,
    whatever the number of CPU threads. The sum of no elements is 0.

    Args:
        input: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        dim: a dimension or several; negative ones count from the last. None, or no dimensions, sum
            everything.
        keepdim: whether the dimensions stay, with size 1.

    Returns:
        A contiguous tensor with the dtype of `input`. Differentiable to any order, in reverse and
        forward mode.

    Raises:
        RuntimeError: another dtype; a dimension out of range or repeated.
    """
    if dim is not None and not isinstance(dim, _SEQUENCES):
        dim = (operator.index(dim),)
    return _ops.reduce_sum(input, dim, keepdim)


def _reduced_dims(ndim: int, dim: Sequence[int] | None) -> list[int]:
    """The dimensions that go, in ascending order."""
    return sorted({d % ndim for d in dim or range(ndim)}) if ndim else []


def _check(input: Tensor, dim: Sequence[int] | None) -> None:
    checks.check_floating("reduce_sum", "input", input)
    if dim is not None:
        checks.check_dims("reduce_sum", "dim", dim, input.dim())


def _fake(input: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    _check(input, dim)
    reduced = _reduced_dims(input.dim(), dim)
    sizes = [1 if d in reduced else size for d, size in enumerate(input.shape)]
    if not keepdim:
        sizes = [size for d, size in enumerate(sizes) if d not in reduced]
    return input.new_empty(sizes)


def _setup_context(ctx, inputs, output):
    input, dim, ctx.keepdim = inputs
    ctx.shape = input.shape
    ctx.reduced = _reduced_dims(input.dim(), dim)


def _backward(ctx, grad_output):
    if not ctx.keepdim:
        for d in ctx.reduced:
            grad_output = grad_output.unsqueeze(d)
    return grad_output.expand(ctx.shape), None, None


def _vmap(info, in_dims, input, dim, keepdim):
    (example,) = first_example(in_dims[:1], input)
    _check(example, dim)
    input = input.movedim(in_dims[0], 0)
    if input.dim() == 1:  # one number an example, its own sum over whatever dim may name
        return _ops.reduce_sum(input.unsqueeze(1), (1,), False), 0
    shifted = [d + 1 for d in _reduced_dims(input.dim() - 1, dim)]
    return _ops.reduce_sum(input, shifted, keepdim), 0


def _sharding(input, dim, keepdim):
    reduced = _reduced_dims(input.ndim, dim)
    for d in range(input.ndim):
        before = 0 if keepdim else sum(r < d for r in reduced)
        yield [SUM if d in reduced else d - before], [d]
    yield [SUM], [SUM]  # the sum of sums


registration.register_fake("extension_cpp::reduce_sum", _fake)
registration.register_autograd("extension_cpp::reduce_sum", _backward, setup_context=_setup_context)
registration.register_vmap("extension_cpp::reduce_sum", _vmap)
registration.register_sharding("extension_cpp::reduce_sum", _sharding)
# As torch.sum, which autocast leaves alone on the CPU.
registration.register_autocast("extension_cpp::reduce_sum", "float32", devices=("cuda",))
