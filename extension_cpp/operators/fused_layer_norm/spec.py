import torch

from extension_cpp.testing import DEFAULT_SHAPES, BadInput, OpSpec, Sample, Traffic


def op_reference(input, weight=None, bias=None, eps=1e-05):
    # F.layer_norm is no reference: its third derivatives are wrong.
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    x = input.to(dtype)
    count = max(1, x.shape[-1])  # of no elements the mean is 0, not NaN
    mean = x.sum(-1, keepdim=True) / count
    centered = x - mean
    rstd = ((centered * centered).sum(-1, keepdim=True) / count + eps).rsqrt()
    output = centered * rstd
    if weight is not None:
        output = output * weight
    if bias is not None:
        output = output + bias
    return output.to(input.dtype), mean.squeeze(-1), rstd.squeeze(-1)


def counterpart(input, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.layer_norm(input, input.shape[-1:], weight, bias, eps)


def samples(make, shape):
    if not shape:
        return
    features = shape[-1:]
    # Where a row has hardly any variance, rounding is amplified by 1 / sqrt(eps), in the reference
    # too: with the default eps that would be a test of luck. A row of one feature has none: there
    # even the gradients of mean and input, each rounded, cancel.
    eps = 0.1 if features[0] > 1 else 10.0
    yield Sample(make(shape), make(features), make(features), eps)
    yield Sample(make(shape), eps=eps)
    yield Sample(make(shape), weight=make(features), eps=eps)
    yield Sample(make(shape), None, make(features), eps)
    if make.dtype in (torch.float16, torch.bfloat16):
        yield Sample(
            make(shape),
            make(features, dtype=torch.float32),
            make(features, dtype=torch.float32),
            eps,
        )
        yield Sample(make(shape), make(features, dtype=torch.float32), make(features), eps)


def bad_inputs(make):
    yield BadInput(
        "negative eps",
        Sample(make((3, 4)), eps=-1e-5),
        "fused_layer_norm: eps must not be negative, got -1e-05",
    )
    yield BadInput(
        "eps that is no number",
        Sample(make((3, 4)), make((4,)), make((4,)), float("nan")),
        "fused_layer_norm: eps must not be negative, got nan",
    )


# Without the rows' statistics, which are saved for backward: an ideal one has them from the input.
def traffic(sample):
    input = sample.args[0]
    parameters = [
        t for t in (*sample.args[1:], *sample.kwargs.values()) if isinstance(t, torch.Tensor)
    ]
    size, features = input.nbytes, sum(parameter.nbytes for parameter in parameters)
    return Traffic(forward=2 * size + features, backward=3 * size + 2 * features)


spec = OpSpec(
    name="fused_layer_norm",
    op_reference=op_reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    # Rows for part of a warp, a warp, a block, several blocks, in vectors and one by one; many rows, for the column sums.
    shapes=(
        *DEFAULT_SHAPES,
        (3, 24),
        (5, 500),
        (700, 256),
        (3, 8192),
        (2, 16384),
        (1, 70000),
        (2, 70001),
    ),
    # The reference, in float64 itself, is no more accurate than the operator.
    tolerances={torch.float64: (1e-11, 1e-11)},
    autocast={"cuda": "float32"},
    counterpart=counterpart,
)
