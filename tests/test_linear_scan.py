"""What the battery cannot say of linear_scan: kinds of decays, lengths, equal bits."""

import itertools

import pytest
import torch
from torch import Tensor

from extension_cpp.operators.linear_scan.spec import reference
from extension_cpp.ops import linear_scan
from extension_cpp.testing import devices

on_each_device = pytest.mark.parametrize("device", devices())
in_each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16]
)

POWERS = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
LENGTHS = [0, 1, 2, 3, *(power + k for power in POWERS for k in (-1, 0, 1))]
# Rounding to the dtype, and of the state to that of the arithmetic.
TOLERANCES = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}


def tensors(shape, dim, device="cpu", dtype=torch.float32, low=-1.0, high=1.0) -> list[Tensor]:
    """Decays, inputs, and states to begin with."""
    torch.manual_seed(0)
    without = list(shape)
    del without[dim]
    decay = torch.rand(shape, dtype=torch.float64) * (high - low) + low
    values = decay, torch.randn(shape).double(), torch.randn(without).double()
    return [value.to(device, dtype) for value in values]


def with_gradients(function, grad_output, decay, input, initial, dim, **options) -> list[Tensor]:
    inputs = [t.detach().requires_grad_() for t in (decay, input, initial)]
    output = function(*inputs, dim)
    return [output.detach(), *torch.autograd.grad(output, inputs, grad_output, **options)]


def by_loop(*arguments) -> list[Tensor]:
    """The same by a loop over time in float64."""
    *given, dim = arguments
    upcast = [t.detach().cpu().double() for t in given]
    return with_gradients(reference, *upcast, dim, allow_unused=True, materialize_grads=True)


def are_close(found, wanted, dtype, **options):
    # The gradient of decay is computed from the rounded output.
    options = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype], **options}
    for actual, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual.cpu().double(), right, **options)


def agrees(decay, input, initial, dim, **options):
    """Forward and gradients, against a loop over time in float64."""
    arguments = torch.randn(decay.shape).to(decay), decay, input, initial, dim
    are_close(with_gradients(linear_scan, *arguments), by_loop(*arguments), decay.dtype, **options)


def agrees_with_float64(decay, input, initial, dim, **options) -> Tensor:
    """Forward and gradients, against scans in float64 on the CPU, which may be long.

    Returns the float64 output.
    """
    tolerance = 5 * TOLERANCES[decay.dtype]
    doubles = [t.cpu().double() for t in (decay, input, initial)]
    actual = linear_scan(decay, input, initial, dim)
    exact = linear_scan(*doubles, dim)
    are_close([actual], [exact], decay.dtype, rtol=tolerance, **options)
    grad_output = torch.randn(decay.shape).to(decay)
    backward = torch.ops.extension_cpp.linear_scan_backward
    found = backward(grad_output, decay, actual, initial, dim)
    wanted = backward(
        grad_output.cpu().double(), doubles[0], actual.cpu().double(), doubles[2], dim
    )
    are_close(found, wanted, decay.dtype, rtol=tolerance, atol=tolerance)
    return exact


@on_each_device
@in_each_dtype
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length, dtype, device):
    for shape, dim in (((11, length), 1), ((length, 6), 0), ((2, length, 3), -2)):
        decay, input, initial = tensors(shape, dim, device, dtype, low=0.0)
        options = {"atol": 5 * TOLERANCES[dtype]}
        agrees(decay, input, initial, dim, **options)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [6400, 6402, 6401])
def test_many_channels(inner, dtype, device):
    """As many as a GPU goes through side by side: in whole accesses, in words, one by one."""
    arguments = tensors((2, 101, inner), 1, device, dtype, low=0.0)
    agrees(*arguments, 1, atol=5 * TOLERANCES[dtype])


@on_each_device
@pytest.mark.parametrize(
    ("shape", "dim"), [((1, 1_000_000), 1), ((1_000_001,), 0), ((1_000_003, 2), 0)]
)
def test_a_million_steps(shape, dim, device):
    """Against a scan in float64, whose first steps are compared with a loop."""
    arguments = tensors(shape, dim, device, low=0.5)
    exact = agrees_with_float64(*arguments, dim, atol=1e-5)
    decay, input, initial = (t.cpu().double() for t in arguments)
    head = [t.narrow(dim, 0, 5000) for t in (decay, input)]
    torch.testing.assert_close(exact.narrow(dim, 0, 5000), reference(*head, initial, dim))


# On a GPU the longest rows of a warp, of blocks of either kind, and of tiles, in each dtype, and
# the next ones: in whole accesses, and otherwise.
KERNELS_END = [
    *(2**power + k for power in range(6, 15) for k in (-7, -3, -1, 0, 1)),
    *(2**power + 8 for power in range(9, 16)),
    *(9 * 2**power + k for power in range(7, 11) for k in (-7, -3, -1, 1)),
    *(17 * 2**power + k for power in range(7, 10) for k in (-7, -3, -1, 1)),
    *(12288 - 7, 12288 - 3, 12288, 32768),
]


@on_each_device
@in_each_dtype
@pytest.mark.parametrize("offset", [0, 1])
def test_lengths_at_which_kernels_end(offset, dtype, device):
    """From states at both ends; with inputs at the boundaries of accesses, and behind them."""
    for length in KERNELS_END:
        arguments = tensors((3, length), 1, device, dtype, low=0.5)
        decay, input, initial = (between_nans(t, offset) for t in arguments)
        agrees_with_float64(decay, input, initial, 1, atol=5 * TOLERANCES[dtype])


# Of so many bytes that a GPU sends for tiles ahead, where it does: rows of many tiles in whole
# accesses, and others.
@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 1_700_000), (5, 1_700_001), (2051, 4095), (4101, 2047)])
def test_large_rows_and_many(shape, dtype, device):
    rows, cols = shape
    if device == "cpu":
        rows, cols = min(rows, 20), cols % 1_600_000
    arguments = tensors((rows, cols), 1, device, dtype, low=0.5)
    agrees_with_float64(*arguments, 1, atol=5 * TOLERANCES[dtype])


@on_each_device
@pytest.mark.parametrize(("shape", "dim"), [((11, 700), 1), ((1, 5000), 1), ((700, 11), 0)])
@pytest.mark.parametrize(
    "decays",
    ["zeros", "ones", "minus ones", "above one", "sometimes zero", "negative", "tiny", "mixed"],
)
def test_decays(decays, shape, dim, device):
    decay, input, initial = tensors(shape, dim, device, low=0.0)
    decay = {
        "zeros": torch.zeros_like(decay),
        "ones": torch.ones_like(decay),
        "minus ones": -torch.ones_like(decay),
        "above one": 1 + decay / 100,
        "sometimes zero": torch.where(decay < 0.05, 0.0, 1.2 * decay),
        "negative": -decay,
        "tiny": decay * 1e-30,
        "mixed": torch.where(decay < 0.5, 4 * decay, -decay),
    }[decays]
    # States grow, and errors with them.
    scale = linear_scan(decay.double(), input.double(), initial.double(), dim).abs().max().item()
    options = {"rtol": 1e-4, "atol": 1e-5 * max(1.0, scale) * (100 if "ones" in decays else 10)}
    agrees(decay, input, initial, dim, **options)


@on_each_device
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((3, 700), 1), ((1, 9000), 1), ((2, 4095), 1), ((700, 5), 0), ((2, 900, 1), 1)],
)
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["decay", "input", "initial"])
def test_infinities_and_nan_spread_as_in_a_loop(where, special, shape, dim, device):
    decay, input, initial = tensors(shape, dim, device, low=0.1)
    if where == "initial":
        initial[...] = special
    else:
        (decay if where == "decay" else input).select(dim, shape[dim] // 3)[...] = special
    # Both signs of a state, and one that begins anew.
    decay.select(dim, shape[dim] // 2)[...] *= -1
    decay.select(dim, shape[dim] - 2)[...] = 0
    output = linear_scan(decay, input, initial, dim)
    expected = reference(decay.cpu(), input.cpu(), initial.cpu(), dim)
    # Of finite values that an infinity would hide: to within rounding.
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert not expected.isfinite().all()


@on_each_device
@pytest.mark.parametrize(("shape", "dim"), [((2, 3000), 1), ((3000, 2), 0)])
def test_decays_whose_product_overflows(shape, dim, device):
    """Zeros stay zeros, however large the product of the decays is that they are multiplied by."""
    decay = torch.full(shape, 3.0, device=device)
    input = torch.zeros(shape, device=device)
    assert linear_scan(decay, input, None, dim).abs().max() == 0
    late = shape[dim] - 20
    input.select(dim, late)[...] = 1.0
    output = linear_scan(decay, input, None, dim)
    expected = reference(decay.cpu(), input.cpu(), None, dim)
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-5, atol=0)
    grads = torch.ops.extension_cpp.linear_scan_backward(input, decay, output, None, dim)
    # What comes after the one gradient is zero; what comes before it grows until it overflows.
    for grad in grads[:2]:
        assert grad.narrow(dim, late + 1, 19).abs().max() == 0
    assert (grads[1].select(dim, late) == 1).all()
    assert (grads[1].select(dim, 0) == torch.inf).all()


@on_each_device
@pytest.mark.parametrize("length", [100, 200, 1000, 5000, 20_000])
def test_products_of_a_part_of_the_decays_overflow(length, device):
    """Though those of all decays up to any step do not, nor of all in a row.

    A GPU puts the products of neighbours together first: steps 20 to 83 of every 128 have one of
    1e60, behind one of 1e-30, and before another. Backward, the same from the end.
    """
    step = torch.arange(length) % 128
    exponent = torch.where(step < 20, -30 / 20, torch.where(step < 84, 60 / 64, -30 / 44))
    decay = (10.0 ** exponent.double()).float().expand(2, -1).contiguous().to(device)
    input, initial = torch.zeros_like(decay), torch.ones(2, device=device)
    output = linear_scan(decay, input, initial, 1)
    expected = reference(decay.cpu().double(), input.cpu().double(), initial.cpu().double(), 1)
    assert expected.max() > 1e29
    torch.testing.assert_close(output.cpu().double(), expected, rtol=1e-3, atol=0)
    grad_output = torch.zeros_like(decay)
    grad_output[:, -1] = 1
    backward = torch.ops.extension_cpp.linear_scan_backward
    _, grad_input, _ = backward(grad_output, decay.flip(1), input, None, 1)
    expected = torch.cat([torch.ones_like(expected[:, :1]), expected[:, :-1]], 1).flip(1)
    torch.testing.assert_close(grad_input.cpu().double(), expected, rtol=1e-3, atol=0)


@on_each_device
def test_half_types_keep_a_state_in_float32(device):
    """Ones that are summed in bfloat16 would stop at 256."""
    for dtype in (torch.float16, torch.bfloat16):
        for shape, dim in (((2, 4096), 1), ((4096, 2), 0)):
            ones = torch.ones(shape, device=device, dtype=dtype)
            counted = torch.arange(1, 4097, device=device).to(dtype)
            output = linear_scan(ones, ones, None, dim)
            assert torch.equal(output.movedim(dim, -1), counted.expand(2, -1))


@on_each_device
@pytest.mark.parametrize("shape", [(6, 5, 130), (4, 300, 3), (2, 7, 1000)])
def test_every_dimension_and_layout(shape, device):
    """Views of every kind give the bits of contiguous copies, which are compared with a loop."""
    for dim, permutation in itertools.product(range(-3, 3), itertools.permutations(range(3))):
        decay, input, initial = tensors(shape, dim, device, low=0.0)
        expected = linear_scan(decay, input, initial, dim)
        assert expected.is_contiguous()
        torch.testing.assert_close(expected, reference(decay, input, initial, dim))
        back = [permutation.index(d) for d in range(3)]
        views = [t.permute(permutation).contiguous().permute(back) for t in (decay, input)]
        assert torch.equal(linear_scan(*views, initial, dim), expected)
        spread = torch.stack([decay, input], -1)
        begin = torch.stack([initial, initial], -1)[..., 1]
        assert torch.equal(linear_scan(spread[..., 0], spread[..., 1], begin, dim), expected)
    row = torch.rand(shape[-1:], device=device)
    torch.testing.assert_close(
        linear_scan(row.expand(shape), input), reference(row.expand(shape), input)
    )


@on_each_device
@in_each_dtype
def test_storage_offsets(dtype, device):
    """Rows and channels that begin anywhere, though accesses are of several elements.

    Rows of whole accesses are written at boundaries: those of a warp, of several, of several tiles.
    """
    whole = (((4, 512), 1), ((3, 1024), 1), ((2, 4096), 1), ((1, 16384), 1))
    for shape, dim in (((3, 999), 1), ((300, 6), 0), ((2, 4203), 1), ((5, 3), 1), *whole):
        values = tensors(shape, dim, device, dtype, low=0.0)
        values = [torch.randn(shape).to(values[0]), *values]
        wanted = by_loop(*values, dim)
        for offsets in ((1, 1, 1, 1), (2, 2, 0, 2), (3, 0, 1, 2), (0, 5, 2, 1), (8, 8, 8, 8)):
            moved = [between_nans(t, n) for t, n in zip(values, offsets, strict=True)]
            found = with_gradients(linear_scan, *moved, dim)
            are_close(found[:1], wanted[:1], dtype)
            are_close(found[1:], wanted[1:], dtype, atol=5 * TOLERANCES[dtype])


def between_nans(tensor: Tensor, offset: int) -> Tensor:
    """The same, beginning so many elements behind an aligned address."""
    memory = tensor.new_full((offset + tensor.numel() + 8,), torch.nan)
    view = memory[offset:][: tensor.numel()].view(tensor.shape)
    return view.copy_(tensor)


@on_each_device
def test_sizes_of_zero(device):
    for shape, dim in (
        ((0,), 0),
        ((3, 0), 1),
        ((0, 3), 1),
        ((3, 0), 0),
        ((2, 0, 3), 1),
        ((0, 2, 3), 1),
    ):
        decay, input, initial = (
            t.requires_grad_() for t in tensors(shape, dim, device, torch.float64)
        )
        output = linear_scan(decay, input, initial, dim)
        assert output.shape == shape
        grads = torch.autograd.grad(output, (decay, input, initial), torch.ones_like(output))
        assert [g.shape for g in grads] == [decay.shape, input.shape, initial.shape]
        # States that nothing is made of.
        assert grads[2].abs().sum() == 0
        constants = decay.detach(), input.detach()
        tangents = torch.func.jvp(
            lambda initial, constants=constants, dim=dim: linear_scan(*constants, initial, dim),
            (initial.detach(),),
            (torch.ones_like(initial),),
        )
        assert tangents[1].shape == shape


@on_each_device
def test_equal_bits(device):
    """From run to run, and on a CPU with any number of threads."""
    threads = torch.get_num_threads()
    try:
        for shape, dim in (((37, 3001), 1), ((1, 100_001), 1), ((50_000, 3), 0), ((300, 700), 0)):
            decay, input, initial = tensors(shape, dim, device)
            results = []
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                output = linear_scan(decay, input, initial, dim)
                backward = torch.ops.extension_cpp.linear_scan_backward
                results.append([output, *backward(input, decay, output, initial, dim)])
            for other in results[1:]:
                for a, b in zip(results[0], other, strict=True):
                    assert torch.equal(a, b)
    finally:
        torch.set_num_threads(threads)


@on_each_device
def test_a_scan_in_two_halves(device):
    """The last state of one half begins the other, as in a model that reads its input in pieces."""
    for dim in (0, 1):
        decay, input, initial = tensors((64, 50), dim, device, torch.float64)
        first = linear_scan(*(t.narrow(dim, 0, 30) for t in (decay, input)), initial, dim)
        rest = [t.narrow(dim, 30, t.shape[dim] - 30) for t in (decay, input)]
        second = linear_scan(*rest, first.select(dim, -1), dim)
        whole = linear_scan(decay, input, initial, dim)
        torch.testing.assert_close(torch.cat([first, second], dim), whole)


def test_third_derivatives():
    """Of all inputs: the battery looks at second ones."""
    for initial in (torch.randn(2, dtype=torch.float64), None):
        inputs = [torch.randn(2, 4, dtype=torch.float64) for _ in range(2)]
        inputs += [] if initial is None else [initial]

        def third(function, inputs=inputs):
            inputs = [t.clone().requires_grad_() for t in inputs]
            value = function(*inputs).pow(2).sum()
            for _ in range(3):
                grads = torch.autograd.grad(value, inputs, create_graph=True)
                value = sum(((k + 1) * g * g.cos()).sum() for k, g in enumerate(grads))
            return grads

        for actual, expected in zip(third(linear_scan), third(reference), strict=True):
            torch.testing.assert_close(actual, expected)


def test_a_dimension_out_of_range_names_the_range():
    x = torch.ones(2, 3, 4)
    for dim in (3, -4, 2**40):
        with pytest.raises(
            RuntimeError, match=rf"linear_scan: dim must be in \[-3, 2\], got {dim}"
        ):
            linear_scan(x, x, None, dim)


def test_an_initial_state_of_another_shape_is_refused():
    x = torch.ones(2, 3, 4)
    for dim, wrong, right in (
        (0, (2, 3), "(3, 4)"),
        (1, (2, 3), "(2, 4)"),
        (2, (2, 3, 1), "(2, 3)"),
    ):
        with pytest.raises(RuntimeError) as error:
            linear_scan(x, x, torch.ones(wrong), dim)
        expected = f"linear_scan: initial must have shape {right}, got {wrong}"
        assert str(error.value) == expected


def test_autocast_keeps_half_types_and_joins_mixed_ones():
    half, full = torch.rand(3, 4).bfloat16(), torch.rand(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear_scan(half, half).dtype == torch.bfloat16
        assert linear_scan(half, full).dtype == torch.float32
