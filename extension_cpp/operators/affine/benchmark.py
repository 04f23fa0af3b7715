from extension_cpp.testing import Sample


def cases(make, shape):
    if len(shape) != 2:
        return
    row, column = shape[-1:], (shape[0], 1)
    yield "", Sample(make(shape), make(shape), make(shape))
    yield "a[N], b[N]", Sample(make(row), make(shape), make(row))
    yield "a[M, 1], b[N]", Sample(make(column), make(shape), make(row))
    yield "a[], b[]", Sample(make(()), make(shape), make(()))
