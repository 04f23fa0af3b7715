import math

import torch

from extension_cpp.testing import DEFAULT_SHAPES, BadInput, OpSpec, Sample


def reference(decay, input, initial=None, dim=-1):
    dim %= decay.dim()
    state = decay.new_zeros(_without(decay.shape, dim)) if initial is None else initial
    states = []
    for factor, term in zip(decay.unbind(dim), input.unbind(dim), strict=True):
        state = factor * state + term
        states.append(state)
    return torch.stack(states, dim) if states else decay * input


def _without(shape, dim):
    return (*shape[:dim], *shape[dim + 1 :])


# Decays that do not grow, as in use: else rounding errors do, too. tests/test_linear_scan.py has others.
def samples(make, shape):
    if not shape:
        return
    signed = {"low": -1.0, "high": 1.0}
    yield Sample(make(shape, low=0.0, high=1.0), make(shape))
    yield Sample(make(shape, **signed), make(shape), make(shape[:-1]))
    if len(shape) > 1:
        yield Sample(make(shape, **signed), make(shape), dim=0)
        yield Sample(make(shape, **signed), make(shape), make(shape[1:]), 0)
    if len(shape) > 2:
        yield Sample(make(shape, **signed), make(shape), make(_without(shape, 1)), dim=1)
        yield Sample(make(shape, **signed), make(shape), None, -2)


def bad_inputs(make):
    for name in ("decay", "input", "initial"):
        tensors = {"decay": make((3, 4)), "input": make((3, 4)), "initial": make((3,))}
        tensors[name] = make(tensors[name].shape, dtype=torch.int64)
        yield BadInput(f"integer {name}", Sample(**tensors), MESSAGES[name])
    yield BadInput(
        "a number",
        Sample(make(()), make(())),
        "linear_scan: decay must have at least 1 dimension, got shape ()",
    )
    yield BadInput(
        "dimension too large",
        Sample(make((3, 4)), make((3, 4)), None, 2),
        "linear_scan: dim must be in [-2, 1], got 2",
    )
    yield BadInput(
        "dimension too small",
        Sample(make((3, 4)), make((3, 4)), dim=-3),
        "linear_scan: dim must be in [-2, 1], got -3",
    )
    yield BadInput(
        "input that would broadcast",
        Sample(make((3, 4)), make((4,))),
        "linear_scan: input must have shape (3, 4), got (4,)",
    )
    yield BadInput(
        "input of another length",
        Sample(make((3, 4)), make((3, 5))),
        "linear_scan: input must have shape (3, 4), got (3, 5)",
    )
    yield BadInput(
        "initial with the dimension of time",
        Sample(make((3, 4)), make((3, 4)), make((3, 1))),
        "linear_scan: initial must have shape (3,), got (3, 1)",
    )
    yield BadInput(
        "initial for another dimension",
        Sample(make((3, 4)), make((3, 4)), make((3,)), 0),
        "linear_scan: initial must have shape (4,), got (3,)",
    )


MESSAGES = {
    "decay": "linear_scan: decay must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    "input": "linear_scan: input must have the dtype of decay, torch.float32, got torch.int64",
    "initial": "linear_scan: initial must have the dtype of decay, torch.float32, got torch.int64",
}

# Without large ones, which the reference takes seconds for: tests/test_linear_scan.py has these. Besides, rows for part of
# a warp, a warp, several, and several blocks, whole accesses or not; channels in pairs or not, in whole warps, and so few
# that time is cut; enough for several threads.
SHAPES = (
    *(shape for shape in DEFAULT_SHAPES if math.prod(shape) < 10000),
    (5, 64),
    (3, 500),
    (2, 2100),
    (200, 3),
    (3, 150, 2),
    (40, 6, 130),
    (128, 300),
    (2, 100, 128),
    (300, 64),
)

spec = OpSpec(
    name="linear_scan",
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    shapes=SHAPES,
    autocast="promote",
)
