import functools
import gc
import math
import weakref

import torch
from torch.nn.functional import pad

from extension_cpp.operators.linear_scan import spec
from extension_cpp.testing import Sample

# Beyond, a loop takes seconds to call, or to record.
LONGEST_LOOP = {"cpu": 1024, "cuda": 8192}


def cases(make, shape):
    """Time inside, and outside of the channels."""
    dims = {2: {"": 1, "dim 0": 0}, 3: {"dim 1": 1}}
    for form, dim in dims.get(len(shape), {}).items():
        yield form, Sample(make(shape, low=0.0, high=1.0), make(shape), None, dim)


def reference(decay, input, initial=None, dim=-1):
    """As the spec's, in operations on slices whose number grows as the root of the steps.

    The steps within pieces first, side by side, from 0 on; then the states between the pieces.
    """
    decay, input = decay.movedim(dim, -1), input.movedim(dim, -1)
    steps = decay.shape[-1]
    width = max(1, math.isqrt(steps))
    missing = -steps % width
    factors = pad(decay, (0, missing)).unflatten(-1, (-1, width)).unbind(-1)
    terms = pad(input, (0, missing)).unflatten(-1, (-1, width)).unbind(-1)
    state, product = torch.zeros_like(terms[0]), torch.ones_like(terms[0])
    states, products = [], []
    for factor, term in zip(factors, terms, strict=True):
        state, product = factor * state + term, factor * product
        states.append(state)
        products.append(product)
    start = torch.zeros_like(decay[..., 0]) if initial is None else initial
    starts = []
    for factor, term in zip(product.unbind(-1), state.unbind(-1), strict=True):
        starts.append(start)
        start = factor * start + term
    before = torch.stack(starts, -1).unsqueeze(-1)
    result = torch.stack(states, -1) + torch.stack(products, -1) * before
    # In the layout of what it stands for, which gradients of it have, too.
    return result.flatten(-2)[..., :steps].movedim(-1, dim).contiguous()


def eager(decay, input, initial=None, dim=-1):
    """A loop over time, which PyTorch has nothing better for; in float32, as users would.

    On a GPU it is a CUDA graph. Its thousands of launches do not fit the queue that the timing
    fills, and the host takes longer for them than the GPU for the work: in a graph they are one,
    which is kind to the loop.
    """
    if decay.shape[dim] > LONGEST_LOOP.get(decay.device.type, 0):
        _graphs.clear()
        raise RuntimeError(f"a loop over {decay.shape[dim]} steps")
    if not decay.is_cuda:
        return _loop(decay, input, initial, dim)
    assert initial is None
    return _replayed(functools.partial(_loop, initial=None, dim=dim), (decay, input), dim)


def _loop(decay, input, initial, dim):
    wide = _wide(decay)
    start = None if initial is None else initial.to(wide)
    return spec.reference(decay.to(wide), input.to(wide), start, dim).to(decay.dtype)


# Of the latest call alone, by what it was recorded for: graphs keep the states of all steps.
_graphs: dict = {}


def _replayed(function, tensors, *numbers):
    """Calls a function as a CUDA graph; its backward, where gradients are wanted, is another one.

    Both are recorded at the first call, and replayed from then on. A replay writes its results
    where those of the one before are.

    Args:
        function: of tensors, without other arguments.
        tensors: which the graphs read where they are.
        numbers: what else tells one function from another.
    """
    key = (torch.is_grad_enabled(), *numbers, *map(_place, tensors))
    if key not in _graphs:
        _graphs.clear()
        gc.collect()  # a graph is in a cycle, and its memory with it
        # Leaves of its own. Others may be known to autograd from another stream; the backward would
        # wait for that stream, which nothing may do that is being recorded.
        leaves = tuple(t.detach().requires_grad_(t.requires_grad) for t in tensors)
        _graphs[key] = torch.cuda.make_graphed_callables(function, leaves, num_warmup_iters=1)
        weakref.finalize(tensors[0], _graphs.pop, key, None)
    return _graphs[key](*tensors)


def _place(tensor):
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def compiled(decay, input, initial=None, dim=-1):
    """What `torch.compile` makes a parallel scan of."""
    assert initial is None
    return _Scan.apply(decay, input, dim)


class _Scan(torch.autograd.Function):
    """By an associative scan; the backward is another one.

    PyTorch has a derivative of `associative_scan`, which (in 2.11 to 2.13) takes memory for the
    square of the steps, and is wrong, without an error, where one tensor of the scan depends on
    another: the gradient of the decays is 0.
    """

    @staticmethod
    def forward(ctx, decay, input, dim):
        output = _associative_scan(decay, input, dim)
        ctx.save_for_backward(decay, output)
        ctx.dim = dim
        return output

    @staticmethod
    def backward(ctx, grad_output):
        decay, output = (tensor.movedim(ctx.dim, -1) for tensor in ctx.saved_tensors)
        following = pad(decay[..., 1:], (0, 1)).movedim(-1, ctx.dim)
        grad_input = _associative_scan(following, grad_output, ctx.dim, reverse=True)
        before = pad(output[..., :-1], (1, 0)).movedim(-1, ctx.dim)
        return grad_input * before, grad_input, None


def _associative_scan(decay, input, dim, reverse=False):
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    pair = tuple(tensor.to(_wide(tensor)).movedim(dim, -1) for tensor in (decay, input))
    mode = "pointwise" if decay.is_cuda else "generic"
    state = associative_scan(combine, pair, -1, reverse, mode)[1]
    # A view comes last: where the conversion does nothing, the gradients of what torch 2.11
    # compiles are 0 else.
    return state.to(decay.dtype).movedim(-1, dim)


def _wide(tensor):
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
