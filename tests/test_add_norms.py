"""add_rms_norm and add_layer_norm: what the battery cannot know of them, and their layers."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from extension_cpp import ops
from extension_cpp.nn import AddLayerNorm, AddRMSNorm
from extension_cpp.operators.add_layer_norm import spec as layer
from extension_cpp.operators.add_rms_norm import spec as rms
from extension_cpp.testing import devices

operators = torch.ops.extension_cpp
on_each_device = pytest.mark.parametrize("device", devices())
on_each = pytest.mark.parametrize("spec", [rms, layer], ids=lambda spec: spec.spec.name)
on_each_layer = pytest.mark.parametrize(
    ("ours", "theirs"), [(AddRMSNorm, nn.RMSNorm), (AddLayerNorm, nn.LayerNorm)]
)


def op_of(spec):
    return getattr(operators, spec.spec.name)


def parameters_of(spec, features, **options):
    return [torch.randn(features, **options) for _ in range(2 if spec is layer else 1)]


@on_each_device
@on_each
@pytest.mark.parametrize("cols", [24, 4096, 4095, 70001])
def test_what_is_normalised_is_the_sum_as_it_is_stored(device, spec, cols):
    torch.manual_seed(0)
    # In steps of 2, of which the numbers that are added have lost most.
    input = torch.full((5, cols), 256.0, dtype=torch.bfloat16, device=device)
    residual = torch.randn(5, cols, device=device).bfloat16()
    normalised, sum, *statistics = op_of(spec)(input, residual)
    assert torch.equal(sum, input + residual)
    expected, _, *others = spec.op_reference(sum.double(), torch.zeros_like(sum).double())
    torch.testing.assert_close(normalised.double(), expected, rtol=4e-3, atol=1e-6)
    for actual, wanted in zip(statistics, others, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=3e-6, atol=0)


@on_each_device
@on_each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "shape",
    [
        *((7, 1), (6, 3), (3, 8, 17), (40, 33), (9, 4095), (2, 40001)),
        # So many rows that a GPU has one for each multiprocessor: too long for the registers of
        # one, and shared by two, five and eight, where whole accesses are aligned.
        *((200, 20001), (200, 33000), (300, 8208), (133, 36872), (133, 65536), (133, 66000)),
    ],
)
def test_odd_columns(device, spec, dtype, shape):
    torch.manual_seed(0)
    if device == "cpu":
        shape = (*(min(rows, 9) for rows in shape[:-1]), shape[-1])
    tensors = [torch.randn(shape), torch.randn(shape), *parameters_of(spec, shape[-1])]
    given = [t.to(device, dtype).requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in given]
    grads = [torch.randn(shape).to(device, dtype) for _ in range(2)]
    results = spec.spec.function(*given, eps=0.1)
    expected = spec.reference(*exact, eps=0.1)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3}.get(dtype, 4e-2)
    gradients = torch.autograd.grad(results, given, grads)
    right = torch.autograd.grad(expected, exact, [g.double() for g in grads])
    for actual, wanted in zip((*results, *gradients), (*expected, *right), strict=True):
        # The gradient of a parameter is a sum over the rows.
        terms = math.prod(shape[:-1]) if wanted.dim() == 1 else 1
        atol = tolerance * max(2.0, math.sqrt(terms))
        torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=atol)


# Rows that a warp of a GPU or a part of it has room for: a few of them to each multiprocessor, as
# many as it runs at once, and more. The last block has not rows for all of its teams.
SHORT_ROWS = [
    *((4099, 16), (70001, 16), (4099, 64), (16385, 64), (40003, 64)),
    *((4097, 256), (17001, 256), (3001, 1024), (5003, 1024)),
]


@on_each_device
@on_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHORT_ROWS, ids=str)
def test_many_short_rows(device, spec, dtype, shape):
    torch.manual_seed(0)
    rows, cols = shape
    if device == "cpu":
        rows //= 16  # to whose threads it is the same
    input, residual = torch.randn(2, rows, cols, device=device).to(dtype)
    parameters = parameters_of(spec, cols, device=device)
    narrow = [p.to(dtype) for p in parameters]
    for given in (
        [],
        parameters[:1],
        narrow[:1],
        narrow,
        [*narrow[:1], *parameters[1:]],
        parameters,
    ):
        results = op_of(spec)(input, residual, *given)
        assert torch.equal(results[1], input + residual)
        summed = results[1].double()
        expected = spec.op_reference(summed, torch.zeros_like(summed), *(p.double() for p in given))
        for actual, wanted in zip(results, expected, strict=True):
            error = max(torch.finfo(actual.dtype).eps, 2e-6)
            torch.testing.assert_close(actual.double(), wanted, rtol=error, atol=2 * error)


@on_each_device
@on_each
@pytest.mark.parametrize("shape", [(5, 24), (200, 4096), (133, 65536)])
def test_a_first_element_far_from_the_others(device, spec, shape):
    torch.manual_seed(0)
    input, residual = torch.randn(2, *shape, device=device)
    input[:, 0] = 1e6
    results = op_of(spec)(input, residual)
    expected = spec.op_reference(input.double(), residual.double())
    for actual, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-5)


@on_each_device
@on_each
def test_rows_whose_squares_overflow_have_no_gradient(device, spec):
    input = torch.full((3, 4096), 1e34, device=device)
    input[:, ::2] *= -1
    input.requires_grad_()
    residual = torch.zeros_like(input)
    normalised, _ = spec.spec.function(input, residual)
    # Large enough for the sums of the backward to overflow, too.
    (gradient,) = torch.autograd.grad(normalised, input, 1e4 * input.detach().sign())
    assert gradient.count_nonzero() == 0


@on_each_device
@on_each
@pytest.mark.parametrize("eps", [0.0, 1e-45, 1e-12, 1e6, 1e38, float("inf")])
def test_extremes_of_eps_and_rows_of_equal_numbers(device, spec, eps):
    # Powers of two, of which every mean is exact.
    rows = torch.tensor([0.0, 1.0, -4.0, 1024.0, 2.0**20, 2.0**-10], device=device)
    input = rows[:, None].expand(-1, 1000)
    normalised, sum = spec.spec.function(input, torch.zeros_like(input), eps=eps)
    assert torch.equal(sum, input)
    # On the CPU: on CUDA PyTorch's layer_norm leaves rounding of equal numbers.
    expected = spec.counterpart(input.cpu(), torch.zeros(input.shape), eps=eps)[0].to(device)
    if spec is layer and 0 < eps < torch.inf:
        assert normalised.count_nonzero() == 0
    elif spec is rms:
        torch.testing.assert_close(normalised, expected, rtol=1e-6, atol=0, equal_nan=True)
    else:
        assert normalised.isnan().all() == expected.isnan().all()


@on_each_device
@pytest.mark.parametrize(("rows", "cols"), [(4, 5), (4, 1000), (4, 100001), (200, 20000)])
@pytest.mark.parametrize("value", [1e4, -12345.678, 3e7, 1e30])
def test_of_equal_numbers_far_from_zero_the_layer_norm_leaves_nothing(device, rows, cols, value):
    input = torch.full((rows, cols), value, device=device)
    bias = torch.randn(cols, device=device)
    residual = 0.25 * input
    normalised, sum = ops.add_layer_norm(input, residual, None, bias)
    torch.testing.assert_close(normalised, bias.expand(rows, cols), rtol=0, atol=1e-6)
    mean = operators.add_layer_norm(input, residual)[2]
    torch.testing.assert_close(mean, sum[:, 0], rtol=2e-7, atol=0)


@on_each_device
@on_each
def test_a_sum_that_overflows_is_infinite(device, spec):
    input = torch.full((3, 20), 4e4, dtype=torch.float16, device=device)
    normalised, sum = spec.spec.function(input, input)
    assert torch.equal(sum, input + input)
    expected = spec.counterpart(input, input)[0]
    torch.testing.assert_close(normalised, expected, equal_nan=True)


@on_each_device
@on_each
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)], ids=str)
def test_outputs_that_are_not_used_have_no_part_in_the_gradients(device, spec, used):
    torch.manual_seed(0)
    options = {"dtype": torch.float64, "device": device}
    inputs = [torch.randn(5, 33, **options), torch.randn(5, 33, **options)]
    inputs += parameters_of(spec, 33, **options)
    for tensor in inputs:
        tensor.requires_grad_()

    def gradients(op):
        outputs = op(*inputs, eps=0.1)
        torch.manual_seed(1)
        value = sum((outputs[k] * torch.randn_like(outputs[k])).sum() for k in used)
        return torch.autograd.grad(value, inputs, allow_unused=True)

    for actual, expected in zip(gradients(op_of(spec)), gradients(spec.op_reference), strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None:
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@on_each_device
@on_each
def test_third_derivatives(device, spec):
    def thirds(op):
        torch.manual_seed(0)
        shapes = [(4, 6), (4, 6), *[(6,)] * (2 if spec is layer else 1)]
        inputs = [
            torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
            for shape in shapes
        ]
        results = []
        grads = list(op(*inputs, eps=0.1))
        for _ in range(3):
            value = sum((g * torch.randn(g.shape).to(g)).sum() for g in grads)
            grads = torch.autograd.grad(value, inputs, create_graph=True, materialize_grads=True)
            results += grads
        return results

    for actual, expected in zip(thirds(op_of(spec)), thirds(spec.op_reference), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@on_each_device
@on_each
def test_of_no_features_or_no_rows_there_is_no_nan(device, spec):
    empty = torch.empty(3, 0, device=device)
    *_, rstd = op_of(spec)(empty, empty, eps=0.25)
    assert rstd.tolist() == [2, 2, 2]
    inputs = [torch.empty(0, 5, device=device, requires_grad=True) for _ in range(2)]
    inputs += [p.requires_grad_() for p in parameters_of(spec, 5, device=device)]
    outputs = spec.spec.function(*inputs)
    gradients = torch.autograd.grad([output.sum() for output in outputs], inputs)
    assert [g.shape for g in gradients] == [t.shape for t in inputs]
    assert all(g.count_nonzero() == 0 for g in gradients)


@on_each_device
@on_each
def test_examples_may_have_parameters_of_their_own(device, spec):
    torch.manual_seed(0)
    rows = [torch.randn(3, 4, 16, device=device).bfloat16() for _ in range(4)]
    weights = parameters_of(spec, (3, 16), device=device)

    def forward(input, residual, grad_output, grad_sum, *weights):
        return op_of(spec)(input, residual, *weights)

    def backward(input, residual, grad_output, grad_sum, *weights):
        _, sum, *statistics = op_of(spec)(input, residual)
        op = getattr(operators, f"{spec.spec.name}_backward")
        return op(grad_output, grad_sum, sum, *statistics, *weights)

    for call in (forward, backward):
        batched = torch.vmap(call)(*rows, *weights)
        for k in range(3):
            alone = call(*(tensor[k] for tensor in (*rows, *weights)))
            assert [t.dtype for t in alone] == [t.dtype for t in batched]
            for actual, expected in zip(batched, alone, strict=True):
                torch.testing.assert_close(actual[k], expected)
    assert torch.equal(torch.vmap(forward)(*rows, *weights)[1], rows[0] + rows[1])


f16, f32, f64 = torch.float16, torch.float32, torch.float64
WRONG = {
    "add_rms_norm": [
        ([((), f32), ((), f32)], "input must have at least 1 dimension, got shape ()"),
        ([((3, 4), f32), ((4,), f32)], "residual must have shape (3, 4), got (4,)"),
        ([((3, 4), f32), ((3, 1), f32)], "residual must have shape (3, 4), got (3, 1)"),
        (
            [((3, 4), f16), ((3, 4), f32)],
            "residual must have the dtype of input, torch.float16, got torch.float32",
        ),
        (
            [((3, 4), torch.int64), ((3, 4), torch.int64)],
            "input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, "
            "got torch.int64",
        ),
        ([((3, 4), f32), ((3, 4), f32), ((3,), f32)], "weight must have shape (4,), got (3,)"),
        (
            [((3, 4), f16), ((3, 4), f16), ((4,), f64)],
            "weight must have the dtype of input, torch.float16, or torch.float32, "
            "got torch.float64",
        ),
    ],
    "add_rms_norm_backward": [
        (
            [((3, 4), f32), ((3, 5), f32), ((3, 4), f32), ((3,), f32)],
            "grad_sum must have shape (3, 4), got (3, 5)",
        ),
        (
            [((3, 4), f16), ((3, 4), f16), ((3, 4), f16), ((3,), f16)],
            "rstd must be torch.float32, got torch.float16",
        ),
        (
            [((3, 4), f32), ((3, 4), f32), ((3, 4), f32), ((4,), f32)],
            "rstd must have shape (3,), got (4,)",
        ),
    ],
}
WRONG["add_layer_norm"] = [
    *WRONG["add_rms_norm"],
    (
        [((3, 4), f32), ((3, 4), f32), ((4,), f32), ((3, 4), f32)],
        "bias must have shape (4,), got (3, 4)",
    ),
]


@pytest.mark.parametrize(
    ("op", "tensors", "message"),
    [(op, *wrong) for op, list_of_wrong in WRONG.items() for wrong in list_of_wrong],
)
def test_bad_inputs_have_their_messages_from_kernels_and_fake_kernels(op, tensors, message):
    def call():
        getattr(operators, op)(*(torch.zeros(shape, dtype=dtype) for shape, dtype in tensors))

    message = f"^{re.escape(f'{op}: {message}')}$"
    with pytest.raises(RuntimeError, match=message):
        call()
    with FakeTensorMode(), pytest.raises(RuntimeError, match=message):
        call()


@on_each
def test_under_autocast_on_the_cpu_the_sum_is_what_pytorch_adds(spec):
    wide, narrow = torch.ones(4, 8), torch.ones(4, 8, dtype=torch.bfloat16)
    for input, residual in ((narrow, narrow), (narrow, wide), (wide, wide)):
        with torch.autocast("cpu", torch.bfloat16):
            results = spec.spec.function(input, residual)
            expected = spec.counterpart(input, residual)
        assert [t.dtype for t in results] == [t.dtype for t in expected]


# ----- The layers


@on_each_device
@on_each_layer
@pytest.mark.parametrize("shape", [6, (6,), (4, 6), (3, 4, 6)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_the_layer_is_the_composition_of_its_parts(device, ours, theirs, shape, affine):
    torch.manual_seed(0)
    options = {"eps": 0.1, "elementwise_affine": affine, "device": device, "dtype": torch.float64}
    norm, layer = theirs(shape, **options), ours(shape, **options)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    assert layer.load_state_dict(norm.state_dict(), strict=True)
    assert repr(layer) == repr(norm).replace(theirs.__name__, ours.__name__)
    input, residual = (torch.randn(2, 3, 4, 12, dtype=torch.float64, device=device)[..., ::2],) * 2
    input, residual = input.clone().requires_grad_(), residual.neg().exp().requires_grad_()
    results = layer(input, residual)
    expected = norm(input + residual), input + residual
    cotangents = [torch.randn_like(t) for t in results]
    ours_in, theirs_in = [input, residual, *layer.parameters()], [input, residual]
    theirs_in += norm.parameters()
    gradients = torch.autograd.grad(results, ours_in, cotangents)
    right = torch.autograd.grad(expected, theirs_in, cotangents)
    for actual, wanted in zip((*results, *gradients), (*expected, *right), strict=True):
        torch.testing.assert_close(actual, wanted)


@on_each_layer
def test_the_layer_compiles_whole_and_trains(ours, theirs):
    torch.manual_seed(0)
    layer, linear = ours(8), nn.Linear(8, 8)

    def step(input, residual):
        normalised, sum = layer(input, residual)
        return sum + linear(normalised)

    compiled = torch.compile(step, fullgraph=True)
    input, residual, target = (torch.randn(64, 8) for _ in range(3))
    optimizer = torch.optim.Adam([*layer.parameters(), *linear.parameters()], lr=0.05)
    losses = []
    for _ in range(40):
        loss = F.mse_loss(compiled(input, residual), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(compiled(input, residual), step(input, residual))
    assert losses[-1] < 0.7 * losses[0]


@on_each_layer
@pytest.mark.parametrize(
    ("shape", "input", "residual", "wrong"),
    [
        (4, (3, 5), (3, 5), "input"),
        ((3, 4), (2, 3, 4), (2, 4, 3), "residual"),
        ((3, 4), (4,), (4,), "input"),
        ((), (4,), (4,), "input"),
    ],
)
def test_the_layer_names_the_shape_it_expects(ours, theirs, shape, input, residual, wrong):
    expected = [shape] if isinstance(shape, int) else list(shape)
    got = input if wrong == "input" else residual
    message = f"{ours.__name__}: the last dimensions of {wrong} must be {expected}, got shape {got}"
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        ours(shape)(torch.ones(input), torch.ones(residual))


@pytest.mark.parametrize("shape", [4, (3, 4)])
@pytest.mark.parametrize("kind", [AddRMSNorm, AddLayerNorm])
def test_the_layer_can_be_traced(kind, shape):
    layer = kind(shape)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    traced = torch.fx.symbolic_trace(layer)
    tensors = torch.randn(2, 2, 3, 4).unbind()
    for actual, expected in zip(traced(*tensors), layer(*tensors), strict=True):
        assert torch.equal(actual, expected)
    with pytest.raises(RuntimeError, match=f"^{kind.__name__}: the last dimensions of residual"):
        traced(tensors[0], tensors[1].mT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_without_eps_the_layer_adds_that_of_the_arithmetic(dtype):
    torch.manual_seed(0)
    input, residual = (1e-3 * torch.randn(2, 3, 8)).to(dtype)
    normalised, sum = AddRMSNorm(8, eps=None, dtype=dtype)(input, residual)
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    expected = F.rms_norm(sum.double(), (8,), eps=eps)
    torch.testing.assert_close(normalised, expected.to(dtype))


@on_each_device
@on_each
def test_no_rows_take_no_memory(device, spec):
    inputs = [torch.empty(0, 2**55, device=device, requires_grad=True) for _ in range(2)]
    normalised, sum, *_ = op_of(spec)(*inputs)
    gradients = torch.autograd.grad((normalised.sum(), sum.sum()), inputs)
    assert [t.shape for t in (normalised, sum, *gradients)] == [(0, 2**55)] * 4


def test_the_default_of_eps_is_the_operators():
    assert AddRMSNorm(4).eps == 1e-6
    assert AddLayerNorm(4).eps == 1e-5
