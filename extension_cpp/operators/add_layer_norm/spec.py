import torch

from extension_cpp.operators.fused_layer_norm import spec as layer_norm
from extension_cpp.testing import BadInput, OpSpec, Sample, Traffic


def op_reference(input, residual, weight=None, bias=None, eps=1e-05):
    sum = input + residual
    output, mean, rstd = layer_norm.op_reference(sum, weight, bias, eps)
    return output, sum, mean, rstd


def reference(input, residual, weight=None, bias=None, eps=1e-05):
    return op_reference(input, residual, weight, bias, eps)[:2]


def counterpart(input, residual, weight=None, bias=None, eps=1e-05):
    sum = input + residual
    return torch.nn.functional.layer_norm(sum, sum.shape[-1:], weight, bias, eps), sum


def samples(make, shape):
    for sample in layer_norm.samples(make, shape):
        # Of which half types hold the sum: tests/test_add_norms.py has others.
        rows = [make(shape, step=1 / 32) for _ in range(2)]
        yield Sample(*rows, *sample.args[1:], **sample.kwargs)


def bad_inputs(make):
    yield BadInput(
        "negative eps",
        Sample(make((3, 4)), make((3, 4)), eps=-1e-5),
        "add_layer_norm: eps must not be negative, got -1e-05",
    )
    yield BadInput(
        "eps that is no number",
        Sample(make((3, 4)), make((3, 4)), make((4,)), make((4,)), float("nan")),
        "add_layer_norm: eps must not be negative, got nan",
    )


# Without the rows' statistics, as of fused_layer_norm.
def traffic(sample):
    tensors = [t for t in (*sample.args, *sample.kwargs.values()) if isinstance(t, torch.Tensor)]
    size = tensors[0].nbytes
    features = sum(parameter.nbytes for parameter in tensors[2:])
    return Traffic(forward=4 * size + features, backward=4 * size + 2 * features)


spec = OpSpec(
    name="add_layer_norm",
    reference=reference,
    op_reference=op_reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    shapes=layer_norm.spec.shapes,
    tolerances=layer_norm.spec.tolerances,
    autocast={"cuda": "float32", "cpu": "promote"},
    counterpart=counterpart,
)
