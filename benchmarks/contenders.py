"""Who is timed: this package, PyTorch, torch.compile, and other libraries where they are there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from cases import own
from torch import Tensor

from extension_cpp.battery.tensors import tensors_in
from extension_cpp.registration.signature import is_differentiable
from extension_cpp.testing import OpSpec, Sample

OURS = "ours"
# Other libraries: what to install, and what is then imported.
LIBRARIES = {"liger": ("liger-kernel", "liger_kernel"), "quack": ("quack-kernels", "quack")}
OTHERS = ("eager", "compile", *LIBRARIES)
# Beside an operator that was derived, the one that was written by hand: see derived.py.
WORKED = "worked"
DIRECTIONS = ("forward", "backward", "both")

Function = Callable[..., Any]


def contenders(
    spec: OpSpec, device: str, wanted: Sequence[str] = OTHERS
) -> tuple[dict[str, Function], dict[str, str]]:
    """The functions to time, ours first, and why others are not among them.

    Args:
        spec: the operator.
        device: cpu or cuda.
        wanted: of `OTHERS`, and `WORKED`.
    """
    # With it a compiled backward may refuse to retain its graph.
    torch._functorch.config.donated_buffer = False
    # What other processes found fastest they found on a busy machine.
    torch._inductor.config.autotune_local_cache = False
    eager = getattr(own(spec), "eager", spec.counterpart or spec.reference)
    to_compile = getattr(own(spec), "compiled", eager)
    found = {OURS: spec.function}
    absent = {}
    for name in wanted:
        if name == "eager":
            found[name] = eager
        elif name == "compile":
            # What was compiled for other shapes would count against the limit of recompilations.
            torch.compiler.reset()
            found[name] = torch.compile(to_compile, dynamic=False)
        else:
            loaded = library(name, spec, device)
            if isinstance(loaded, str):
                absent[name] = loaded
            else:
                found[name] = loaded
    return found, absent


def library(name: str, spec: OpSpec, device: str) -> Function | str:
    """Another library's function, or why there is none."""
    load: Mapping[str, Callable[[], Function]] = getattr(own(spec), "others", {})
    if name not in load:
        return f"has no {spec.name}"
    if name not in LIBRARIES:
        return load[name]()
    package, module = LIBRARIES[name]
    if device != "cuda":
        return "runs on CUDA alone"
    if importlib.util.find_spec(module) is None:
        return f"is not installed (pip install {package})"
    try:
        return load[name]()
    except ImportError as error:
        return f"cannot be imported: {error}"


def forward(function: Function, sample: Sample) -> Callable[[], object]:
    """To be called without gradients, which is not in its time."""
    return lambda: function(*sample.args, **sample.kwargs)


def backward(function: Function, sample: Sample, grads: Sequence[Tensor]) -> Callable[[], object]:
    """The backward alone, of a graph that is recorded here."""
    outputs = differentiable(function(*sample.args, **sample.kwargs))
    inputs = wanted(sample)
    return lambda: torch.autograd.grad(outputs, inputs, grads, retain_graph=True, allow_unused=True)


def both(function: Function, sample: Sample, grads: Sequence[Tensor]) -> Callable[[], object]:
    """A forward that records the graph, and its backward."""
    inputs = wanted(sample)

    def call() -> object:
        outputs = differentiable(function(*sample.args, **sample.kwargs))
        return torch.autograd.grad(outputs, inputs, grads, allow_unused=True)

    return call


def wanted(sample: Sample) -> list[Tensor]:
    """The inputs whose gradients are computed."""
    return [t for t in tensors_in((sample.args, sample.kwargs)) if t.requires_grad]


def differentiable(result: Any) -> list[Tensor]:
    # Codes of float8 have PyTorch's, and none of ours.
    return [t for t in tensors_in(result) if t.requires_grad and is_differentiable(t)]
