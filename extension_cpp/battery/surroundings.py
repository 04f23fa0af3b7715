"""Surroundings in which hidden faults show."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
import torch.compiler.config

from extension_cpp import _loader


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fills uninitialised memory with NaN, or no likely integer: what is never written shows."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch.utils.deterministic.fill_uninitialized_memory, on by default, works in this mode.
        torch.use_deterministic_algorithms(True, warn_only=True)
        filled = _loader.fill_new_tensors(True)
        try:
            yield
        finally:
            _loader.fill_new_tensors(filled)
            torch.use_deterministic_algorithms(before, warn_only=warn_only)


@contextlib.contextmanager
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled before is used, from memory or disk, or counts towards a limit."""
    torch.compiler.reset()
    no_caches = torch.compiler.config.patch(force_disable_caches=True)  # type: ignore[attr-defined]
    try:
        with no_caches, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "dynamo_pgo force disabled")
            yield
    finally:
        torch.compiler.reset()
