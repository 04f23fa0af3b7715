from extension_cpp.operators.bn_relu.spec import samples
from extension_cpp.testing import Sample


def cases(make, shape):
    if len(shape) < 2:
        return
    sample = next(iter(samples(make, shape)))
    if len(shape) == 2:
        yield "", sample
        return
    yield "channels first", sample
    input, *parameters = sample.args
    last = input.detach().movedim(1, -1).contiguous().movedim(-1, 1)
    yield "channels last", Sample(last.requires_grad_(input.requires_grad), *parameters)
