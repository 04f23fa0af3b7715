"""softmax_cross_entropy: the loss of a classifier, its logits read once each way."""

import torch
from torch import Tensor

from extension_cpp import registration

_ops = torch.ops.extension_cpp


def softmax_cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """Computes `logsumexp(logits) - logits[target]` for each row of the last dimension.

    The loss of each row, `torch.nn.functional.cross_entropy(..., reduction="none")` with the
    classes in the last dimension; nothing is summed or averaged. (`SoftmaxCrossEntropyLoss` does.)
    The softmax is never in memory: of each row the largest logit and the sum of the exponentials
    are found in one pass, in float32 (float64 for float64), and the gradient is computed from the
    logits again. Parts of long rows are combined by rescaling their sums (M. Milakov and
    N. Gimelshein, "Online normalizer calculation for softmax", 2018).
    `torch.ops.extension_cpp.softmax_cross_entropy` returns `(loss, logsumexp)`, the latter in
    float32 (float64 for float64), and differentiable too. The gradient of the logits is computed
    from the logsumexp as that dtype holds it: of float32 logits near 10000 it has 3 digits.

    A row that holds NaN or inf, or nothing but -inf, has the loss NaN, as in PyTorch. -inf masks a
    class.

    Args:
        logits: `(..., classes)`, float64, float32, float16 or bfloat16, on CPU or CUDA, of any
            layout.
        target: `(...)`, int64, the class of each row, on the device of `logits`. On CUDA a class
            that does not exist makes the loss of its row, and its gradient, NaN.
        ignore_index: a row with this target has loss 0 and gradient 0, whatever its logits are.

    Returns:
        A contiguous tensor with the shape of `target` and the dtype of `logits`. Differentiable to
        any order in `logits`, in reverse and forward mode. Under autocast it is float32, as
        PyTorch's, and so is the copy of the logits that it reads then.

    Raises:
        RuntimeError: a dtype, device or shape other than the above; on the CPU, a class that does
            not exist.
    """
    return _ops.softmax_cross_entropy(logits, target, ignore_index)[0]


# The logsumexp is an output like any other, so that the second derivative passes through its
# gradient, which is None otherwise.
def _setup_context(ctx, inputs, output):
    logits, target, ctx.ignore_index = inputs
    _, logsumexp = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(logits, target, logsumexp)


def _backward(ctx, grad_loss, grad_logsumexp):
    logits, target, logsumexp = ctx.saved_tensors
    grad = None
    if grad_loss is not None:
        grad = _ops.softmax_cross_entropy_backward(
            grad_loss, logits, target, logsumexp, ctx.ignore_index
        )
    if grad_logsumexp is not None:
        softmax = (logits - logsumexp.unsqueeze(-1)).exp()
        through_logsumexp = (softmax * grad_logsumexp.unsqueeze(-1)).to(logits.dtype)
        grad = through_logsumexp if grad is None else grad + through_logsumexp
    return grad, None, None


def _backward_in_torch(grad_loss, logits, target, logsumexp, ignore_index=-100):
    ignored = target.eq(ignore_index).unsqueeze(-1)
    # No arange: where logits are divided among devices, these have to be, too.
    classes = torch.ones_like(logits, dtype=torch.int64).cumsum(-1) - 1
    difference = (logits - logsumexp.unsqueeze(-1)).masked_fill(ignored, 0.0)
    grad = difference.exp() - classes.eq(target.unsqueeze(-1)).to(difference.dtype)
    return (grad * grad_loss.unsqueeze(-1)).masked_fill(ignored, 0.0)


registration.register_fake("extension_cpp::softmax_cross_entropy")
registration.register_fake("extension_cpp::softmax_cross_entropy_backward")
registration.register_autograd(
    "extension_cpp::softmax_cross_entropy", _backward, setup_context=_setup_context
)
registration.register_autograd(
    "extension_cpp::softmax_cross_entropy_backward", reference=_backward_in_torch
)
registration.register_vmap("extension_cpp::softmax_cross_entropy")
registration.register_vmap("extension_cpp::softmax_cross_entropy_backward")
# As torch.nn.functional.cross_entropy: a loss in float16 would overflow where it is scaled.
registration.register_autocast("extension_cpp::softmax_cross_entropy", "float32")
