"""bn_relu: batch normalisation with given statistics and relu, the epilogue of a convolution."""

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.layout import new_elementwise
from extension_cpp.shapes import batching_rule, operator

_ops = torch.ops.extension_cpp


def bn_relu(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float = 1e-05,
) -> Tensor:
    """Computes `relu((input - running_mean) / sqrt(running_var + eps) * weight + bias)`.

    As `torch.nn.functional.batch_norm(..., training=False)` and `relu`, in one pass over memory.
    Half types are computed in float32 and rounded once.

    Args:
        input: `(batch, channels, ...)`, float64, float32, float16 or bfloat16, on CPU or CUDA, of
            any layout.
        weight: `(channels,)`, dtype of `input`, or float32 for half types.
        bias: as `weight`.
        running_mean: as `weight`; a constant.
        running_var: as `weight`; a constant. Where it is less than `-eps` the result is NaN.
        eps: a number that is not negative; not differentiable.

    Returns:
        A tensor with the shape and dtype of `input`, and its layout where its elements lie densely
        in some order, as in channels-first and channels-last; else contiguous. Differentiable to
        any order in `input`, `weight` and `bias`, in reverse and forward mode. The gradients of
        `weight` and `bias` are deterministic sums.

    Raises:
        RuntimeError: a dtype, device or shape other than the above; a negative `eps`; statistics of
            which a derivative is asked for, which PyTorch's batch_norm leaves out in silence.
        TypeError: a tensor for `eps` whose derivative would be lost.
    """
    checks.check_number("bn_relu", "eps", eps)
    return _ops.bn_relu(input, weight, bias, running_mean, running_var, eps)


def _fake(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float = 1e-05,
) -> Tensor:
    operator("extension_cpp::bn_relu").check(input, weight, bias, running_mean, running_var)
    checks.check_not_negative("bn_relu", "eps", eps)
    return new_elementwise(input.shape, input)


def _fake_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float = 1e-05,
) -> tuple[Tensor, Tensor, Tensor]:
    _, grad_weight, grad_bias = operator("extension_cpp::bn_relu_backward").fake(
        grad_output, input, weight, bias, running_mean, running_var
    )
    checks.check_not_negative("bn_relu_backward", "eps", eps)
    return new_elementwise(input.shape, grad_output, input), grad_weight, grad_bias


def _fake_input_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float = 1e-05,
) -> Tensor:
    operator("extension_cpp::bn_relu_input_backward").check(
        grad_output, input, weight, bias, running_mean, running_var
    )
    checks.check_not_negative("bn_relu_input_backward", "eps", eps)
    return new_elementwise(input.shape, grad_output, input)


def _check_is_constant(name, needs_grad):
    text = "is a constant, and has no derivative: detach it"
    torch._check(not needs_grad, lambda: f"bn_relu: {name} {text}")


def _setup_context(ctx, inputs, output):
    *tensors, ctx.eps = inputs
    for name, needs_grad in zip(
        ("running_mean", "running_var"), ctx.needs_input_grad[3:5], strict=True
    ):
        _check_is_constant(name, needs_grad)
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad_output):
    args = grad_output, *ctx.saved_tensors, ctx.eps
    if any(ctx.needs_input_grad[1:3]):
        grads = _ops.bn_relu_backward(*args)
    else:
        grads = _ops.bn_relu_input_backward(*args), None, None
    return *grads, None, None, None


def _of_channel(tensor, input):
    # No -1: of no elements there is no telling, where vmap has put a batch of none before them.
    return tensor.view(tensor.shape[0], *[1] * (input.dim() - 2))


# The gradients of the input and before relu, and the normalised input.
def _backward_parts(grad_output, input, weight, bias, running_mean, running_var, eps):
    rstd = _of_channel((running_var + eps).rsqrt(), input)
    x_hat = (input - _of_channel(running_mean, input)) * rstd
    is_zero = x_hat * _of_channel(weight, input) + _of_channel(bias, input) <= 0
    grad = grad_output.masked_fill(is_zero, 0.0)
    return grad * _of_channel(weight, input) * rstd, grad, x_hat


def _backward_in_torch(grad_output, input, weight, bias, running_mean, running_var, eps=1e-05):
    grad_input, grad, x_hat = _backward_parts(
        grad_output, input, weight, bias, running_mean, running_var, eps
    )
    others = [d for d in range(input.dim()) if d != 1]
    return grad_input, (grad * x_hat).sum(others), grad.sum(others)


def _input_backward_in_torch(
    grad_output, input, weight, bias, running_mean, running_var, eps=1e-05
):
    return _backward_parts(grad_output, input, weight, bias, running_mean, running_var, eps)[0]


def _with_channels(info, in_dims, images, tensors):
    """The batch becomes part of the channels, in the first so many tensors and in parameters.

    Returns them, and how many examples and channels there are.
    """
    joined: list[Tensor] = []
    for dim, tensor in zip(in_dims, tensors, strict=False):
        tensor = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
        tensor = tensor.expand(info.batch_size, *tensor.shape[1:])
        joined.append(tensor.flatten() if len(joined) >= images else tensor.movedim(0, 1))
    sizes = joined[0].shape[1:3]
    return [t if k >= images else t.flatten(1, 2) for k, t in enumerate(joined)], sizes


_batched_input = batching_rule("extension_cpp::bn_relu")
_batched_images = batching_rule("extension_cpp::bn_relu_input_backward")


def _vmap(info, in_dims, *args):
    if in_dims[1:5] == (None,) * 4:
        return _batched_input(info, in_dims, *args)
    operator("extension_cpp::bn_relu").check_examples(in_dims, *args)
    tensors, sizes = _with_channels(info, in_dims, 1, args[:5])
    return _ops.bn_relu(*tensors, args[5]).unflatten(1, sizes), 1


def _vmap_backward(info, in_dims, *args):
    operator("extension_cpp::bn_relu_backward").check_examples(in_dims, *args)
    tensors, sizes = _with_channels(info, in_dims, 2, args[:6])
    grad_input, *grads = _ops.bn_relu_backward(*tensors, args[6])
    return (grad_input.unflatten(1, sizes), *(grad.view(sizes) for grad in grads)), (1, 0, 0)


def _vmap_input_backward(info, in_dims, *args):
    if in_dims[2:6] == (None,) * 4:
        return _batched_images(info, in_dims, *args)
    operator("extension_cpp::bn_relu_input_backward").check_examples(in_dims, *args)
    tensors, sizes = _with_channels(info, in_dims, 2, args[:6])
    grad_input = _ops.bn_relu_input_backward(*tensors, args[6])
    return grad_input.unflatten(1, sizes), 1


registration.register_fake("extension_cpp::bn_relu", _fake)
registration.register_fake("extension_cpp::bn_relu_backward", _fake_backward)
registration.register_fake("extension_cpp::bn_relu_input_backward", _fake_input_backward)
registration.register_autograd("extension_cpp::bn_relu", _backward, setup_context=_setup_context)
registration.register_autograd("extension_cpp::bn_relu_backward", reference=_backward_in_torch)
registration.register_autograd(
    "extension_cpp::bn_relu_input_backward", reference=_input_backward_in_torch
)
registration.register_vmap("extension_cpp::bn_relu", _vmap)
registration.register_vmap("extension_cpp::bn_relu_backward", _vmap_backward)
registration.register_vmap("extension_cpp::bn_relu_input_backward", _vmap_input_backward)
registration.register_sharding(
    "extension_cpp::bn_relu",
    "extension_cpp::bn_relu_backward",
    "extension_cpp::bn_relu_input_backward",
    along=("n", "c"),
)
# No policy for autocast, as of PyTorch's batch_norm: half inputs go with float32 parameters.
