"""What the battery cannot say of softmax_cross_entropy: targets, infinities; its layer."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from extension_cpp.nn import SoftmaxCrossEntropyLoss
from extension_cpp.ops import softmax_cross_entropy
from extension_cpp.testing import devices

on_each_device = pytest.mark.parametrize("device", devices())
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
# Of losses and gradients that are about 1, against PyTorch's in float64.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
# The line that says which targets there are.
SAYS = r"softmax_cross_entropy: target must be ignore_index, -100, or in \[0, 5\), got "


def cross_entropy(logits: Tensor, target: Tensor, **options) -> Tensor:
    return F.cross_entropy(logits.double(), target, reduction="none", **options)


def agrees(logits: Tensor, target: Tensor, tolerance: float, ignore_index: int = -100) -> None:
    """Losses and gradients as PyTorch's in float64, NaN and infinities included."""
    logits = logits.detach().requires_grad_()
    upcast = logits.detach().double().requires_grad_()
    loss = softmax_cross_entropy(logits, target, ignore_index)
    expected = cross_entropy(upcast, target, ignore_index=ignore_index)
    options = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    torch.testing.assert_close(loss.double(), expected, **options)
    weights = torch.linspace(0.5, 1.5, len(target), device=logits.device)
    loss.backward(weights.to(loss.dtype))
    expected.backward(weights.to(loss.dtype).double())
    torch.testing.assert_close(logits.grad.double(), upcast.grad, **options)


@on_each_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("classes", [2, 3, 257, 8191, 8193, 32000, 50257, 131072, 131073])
def test_vocabularies(classes, dtype, device):
    torch.manual_seed(0)
    logits = (3 * torch.randn(4, classes)).to(device, dtype)
    target = torch.tensor([0, classes - 1, classes // 2, -100], device=device)
    agrees(logits, target, TOLERANCES[dtype])
    # Those of other classes by themselves, which are small beside the tolerance.
    leaf = logits.detach().requires_grad_()
    softmax_cross_entropy(leaf, target).sum().backward()
    limits = torch.finfo(dtype)
    torch.testing.assert_close(
        leaf.grad[0, 1:].double(),
        logits[0].double().softmax(-1)[1:],
        rtol=limits.eps + (1e-12 if dtype == torch.float64 else 4e-6),
        atol=limits.smallest_normal * limits.eps,
    )


@on_each_device
@pytest.mark.parametrize("classes", [6, 20000])
def test_masked_classes(classes, device):
    """-inf at whole segments of a row, at the class itself, and everywhere."""
    torch.manual_seed(0)
    logits = torch.randn(5, classes, device=device)
    logits[0, : classes - 2] = -math.inf
    logits[1, 1:] = -math.inf
    logits[2, 3] = -math.inf
    logits[3] = -math.inf
    target = torch.tensor([classes - 1, 0, 3, 2, 1], device=device)
    agrees(logits, target, 1e-5)
    loss = softmax_cross_entropy(logits, target)
    assert loss[1] == 0
    assert loss[2] == math.inf
    assert loss[3].isnan()
    assert loss[4].isfinite()


@on_each_device
@pytest.mark.parametrize("special", [math.nan, math.inf])
@pytest.mark.parametrize("classes", [6, 20000])
def test_nan_and_infinity(classes, special, device):
    torch.manual_seed(0)
    logits = torch.randn(3, classes, device=device)
    logits[0, 2] = logits[1, classes - 1] = special
    target = torch.tensor([2, 1, 1], device=device)
    agrees(logits, target, 1e-5)
    # Where the row is ignored they have no part in anything; PyTorch's gradient is NaN there.
    leaf = logits.requires_grad_()
    loss = softmax_cross_entropy(leaf, torch.tensor([-100, -100, 1], device=device))
    loss.sum().backward()
    assert loss[:2].eq(0).all()
    assert leaf.grad[:2].eq(0).all()
    assert leaf.grad[2].isfinite().all()


@on_each_device
def test_large_logits(device):
    """The loss is precise where the logsumexp is not."""
    for dtype, largest in (
        (torch.float16, 65504.0),
        (torch.bfloat16, 1e38),
        (torch.float32, 1e4),
        (torch.float32, 3e38),
    ):
        logits = torch.tensor([[1.0, 0.5, -1.0], [1.0, 1.0, -1.0], [0.0, -1.0, 1.0]]) * largest
        logits = logits.to(device, dtype)
        target = torch.tensor([0, 1, 2], device=device)
        loss = softmax_cross_entropy(logits, target)
        expected = torch.tensor([0.0, math.log(2), 0.0], device=device, dtype=dtype)
        torch.testing.assert_close(loss, expected)
    close = torch.tensor([[10000.0, 10000.5]], device=device)
    loss = softmax_cross_entropy(close, torch.tensor([0], device=device))
    torch.testing.assert_close(loss, F.softplus(torch.tensor([0.5], device=device)))


@on_each_device
def test_logits_of_every_stride(device):
    torch.manual_seed(0)
    target = torch.tensor([2, 0, 1], device=device)
    whole = torch.randn(7, 40, device=device)
    for logits in (whole[::3, ::2], whole[:3, 1:32], whole.t()[:3], whole[:1, :3].expand(3, 3)):
        agrees(logits, target, 1e-5)
    strided = torch.full((3, 2), -5, device=device)
    strided[:, 0] = target
    agrees(whole[:3], strided[:, 0], 1e-5)


@on_each_device
@pytest.mark.parametrize("ignore_index", [-100, -1, 2])
def test_all_ignored(ignore_index, device):
    logits = torch.randn(4, 5, device=device, requires_grad=True)
    target = torch.full((4,), ignore_index, device=device)
    loss = softmax_cross_entropy(logits, target, ignore_index)
    loss.sum().backward()
    assert loss.eq(0).all()
    assert logits.grad.eq(0).all()
    assert SoftmaxCrossEntropyLoss(ignore_index)(logits, target).isnan()  # as PyTorch's
    assert SoftmaxCrossEntropyLoss(ignore_index, "sum")(logits, target) == 0


@on_each_device
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 3)])
def test_nothing(shape, device):
    logits = torch.randn(shape, device=device, requires_grad=True)
    target = torch.full(shape[:-1], -100, device=device)
    loss, logsumexp = torch.ops.extension_cpp.softmax_cross_entropy(logits, target)
    loss.sum().backward()
    assert loss.shape == logsumexp.shape == shape[:-1]
    assert loss.eq(0).all()
    assert logsumexp.eq(-math.inf).all()
    assert logits.grad.shape == shape


@pytest.mark.parametrize("wrong", [5, -1, -101, 2**40, -(2**63)])
def test_targets_out_of_range(wrong):
    logits = torch.randn(3, 5, requires_grad=True)
    target = torch.tensor([1, wrong, 2])
    for function in (
        softmax_cross_entropy,
        torch.compile(softmax_cross_entropy, backend="aot_eager"),
        torch.vmap(softmax_cross_entropy),
    ):
        with pytest.raises(RuntimeError, match=f"{SAYS}{wrong}$"):
            function(logits, target)
    with pytest.raises(RuntimeError, match=SAYS.replace(":", "_backward:", 1)):
        torch.ops.extension_cpp.softmax_cross_entropy_backward(
            logits[:, 0], logits, target, logits[:, 1]
        )
    with pytest.raises(RuntimeError, match=r"ignore_index, 7, or in \[0, 0\), got 1$"):
        softmax_cross_entropy(logits[:, :0], target.clamp(0, 1), 7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("classes", [5, 256, 9000, 20000])
@pytest.mark.parametrize("wrong", [1 << 20, -1, -101, 2**40, -(2**63)])
def test_targets_out_of_range_on_cuda(wrong, classes):
    logits = torch.randn(3, classes, device="cuda", requires_grad=True)
    loss = softmax_cross_entropy(logits, torch.tensor([1, wrong, 2], device="cuda"))
    loss.sum().backward()
    assert loss.isnan().tolist() == [False, True, False]
    for row, is_wrong in zip(logits.grad, [False, True, False], strict=True):
        assert bool(row.isnan().all()) == bool(row.isnan().any()) == is_wrong


@on_each_device
def test_the_logsumexp_and_its_gradient(device):
    """As a z-loss takes it."""
    torch.manual_seed(0)
    logits = torch.randn(3, 20000, device=device, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([5, -100, 7], device=device)
    loss, logsumexp = torch.ops.extension_cpp.softmax_cross_entropy(logits, target)
    torch.testing.assert_close(logsumexp, logits.logsumexp(-1))
    (actual,) = torch.autograd.grad((loss + 0.1 * logsumexp**2).sum(), logits)
    total = (cross_entropy(logits, target) + 0.1 * logits.logsumexp(-1) ** 2).sum()
    torch.testing.assert_close(actual, *torch.autograd.grad(total, logits))


@on_each_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_layer_is_the_one_of_pytorch(reduction, dtype, device):
    torch.manual_seed(0)
    logits = torch.randn(6, 9, device=device).to(dtype).requires_grad_()
    target = torch.tensor([0, 8, 2, 3, 3, 1], device=device)
    ours = SoftmaxCrossEntropyLoss(3, reduction)(logits, target)
    theirs = torch.nn.CrossEntropyLoss(ignore_index=3, reduction=reduction)(logits, target)
    assert ours.dtype == theirs.dtype
    options = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    torch.testing.assert_close(ours, theirs, **options)
    (actual,) = torch.autograd.grad(ours.sum(), logits)
    torch.testing.assert_close(actual, *torch.autograd.grad(theirs.sum(), logits), **options)


def test_the_layer_has_classes_last():
    logits, target = torch.randn(2, 3, 4, 7), torch.randint(0, 7, (2, 3, 4))
    expected = torch.nn.CrossEntropyLoss()(logits.movedim(-1, 1), target)
    torch.testing.assert_close(SoftmaxCrossEntropyLoss()(logits, target), expected)


def test_the_layer_sums_more_than_half_types_hold():
    logits = torch.zeros(2**15, 4096, dtype=torch.float16)
    logits[:, 0] = -4
    target = torch.zeros(2**15, dtype=torch.int64)
    assert SoftmaxCrossEntropyLoss(reduction="sum")(logits, target) == math.inf
    mean = SoftmaxCrossEntropyLoss()(logits, target)
    torch.testing.assert_close(mean.item(), math.log(4095) + 4, rtol=1e-3, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_layer_can_be_traced(reduction):
    layer = SoftmaxCrossEntropyLoss(reduction=reduction)
    logits, target = torch.randn(5, 7), torch.tensor([0, 6, -100, 3, 2])
    assert torch.equal(torch.fx.symbolic_trace(layer)(logits, target), layer(logits, target))


def test_the_layer_refuses_other_reductions():
    says = "SoftmaxCrossEntropyLoss: reduction must be 'mean', 'sum' or 'none', got 'average'"
    with pytest.raises(ValueError, match=f"^{says}$"):
        SoftmaxCrossEntropyLoss(reduction="average")
    assert repr(SoftmaxCrossEntropyLoss()) == (
        "SoftmaxCrossEntropyLoss(ignore_index=-100, reduction='mean')"
    )


def test_the_layer_compiles_whole_and_trains():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 5)
    loss_of = SoftmaxCrossEntropyLoss()
    compiled = torch.compile(lambda x, y: loss_of(model(x), y), fullgraph=True)
    input = torch.randn(64, 8)
    target = input[:, :5].argmax(-1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(60):
        loss = compiled(input, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_autocast_gives_the_loss_of_pytorch():
    logits = torch.randn(6, 9, dtype=torch.bfloat16, requires_grad=True)
    target = torch.tensor([0, 8, 2, 3, 3, 1])
    with torch.autocast("cpu", torch.bfloat16):
        ours = SoftmaxCrossEntropyLoss()(logits, target)
        theirs = F.cross_entropy(logits, target)
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)
