import torch

from extension_cpp.operators.bn_relu.spec import before_relu, of_channel, samples
from extension_cpp.testing import Sample


def cases(make, shape):
    if len(shape) < 2:
        return
    sample = next(iter(samples(make, shape)))
    move_off_the_kink(*sample.args)
    if len(shape) == 2:
        yield "", sample
        return
    yield "channels first", sample
    input, *parameters = sample.args
    last = input.detach().movedim(1, -1).contiguous().movedim(-1, 1)
    yield "channels last", Sample(last.requires_grad_(input.requires_grad), *parameters)


@torch.no_grad()
def move_off_the_kink(input, weight, bias, running_mean, running_var, eps=1e-05):
    """What is 0 before relu but for rounding: of a hundred million elements it is some.

    Rounding says whether they have a gradient. They come to lie a deviation from the mean, on the
    side where weight and bias add up.
    """
    deviation = of_channel(running_var, input).sqrt() * of_channel(weight * bias, input).sign()
    elsewhere = (of_channel(running_mean, input) + deviation).to(input.dtype)
    near = before_relu(input, weight, bias, running_mean, running_var, eps).abs() < 1e-4
    input.copy_(torch.where(near, elsewhere, input))
