from extension_cpp.testing import OpSpec, Sample


# A layer, whose backward is one pass; and every input broadcast in its own way.
def samples(make, shape):
    features, rows = shape[-1:], (*shape[:-1], 1)
    yield Sample(make(shape), make(shape), make(shape))
    yield Sample(make(features), make(shape), make(features))
    yield Sample(make(rows), make(features), make(()))


spec = OpSpec(
    name="affine",
    reference=lambda a, x, b: a * x + b,
    samples=samples,
    autocast="promote",
)
