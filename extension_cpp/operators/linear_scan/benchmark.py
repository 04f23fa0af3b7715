import math

import torch
from torch.nn.functional import pad

from extension_cpp.operators.linear_scan import spec
from extension_cpp.testing import Sample

# Beyond, a loop takes seconds to call and longer to compile; on a GPU it launches more kernels than
# the queue holds, which then waits for the host.
LONGEST_LOOP = {"cpu": 1024, "cuda": 128}


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
    """A loop over time, which PyTorch has nothing better for; in float32, as users would."""
    if decay.shape[dim] > LONGEST_LOOP.get(decay.device.type, 0):
        raise RuntimeError(f"a loop over {decay.shape[dim]} steps")
    wide = _wide(decay)
    start = None if initial is None else initial.to(wide)
    return spec.reference(decay.to(wide), input.to(wide), start, dim).to(decay.dtype)


def compiled(decay, input, initial=None, dim=-1):
    """What `torch.compile` makes a parallel scan of."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    assert initial is None
    pair = decay.to(_wide(decay)), input.to(_wide(decay))
    mode = "pointwise" if decay.is_cuda else "generic"
    return associative_scan(combine, pair, dim, combine_mode=mode)[1].to(decay.dtype)


def _wide(tensor):
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
