"""Tensors within arguments: found, replaced, copied, and made like others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def flat(tree: Any) -> list[Any]:
    """The values in nested tuples, lists and dictionaries."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in flat(item)]
    return [tree]


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in flat(tree) if isinstance(leaf, Tensor)]


def replace_tensors(tree: Any, tensors: Iterator[Any]) -> Any:
    """The tree with other values in the places of its tensors."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, (tuple, list)):
        return type(tree)(replace_tensors(item, tensors) for item in tree)
    if isinstance(tree, dict):
        return {key: replace_tensors(item, tensors) for key, item in tree.items()}
    return tree


def as_leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Leaves on the same memory, and thus in the same layout."""
    return [t.detach().requires_grad_(t.requires_grad) for t in tensors]


def to_float64(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Leaves with the same (rounded) values in float64, complex ones in complex128."""

    def upcast(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.detach().to(torch.float64)
        if tensor.is_complex():
            return tensor.detach().to(torch.complex128)
        return tensor.detach().clone()

    return [upcast(t).requires_grad_(t.requires_grad) for t in tensors]


def as_pairs(*tensors: Tensor) -> Iterator[Tensor]:
    """Complex tensors as those of their two parts."""
    return (torch.view_as_real(t.detach().resolve_conj()) for t in tensors)


def exact_copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies down to strides, offset and gaps; what shares memory still does."""
    wholes: dict[int, Tensor] = {}
    copies = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        memory = storage.data_ptr() or id(tensor)  # empty tensors have no memory to share
        if memory not in wholes:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            whole.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
            wholes[memory] = whole.clone()
        whole = wholes[memory].view(tensor.dtype)
        copy = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        copies.append(copy.detach().requires_grad_(tensor.requires_grad))
    return copies


def random_like(tensors: Iterable[Tensor], seed: int = 1) -> list[Tensor]:
    """Cotangents or tangents: values in [-1, 1), the same on every device.

    Of half types odd multiples of 1 / 128: they hold the sum of two, which autograd rounds where
    the gradients of one tensor meet, and the reference in float64 does not.
    """
    generator = torch.Generator().manual_seed(seed)

    def values(like: Tensor) -> Tensor:
        found = torch.rand(like.shape, generator=generator, dtype=torch.float64).mul(2).sub(1)
        half = like.dtype in (torch.float16, torch.bfloat16)
        return found.mul(64).floor().add(0.5).div(64) if half else found

    return [values(t).to(t.detach()) for t in tensors]


def gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    create_graph: bool = False,
) -> list[Tensor]:
    """`torch.autograd.grad` with zeros for what an output does not depend on."""
    return list(
        torch.autograd.grad(
            outputs, inputs, cotangents, create_graph=create_graph, materialize_grads=True
        )
    )
