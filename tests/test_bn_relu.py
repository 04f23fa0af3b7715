"""What the battery cannot say of bn_relu: layouts of images, constants; its layer."""

import itertools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from called import Called
from torch import Tensor, nn

from extension_cpp.nn import ConvBnRelu
from extension_cpp.ops import bn_relu
from extension_cpp.testing import devices

on_each_device = pytest.mark.parametrize("device", devices())
LAYOUTS = {
    (2, 5, 6): [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0)],
    (2, 5, 6, 7): [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3)],
    (2, 1, 6, 7): [(0, 1, 2, 3), (0, 2, 3, 1)],
    (1, 5, 1, 1): [(0, 1, 2, 3), (0, 2, 3, 1)],
    (2, 3, 4, 5, 6): [(0, 1, 2, 3, 4), (0, 2, 3, 4, 1), (0, 2, 1, 3, 4)],
}


def parameters(channels: int, **options) -> list[Tensor]:
    torch.manual_seed(0)
    weight, bias, mean = torch.randn(3, channels, **options)
    return [weight, bias, mean, torch.rand(channels, **options) + 0.5]


def in_order(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """The same values, the dimensions in memory in this order, outermost first."""
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)


@on_each_device
@pytest.mark.parametrize(
    ("shape", "order"), [(shape, order) for shape, orders in LAYOUTS.items() for order in orders]
)
def test_dense_layouts_are_kept(shape, order, device):
    options = {"device": device, "dtype": torch.float64}
    given = [t.requires_grad_(k < 2) for k, t in enumerate(parameters(shape[1], **options))]
    plain = torch.randn(shape, **options)
    input = in_order(plain, order).requires_grad_()
    output = bn_relu(input, *given)
    weight, bias, mean, var = given
    expected = F.batch_norm(input, mean, var, weight, bias).relu()
    torch.testing.assert_close(output, expected)
    assert output.stride() == bn_relu(input.detach(), *given).stride() == input.stride()
    cotangent = in_order(torch.randn(shape, **options), order)
    inputs = [input, weight, bias]
    actual = torch.autograd.grad(output, inputs, cotangent)
    assert actual[0].stride() == input.stride()
    for ours, theirs in zip(actual, torch.autograd.grad(expected, inputs, cotangent), strict=True):
        torch.testing.assert_close(ours, theirs)


@on_each_device
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wide", [False, True])
def test_half_images_of_networks(wide, dtype, memory_format, device):
    """As PyTorch's, which takes float32 parameters with half images, too."""
    given = [t.to(device, torch.float32 if wide else dtype) for t in parameters(64)]
    input = torch.randn(8, 64, 14, 15, device=device).to(dtype, memory_format=memory_format)
    output = bn_relu(input, *given)
    weight, bias, mean, var = (t.float() for t in given)
    expected = F.batch_norm(input.float(), mean, var, weight, bias).relu().to(dtype)
    assert output.dtype == dtype
    assert output.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(output, expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


# Channels and planes of every kind that loops tell apart: whether they are whole accesses, how many
# lie in an access or a block, whether few or many rows follow; of one image, and of one channel.
SIZES = [
    *((5000, 1), (3001, 3), (700, 7), (2, 5), (600, 64), (3, 4096), (40, 2049), (2, 20000)),
    *((6, 129, 3), (17, 40000, 3), (4, 33, 2, 2), (90, 64, 7, 7), (1, 3, 120, 121)),
    *((9, 3, 120, 121), (2, 1, 70, 70), (60, 40, 28, 30), (200, 255, 6, 7)),
    *((270, 1001), (1030, 72), (11, 4096)),  # on a GPU a thread has several rows
    (2, 5, 32, 64),  # on a GPU planes are cut into pieces, where something is summed
]


def misaligned(tensor: Tensor) -> Tensor:
    """The same values and layout, in memory from one element off a boundary."""
    flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)[1:]
    return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def check_beside_float64(
    shape: tuple[int, ...], last: bool, dtype: torch.dtype, how: str, device: str
) -> None:
    """Results and gradients, to what their rounding explains."""
    is_wide = {"wide": (True,) * 4, "statistics wide": (False, False, True, True)}
    given = [
        t.to(device, torch.float32 if wide else dtype)
        for t, wide in zip(parameters(shape[1]), is_wide.get(how, (False,) * 4), strict=True)
    ]
    if "misaligned" in how:
        given = [misaligned(t) for t in given]
    images = torch.randn(2, *shape, device=device).to(dtype)
    if last:
        images = images.movedim(2, -1).contiguous().movedim(-1, 2)
    input, cotangent = map(misaligned if how == "misaligned" else torch.clone, images)

    of_channel = (-1, *[1] * (len(shape) - 2))
    weight, bias, mean, var = (t.double().view(of_channel) for t in given)
    rstd = (var + 1e-5).rsqrt()
    x_hat = (input.double() - mean) * rstd
    plain = x_hat * weight + bias
    cotangent.mul_(plain.abs() > 1e-5)  # where rounding does not say whether it is 0
    grad = cotangent.double() * (plain > 0)
    rounding = (
        torch.finfo(dtype).eps + 8 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    )

    subnormal = torch.finfo(dtype).tiny * torch.finfo(dtype).eps

    def check(actual: Tensor, expected: Tensor, scale: Tensor) -> None:
        error = (actual.double() - expected).abs()
        bound = rounding * expected.abs() + 1e-6 * scale + subnormal
        assert (error <= bound).all(), f"{(error / bound).max()} of what rounding explains"

    output = bn_relu(input, *given)
    grads = torch.ops.extension_cpp.bn_relu_backward(cotangent, input, *given)
    assert output.stride() == grads[0].stride() == input.stride()
    check(output, plain.relu(), x_hat.abs() * weight.abs() + bias.abs())
    check(grads[0], grad * weight * rstd, grad.abs())
    dims = [d for d in range(len(shape)) if d != 1]
    for actual, terms in zip(grads[1:], (grad * x_hat, grad), strict=True):
        check(actual, terms.sum(dims), terms.abs().sum(dims))
    alone = torch.ops.extension_cpp.bn_relu_input_backward(cotangent, input, *given)
    assert alone.stride() == input.stride()
    check(alone, grad * weight * rstd, grad.abs())
    for one, other in zip(
        grads, torch.ops.extension_cpp.bn_relu_backward(cotangent, input, *given), strict=True
    ):
        assert torch.equal(one, other)


@on_each_device
@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        *itertools.product(
            (torch.float64, torch.float32, torch.bfloat16), ("aligned", "misaligned")
        ),
        (torch.float16, "aligned"),
        *((torch.bfloat16, how) for how in ("wide", "statistics wide")),
        *((dtype, "parameters misaligned") for dtype in (torch.float32, torch.bfloat16)),
    ],
)
@pytest.mark.parametrize(
    ("shape", "last"), [(s, last) for s in SIZES for last in (False, True)[: len(s) - 1]]
)
def test_any_number_and_size_of_channels(shape, last, dtype, how, device):
    check_beside_float64(shape, last, dtype, how, device)


@on_each_device
@pytest.mark.parametrize(("dtype", "last"), [(torch.float32, False), (torch.bfloat16, True)])
def test_many_images(last, dtype, device):
    """So many that on a GPU each thread has several in turn, where it sums."""
    images = 70 if device == "cpu" else 700
    check_beside_float64((images, 333, 10, 10), last, dtype, "aligned", device)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_rows(dtype, device):
    """On a GPU so long that what is read of all parameters has left the cache before the next."""
    channels = 5000 if device == "cpu" else 9_000_000
    check_beside_float64((9, channels), False, dtype, "aligned", device)
    check_beside_float64((9, channels), False, dtype, "statistics wide", device)
    check_beside_float64((9, channels + 1), False, dtype, "aligned", device)
    # Ragged rows, of which every 32nd begins at the same place between two boundaries.
    check_beside_float64((130, channels // 5 + 1), False, dtype, "aligned", device)


@pytest.mark.parametrize(
    "needs", [(True, False, False), (False, True, False), (True, False, True), (False, False, True)]
)
def test_only_what_is_needed_is_summed(needs):
    input = torch.randn(3, 5, 4, dtype=torch.float64)
    weight, bias, *statistics = parameters(5, dtype=torch.float64)
    given = [
        t.requires_grad_(needed) for t, needed in zip((input, weight, bias), needs, strict=True)
    ]
    wanted = [t for t in given if t.requires_grad]
    mean, var = statistics
    expected = F.batch_norm(input, mean, var, weight, bias).relu()
    right = torch.autograd.grad(expected.square().sum(), wanted, create_graph=True)
    output = bn_relu(*given, *statistics)
    with Called() as called:
        actual = torch.autograd.grad(output.square().sum(), wanted, create_graph=True)
    summed = any(needs[1:])
    assert f"extension_cpp::bn_relu{'' if summed else '_input'}_backward" in called.names
    assert f"extension_cpp::bn_relu{'_input' if summed else ''}_backward" not in called.names
    for ours, theirs in zip(actual, right, strict=True):
        torch.testing.assert_close(ours, theirs)
    # And on, through the backward itself.
    again = [
        torch.autograd.grad(sum(g.square().sum() for g in gradients), wanted)
        for gradients in (actual, right)
    ]
    for ours, theirs in zip(*again, strict=True):
        torch.testing.assert_close(ours, theirs)


@on_each_device
def test_the_gradient_of_the_input_alone_has_all_transforms(device):
    op = torch.ops.extension_cpp.bn_relu_input_backward
    grad, input = torch.randn(2, 3, 5, 4, dtype=torch.float64, device=device)
    given = parameters(5, dtype=torch.float64, device=device)
    torch.library.opcheck(op, (grad, input, *given))
    differentiable = [t.requires_grad_() for t in (grad, input, *given[:2])]
    assert torch.autograd.gradcheck(
        lambda *args: op(*args, *given[2:]), differentiable, check_forward_ad=True
    )
    batches = [torch.stack([t.detach(), t.detach() * 2]) for t in (grad, input, *given)]
    expected = torch.stack([op(*example) for example in zip(*batches, strict=True)])
    torch.testing.assert_close(torch.vmap(op)(*batches), expected)
    one = torch.vmap(op, in_dims=(0, 0, *(None,) * 4))(*batches[:2], *given)
    expected = torch.stack([op(*example, *given) for example in zip(*batches[:2], strict=True)])
    torch.testing.assert_close(one, expected)


@on_each_device
def test_both_layouts_give_equal_bits(device):
    input = torch.randn(4, 24, 9, 11, device=device)
    given = parameters(24, device=device)
    last = bn_relu(input.to(memory_format=torch.channels_last), *given)
    assert torch.equal(bn_relu(input, *given), last)


@on_each_device
def test_statistics_far_from_zero(device):
    """They are subtracted first: nothing of the difference is lost."""
    weight, bias, mean, var = parameters(7, device=device)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        input = (torch.randn(2, 7, 5, 5, device=device) + 1e4).to(memory_format=memory_format)
        output = bn_relu(input, weight, bias, mean + 1e4, var)
        upcast = [t.double() for t in (input, mean + 1e4, var, weight, bias)]
        expected = F.batch_norm(*upcast).relu().float()
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


@on_each_device
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_nan_and_infinity(memory_format, device):
    input = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1.0], device=device)
    input = input.view(1, 1, 5, 1).expand(1, 6, 5, 1).contiguous(memory_format=memory_format)
    weight = torch.tensor([1.0, -1.0, 0.0, 1.0, 1.0, 1.0], device=device)
    bias = torch.tensor([0.0, 0.0, 1.0, 0.0, math.inf, 0.0], device=device)
    mean = torch.tensor([0.0, 0.0, 0.0, math.inf, 0.0, 0.0], device=device)
    var = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, -1.0], device=device)
    expected = F.batch_norm(input, mean, var, weight, bias).relu()
    torch.testing.assert_close(bn_relu(input, weight, bias, mean, var), expected, equal_nan=True)


@pytest.mark.parametrize("which", [2, 3])
def test_statistics_are_constants(which):
    input, given = torch.randn(2, 5, 3), parameters(5)
    name = ("running_mean", "running_var")[which - 2]
    message = f"^bn_relu: {name} is a constant, and has no derivative: detach it$"
    given[which].requires_grad_()
    with pytest.raises(RuntimeError, match=message):
        bn_relu(input, *given)
    with torch.no_grad():
        bn_relu(input, *given)
    given[which].requires_grad_(False)

    def of(statistic):
        return bn_relu(input, *given[:which], statistic, *given[which + 1 :]).sum()

    with pytest.raises(RuntimeError, match=message):
        torch.func.grad(of)(given[which])
    with pytest.raises(RuntimeError, match=message):
        torch.func.jvp(of, (given[which],), (torch.ones(5),))


def layer_and_parts(dim: int, device: str) -> tuple[ConvBnRelu, nn.Sequential]:
    """A layer whose statistics are those of some batches, and what it shall be."""
    torch.manual_seed(0)
    layer = ConvBnRelu(3, 8, 3, stride=2, padding=1, dim=dim, device=device)
    plain = nn.Sequential(layer.conv, layer.bn, nn.ReLU())
    nn.init.uniform_(layer.bn.weight, -1, 2)
    nn.init.normal_(layer.bn.bias)
    for _ in range(3):
        layer(torch.randn(6, 3, *[12] * dim, device=device))
    return layer, plain


@on_each_device
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("training", [True, False])
def test_the_layer_is_the_composition_of_its_parts(training, dim, device):
    layer, plain = layer_and_parts(dim, device)
    layer.train(training)
    input = torch.randn(6, 3, *[12] * dim, device=device, requires_grad=True)
    inputs = [input, *layer.parameters()]
    output, expected = layer(input), plain(input)
    torch.testing.assert_close(output, expected)
    actual = torch.autograd.grad(output.square().sum(), inputs)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    for ours, theirs in zip(actual, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_only_inference_is_fused(monkeypatch):
    from extension_cpp.operators.bn_relu import module

    calls = []
    monkeypatch.setattr(module, "bn_relu", lambda *args: calls.append(args) or bn_relu(*args))
    layer, _ = layer_and_parts(2, "cpu")
    input = torch.randn(2, 3, 12, 12)
    before = layer.bn.running_mean.clone()
    layer(input)
    assert not calls
    assert not torch.equal(layer.bn.running_mean, before)
    layer.eval()(input)
    assert len(calls) == 1
    # Without running statistics the batch's own serve at inference, too.
    for options in ({"track_running_stats": False}, {"affine": False}):
        bn = nn.BatchNorm2d(8, **options).eval()
        other = ConvBnRelu.of(layer.conv, bn)
        torch.testing.assert_close(other(input), torch.relu(bn(layer.conv(input))))
    assert len(calls) == 1


class Doubled(nn.BatchNorm2d):
    def forward(self, input):
        return 2 * super().forward(input)


def hooked(bn: nn.Module) -> nn.Module:
    bn.register_forward_hook(lambda module, args, output: output + 1)
    return bn


def replaced(bn: nn.Module) -> nn.Module:
    bn.forward = lambda input: input * 0 + 1
    return bn


def without_bias(bn: nn.Module) -> nn.Module:
    bn.register_parameter("bias", None)
    return bn


@pytest.mark.parametrize(
    "bn",
    [
        lambda: Doubled(8),
        lambda: hooked(nn.BatchNorm2d(8)),
        lambda: without_bias(nn.BatchNorm2d(8)),
        lambda: replaced(nn.BatchNorm2d(8)),
        lambda: nn.SyncBatchNorm(8),
        lambda: nn.Identity(),
    ],
    ids=["subclass", "hook", "without bias", "replaced", "synchronised", "none"],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_batch_normalisation_does_besides_is_kept(bn, compiled):
    layer = ConvBnRelu.of(nn.Conv2d(3, 8, 3), bn().eval())
    plain = nn.Sequential(layer.conv, layer.bn, nn.ReLU())
    input = torch.randn(2, 3, 12, 12)
    called = torch.compile(layer, backend="eager") if compiled else layer
    torch.testing.assert_close(called(input), plain(input))


def test_hooks_of_all_modules_see_the_batch_normalisation():
    def more(module, args, output):
        return output + 1 if isinstance(module, nn.BatchNorm2d) else output

    layer, plain = layer_and_parts(2, "cpu")
    input = torch.randn(2, 3, 12, 12)
    with nn.modules.module.register_module_forward_hook(more):
        torch.testing.assert_close(layer.eval()(input), plain.eval()(input))


def test_lazy_parts_are_initialised_at_inference():
    layer = ConvBnRelu.of(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d()).eval()
    input = torch.randn(2, 3, 12, 12)
    for _ in range(2):
        torch.testing.assert_close(layer(input), torch.relu(layer.bn(layer.conv(input))))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_an_input_without_a_batch_is_what_it_is_to_its_parts(dim):
    """PyTorch's convolutions take one; its normalisations refuse it, or see a batch."""
    layer, plain = layer_and_parts(dim, "cpu")
    input = torch.randn(3, *[16] * dim)  # to 8 channels, 8 high and wide
    if dim == 1:
        torch.testing.assert_close(layer.eval()(input), plain.eval()(input))
        return
    with pytest.raises(ValueError, match="D input") as expected:
        plain.eval()(input)
    with pytest.raises(ValueError, match="D input") as raised:
        layer(input)
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("training", [False, True])
def test_the_layer_can_be_traced(training):
    layer, plain = layer_and_parts(2, "cpu")
    traced = torch.fx.symbolic_trace(layer.train(training))
    input = torch.randn(2, 3, 12, 12)
    torch.testing.assert_close(traced(input), plain.train(training)(input))
    loaded = pickle.loads(pickle.dumps(traced.eval()))
    torch.testing.assert_close(loaded(input), plain.eval()(input))


def test_derivatives_of_an_empty_batch_of_parameters():
    def loss(input, weight):
        return bn_relu(input, weight, weight, weight.detach(), weight.detach()).sum()

    args = torch.randn(0, 4, 3, 5), torch.ones(0, 3)
    assert torch.func.vmap(torch.func.grad(loss))(*args).shape == args[0].shape


@on_each_device
def test_channels_last_is_kept(device):
    layer, plain = layer_and_parts(2, device)
    layer.eval().to(memory_format=torch.channels_last)
    input = torch.randn(6, 3, 12, 12, device=device).to(memory_format=torch.channels_last)
    output = layer(input)
    assert output.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(output, plain(input))


def test_the_state_is_that_of_its_parts():
    layer = ConvBnRelu(3, 8, 3)
    assert list(layer.state_dict()) == [
        "conv.weight",
        *(f"bn.{name}" for name in nn.BatchNorm2d(8).state_dict()),
    ]
    assert "conv.bias" in ConvBnRelu(3, 8, 3, bias=True).state_dict()
    with pytest.raises(ValueError, match=r"^ConvBnRelu: dim must be 1, 2 or 3, got 4$"):
        ConvBnRelu(3, 8, 3, dim=4)


def test_a_layer_around_modules_that_are_there():
    conv, bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8).eval()
    layer = ConvBnRelu.of(conv, bn)
    assert layer.conv is conv
    assert layer.bn is bn
    assert not layer.training
    input = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(layer(input), torch.relu(bn(conv(input))))


def test_the_layer_compiles_whole_under_autocast():
    layer, plain = layer_and_parts(2, "cpu")
    layer.eval()
    input = torch.randn(2, 3, 12, 12)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        output = torch.compile(layer, fullgraph=True)(input)
        expected = plain(input)
    assert output.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)
