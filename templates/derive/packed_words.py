"""What is said of tensors that have several parts."""

from __future__ import annotations

from collections.abc import Sequence

from .packed_plan import PackedPlan


def columns(plan: PackedPlan, name: str) -> str:
    """How many a tensor has, in Python."""
    count = plan.count(name)
    return f"{count} * {plan.columns}" if count > 1 else plan.columns


def sizes_of_samples(plan: PackedPlan) -> tuple[str, str]:
    """Which shapes the first tensor may have, and the line that takes one apart."""
    count = plan.count(plan.tensors[0])
    some = " and shape[-1] > 0" if plan.verified.columns else ""
    whole = f" and shape[-1] % {count} == 0" if count > 1 else ""
    size = f"shape[-1] // {count}" if count > 1 else "shape[-1]"
    return f"shape{some}{whole}", f"rows, {plan.columns} = shape[:-1], {size}"


def described(plan: PackedPlan, name: str) -> str:
    """Of an argument."""
    shape = f"`(..., {columns(plan, name)})`"
    parts = plan.apart.parts_of(name)
    if len(parts) > 1:
        shape += f", {in_words([f'`{part}`' for part in parts])} side by side"
    if name == plan.main:
        return f"{shape}; float64, float32, float16 or bfloat16, on CPU or CUDA."
    if plan.broadcasts:
        shape += ", of which the dimensions before the last broadcast"
    dtype = plan.dtypes.get(name)
    what = f"{dtype}, on the device" if dtype else "dtype and device"
    return f"{shape}; {what} of `{plan.main}`{', or None' * (name in plan.optional)}."


def returned(plan: PackedPlan) -> str:
    """Of the results."""
    shapes = [f"`(..., {columns(plan, result.name)})`" for result in plan.results]
    if len(shapes) == 1:
        return (
            f"A contiguous tensor {shapes[0]}"
            + ", of the common shape." * plan.broadcasts
            + ("." * (not plan.broadcasts))
        )
    counted = {2: "Two", 3: "Three", 4: "Four"}.get(len(shapes), str(len(shapes)))
    if len({*shapes}) == 1:
        return f"{counted} contiguous tensors, each {shapes[0]}."
    return f"{counted} contiguous tensors, {', '.join(shapes[:-1])} and {shapes[-1]}."


def said_of_shapes(plan: PackedPlan) -> str:
    """What the tensors' shapes are taken for."""
    names: dict[str, list[str]] = {}
    for name in plan.tensors:
        names.setdefault(columns(plan, name), []).append(f"`{name}`")
    own = {columns(plan, result.name) for result in plan.results}
    the_same = ["the results" if len(plan.results) > 1 else "the result"] if len(own) == 1 else []
    for result in plan.results[: len(the_same) or None]:
        names.setdefault(columns(plan, result.name), []).extend(the_same or [f"`{result.name}`"])
    said = [
        f"{in_words(of)} {'has' if len(of) == 1 and of != ['the results'] else 'have'} "
        f"{what.replace(' * ', '')} columns"
        for what, of in names.items()
    ]
    rest = ""
    if len(plan.tensors) > 1:
        rest = " Their other dimensions " + ("broadcast." if plan.broadcasts else "are the same.")
    return f"{', '.join(said)}.{rest}"


def in_words(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
