"""Forward mode from a backward formula: its transpose, and the tangents of tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad as fwAD
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from extension_cpp.registration.signature import is_differentiable, tensors_in


@contextlib.contextmanager
def no_saved_tensors_hooks() -> Iterator[None]:
    """Saves tensors as they are: the caller's hooks are for what is kept until backward."""
    before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(before)


class LinearContext(FunctionCtx):
    """The ``ctx`` of a backward formula that is called as a linear function, for forward mode.

    What is saved keeps its history, because the tangents that come out are differentiable too.
    """

    def __init__(self, needs_input_grad: tuple[Any, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self._materialize_grads = True
        self._non_differentiable: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *args: Tensor) -> None:
        self._non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        self._materialize_grads = value

    def _seed(self, output: Any) -> Tensor | None:
        """Makes the gradient of an output at which the formula is called; its value is no matter.

        It requires a gradient itself if the output is differentiable.
        """
        if not isinstance(output, Tensor):
            return None
        if is_differentiable(output) and all(output is not t for t in self._non_differentiable):
            return torch.zeros_like(output, requires_grad=True)
        return torch.zeros_like(output) if self._materialize_grads else None


def transpose(
    name: str,
    seeds: Sequence[Tensor | None],
    input_grads: Sequence[Tensor | None],
    tangents: Sequence[Tensor | None],
    *,
    create_graph: bool,
) -> tuple[Tensor | None, ...]:
    """Returns the outputs' tangents, given input gradients that are linear in the ``seeds``."""
    variables = [seed for seed in seeds if seed is not None and seed.requires_grad]
    pairs = [
        # Autograd sums a gradient that is larger than its input; the transpose of that expands.
        (grad, tangent.expand(grad.shape))
        for grad, tangent in zip(input_grads, tangents, strict=True)
        if grad is not None and tangent is not None
    ]
    results: Sequence[Tensor | None] = [None] * len(variables)
    if pairs and variables:
        if all(grad.requires_grad for grad, _ in pairs):
            results = torch.autograd.grad(
                [grad for grad, _ in pairs],
                variables,
                [tangent for _, tangent in pairs],
                create_graph=create_graph,
                allow_unused=True,
            )
        if all(result is None for result in results):
            raise RuntimeError(
                f"{name}: forward-mode AD needs a backward formula that is differentiable. Make "
                "it of PyTorch's operations and of operators that have a formula themselves, and "
                "let it return None, not zeros, for an input that does not matter"
            )
    found = iter(results)
    return tuple(
        None if seed is None or not seed.requires_grad else _or_zeros(next(found), seed)
        for seed in seeds
    )


def _or_zeros(tangent: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if tangent is None else tangent


# Whether torch.compile has traced a call with tangents. The graphs that it makes enter a dual level
# without setting forward_ad's variable, so that from then on the tensors have to be asked.
graphs_have_tangents = False


def any_tangent(values: Iterable[Any], in_transform: bool) -> bool:
    """Whether a tensor carries a tangent at this level. To ask is slow: only where one may."""
    global graphs_have_tangents
    if not (in_transform or fwAD._current_level >= 0 or graphs_have_tangents):
        return False
    tracing = _len_torch_dispatch_stack() > 0
    # The question is not part of what is traced.
    with disable_proxy_modes_tracing() if tracing else contextlib.nullcontext():
        found = any(unpack_dual(tensor)[1] is not None for tensor in tensors_in(values))
    graphs_have_tangents |= found and tracing
    return found


def unpack_dual(value: Any) -> tuple[Any, Tensor | None]:
    """Returns a tensor's primal and tangent; the primal keeps its history and its other levels."""
    # Tensors without strides carry none, and to ask them raises, where their operator says more.
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return value, None
    # fwAD.unpack_dual goes by forward_ad's variable.
    primal, tangent = torch._VF._unpack_dual(value, level=0)
    return primal, tangent
