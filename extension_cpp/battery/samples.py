"""What specs are made of: calls that work, calls that fail, and the tensors that both are given."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from extension_cpp.notation import Shape

# Empty, single, odd, with a size-one dimension, four-dimensional (channels-last), a long row, many
# rows, and one that is large enough to be shared out between threads.
DEFAULT_SHAPES: tuple[tuple[int, ...], ...] = (
    (1,),
    (7,),
    (0,),
    (0, 5),
    (5, 0),
    (1, 1),
    (3, 5),
    (2, 1, 3),
    (2, 4, 3, 5),
    (33, 65),
    (3, 10007),
    (10007, 3),
    (128, 1024),
)


def default_shapes(line: Shape | None) -> tuple[tuple[int, ...], ...]:
    """The default shapes, as the line of shapes has the first tensor.

    In as many dimensions, of which some are joined to one, or added; with the sizes that it says.
    """
    if line is None:
        return DEFAULT_SHAPES
    shapes = [
        _of_rank(shape, line.single) if line.star is None else shape for shape in DEFAULT_SHAPES
    ]
    return tuple(dict.fromkeys(_with_sizes_of(line, shape) for shape in shapes))


def _of_rank(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    more = rank - len(shape)
    if rank == 0:
        return ()
    if more >= 0:
        return (2 if math.prod(shape) < 1000 else 1,) * more + shape
    return math.prod(shape[: 1 - more]), *shape[1 - more :]


def _with_sizes_of(line: Shape, shape: tuple[int, ...]) -> tuple[int, ...]:
    sizes = list(shape)
    for d, dim in enumerate(line.dims):
        at = d if line.star is None or d < line.star else d - len(line.dims)
        if len(sizes) < line.single or dim.is_name or dim.is_anything:
            continue
        if dim.size is not None:
            sizes[at] = dim.size
        elif len(dim.terms) == 1 and (times := dim.terms[0][0]) > 0:
            # The next that can be; of other sums any may be.
            sizes[at] = max(0, -(-(sizes[at] - dim.plus) // times)) * times + dim.plus
    return tuple(sizes)


@dataclasses.dataclass(frozen=True, init=False)
class Sample:
    """One call of an operator: ``Sample(x, bias, scale=2.0)``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)


@dataclasses.dataclass(frozen=True)
class BadInput:
    '''A call that must fail, and the exact text of its error.

    The text is an inline expectation: with ``EXPECTTEST_ACCEPT=1`` the check rewrites it in the
    source, so that a new one may start as ``BadInput("bias is too short", Sample(...), """""")``.
    '''

    name: str
    sample: Sample
    message: str
    # Whether the message is that of the line of shapes, which is written nowhere.
    follows: bool = dataclasses.field(default=False, kw_only=True)
    # Where the expectation stands in the source.
    origin: str = dataclasses.field(default="", init=False, compare=False)

    def __post_init__(self) -> None:
        frame: FrameType | None = sys._getframe(1)
        # The caller of the generated __init__.
        while frame is not None and frame.f_code.co_filename == "<string>":
            frame = frame.f_back
        if frame is not None:
            object.__setattr__(self, "origin", frame.f_code.co_filename)


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that an ideal kernel moves to and from memory."""

    forward: int
    backward: int


class Make:
    """Makes the tensors of samples: on the device, and by default of the dtype, under test.

    The same seed gives the same values on every device, rounded to the dtype.

    Args:
        device: where the tensors live.
        dtype: the dtype of tensors made without one.
        requires_grad: whether floating tensors require grad unless told otherwise.
        specials: whether one value in ten is NaN, an infinity or a signed zero.
        large: whether floating values for which no bounds are given lie in [-128, 128), of which
            float32 does not hold every exponential.
        seed: of the values.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        requires_grad: bool = True,
        specials: bool = False,
        large: bool = False,
        seed: int = 0,
    ) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.specials = specials
        self.large = large
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        requires_grad: bool | None = None,
        low: float | None = None,
        high: float | None = None,
        step: float | None = None,
    ) -> Tensor:
        """A contiguous tensor of ``shape`` with values uniform in [low, high).

        By default floating values lie in [-2, 2), integers in [0, 10). Floating tensors require
        grad unless ``requires_grad=False``; float8 and what is not floating does not. For values to
        stay away from a kink or a pole, give bounds. With a ``step`` they are multiples of it: what
        a half type then holds exactly, a sum say, is no other number in the reference's float64.
        """
        dtype = dtype or self.dtype
        device = self.device if device is None else device
        shape = tuple(shape)
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self._generator).to(device, dtype)
        if not (dtype.is_floating_point or dtype.is_complex):
            low, high = (0 if low is None else low), (10 if high is None else high)
            values = torch.randint(int(low), int(high), shape, generator=self._generator)
            return values.to(device, dtype)
        if self.large and low is None and high is None:
            low, high = -128.0, 128.0
        low, high = (-2.0 if low is None else low), (2.0 if high is None else high)
        if requires_grad is None:
            requires_grad = self.requires_grad and dtype.itemsize > 1
        values = self._uniform(shape, low, high, dtype, torch.device(device))
        if step is not None:
            values = values.div_(step).round_().mul_(step)
        return values.requires_grad_(requires_grad)

    def _uniform(
        self,
        shape: tuple[int, ...],
        low: float,
        high: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        values = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        values = low + (high - low) * values
        if self.specials:
            special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=torch.float64)
            choice = torch.randint(0, 50, shape, generator=self._generator)
            values = torch.where(choice < 5, special[choice.clamp(max=4)], values)
        return values.to(device, dtype)
