import torch

from extension_cpp.testing import OpSpec, Sample


# With a negative scale too, which turns the gradient's sign but not the mask.
def samples(make, shape):
    features = shape[-1:]
    yield Sample(make(shape), make(features), scale=1.75)
    yield Sample(make(shape), make(features), -0.375)
    yield Sample(make(shape), make(features))


spec = OpSpec(
    name="fused_op",
    reference=lambda input, bias, scale=1.0: torch.relu(input * scale + bias),
    samples=samples,
    autocast="lower_precision",
)
