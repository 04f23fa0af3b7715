"""What follows from an operator's line of shapes: samples, and calls that must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from extension_cpp.battery.samples import BadInput, Make, Sample
from extension_cpp.shapes import Call, Operator


def samples_of(line: Operator, make: Make, shape: tuple[int, ...]) -> Iterator[Sample]:
    """Calls of which the first tensor has a shape."""
    for args, kwargs in line.samples(make, shape):
        yield Sample(*args, **kwargs)


def bad_inputs_of(
    line: Operator, make: Make, samples: Callable[..., Iterable[Sample]]
) -> Iterator[BadInput]:
    """Each tensor in turn is another, with the message of the line's check in Python.

    `samples` are the spec's: an argument may have a type of which no value follows.
    """

    def given(*args: Any) -> Iterator[Call]:
        return ((sample.args, sample.kwargs) for sample in samples(*args))

    for name, (args, kwargs), message in line.bad_inputs(make, given):
        yield BadInput(name, Sample(*args, **kwargs), message, follows=True)
