"""add_rms_norm: adds a residual, then the RMS norm of it, one pass over memory each way."""

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.batching import to_front, with_columns
from extension_cpp.shapes import batching_rule, operator

_ops = torch.ops.extension_cpp


def add_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-06
) -> tuple[Tensor, Tensor]:
    """The residual step of a transformer block: `sum = input + residual`, and the RMS norm of it.

    That is `sum / sqrt(mean(sum**2) + eps) * weight` over the last dimension (B. Zhang and R.
    Sennrich, Root Mean Square Layer Normalization, 2019). The sum is rounded to its dtype, as by
    itself, and what is normalised is that, in float32 (float64 for float64).
    `torch.ops.extension_cpp.add_rms_norm` returns `(normalised, sum, rstd)`, the last with the
    shape `input.shape[:-1]`.

    Args:
        input: `(..., features)`, float64, float32, float16 or bfloat16, on CPU or CUDA, of any
            layout.
        residual: shape, dtype and device of `input`.
        weight: `(features,)`, dtype of `input`, or float32 for half types; 1 if None.
        eps: a number that is not negative; not differentiable.

    Returns:
        `(normalised, sum)`, contiguous tensors with the shape and dtype of `input`. Both are
        differentiable to any order in `input`, `residual` and `weight`, in reverse and forward
        mode. The gradient of `weight` is a deterministic sum.

    Raises:
        RuntimeError: a dtype, device or shape other than the above; a negative `eps`.
        TypeError: a tensor for `eps` whose derivative would be lost.
    """
    checks.check_number("add_rms_norm", "eps", eps)
    return _ops.add_rms_norm(input, residual, weight, eps)[:2]


def _fake(
    input: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = operator("extension_cpp::add_rms_norm").fake(input, residual, weight, eps)
    checks.check_not_negative("add_rms_norm", "eps", eps)
    return outputs


def _setup_context(ctx, inputs, output):
    _, sum, rstd = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sum, rstd, inputs[2])


def _backward(ctx, grad_output, grad_sum, grad_rstd):
    sum, rstd, weight = ctx.saved_tensors
    needs_input, needs_residual, needs_weight, _ = ctx.needs_input_grad
    grad, grad_weight = grad_sum, None
    if grad_output is not None:
        args = grad_output, grad_sum, sum, rstd, weight
        if needs_weight:
            grad, grad_weight = _ops.add_rms_norm_backward(*args)
        else:
            grad = _ops.add_rms_norm_input_backward(*args)
    if grad_rstd is not None:
        # d rstd / d sum = -rstd^3 sum / features
        of_rstd = ((grad_rstd * rstd**3).unsqueeze(-1) * sum / -sum.shape[-1]).to(sum.dtype)
        grad = of_rstd if grad is None else grad + of_rstd
    return (
        grad if needs_input else None,
        grad if needs_residual else None,
        grad_weight if needs_weight else None,
        None,
    )


# As functions of independent tensors, whatever rstd is the statistic of.
def _grad_input(grad_output, grad_sum, x_hat, rstd, weight):
    h = grad_output if weight is None else grad_output * weight
    grad = rstd.unsqueeze(-1) * (h - x_hat * (h * x_hat).mean(-1, keepdim=True))
    return grad if grad_sum is None else grad + grad_sum


def _input_backward_in_torch(grad_output, grad_sum, sum, rstd, weight):
    return _grad_input(grad_output, grad_sum, sum * rstd.unsqueeze(-1), rstd, weight)


def _backward_in_torch(grad_output, grad_sum, sum, rstd, weight, columns=None):
    x_hat = sum * rstd.unsqueeze(-1)
    columns = columns or sum.shape[-1:]
    return (
        _grad_input(grad_output, grad_sum, x_hat, rstd, weight),
        None if weight is None else (grad_output * x_hat).sum_to_size(columns),
    )


_batched_inputs = batching_rule("extension_cpp::add_rms_norm")


def _vmap(info, in_dims, input, residual, weight, eps):
    if in_dims[2] is None:
        return _batched_inputs(info, in_dims, input, residual, weight, eps)
    operator("extension_cpp::add_rms_norm").check_examples(in_dims, input, residual, weight, eps)
    # Weights of their own for every example: one call, then what it is without a weight times that.
    input, residual = to_front(info.batch_size, in_dims[:2], input, residual)
    _, sum, rstd = _ops.add_rms_norm(input, residual, None, eps)
    weight = weight.movedim(in_dims[2], 0)
    weight = weight.view(info.batch_size, *[1] * (sum.dim() - 2), sum.shape[-1])
    return ((sum * rstd.unsqueeze(-1) * weight).to(sum.dtype), sum, rstd), (0, 0, 0)


registration.register_fake("extension_cpp::add_rms_norm", _fake)
registration.register_fake(
    "extension_cpp::add_rms_norm_backward", "extension_cpp::add_rms_norm_input_backward"
)
registration.register_autograd(
    "extension_cpp::add_rms_norm", _backward, setup_context=_setup_context
)
registration.register_autograd("extension_cpp::add_rms_norm_backward", reference=_backward_in_torch)
registration.register_autograd(
    "extension_cpp::add_rms_norm_input_backward", reference=_input_backward_in_torch
)
registration.register_vmap("extension_cpp::add_rms_norm", _vmap)
registration.register_vmap(
    "extension_cpp::add_rms_norm_backward",
    with_columns("extension_cpp::add_rms_norm_backward", _backward_in_torch),
)
registration.register_vmap(
    "extension_cpp::add_rms_norm_input_backward",
    with_columns("extension_cpp::add_rms_norm_input_backward", _input_backward_in_torch),
)
# On a GPU as the norm, on the CPU, where autocast leaves that alone, as the addition.
registration.register_autocast("extension_cpp::add_rms_norm", "float32", devices=("cuda",))
registration.register_autocast("extension_cpp::add_rms_norm", "promote", devices=("cpu",))
