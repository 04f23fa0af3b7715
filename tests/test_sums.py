"""Elementwise operators that sum results to the shapes of arguments (csrc/sums.h).

Checked by affine's backward, and by products of which one factor alone has a gradient.
"""

import math

import pytest
import torch
from called import Called, copies_in
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from extension_cpp.ops import affine, mymul
from extension_cpp.testing import devices

on_each_device = pytest.mark.parametrize("device", devices())
backward = torch.ops.extension_cpp.affine_backward

EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32)}
EPS |= {dtype: torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16)}


def expected(grad_output: Tensor, a: Tensor, x: Tensor, b: Tensor | None) -> list[Tensor]:
    grad, wide_a, wide_x = grad_output.double(), a.double(), x.double()
    return [
        (grad * wide_x).sum_to_size(a.shape),
        (grad * wide_a).sum_to_size(x.shape),
        grad.new_empty(0) if b is None else grad.sum_to_size(b.shape),
    ]


def check(grad_output: Tensor, a: Tensor, x: Tensor, b: Tensor | None) -> None:
    dtype = grad_output.dtype
    given = [None if t is None else t.cpu() for t in (grad_output, a, x, b)]
    sizes = expected(*(None if t is None else t.abs() for t in given))
    found = zip(backward(grad_output, a, x, b), expected(*given), sizes, strict=True)
    for actual, wanted, size in found:
        assert actual.shape == wanted.shape
        assert actual.dtype == dtype
        # Rounded once, from sums in float32 for half types.
        summed = 64 * min(EPS[dtype], EPS[torch.float32]) * size
        error = (actual.cpu().double() - wanted).abs()
        rounded = 2 * EPS[dtype] * wanted.abs() + torch.finfo(dtype).tiny
        to_limit = (wanted.abs() - torch.finfo(dtype).max) / (rounded + summed)
        overflows = actual.cpu().isinf()
        assert (overflows | (to_limit < 1)).all()
        assert (overflows & (to_limit > -1) | (error <= rounded + summed)).all()


# A shape, and which of its dimensions an operand has: the leading ones may be missing.
@st.composite
def broadcast_shapes(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    sizes = st.sampled_from([0, 1, 2, 3, 5, 8, 33, 64, 130, 513, 1100])
    shape = draw(
        st.lists(sizes, max_size=4).filter(lambda s: math.prod(max(n, 1) for n in s) < 200_000)
    )
    operands = []
    for _ in range(3):
        kept = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
        own = [n if keep else 1 for n, keep in zip(shape, kept, strict=True)]
        missing = draw(st.integers(0, len(shape)))
        operands.append(own[missing:] if draw(st.booleans()) else own)
    return shape, operands


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and tensor.dim() > 0:
        return torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]]
    if layout == "misaligned":
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)
    return tensor


LAYOUTS = st.sampled_from(["contiguous", "contiguous", "transposed", "sliced", "misaligned"])


@on_each_device
@settings(deadline=None)
@given(
    shapes=broadcast_shapes(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    layouts=st.lists(LAYOUTS, min_size=4, max_size=4),
    has_b=st.booleans(),
    grad_is_one_number=st.booleans(),
)
@example(([40, 513], [[513], [40, 1], []]), torch.bfloat16, ["contiguous"] * 4, True, False)
@example(([64, 999], [[64, 1], [64, 999], [999]]), torch.float16, ["sliced"] * 4, True, False)
@example(([3, 5, 33], [[5, 1], [3, 1, 33], [5, 33]]), torch.float32, ["sliced"] * 4, True, False)
@example(([33, 1100], [[1, 1]] * 3), torch.float16, ["contiguous"] * 4, False, True)
@example(([33, 64], [[33, 1], [1], [1, 1]]), torch.float32, ["contiguous"] * 4, True, True)
@example(([33, 513], [[1, 1]] * 3), torch.float64, ["contiguous"] * 4, False, True)
@example(([0, 8], [[8], [1], [0, 1]]), torch.float32, ["contiguous"] * 4, True, False)
# Numbers for rows of whole accesses, one factor or the other: kernels of their own on a GPU.
@example(([40, 1024], [[40, 1], [40, 1024], [1]]), torch.bfloat16, ["contiguous"] * 4, False, False)
@example(([40, 264], [[40, 264], [40, 1], [1]]), torch.float32, ["contiguous"] * 4, False, False)
@example(
    ([3, 5, 1032], [[3, 5, 1], [3, 5, 1032], [3, 5, 1]]),
    torch.float16,
    ["contiguous"] * 4,
    True,
    False,
)
@example(
    ([3, 5, 130], [[3, 5, 130], [5, 1], [5, 130]]), torch.float64, ["contiguous"] * 4, True, False
)
def test_every_result_has_its_sum(device, shapes, dtype, layouts, has_b, grad_is_one_number):
    generator = torch.Generator().manual_seed(0)
    shape, operands = shapes

    def make(own: list[int], layout: str) -> Tensor:
        values = torch.randn(own, generator=generator, dtype=torch.float64)
        if grad_is_one_number:
            # Sums of equal numbers would be rounded the same way again and again: these are exact.
            values = (4 * values).round() / 4
        return laid_out(values.to(dtype).to(device), layout)

    grad = make([], "contiguous").expand(shape) if grad_is_one_number else make(shape, layouts[0])
    a, x, b = (make(own, layout) for own, layout in zip(operands, layouts[1:], strict=True))
    check(grad, a, x, b if has_b else None)


# Of sizes that csrc/cuda/matrix_sums.cuh takes: strips that are not full, rows that begin at
# several places, or at one that is no boundary; rows that warps take together, and some more.
@on_each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "misaligned"])
@pytest.mark.parametrize(
    "shape",
    [(2049, 256), (1030, 1028), (2051, 255), (4097, 130), (129, 4095), (300, 2049)],
    ids=str,
)
def test_large_matrices(device, shape, layout, dtype):
    generator = torch.Generator().manual_seed(0)

    def make(own: tuple[int, ...], layout: str = "contiguous") -> Tensor:
        values = torch.randn(own, generator=generator, dtype=torch.float64)
        return laid_out(values.to(dtype).to(device), layout)

    rows, cols = shape
    grad, x, row, column = make(shape, layout), make(shape, layout), make((cols,)), make((rows, 1))
    number = make(())
    for a, b in ((row, row), (column, row), (row, column), (number, number), (column, None)):
        check(grad, a, x, b)
    check(grad, x, row, column)
    check(grad, column, row, number)


# Of several matrices that follow one another: rows that each has for itself, or all have; numbers
# for rows of each or of all, for which operands are expanded and sums summed on; axes of which some
# count the rows and some the matrices; what is one for some of these; what is whole in each matrix
# and one for all, which as a result is no sum of matrices.
B, R, C = 5, 200, 257
MATRICES = [
    ((B, R, C), (B, 1, C), (B, 1, C)),
    ((B, R, C), (B, 1, C), (C,)),
    ((B, R, C), (B, 1, C), (R, 1)),
    ((B, R, C), (B, 1, C), (B, R, 1)),
    ((B, R, C), (B, 1, C), ()),
    ((B, R, C), (B, 1, C), (B, 1, 1)),
    ((B, R, C), (B, 1, C), (R, C)),
    ((B, R, C), (B, R, C), (B, 1, C)),
    ((B, R, C), (B, 1, C), None),
    ((B, R, C), (R, 1), (R, 1)),  # channels of images
    ((B, R, C), (R, 1), (C,)),
    ((B, R, C), (B, 1, 1), (R, 1)),
    ((B, R, C), (R, 1), None),
    ((3, 7, 33, 70), (7, 1, 70), (3, 1, 1, 70)),  # heads
    ((3, 7, 33, 70), (7, 1, 1), (3, 7, 1, 70)),
    ((3, 7, 33, 70), (3, 1, 33, 1), (3, 1, 1, 70)),
    ((3, 7, 33, 70), (3, 1, 33, 70), (7, 1, 1)),
    ((3, 5, 2, 3, 90), (3, 1, 2, 1, 90), (5, 1, 3, 1)),
    ((1000, 4, 64), (1000, 1, 64), (64,)),  # many small ones
    ((1000, 4, 5), (1000, 1, 5), (4, 1)),
    ((70, 300, 3), (70, 1, 3), (300, 1)),
    # Of sizes that csrc/cuda/matrix_sums.cuh takes.
    ((4, 513, 256), (4, 1, 256), (4, 1, 256)),
    ((4, 513, 256), (4, 1, 256), (513, 1)),
    ((4, 130, 1030), (4, 1, 1030), (4, 1, 1)),
    ((4, 130, 1030), (4, 130, 1), (4, 1, 1030)),
    ((3, 515, 517), (3, 1, 517), (517,)),
    ((3, 515, 517), (515, 1), (3, 1, 517)),
]


@on_each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "sliced", "transposed", "misaligned"])
@pytest.mark.parametrize(("shape", "a", "b"), MATRICES, ids=str)
def test_several_matrices(device, shape, a, b, layout, dtype):
    generator = torch.Generator().manual_seed(0)

    def make(own: tuple[int, ...]) -> Tensor:
        values = torch.randn(own, generator=generator, dtype=torch.float64)
        return laid_out(values.to(dtype).to(device), layout)

    b = None if b is None else make(b)
    check(make(shape), make(a), make(shape), b)
    check(make(shape), make(a), make(a), b)


# What has no places in matrices is copied: an input that lacks some dimensions, or that is expanded
# where a result has no place otherwise, or matrices would be very small. Where that does not help,
# all inputs are, to the type of the arithmetic, which takes several times as long.
@on_each_device
@pytest.mark.parametrize(
    ("grad", "a", "x", "copies"),
    [
        ((B, R, C), (B, 1, C), (B, R, C), 0),
        ((B, R, C), (R, 1), (B, R, C), 1),
        ((3, 7, 33, 70), (7, 1, 70), (3, 7, 33, 70), 1),
        ((B, 1, C), (B, 1, C), (B, R, C), 0),
        ((B, 1, C), (R, C), (B, R, C), 1),
        ((4096, 1, 32), (32,), (4096, 8, 32), 1),
        ((B, R, C), (R, C), (R, 1), 1),  # a product of one factor's gradient alone
        ((B, R, C), (R, C), (B, 1, C), 1),
        ((B, R, C), (B, 1, C), (R, C), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_few_inputs_are_copied(device, grad, a, x, copies, dtype):
    generator = torch.Generator().manual_seed(0)

    def make(own: tuple[int, ...]) -> Tensor:
        values = torch.randn(own, generator=generator, dtype=torch.float64)
        return values.to(dtype).to(device)

    whole = torch.broadcast_shapes(grad, a, x)
    grad_output, factor, other = make(grad).expand(whole), make(a), make(x)

    def compute() -> tuple[Tensor, ...]:
        if other.shape == whole:
            return torch.ops.extension_cpp.mymul_backward(grad_output, factor, other)
        return (torch.ops.extension_cpp.mymul_factor_backward(grad_output, other, factor),)

    assert copies_in(compute) <= copies
    check(grad_output, factor, other, None)
    products = (grad_output.double() * other.double()).sum_to_size(a)
    torch.testing.assert_close(compute()[0].double(), products, rtol=EPS[dtype], atol=1e-3)


# Such a copy has the dimensions that it is expanded along, too.
@on_each_device
def test_expanded_operands_of_several_matrices(device):
    grad, x = torch.randn(2, 6, 40, 50, device=device)
    row, column = torch.randn(6, 1, 50, device=device), torch.randn(40, 1, device=device)
    for whole in (column.expand(6, 40, 50), column.expand(40, 50), row.expand(6, 40, 50)):
        check(grad, row, whole, column)
        check(whole.expand_as(grad), row, x, column)


@on_each_device
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_what_is_whole_keeps_the_layout(device, memory_format):
    x = torch.randn(2, 16, 5, 7, device=device).contiguous(memory_format=memory_format)
    for a in (torch.randn(16, 1, 1, device=device), torch.randn(1, device=device)):
        grad_a, grad_x, _ = backward(x, a, x, a)
        assert grad_x.is_contiguous(memory_format=memory_format)
        torch.testing.assert_close(grad_x, x * a)
        torch.testing.assert_close(grad_a, (x * x).sum_to_size(a.shape))


@on_each_device
def test_sums_have_equal_bits_from_run_to_run(device):
    grad, x = torch.randn(2, 777, 1030, device=device)
    a, b = torch.randn(777, 1, device=device), torch.randn((), device=device)
    first = backward(grad, a, x, b)
    for _ in range(3):
        for one, other in zip(first, backward(grad, a, x, b), strict=True):
            assert torch.equal(one, other)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(130,), (64, 1), (1, 130), ()])
@pytest.mark.parametrize("operator", [mymul, lambda a, x: affine(a, x, x)])
def test_the_gradient_of_one_factor_is_computed_in_one_pass(device, dtype, shape, operator):
    x = torch.randn(64, 130, device=device, dtype=dtype)
    factor = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    grad_output = torch.randn_like(x)
    output = operator(factor, x)
    with Called() as called:
        (gradient,) = torch.autograd.grad(output, factor, grad_output)
    assert called.names == ["extension_cpp::mymul_factor_backward"]
    products = (grad_output.double() * x.double()).sum_to_size(shape)
    torch.testing.assert_close(gradient.double(), products, rtol=EPS[dtype], atol=1e-4)


@on_each_device
def test_gradients_that_are_not_needed_are_not_computed(device):
    a, x, grad_output = torch.randn(3, 33, 70, device=device).unbind()
    b = torch.randn(70, device=device, requires_grad=True)
    output = affine(a.requires_grad_(), x, b)
    with Called() as called:
        grad_a, grad_b = torch.autograd.grad(output, [a, b], grad_output)
    assert called.names == ["extension_cpp::mymul", "extension_cpp::reduce_sum"]
    torch.testing.assert_close(grad_a, grad_output * x)
    torch.testing.assert_close(grad_b, grad_output.sum(0))


@pytest.mark.parametrize("in_dims", [(0, None, 1), (None, 2, None), (0, 0, 0), (None, None, 0)])
def test_every_example_of_a_batch_has_sums_of_its_own(in_dims):
    shapes = [[4, 6], [3, 4, 6], [6]]
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    batched = [
        t if dim is None else torch.stack([t, t * 2, t + 1], min(dim, t.dim()))
        for t, dim in zip(inputs, in_dims, strict=True)
    ]
    dims = tuple(
        None if dim is None else min(dim, t.dim()) for t, dim in zip(inputs, in_dims, strict=True)
    )
    gradients = torch.func.grad(lambda a, x, b: affine(a, x, b).sin().sum(), argnums=(0, 1, 2))
    actual = torch.vmap(gradients, in_dims=dims)(*batched)
    for k in range(3):
        own = [t if dim is None else t.select(dim, k) for t, dim in zip(batched, dims, strict=True)]
        for result, wanted in zip(actual, gradients(*own), strict=True):
            torch.testing.assert_close(result[k], wanted)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(4,), (3, 4), (4,)], r"a must broadcast to grad_output of shape \(4,\), got \(3, 4\)"),
        ([(3, 4), (4,), (5,)], r"x must broadcast to grad_output of shape \(3, 4\), got \(5,\)"),
        ([(3, 1), (4,), (3, 1)], r"a must broadcast to grad_output of shape \(3, 1\), got \(4,\)"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_others_broadcast_to_the_first(device, shapes, message):
    with pytest.raises(RuntimeError, match=f"affine_backward: {message}$"):
        backward(*(torch.ones(shape, device=device) for shape in shapes))
