"""The bytes that an ideal kernel moves, from what a call and its backward are given and give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from extension_cpp.battery.samples import Sample, Traffic
from extension_cpp.battery.tensors import replace_tensors, tensors_in
from extension_cpp.registration.signature import is_differentiable


def measured_traffic(
    function: Callable[..., Any], sample: Sample, *, differentiable: bool
) -> Traffic:
    """Inputs and outputs; and, backward, their gradients and what was saved for it.

    What is written to counts once, and so does each element of a tensor that is expanded. Where the
    gradients are the incoming ones, as those of a sum are, nothing is moved. The call is made with
    fake tensors: it costs neither time nor memory.

    Args:
        function: the public function.
        sample: a call of it.
        differentiable: whether there is a backward.
    """
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[_memory(tensor)] = tensor
        return tensor

    mode = FakeTensorMode()
    given = tensors_in((sample.args, sample.kwargs))
    inputs = [
        mode.from_tensor(t.detach()).requires_grad_(differentiable and is_differentiable(t))
        for t in given
    ]
    values = iter(inputs)
    args = replace_tensors(sample.args, values)
    kwargs = replace_tensors(sample.kwargs, values)
    with mode, saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = [o for o in tensors_in(function(*args, **kwargs)) if not _is_among(o, inputs)]
        forward = _bytes(inputs) + _bytes(outputs)
        results = [o for o in outputs if o.requires_grad]
        if not results:
            return Traffic(forward, 0)
        wanted = [t for t in inputs if t.requires_grad]
        incoming = [torch.empty_like(o) for o in results]
        grads = torch.autograd.grad(results, wanted, incoming, allow_unused=True)
    made = [g for g in grads if g is not None and not _is_among(g, incoming)]
    backward = _bytes(incoming) + _bytes(saved.values()) + _bytes(made) if made else 0
    return Traffic(forward, backward)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(_elements(t) * t.element_size() for t in tensors)


def _elements(tensor: Tensor) -> int:
    """How many there are in memory."""
    if tensor.numel() == 0:
        return 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride != 0)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_among(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    return any(_memory(tensor) == _memory(other) for other in others)
