import torch

from extension_cpp.testing import DEFAULT_SHAPES, BadInput, OpSpec, Sample, Traffic


def op_reference(input, residual, weight=None, eps=1e-06):
    sum = input + residual
    x = sum.to(torch.float64 if sum.dtype == torch.float64 else torch.float32)
    count = max(1, x.shape[-1])  # of no elements the mean is 0, not NaN
    rstd = ((x * x).sum(-1, keepdim=True) / count + eps).rsqrt()
    output = x * rstd if weight is None else x * rstd * weight
    return output.to(input.dtype), sum, rstd.squeeze(-1)


def reference(input, residual, weight=None, eps=1e-06):
    return op_reference(input, residual, weight, eps)[:2]


def counterpart(input, residual, weight=None, eps=1e-06):
    sum = input + residual
    return torch.nn.functional.rms_norm(sum, sum.shape[-1:], weight, eps), sum


def samples(make, shape):
    if not shape:
        return
    features = shape[-1:]

    # Of which half types hold the sum: tests/test_add_norms.py has others.
    def rows():
        return make(shape, step=1 / 32)

    # Where a row is hardly more than zero, rounding is amplified by 1 / sqrt(eps), in the
    # reference too: with the default eps that would be a test of luck.
    yield Sample(rows(), rows(), make(features), 0.1)
    yield Sample(rows(), rows(), eps=0.1)
    if make.dtype in (torch.float16, torch.bfloat16):
        yield Sample(rows(), rows(), make(features, dtype=torch.float32), 0.1)


def bad_inputs(make):
    yield BadInput(
        "negative eps",
        Sample(make((3, 4)), make((3, 4)), eps=-1e-5),
        "add_rms_norm: eps must not be negative, got -1e-05",
    )
    yield BadInput(
        "eps that is no number",
        Sample(make((3, 4)), make((3, 4)), make((4,)), float("nan")),
        "add_rms_norm: eps must not be negative, got nan",
    )


# Without the rows' statistics, which are saved for backward: an ideal one has them from the sum.
def traffic(sample):
    tensors = [t for t in (*sample.args, *sample.kwargs.values()) if isinstance(t, torch.Tensor)]
    size = tensors[0].nbytes
    features = sum(parameter.nbytes for parameter in tensors[2:])
    return Traffic(forward=4 * size + features, backward=4 * size + 2 * features)


spec = OpSpec(
    name="add_rms_norm",
    reference=reference,
    op_reference=op_reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    # As of fused_layer_norm.
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
    autocast={"cuda": "float32", "cpu": "promote"},
    counterpart=counterpart,
)
