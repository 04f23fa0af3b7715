"""Registers what an operator does under autograd, vmap, autocast, mutation and DTensor.

The names of :mod:`torch.library`, right under every transform. Where an operator has no derivative
formula, :func:`register_no_autograd` and :func:`register_mutation` turn the derivative that would
be lost into an error that names the operator.

This is the one folder of the package whose workings rest on private parts of PyTorch: what it
imports from ``torch._C``, ``torch._functorch``, ``torch._guards``, ``torch._ops``,
``torch._subclasses`` and ``torch.autograd.function``, and ``torch._VF``. PyTorch's own
``torch.library`` and ``torch.func`` are built on these names, which are the same from 2.11 to 2.15.
It also rests on how inductor lowers an operator, and on ``torch.ops.namespace`` and
``torch.ops.namespace.name`` being objects of Python classes, which :mod:`.direct` extends.
"""

from extension_cpp.registration.autocast import register_autocast
from extension_cpp.registration.autograd import register_autograd
from extension_cpp.registration.fake import register_fake
from extension_cpp.registration.mutation import register_mutation
from extension_cpp.registration.no_autograd import register_no_autograd
from extension_cpp.registration.reference import references
from extension_cpp.registration.sharding import register_sharding
from extension_cpp.registration.vmap import register_vmap

__all__ = [
    "references",
    "register_autocast",
    "register_autograd",
    "register_fake",
    "register_mutation",
    "register_no_autograd",
    "register_sharding",
    "register_vmap",
]
