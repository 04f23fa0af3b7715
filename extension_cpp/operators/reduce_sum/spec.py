import torch

from extension_cpp.testing import DEFAULT_SHAPES, BadInput, OpSpec, Sample


def samples(make, shape):
    yield Sample(make(shape))
    if not shape:
        yield Sample(make(shape), dim=(-1,), keepdim=True)
        return
    yield Sample(make(shape), (-1,))
    yield Sample(make(shape), dim=(0,), keepdim=True)
    if len(shape) > 1:
        yield Sample(make(shape), (0, -1), True)
        yield Sample(make(shape), dim=[], keepdim=True)
    if len(shape) > 2:
        yield Sample(make(shape), dim=(1,))
        yield Sample(make(shape), dim=(-1, 1), keepdim=True)
    if len(shape) > 3:
        yield Sample(make(shape), dim=(0, 2))
        yield Sample(make(shape), dim=(3, 1))


def bad_inputs(make):
    yield BadInput(
        "integer input",
        Sample(make((3, 4), dtype=torch.int64)),
        "reduce_sum: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.int64",
    )
    yield BadInput(
        "boolean input",
        Sample(make((3, 4), dtype=torch.bool)),
        "reduce_sum: input must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, got torch.bool",
    )
    yield BadInput(
        "dimension too large",
        Sample(make((3, 4)), (0, 2)),
        "reduce_sum: dim must be in [-2, 1], got 2",
    )
    yield BadInput(
        "dimension too small",
        Sample(make((3, 4)), dim=(-3,)),
        "reduce_sum: dim must be in [-2, 1], got -3",
    )
    yield BadInput(
        "dimension of a 0-d input",
        Sample(make(()), (1,)),
        "reduce_sum: dim must be in [-1, 0], got 1",
    )
    yield BadInput(
        "repeated dimension",
        Sample(make((3, 4)), (1, 0, -1)),
        "reduce_sum: dim must name a dimension once, got (1, 0, -1)",
    )


spec = OpSpec(
    name="reduce_sum",
    reference=lambda input, dim=None, keepdim=False: torch.sum(input, dim, keepdim),
    samples=samples,
    bad_inputs=bad_inputs,
    # A single number; sums that are split over threads or blocks, along rows and along columns.
    shapes=(*DEFAULT_SHAPES, (), (3, 0, 2), (2, 40000), (5000, 40), (2, 1500, 33), (7, 2, 5, 600)),
    autocast={"cuda": "float32"},
)
