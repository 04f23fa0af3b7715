"""linear_scan: `h[t] = decay[t] * h[t - 1] + input[t]`, which PyTorch has no operation for."""

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.batching import first_example, to_front

_ops = torch.ops.extension_cpp


def linear_scan(
    decay: Tensor, input: Tensor, initial: Tensor | None = None, dim: int = -1
) -> Tensor:
    """Computes `h[t] = decay[t] * h[t - 1] + input[t]` along a dimension.

    The recurrence of state-space models and of gated networks such as minGRU. The state is float32
    (float64 for float64), and rounded to half types where it is written. The GPU shares the steps
    of a row, and of few channels, between threads: a parallel prefix over pairs of a factor and a
    term (Blelloch, "Prefix Sums and Their Applications", 1990). What is added to what depends on
    the shape, on where in memory tensors begin and on the device: equal bits from run to run.
    Infinities and NaN in the inputs spread as in a loop over time.

    Args:
        decay: of one dimension or more and any layout, float64, float32, float16 or bfloat16, on
            CPU or CUDA; of any values.
        input: shape, dtype and device of `decay`.
        initial: `h[-1]`, with the shape of `decay` without `dim`, and its dtype and device; 0 if
            None.
        dim: the dimension that is time; a negative one counts from the last.

    Returns:
        A contiguous tensor with the shape and dtype of `decay`. Differentiable to any order in
        `decay`, `input` and `initial`, in reverse and forward mode.

    Raises:
        RuntimeError: a dtype, device or shape other than the above; a dimension out of range.
    """
    return _ops.linear_scan(decay, input, initial, dim)


# As check_scan in linear_scan.cpp.
def _check(op: str, tensors: dict[str, Tensor], initial: Tensor | None, dim: int) -> int:
    (name, first), *others = tensors.items()
    checks.check_floating(op, name, first)
    given = others if initial is None else [*others, ("initial", initial)]
    for other_name, other in given:
        checks.check_same_dtype(op, other_name, other, name, first)
        checks.check_same_device(op, other_name, other, name, first)
    checks.check_min_dim(op, name, first, 1)
    checks.check_dims(op, "dim", (dim,), first.dim())
    for other_name, other in others:
        checks.check_shape(op, other_name, other, first.shape)
    dim %= first.dim()
    if initial is not None:
        shape = (*first.shape[:dim], *first.shape[dim + 1 :])
        checks.check_shape(op, "initial", initial, shape)
    return dim


def _fake(decay: Tensor, input: Tensor, initial: Tensor | None = None, dim: int = -1) -> Tensor:
    _check("linear_scan", {"decay": decay, "input": input}, initial, dim)
    return decay.new_empty(decay.shape)


def _fake_backward(
    grad_output: Tensor,
    decay: Tensor,
    output: Tensor,
    initial: Tensor | None = None,
    dim: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = {"grad_output": grad_output, "decay": decay, "output": output}
    _check("linear_scan_backward", tensors, initial, dim)
    grad_initial = decay.new_empty((0,) if initial is None else initial.shape)
    return decay.new_empty(decay.shape), decay.new_empty(decay.shape), grad_initial


def _setup_context(ctx, inputs, output):
    decay, _, initial, ctx.dim = inputs
    ctx.save_for_backward(decay, output, initial)


def _backward(ctx, grad_output):
    decay, output, initial = ctx.saved_tensors
    grad_decay, grad_input, grad_initial = _ops.linear_scan_backward(
        grad_output, decay, output, initial, ctx.dim
    )
    return grad_decay, grad_input, None if initial is None else grad_initial, None


def _delayed(tensor: Tensor, first: Tensor | None, dim: int) -> Tensor:
    """The entries one step later; `first`, or 0, before them."""
    if tensor.shape[dim] == 0:
        return tensor
    start = tensor.select(dim, 0)
    start = torch.zeros_like(start) if first is None else first
    earlier = tensor.narrow(dim, 0, tensor.shape[dim] - 1)
    return torch.cat((start.unsqueeze(dim), earlier), dim)


def _advanced(tensor: Tensor, dim: int) -> Tensor:
    """The entries one step earlier, 0 after them."""
    return _delayed(tensor.flip(dim), None, dim).flip(dim)


def _setup_context_of_backward(ctx, inputs, output):
    _, decay, output_of_scan, initial, ctx.dim = inputs
    _, grad_input, _ = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(decay, output_of_scan, initial, grad_input)


# The backward computes, with p[t] = output[t - 1],
#
#   grad_input[t] = grad_output[t] + decay[t + 1] * grad_input[t + 1]
#   grad_decay[t] = grad_input[t] * p[t]
#   grad_initial = decay[0] * grad_input[0]
#
# and the transpose of a scan that runs backwards is one that runs forwards.
def _backward_of_backward(ctx, by_decay, by_input, by_initial):
    decay, output, initial, grad_input = ctx.saved_tensors
    _, needs_decay, needs_output, needs_initial, _ = ctx.needs_input_grad
    dim = ctx.dim % decay.dim()
    total = by_input
    if by_decay is not None:
        through_decay = by_decay * _delayed(output, initial, dim)
        total = through_decay if total is None else total + through_decay
    if initial is None:
        by_initial = None
    if total is None and by_initial is None:
        return None, None, None, None, None
    if total is None:
        total = torch.zeros_like(decay)
    by_grad_output = _ops.linear_scan(decay, total, by_initial, dim)
    second_decay = second_output = second_initial = None
    if needs_decay:
        second_decay = grad_input * _delayed(by_grad_output, by_initial, dim)
    if by_decay is not None and (needs_output or (needs_initial and initial is not None)):
        product = by_decay * grad_input
        second_output = _advanced(product, dim)
        if initial is not None and decay.shape[dim] > 0:
            second_initial = product.select(dim, 0)
    return by_grad_output, second_decay, second_output, second_initial, None


def _vmap(info, in_dims, decay, input, initial, dim):
    examples = first_example(in_dims[:3], decay, input, initial)
    tensors = {"decay": examples[0], "input": examples[1]}
    dim = _check("linear_scan", tensors, examples[2], dim)
    decay, input = to_front(info.batch_size, in_dims[:2], decay, input)
    if initial is not None:
        (initial,) = to_front(info.batch_size, in_dims[2:3], initial)
    return _ops.linear_scan(decay, input, initial, dim + 1), 0


def _vmap_backward(info, in_dims, grad_output, decay, output, initial, dim):
    examples = first_example(in_dims[:4], grad_output, decay, output, initial)
    tensors = dict(zip(("grad_output", "decay", "output"), examples, strict=False))
    dim = _check("linear_scan_backward", tensors, examples[3], dim)
    batch = to_front(info.batch_size, in_dims[:3], grad_output, decay, output)
    has_initial = initial is not None
    if has_initial:
        (initial,) = to_front(info.batch_size, in_dims[3:4], initial)
    grads = _ops.linear_scan_backward(*batch, initial, dim + 1)
    return grads, (0, 0, 0 if has_initial else None)


# Along every dimension but that of time, which `initial` lacks.
def _sharding(decay, input, initial, dim):
    for d in range(decay.ndim):
        if d != dim % decay.ndim:
            yield [d], [d, d, d - (d > dim % decay.ndim)]


def _sharding_of_backward(grad_output, decay, output, initial, dim):
    for (d,), (_, _, of_initial) in _sharding(decay, output, initial, dim):
        of_grad_initial = None if initial is None else of_initial
        yield [d, d, of_grad_initial], [d, d, d, of_initial]


registration.register_fake("extension_cpp::linear_scan", _fake)
registration.register_fake("extension_cpp::linear_scan_backward", _fake_backward)
registration.register_autograd(
    "extension_cpp::linear_scan", _backward, setup_context=_setup_context
)
registration.register_autograd(
    "extension_cpp::linear_scan_backward",
    _backward_of_backward,
    setup_context=_setup_context_of_backward,
)
registration.register_vmap("extension_cpp::linear_scan", _vmap)
registration.register_vmap("extension_cpp::linear_scan_backward", _vmap_backward)
registration.register_sharding("extension_cpp::linear_scan", _sharding)
registration.register_sharding("extension_cpp::linear_scan_backward", _sharding_of_backward)
# The state is float32 whatever comes, so that half types need no more: where they meet float32,
# they meet in it.
registration.register_autocast("extension_cpp::linear_scan", "promote")
