from extension_cpp.testing import Sample

DIMS = {2: (None, (0,), (1,)), 3: ((0,), (1,), (2,), (0, 2), (1, 2))}


def cases(make, shape):
    for dim in DIMS.get(len(shape), ()):
        form = "all" if dim is None else f"dim {', '.join(map(str, dim))}"
        yield form, Sample(make(shape), dim)
