import torch

from extension_cpp.testing import DEFAULT_SHAPES, BadInput, OpSpec, Sample, Traffic


def of_channel(tensor, input):
    """The numbers of channels, to broadcast with images, in the dtype of the arithmetic."""
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    return tensor.to(dtype).view(-1, *[1] * (input.dim() - 2))


def before_relu(input, weight, bias, running_mean, running_var, eps):
    rstd = of_channel(running_var + eps, input).rsqrt()
    mean = of_channel(running_mean, input)
    x_hat = (input.to(mean.dtype) - mean) * rstd
    return x_hat * of_channel(weight, input) + of_channel(bias, input)


def reference(input, weight, bias, running_mean, running_var, eps=1e-05):
    result = before_relu(input, weight, bias, running_mean, running_var, eps)
    return torch.relu(result).to(input.dtype)


def counterpart(input, weight, bias, running_mean, running_var, eps=1e-05):
    output = torch.nn.functional.batch_norm(
        input, running_mean, running_var, weight, bias, training=False, eps=eps
    )
    return torch.relu(output)


def samples(make, shape):
    if len(shape) < 2:
        return
    channels = shape[1:2]

    def parameters(**options):
        mean = make(channels, requires_grad=False, **options)
        var = make(channels, requires_grad=False, low=0.5, high=2.0, **options)
        return make(channels, **options), make(channels, **options), mean, var

    yield Sample(make(shape), *parameters())
    yield Sample(make(shape), *parameters(), eps=0.25)
    if make.dtype in (torch.float16, torch.bfloat16):
        yield Sample(make(shape), *parameters(dtype=torch.float32))


def bad_inputs(make):
    one = make((4,), requires_grad=False)
    yield BadInput(
        "negative eps",
        Sample(make((3, 4)), one, one, one, one, -1e-5),
        "bn_relu: eps must not be negative, got -1e-05",
    )


# Backward the statistics are read, too, but have no gradients.
def traffic(sample):
    size, *parameters = (tensor.nbytes for tensor in sample.args[:5])
    return Traffic(
        forward=2 * size + sum(parameters),
        backward=3 * size + sum(parameters) + sum(parameters[:2]),
    )


spec = OpSpec(
    name="bn_relu",
    reference=reference,
    samples=samples,
    bad_inputs=bad_inputs,
    traffic=traffic,
    # Planes for part of a warp, a warp, a block, several blocks, in vectors and one by one.
    shapes=(
        *DEFAULT_SHAPES,
        (2, 5, 3),
        (2, 3, 7, 7),
        (3, 20, 24),
        (2, 8, 14, 14),
        (1, 2, 130, 160),
        (1, 1, 70001),
    ),
    counterpart=counterpart,
)
