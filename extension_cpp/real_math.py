"""Functions of Python's numbers as C++ has them: infinity and NaN where Python raises.

For what is derived of number arguments: only a call says whether `a` of `1 / a` is 0, and what the
kernels then compute is no error.
"""

import math
import operator
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import _disable_current_modes


def _total(
    function: Callable[..., float], in_torch: Callable[..., torch.Tensor]
) -> Callable[..., float]:
    """The function for all numbers: beyond what Python has it for, as PyTorch computes it."""

    def call(*given: float) -> float:
        numbers = [float(x) for x in given]  # as C++ has integers
        try:
            result = function(*numbers)
        except (ArithmeticError, ValueError):
            result = None
        # Python's powers of negative numbers are complex.
        if result is None or isinstance(result, complex):
            with _disable_current_modes():  # the numbers are no part of what is traced
                tensors = [torch.tensor(x, dtype=torch.float64, device="cpu") for x in numbers]
                return in_torch(*tensors).item()
        return float(result)

    return call


divide = _total(operator.truediv, torch.div)
power = _total(operator.pow, torch.pow)
floor_divide = _total(operator.floordiv, torch.floor_divide)
remainder = _total(operator.mod, torch.remainder)
fmod = _total(math.fmod, torch.fmod)
round = _total(round, torch.round)
floor = _total(math.floor, torch.floor)
ceil = _total(math.ceil, torch.ceil)
trunc = _total(math.trunc, torch.trunc)
exp = _total(math.exp, torch.exp)
expm1 = _total(math.expm1, torch.expm1)
log = _total(math.log, torch.log)
log2 = _total(math.log2, torch.log2)
log10 = _total(math.log10, torch.log10)
log1p = _total(math.log1p, torch.log1p)
sqrt = _total(math.sqrt, torch.sqrt)
sin = _total(math.sin, torch.sin)
cos = _total(math.cos, torch.cos)
tan = _total(math.tan, torch.tan)
asin = _total(math.asin, torch.asin)
acos = _total(math.acos, torch.acos)
sinh = _total(math.sinh, torch.sinh)
cosh = _total(math.cosh, torch.cosh)
acosh = _total(math.acosh, torch.acosh)
atanh = _total(math.atanh, torch.atanh)
