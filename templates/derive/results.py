"""Which of several results the backward is given."""

from __future__ import annotations

from collections.abc import Sequence

from .body import Branch
from .graph import inputs_of
from .saved import OUTPUT, on_results
from .statistics import is_for_arguments
from .variant import Result, Variant


def keep_results(variants: Sequence[Variant]) -> bool:
    """Has the gradients be made of results, where that is less to read than what these are made of.

    The results know which of them are float32 beside half types. One that is alone is seen to by
    saved.on_output().

    Returns:
        whether there are such results.
    """
    kept = [keep_results_of(variant) for variant in variants]
    return any(kept)


def keep_results_of(variant: Variant) -> bool:
    forward, found = variant.forward, variant.gradients
    in_kernel = variant.with_statistics or found
    if isinstance(forward, Branch) or isinstance(found, Branch) or isinstance(in_kernel, Branch):
        return False
    named = {
        name_of(result, k): k
        for k, result in enumerate(variant.results)
        if len(variant.results) > 1 and result.is_differentiable and not result.of_row
    }
    both = on_results(
        {name: forward[k] for name, k in named.items()},
        [*found, *in_kernel],
        {*variant.own} - {*variant.columns, *variant.rows},
        [name for name, k in named.items() if variant.results[k].is_wide],
    )
    if both is None:
        return False
    variant.gradients = both[: len(found)]
    variant.with_statistics = both[len(found) :] if variant.with_statistics else ()
    names = inputs_of(both)
    variant.kept = {name: k for name, k in named.items() if name in names}
    return True


def name_of(result: Result, k: int) -> str:
    """What the backward calls it: as nothing else there, gradients among it."""
    is_free = is_for_arguments(result.name) and not result.name.startswith("grad_")
    return result.name if is_free else f"{OUTPUT}{k}"
