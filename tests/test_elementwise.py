"""What the elementwise operators promise beyond the battery, and PyTorch's tutorial."""

import itertools
import random

import pytest
import torch
from torch._inductor import lowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from extension_cpp import ops
from extension_cpp.battery.layouts import strided
from extension_cpp.battery.surroundings import fresh_compiler
from extension_cpp.testing import devices

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DEVICES = devices()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_misaligned_and_long(device, dtype):
    """Every alignment of inputs and output, lengths around a 16-byte access and a block."""
    memory = torch.arange(20000, device=device).remainder(61).to(dtype)
    for length in (1, 7, 8, 9, 4095, 4099):
        offsets = ((0, 0, 0), (1, 0, 0), (2, 3, 0), (5, 7, 1), (0, 0, 3))
        for offset_a, offset_b, offset_out in offsets:
            a = memory[offset_a:][:length]
            b = memory[8192 + offset_b :][:length]
            assert torch.equal(ops.mymul(a, b), a * b)
            assert torch.equal(ops.vector_add(a, b), a + b)
            out = torch.full((length + 16,), -1, dtype=dtype, device=device)
            ops.myadd_out(a, b, out[offset_out:][:length])
            assert torch.equal(out[offset_out:][:length], a + b)
            assert (out[:offset_out] == -1).all()
            assert (out[offset_out + length :] == -1).all()


LENGTHS = {"cpu": (16,), "cuda": (16, 64, 128)}  # MiB


@pytest.mark.parametrize(
    ("device", "mib"), [(device, mib) for device in DEVICES for mib in LENGTHS[device]]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_around_the_lengths_from_which_kernels_are_others(device, mib, dtype):
    access = 16 // dtype.itemsize
    length = (mib << 20) // dtype.itemsize
    memory = torch.arange(length + 6 * access, device=device).remainder(61).sub(30).to(dtype)
    # One access short of it; some more, which no block has all of.
    for numel in (length - access, length + 5 * access):
        a, b = memory[:numel], memory[access:][:numel]
        assert torch.equal(ops.relu(a), a.relu())
        assert torch.equal(ops.mymul(a, b), a * b)
    # Inputs that lie otherwise than the output, which may be one of them.
    for offset_a, offset_b, offset_out in ((1, 2, 0), (0, access - 1, 0), (1, 0, 1)):
        numel = length + 2 * access + 1
        a, b = memory[offset_a:][:numel], memory[offset_b:][:numel]
        out = torch.full((numel + access,), -99, dtype=dtype, device=device)
        ops.myadd_out(a, b, out[offset_out:][:numel])
        assert torch.equal(out[offset_out:][:numel], a + b)
        assert (out[:offset_out] == -99).all()
        assert (out[offset_out + numel :] == -99).all()
        out[offset_out:][:numel] = a
        ops.myadd_out(out[offset_out:][:numel], b, out[offset_out:][:numel])
        assert torch.equal(out[offset_out:][:numel], a + b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_number_of_a_half_type(device, dtype):
    """To the type of the arithmetic and back: elementwise, by rows, by columns."""
    every = torch.arange(1 << 16, device=device).to(torch.int16).view(dtype)
    exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
    for values in (every, every[3:], every.view(256, 256).t()):  # tails; a layout
        result = ops.mymul(values, torch.ones_like(values))
        torch.testing.assert_close(result, values, **exactly)
    torch.testing.assert_close(ops.reduce_sum(every[:, None], 1), every, **exactly)
    torch.testing.assert_close(ops.reduce_sum(every[None], 0), every, **exactly)
    # Rounding: to the nearest, of two as near to the even one.
    x, y = every.view(256, 256), every.view(256, 256).t()
    expected = (x.float() * y.float()).to(dtype)
    torch.testing.assert_close(ops.mymul(x, y), expected, **exactly)
    zeros = torch.zeros(256, dtype=dtype, device=device)
    rows = x.abs().clamp(max=1).nan_to_num(0)
    expected = (rows.float() * 1.7).to(dtype)
    torch.testing.assert_close(ops.fused_op(rows, zeros, 1.7), expected, **exactly)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shapes",
    [
        ((37, 1030), (37, 1030), (1030,)),
        ((1030,), (37, 1030), (37, 1)),
        ((), (37, 1030), (1,)),
        ((5, 1, 64, 1), (7, 1, 33), (5, 1, 1, 1)),
        ((20000, 3), (3,), (20000, 1)),
        ((2, 1, 2, 1, 2, 1, 3), (1, 2, 1, 2, 1, 2, 1), (3,)),
    ],
    ids=str,
)
def test_broadcasting(device, dtype, shapes):
    generator = torch.Generator().manual_seed(0)
    a, x, b = (torch.randint(-8, 8, s, generator=generator).to(device, dtype) for s in shapes)
    assert torch.equal(ops.affine(a, x, b), a * x + b)
    assert torch.equal(ops.vector_add(a, b), a + b)
    if x.dim() > 1:
        transposed = x.transpose(-1, -2).contiguous().transpose(-1, -2)
        assert torch.equal(ops.affine(a, transposed, b), a * x + b)


# Small numbers, of which every dtype holds products and sums exactly.
def small_numbers(shape, device, dtype, generator):
    return torch.randint(-8, 8, shape, generator=generator).to(device, dtype)


# Ways for an operand of a matrix to lie in memory, beginning `offset` elements into its buffer;
# what belongs to no element is NaN.
MATRIX_OPERANDS = {
    "straight": lambda x, offset: strided(x, [0, 1], [1, 1], offset),
    "transposed": lambda x, offset: strided(x, [1, 0], [1, 1], offset),
    "rows with gaps": lambda x, offset: strided(x, [0, 1], [2, 1], offset),
    "transposed, with gaps": lambda x, offset: strided(x, [1, 0], [1, 3], offset),
    "every other element": lambda x, offset: strided(x, [0, 1], [1, 2], offset),
    "a row": lambda x, offset: strided(x[:1], [0, 1], [1, 1], offset),
    "a column": lambda x, offset: strided(x[:, :1], [0, 1], [1, 1], offset),
    "one number": lambda x, offset: strided(x[:1, :1], [0, 1], [1, 1], offset),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrices_that_lie_differently(device, dtype):
    """Sizes around an access and a tile, longer rows, any alignment, every pair of ways to lie."""
    generator, choices = torch.Generator().manual_seed(0), random.Random(0)
    sizes = (1, 7, 31, 33, 63, 65, 100, 257)
    whole = (8, 64, 72, 136)  # accesses, but not always tiles
    pairs = list(itertools.product(MATRIX_OPERANDS, repeat=2))
    shapes = [*itertools.product(sizes, repeat=2), *itertools.product(whole, repeat=2)]
    for shape in [*shapes, (100, 1030), (20, 9001)]:
        values = small_numbers((3, *shape), device, dtype, generator)
        for kinds in choices.sample(pairs, 6 if shape[1] < 1000 else len(pairs)):
            operands = [
                MATRIX_OPERANDS[kind](x, choices.choice((0, 0, 1, 3, 8)))
                for kind, x in zip((*kinds, "straight"), values, strict=True)
            ]
            choices.shuffle(operands)
            a, x, b = operands
            assert torch.equal(ops.affine(a, x, b), a * x + b), (shape, kinds)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(600, 33), (523, 257), (140, 1030), (260, 17), (33, 4100), (300, 1025)], ids=str
)
def test_many_rows_that_are_not_whole_accesses(device, dtype, shape):
    """Rows, columns and numbers beside them, of any alignment; what lies around the output."""
    generator, choices = torch.Generator().manual_seed(0), random.Random(0)
    values = small_numbers((2, *shape), device, dtype, generator)
    x = small_numbers(shape, device, dtype, generator)
    numel = x.numel()
    memory = x.new_full((numel + 24,), float("nan"))
    out = memory[8 : 8 + numel].view(shape)
    for kinds in itertools.product(("straight", "a row", "a column", "one number"), repeat=2):
        offsets = [choices.choice((0, 0, 1, 3, 8)) if kind != "straight" else 0 for kind in kinds]
        a, b = (
            MATRIX_OPERANDS[kind](value, offset)
            for kind, value, offset in zip(kinds, values, offsets, strict=True)
        )
        assert torch.equal(ops.affine(a, x, b), a * x + b), (kinds, offsets)
        ops.myadd_out(a.expand(shape), x, out.fill_(float("nan")))
        assert torch.equal(out, a + x), (kinds, offsets)
    assert memory[:8].isnan().all()
    assert memory[8 + numel :].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "more"), [(9, 0), (5, 3)])
@pytest.mark.parametrize("offset", [0, 1])
def test_long_rows(device, dtype, rows, more, offset):
    """Where a cache has no room for one row for all, a GPU goes through them in another order."""
    generator = torch.Generator().manual_seed(0)
    # Of bfloat16 enough for an L2 cache of 128 MiB.
    cols = (1 << (22 if device == "cuda" else 15)) + more
    row, x = (small_numbers(size, device, dtype, generator) for size in ((cols,), (rows, cols)))
    row = strided(row, [0], [1], offset)
    number = small_numbers((), device, dtype, generator)
    assert torch.equal(ops.affine(row, x, number), row * x + number)
    assert torch.equal(ops.affine(number, row, x), number * row + x)


SHAPES_OF_BATCHES = [
    (5, 33, 70),
    (15, 33, 70),
    (2, 100, 3),
    (3, 64, 64),
    (3, 72, 136),
    (2, 16, 72, 136),
    (4, 16, 7, 9),
    (2, 3, 31, 33),
    (3, 65, 4, 17),
    (2, 3, 9, 2, 31),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES_OF_BATCHES, ids=str)
def test_permuted_operands(device, dtype, shape):
    """Batches of transposed matrices, channels-last beside contiguous, expanded dimensions."""
    generator, choices = torch.Generator().manual_seed(0), random.Random(0)
    values = small_numbers((3, *shape), device, dtype, generator)
    orders = list(itertools.permutations(range(len(shape))))
    # Where accesses may all be whole, mostly such: one operand decides for all.
    offsets = (0, 0, 0, 0, 0, 8, 1) if all(n % 8 == 0 for n in shape[1:]) else (0, 0, 1, 5)
    for order in choices.sample(orders, min(len(orders), 24)):
        operands = []
        for x, kind in zip(values, ("permuted", "permuted too", "straight"), strict=True):
            own = order if choices.random() < 0.7 and kind != "straight" else range(len(shape))
            if kind == "permuted too":
                expanded = {d for d in own if choices.random() < 0.3}
                x = x[tuple(slice(1 if d in expanded else None) for d in range(len(shape)))]
            operands.append(strided(x, own, [1] * len(shape), choices.choice(offsets)))
        choices.shuffle(operands)
        a, x, b = operands
        strides = [t.stride() for t in operands]
        assert torch.equal(ops.affine(a, x, b), a * x + b), strides
        assert torch.equal(ops.affine(a, x.expand(shape), b), a * x + b), strides


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((72, 136), (1, 0)),
        ((3, 72, 136), (0, 2, 1)),
        # A transposed operand is contiguous along another dimension than the last but one.
        ((64, 4, 72), (2, 1, 0)),
        ((2, 72, 3, 136), (0, 3, 2, 1)),
    ],
    ids=str,
)
def test_aligned_operands(device, dtype, shape, order):
    """All accesses are whole, and tiles at the ends are not."""
    generator = torch.Generator().manual_seed(0)
    a, x, b = small_numbers((3, *shape), device, dtype, generator)
    lies = strided(x, order, [1] * len(shape), 0)
    assert torch.equal(ops.affine(a, lies, b), a * x + b)
    assert torch.equal(ops.affine(lies, a, lies), x * a + x)
    row = b[(0,) * (len(shape) - 1)]
    assert torch.equal(ops.affine(a, lies, row), a * x + row)
    grads = torch.ops.extension_cpp.mymul_backward(a, b, lies)
    assert torch.equal(grads[0], a * x)
    assert torch.equal(grads[1], a * b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (31, 130), (100, 257), (3, 65, 70)], ids=str)
def test_out_that_lies_differently(device, dtype, shape):
    """An output beside operands that lie the other way, be it one of them; what surrounds it."""
    generator = torch.Generator().manual_seed(0)
    first, second = small_numbers((2, *shape), device, dtype, generator)
    orders = [range(len(shape)), [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]]
    for order, in_place, offset in itertools.product(orders, (False, True), (0, 1, 6)):
        for gaps in ([1] * len(shape), [1, 2, *[1] * len(shape)][: len(shape)]):
            other = strided(second, orders[order is orders[0]], [1] * len(shape), offset)
            out = strided(first, order, gaps, offset)
            memory = out.new_empty(0).set_(out.untyped_storage())
            outside = torch.ones_like(memory, dtype=torch.bool)
            outside.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(False)
            expected = first + second
            ops.myadd_out(out if in_place else first, other, out)
            assert torch.equal(out, expected)
            assert memory[outside].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
def test_channels_last_stays(device):
    x = torch.randn(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
    per_channel = torch.randn(3, 1, 1, device=device)
    for output in (
        ops.relu(x),
        ops.square(x),
        ops.mymul(x, x),
        ops.mymuladd(x, x, 1.0),
        ops.vector_add(x, per_channel),
        ops.affine(per_channel, x, per_channel),
        torch.ops.extension_cpp.relu_backward(torch.ones_like(x[:1, :1]).expand_as(x), x),
    ):
        assert output.is_contiguous(memory_format=torch.channels_last)
    single = x[:1]
    assert ops.relu(single).stride() == torch.relu(single).stride() == (60, 1, 15, 3)
    assert ops.mymul(x, x.contiguous()).is_contiguous()
    assert ops.relu(x[..., ::2]).is_contiguous()


@pytest.mark.parametrize("device", DEVICES)
def test_more_dimensions_than_the_loops_take(device):
    """Seventeen dimensions of which no two merge."""
    a = torch.randn([2, 1] * 8 + [2], device=device)
    b = torch.randn([1, 2] * 8 + [1], device=device)
    torch.testing.assert_close(ops.affine(a, b, b), a * b + b)
    reversed_a, c, out = torch.randn(3, *[2] * 17, device=device)
    reversed_a = reversed_a.permute(*reversed(range(17)))
    expected = reversed_a + c
    for target in (out, out.permute(*reversed(range(17))), c):
        ops.myadd_out(reversed_a, c, target)
        torch.testing.assert_close(target, expected)


# Views of one memory of 12 x 16 elements: a, b, out.
APART = {
    "out is a": lambda m: (m[:6, :8], m[6:, 8:], m[:6, :8]),
    "out is b": lambda m: (m[:6, :8], m[6:, 8:], m[6:, 8:]),
    "out is both": lambda m: (m[:6, :8], m[:6, :8], m[:6, :8]),
    "out is a, transposed": lambda m: (m[:6, :8].t(), m[6:, 8:].t(), m[:6, :8].t()),
    "every other row": lambda m: (m[::2, :8], m[::2, 8:], m[1::2, :8]),
    "every other column": lambda m: (m[:6, ::2], m[6:, ::2], m[:6, 1::2]),
    "beside each other": lambda m: (m[:6, :8], m[6:, 8:], m[:6, 8:]),
    "a row after another": lambda m: (m[0], m[1], m[2]),
    "expanded inputs": lambda m: (m[0, :8].expand(6, 8), m[1, :1].expand(6, 8), m[6:, :8]),
}
IN_PART = {
    "a row further": (lambda m: (m[:6, :8], m[6:, 8:], m[1:7, :8]), "a"),
    "an element further": (lambda m: (m[0], m[1], m.flatten()[1:17]), "a"),
    "one element in common": (lambda m: (m[11:, 8:].expand(6, 8), m[:6, :8], m[5:11, 7:15]), "b"),
    "transposed": (lambda m: (m[:8, :8], m[4:, 8:], m[:8, :8].t()), "a"),
    "reads what it writes": (lambda m: (m[0].expand(6, 16), m[6:], m[:6]), "a"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", APART)
def test_out_may_be_an_input(device, name):
    memory = torch.arange(192.0, device=device).view(12, 16)
    a, b, out = APART[name](memory)
    expected = a + b
    rest = memory.clone()
    torch.as_strided(rest, out.shape, out.stride(), out.storage_offset()).copy_(expected)
    ops.myadd_out(a, b, out)
    assert torch.equal(out, expected)
    assert torch.equal(memory, rest)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", IN_PART)
def test_out_may_not_overlap_in_part(device, name):
    views, argument = IN_PART[name]
    a, b, out = views(torch.arange(192.0, device=device).view(12, 16))
    before = out.clone()
    message = (
        f"myadd_out: out must be {argument} itself or share no memory with it, "
        "but overlaps it in part"
    )
    with pytest.raises(RuntimeError) as error:
        ops.myadd_out(a, b, out)
    assert str(error.value) == message
    assert torch.equal(out, before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*APART, *IN_PART])
def test_out_when_compiled(device, name):
    """A compiled graph sees no overlap: it gives what a sum on copies would have given."""
    views = APART[name] if name in APART else IN_PART[name][0]
    memory = torch.arange(192.0, device=device).view(12, 16)
    expected = memory.clone()
    a, b, out = views(expected)
    out.copy_(a + b)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(memory):
        a, b, out = views(memory)
        ops.myadd_out(a, b, out)
        return out + 0

    torch._dynamo.reset()
    result = run(memory)
    assert torch.equal(memory, expected)
    assert torch.equal(result, views(expected)[2])


def test_out_under_vmap():
    def run(a, b, out):
        ops.myadd_out(a, b, out)
        return out

    a, b, out = torch.randn(5, 3), torch.randn(3), torch.empty(3, 5)
    assert torch.equal(torch.vmap(run, in_dims=(0, None, 1))(a, b, out), a + b)
    assert torch.equal(out, (a + b).t())
    with pytest.raises(RuntimeError, match="myadd_out: out must be batched under vmap"):
        torch.vmap(run, in_dims=(0, None, None))(a, b, torch.empty(3))


LAYOUTS = {
    "contiguous": lambda n, m: torch.randn(n, m, 4, 5),
    "channels-last": lambda n, m: torch.randn(n, m, 4, 5).to(memory_format=torch.channels_last),
    "transposed": lambda n, m: torch.randn(m, n, 4, 5).transpose(0, 1),
    "sliced": lambda n, m: torch.randn(n, 2 * m, 4, 5)[:, ::2],
    "expanded": lambda n, m: torch.randn(1, m, 4, 5).expand(n, m, 4, 5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_symbolic_sizes_are_guarded_once(layout):
    """One graph with symbolic sizes for all sizes of a layout, with the strides of eager."""
    make = LAYOUTS[layout]

    def run(x, y):
        return ops.relu(x), ops.mymul(x, y), ops.affine(y, x, x[:1, :, :1, :1])

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for i, (n, m) in enumerate([(3, 7), (8, 2), (2, 9), (6, 6)]):
        x, y = make(n, m), make(n, m)
        with torch.compiler.set_stance("fail_on_recompile" if i else "default"):
            outputs = compiled(x, y)
        for output, expected in zip(outputs, run(x, y), strict=True):
            torch.testing.assert_close(output, expected)
            assert output.stride() == expected.stride()


def add_into(out, x):
    ops.myadd_out(x, x, out)
    return out


# Each of y, of as many rows as data decides.
OF_DATA = {
    "as it is": lambda y: ops.affine(y, ops.relu(y), y),
    "flat": lambda y: ops.square(y[y > 0]),
    "transposed": lambda y: ops.relu(y.mT),
    "transposed, dense": lambda y: ops.relu(y.mT.contiguous().mT),
    "two that agree": lambda y: ops.mymul(y.mT, y.mT),
    "two that differ": lambda y: ops.vector_add(y, y.mT.contiguous().mT),
    "columns": lambda y: ops.relu(y[..., :3]),
    "rows": lambda y: ops.relu(y.mT.contiguous()[..., ::2, :]),
    "channels-last": lambda y: ops.square(y[:, :, None].to(memory_format=torch.channels_last)),
    "permuted": lambda y: ops.square(y.permute(2, 0, 1)),
    "frozen factor": lambda y: ops.affine(torch.full((5,), 2.0), y, ops.relu(y)),
    "layer": lambda y: ops.affine(torch.full((5,), 2.0), y, torch.ones(5)),
    "reduction": lambda y: ops.reduce_sum(y.mT, 0),
    "norm": lambda y: ops.fused_layer_norm(y.mT.contiguous().mT),
    "transposed out": lambda y: add_into(torch.empty_like(y.mT).mT, y.detach()),
    "out of columns": lambda y: add_into(y.new_empty(*y.shape[:2], 10)[..., ::2], y.detach()),
}


def test_sizes_that_depend_on_data():
    def run(x, mask):
        y = x[mask]
        return {name: function(y) for name, function in OF_DATA.items()}

    torch._dynamo.reset()
    x = torch.randn(7, 4, 5, requires_grad=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        for count in (3, 7, 1, 0):
            mask = torch.arange(7) < count
            outputs, references = compiled(x, mask), run(x, mask)
            for name, output in outputs.items():
                torch.testing.assert_close(output, references[name], msg=name)
            gradients = (
                torch.autograd.grad(sum(o.sum() for o in results.values()), x)
                for results in (outputs, references)
            )
            torch.testing.assert_close(*gradients)


def test_a_layout_that_data_makes_dense_is_told_apart():
    """All columns make the slice dense, and the kernel would keep its order: the graph checks."""

    def run(x, mask):
        columns = mask.nonzero().shape[0]
        torch._check(columns <= x.shape[1])
        return ops.relu(x[:, :columns].t())

    torch._dynamo.reset()
    x = torch.randn(7, 5)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        assert compiled(x, torch.arange(5) < 3).stride() == (7, 1)
        with pytest.raises(RuntimeError, match=r"assertion failed for expression Ne\(u0, 5\)"):
            compiled(x, torch.arange(5) < 5)


def rows_innermost(y):
    """The same tensor, with its first dimension innermost in memory."""
    return y.permute(1, 2, 0).contiguous().permute(2, 0, 1)


# Layouts that a size of 1 changes: those that differ in where this dimension lies are one then, a
# tensor of one row has the output's shape, and rows with gaps between them are dense.
THAT_ONE_ROW_CHANGES = {
    "mymul": lambda y, row: ops.mymul(y.mT, rows_innermost(y).mT),
    "mymuladd": lambda y, row: ops.mymuladd(rows_innermost(y).mT, y.mT, 1.5),
    "swiglu": lambda y, row: ops.swiglu(y.mT, rows_innermost(y).mT),
    "one row": lambda y, row: ops.mymul(y.mT.contiguous().mT, row),
    "gaps": lambda y, row: ops.square(y[:, :2].mT),
    "gaps, layer": lambda y, row: ops.bn_relu(y[:, :2].mT, *torch.ones(4, 5)),
    "gaps and none": lambda y, row: ops.affine(
        y[:, :2], y[:, 2:].mT.contiguous().mT, y.new_ones(5)
    ),
    "sum": lambda y, row: ops.vector_add(
        torch.cat([y, row]).mT, rows_innermost(torch.cat([y, row])).mT
    ),
}

THAT_ONE_ROW_LEAVES = {
    "contiguous": lambda y, row: ops.swiglu(y, y * 2),
    "halves": lambda y, row: ops.swiglu(*torch.cat([y, y + 1], -1).chunk(2, -1)),
    "columns": lambda y, row: ops.square(y[..., :3]),
    "expanded": lambda y, row: ops.mymuladd(y, row.expand_as(y), 1.5),
    "one row": lambda y, row: ops.mymul(y, row),
    "transposed": lambda y, row: ops.square(y.mT),
    "of one layout": lambda y, row: ops.mymul(y.mT, ops.square(y).mT),
    "rows innermost": lambda y, row: ops.relu(rows_innermost(y)),
    "rows": lambda y, row: ops.fused_layer_norm(y.mT, *torch.ones(2, 4)),
}


def test_one_row_where_inductor_knows_of_some(monkeypatch):
    """Inductor's code is for the strides at any number of rows, and copies where 1 changes them."""
    copied = []
    require = lowering.require_contiguous_strides

    def require_contiguous_strides(node, *args, **kwargs):
        copied.append(node.target)
        return require(node, *args, **kwargs)

    monkeypatch.setattr(lowering, "require_contiguous_strides", require_contiguous_strides)

    def check(functions, with_gradients):
        def run(x, row, mask):
            y = x[mask]
            return {name: function(y, row) for name, function in functions.items()}

        x, row = (torch.randn(n, 4, 5, requires_grad=with_gradients) for n in (7, 1))
        compiled = torch.compile(run, fullgraph=True)
        for count in (5, 1, 0, 2):
            mask = torch.arange(7) < count
            outputs, references = compiled(x, row, mask), run(x, row, mask)
            for name, output in outputs.items():
                torch.testing.assert_close(output, references[name], msg=name)
            if with_gradients:
                gradients = (
                    torch.autograd.grad(sum(o.square().sum() for o in results.values()), (x, row))
                    for results in (outputs, references)
                )
                torch.testing.assert_close(*gradients)

    with fresh_compiler(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(THAT_ONE_ROW_LEAVES, with_gradients=False)
        assert copied == []
        check(THAT_ONE_ROW_CHANGES, with_gradients=True)
        assert len(copied) >= len(THAT_ONE_ROW_CHANGES)


@pytest.mark.parametrize("name", OF_DATA)
def test_fake_strides_of_sizes_that_depend_on_data(name):
    """What the fake kernel says of the strides holds for the kernel at any number of rows."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    x, mask = torch.randn(7, 4, 5), torch.arange(7) < 3
    with mode:
        y = mode.from_tensor(x, static_shapes=True)[mode.from_tensor(mask, static_shapes=True)]
        fake = OF_DATA[name](y)
    rows = {y.shape[0].node.expr: 3}
    strides = [s if isinstance(s, int) else int(s.node.expr.subs(rows)) for s in fake.stride()]
    assert tuple(strides) == OF_DATA[name](x[mask]).stride()


# The operators of PyTorch's tutorial on custom operators, used as its readers do.


def tutorial_samples(device, requires_grad):
    def tensor(*shape, grad=requires_grad):
        return torch.randn(shape, device=device, requires_grad=grad)

    return [
        (tensor(3), tensor(3), 1),
        (tensor(20), tensor(20), 3.14),
        (tensor(20), tensor(20, grad=False), -123),
        (tensor(2, 3, grad=False), tensor(2, 3), -0.3),
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_tutorial_mymuladd(device):
    for a, b, c in tutorial_samples(device, requires_grad=True):
        output, expected = ops.mymuladd(a, b, c), a * b + c
        torch.testing.assert_close(output, expected)
        inputs = [t for t in (a, b) if t.requires_grad]
        grad_output = torch.randn_like(output)
        torch.testing.assert_close(
            torch.autograd.grad(output, inputs, grad_output),
            torch.autograd.grad(expected, inputs, grad_output),
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_tutorial_opcheck(device, requires_grad):
    operators = torch.ops.extension_cpp
    for sample in tutorial_samples(device, requires_grad):
        torch.library.opcheck(operators.mymuladd.default, sample)
    for size in (3, 20):
        tensors = [torch.randn(size, device=device, requires_grad=requires_grad) for _ in range(3)]
        torch.library.opcheck(operators.myadd_out.default, tensors)


@pytest.mark.parametrize("device", DEVICES)
def test_tutorial_myadd_out(device):
    for size in (3, 20):
        a, b, out = (torch.randn(size, device=device) for _ in range(3))
        assert ops.myadd_out(a, b, out) is None
        torch.testing.assert_close(out, torch.add(a, b))


@pytest.mark.parametrize("device", DEVICES)
def test_tutorial_compiled_model(device):
    """On CUDA with CUDA graphs, where work on another stream than the current one would show."""
    linear = torch.nn.Linear(1000, 1000, device=device)
    x = torch.randn(1, 1000, device=device)

    def model(x):
        return ops.mymuladd(linear(x), linear(x), 0.0)

    torch._dynamo.reset()
    mode = {"mode": "reduce-overhead"} if device == "cuda" else {"backend": "aot_eager"}
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True, **mode)(x), model(x))
