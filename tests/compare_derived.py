"""Compares worked operators with those derived from their definitions, `NAME_derived`, bit by bit.

python tests/compare_derived.py  # where both are built; status 1 if a value or gradient differs
"""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from extension_cpp.testing import Make, OpSpec, Sample, find_specs

SHAPES = ((7, 33), (64, 96), (1000,), (3, 5, 1024))
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SPECIAL = (0.0, float("inf"), -float("inf"), float("nan"))
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
# In eps of the largest: sums in another order, or of statistics that were computed in another way.
SUMMED = 8.0


def differences(worked: OpSpec, derived: OpSpec) -> Iterator[str]:
    """What differs, in words; every pair has something to compare."""
    compared = 0
    for dtype in DTYPES:
        make = Make("cpu", dtype, requires_grad=True)
        for shape in SHAPES:
            for sample in worked.samples(make, shape):
                if taken(derived, sample):
                    compared += 1
                    for problem in compare(worked, derived, sample):
                        yield f"{worked.name} {shape} {dtype}: {problem}"
    if not compared:
        yield f"{worked.name}: there is no sample that both take"


def taken(derived: OpSpec, sample: Sample) -> bool:
    """Whether the derived operator takes it: no optional tensors, all of one dtype."""
    wanted = [a for a in derived.op._schema.arguments if isinstance(a.type, torch.TensorType)]
    tensors = tensors_of(sample)
    return len(tensors) == len(wanted) and len({tensor.dtype for tensor in tensors}) == 1


def compare(worked: OpSpec, derived: OpSpec, sample: Sample) -> Iterator[str]:
    tensors = tensors_of(sample)
    assert derived.line is not None
    notation = derived.line.notation
    elementwise = all(dim.is_star for shape in notation.inputs for dim in shape.dims)
    if elementwise and len({tensor.shape for tensor in tensors}) == 1:
        with torch.no_grad():
            for k, tensor in enumerate(tensors):
                tensor.view(-1)[k : k + len(SPECIAL)] = torch.tensor(SPECIAL, dtype=tensor.dtype)
    ours, theirs = (results(spec, sample) for spec in (worked, derived))
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        what = f"gradient {number - 1}" if number else "output"
        if elementwise and a.shape == ours[0].shape:
            if count := unequal(a, b):
                yield f"{what} differs in {count} elements"
        elif not off(a, b) <= SUMMED:
            yield f"{what} is off by {off(a, b):.2g} eps of the largest"


def tensors_of(sample: Sample) -> list[Tensor]:
    return [x for x in (*sample.args, *sample.kwargs.values()) if isinstance(x, Tensor)]


def results(spec: OpSpec, sample: Sample) -> list[Tensor]:
    """The output, and the gradients of all tensors."""
    output = spec.function(*sample.args, **sample.kwargs)
    random = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    gradients = torch.autograd.grad(output, tensors_of(sample), random.to(output.dtype))
    return [output.detach(), *gradients]


def unequal(a: Tensor, b: Tensor) -> int:
    """How many elements differ in some bit, and are not both NaN."""
    bits = BITS[a.element_size()]
    differ = a.contiguous().view(bits) != b.contiguous().view(bits)
    return int((differ & ~(a.isnan() & b.isnan())).sum())


def off(a: Tensor, b: Tensor) -> float:
    """How far they are apart, in eps of the largest."""
    apart = (a.double() - b.double()).abs().max() / a.double().abs().max()
    return apart.item() / torch.finfo(a.dtype).eps


def main() -> int:
    specs = {spec.name: spec for spec in find_specs()}
    pairs = [(spec, specs.get(f"{name}_derived")) for name, spec in specs.items()]
    found = [(spec, derived) for spec, derived in pairs if derived is not None]
    problems = [problem for pair in found for problem in differences(*pair)]
    print(*problems, f"{len(found)} pairs, {len(problems)} differences", sep="\n")
    return 1 if problems or not found else 0


if __name__ == "__main__":
    sys.exit(main())
