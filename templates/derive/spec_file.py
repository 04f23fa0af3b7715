"""The spec.py of a derived operator: the definition is the reference."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from naming import all_free

from . import packed_words
from .definition import meanings
from .graph import INTEGERS
from .ops_file import function, in_torch
from .packed_plan import PackedPlan
from .plan import Plan, shape_in_rows
from .python_text import MODULES, called
from .refusal import taken
from .row_integers import lengths, places
from .verify import FLOAT32, INTEGER_RANGES, MANY_ROWS, MASK, NO_HALF, RANGES

# Functions that a reference does without, and why.
UNLIKE = {
    "layer_norm": "the second derivatives of PyTorch's layer_norm are wrong in forward mode",
    "rms_norm": "PyTorch's rms_norm takes infinities otherwise on CUDA than on the CPU",
    "huber_loss": "PyTorch's huber_loss has no derivative in forward mode",
    "cosine_similarity": "PyTorch's cosine_similarity cannot be checkpointed selectively",
    "pairwise_distance": "PyTorch's pairwise_distance has no derivative in forward mode",
    "hardswish": "PyTorch's hardswish rounds its constants to float32 on CUDA",
    "hardsigmoid": "PyTorch's hardsigmoid has no second derivative",
    "celu": "PyTorch's celu rounds alpha to float32 in its derivative",
    "prelu": "PyTorch's prelu looks up its weight by channel; here it broadcasts",
    "heaviside": "PyTorch's heaviside has no derivative",
    "soft_margin_loss": "PyTorch's soft_margin_loss has no derivative by its target",
    "binary_cross_entropy": "PyTorch's binary_cross_entropy refuses values outside of [0, 1]",
    "gaussian_nll_loss": "PyTorch's gaussian_nll_loss refuses negative variances",
    "margin_ranking_loss": "PyTorch's margin_ranking_loss cannot be checkpointed selectively",
    "isclose": "PyTorch's isclose cannot be checkpointed selectively",
    "one_hot": "PyTorch's one_hot cannot be checkpointed selectively",
    FLOAT32: "the definition computes float64 in float32",
    NO_HALF: "the definition raises for a half type",
    "no_grad": "torch.no_grad() stops no derivative in forward mode",
}
FUTURE = "from __future__ import annotations\n"
# Of what formulas use.
IMPORTS = {
    "math": "import math\n",
    "F": "import torch.nn.functional as F\n",
    "real_math": "from extension_cpp import real_math\n",
}
OF_WIDE = "from extension_cpp.shapes import sum_dtype\n"


def spec_file(plan: Plan) -> str:
    imported, samples, given = "OpSpec", "", ""
    if needs_samples(plan):
        imported, given = "OpSpec, Sample", ", samples=samples"
        samples = f"{sample_function(plan)}\n\n"
    reference, formulas = plan.name, ""
    used = {*plan.verified.functions, *re.findall(r"\bno_grad\b", plan.definition.source)}
    used -= {"no_grad"} if plan.written else set()  # which has no derivatives
    if found := [name for name in UNLIKE if name in used]:
        reference, given = "composed", f"{given}, counterpart={plan.name}"
        formulas = f"# Of primitive operations: {UNLIKE[found[0]]}.\n"
        formulas += composed(plan, reference)
    if plan.statistics:
        given += ", op_reference=op_reference"
        formulas += "# What it returns besides is for the backward.\n"
        whole = in_torch(plan, "op_reference", parameters(plan), has_statistics=True)
        formulas += f"{whole}\n\n"
    if plan.stops_gradients and plan.differentiable:
        given += ", stops_gradients=True"
    if rounded := sorted({plan.results[k].dtype for k in plan.converted}):
        # Of float64 rounding may decide otherwise.
        limits = ", ".join(f"torch.{dtype}: (0, 1)" for dtype in rounded)
        given += f", tolerances={{{limits}}}"
    if not plan.differentiable:
        given += ", differentiable=False"
    if twice := [name for name in plan.written if is_read(plan, name)]:
        imported, given = f"{imported}, Traffic", f"{given}, traffic=traffic"
        samples += f"{traffic(plan, twice)}\n\n"
    if plan.autocast:
        given += f', autocast="{plan.autocast}"'
    last = f'spec = OpSpec(name="{plan.name}", reference={reference}{given})\n'
    check_names(plan, f"{formulas}{samples}{last}")
    ours = f"{formulas}{samples}"
    text = "".join(line for name, line in IMPORTS.items() if re.search(rf"\b{name}\.", ours))
    text += OF_WIDE if "sum_dtype(" in ours else ""
    text += f"import torch\nfrom extension_cpp.testing import {imported}\n"
    text += f"{plan.definition.source}\n\n{formulas}{samples}{last}"
    return FUTURE + text.replace(FUTURE, "") if FUTURE in text else text


def is_read(plan: Plan, name: str) -> bool:
    return any(name in variant.uses(variant.forward) for variant in plan.variants)


def traffic(plan: Plan, twice: Sequence[str]) -> str:
    """The function of an operator that reads what it writes to."""
    places = [f"sample.args[{k}]" for k, a in enumerate(plan.arguments) if a.name in twice]
    lines = [
        "given = [t for t in sample.args if isinstance(t, torch.Tensor)]",
        f"return Traffic(sum(t.nbytes for t in (*given, {', '.join(places)})), 0)",
    ]
    comment = f"# {' and '.join(twice)} {'are' if twice[1:] else 'is'} read and written."
    return f"{comment}\n{function('traffic', ['sample'], lines)}"


def composed(plan: Plan, name: str) -> str:
    """The reference made of the formula."""
    if not plan.written:
        return f"{in_torch(plan, name, parameters(plan))}\n\n"
    values = f"new_values({plan.passed})"
    values = values if len(plan.written) > 1 else f"[{values}]"
    lines = [f"tensors = [{', '.join(plan.written)}]"]
    lines.append(f"for tensor, value in zip(tensors, {values}, strict=True):")
    lines.append("    tensor.copy_(value)")
    made = function(name, parameters(plan), lines)
    return f"{in_torch(plan, 'new_values', parameters(plan))}\n\n{made}\n\n"


def check_names(plan: Plan, source: str) -> None:
    """Refuses what is the author's and called as what the rest of spec.py makes or calls."""
    parameters = {a.arg for a in ast.walk(ast.parse(source)) if isinstance(a, ast.arg)}
    ours = {name for name, _ in meanings(source)} | (called(source) - parameters)
    for name, what in meanings(plan.definition.source):
        if name in ours and what != MODULES.get(name):
            raise taken(f"the name '{name}' in {plan.definition.file}")


def parameters(plan: Plan) -> list[str]:
    found = [a.name if a.default is None else f"{a.name}={a.default}" for a in plan.arguments]
    if plan.keyword_only:
        found.insert(-len(plan.keyword_only), "*")
    return found


def needs_samples(plan: Plan) -> bool:
    """Whether those that follow from the shapes would be calls for which it is not defined."""
    columns = plan.verified.columns + plan.verified.columns_of_many
    is_plain = not (is_bounded(plan) or plan.verified.needed or of_columns(plan))
    return plan.verified.numbers is not None or not is_plain or columns > 0


def is_bounded(plan: Plan) -> bool:
    usual = (RANGES[0], INTEGER_RANGES[0])
    return any(values not in usual for values in plan.verified.ranges.values())


def of_columns(plan: Plan) -> dict[str, str]:
    """The bounds of integers that say something of a row's columns."""
    first, has_columns = plan.variants[0], plan.verified.columns > 0
    high = "shape[-1]" if has_columns else "max(1, shape[-1])"
    found = dict.fromkeys(places(first), f", high={high}")
    low = "1" if has_columns else "min(1, shape[-1])"
    return found | dict.fromkeys(lengths(first), f", low={low}, high=shape[-1] + 1")


def sample_function(plan: Plan) -> str:
    first = plan.variants[0]
    others = {"*rows": "shape[:-1]", "*rows 1": "(*shape[:-1], 1)", "n": "shape[-1:]"}
    others |= {"()": "()", "1": "(1,)"}
    in_line = [shape_in_rows(first, name).partition(":")[0] for name in plan.tensors]
    shapes = [others.get(shape, "shape") for shape in in_line]
    if isinstance(plan, PackedPlan):
        shapes = [f"(*rows, {packed_words.columns(plan, name)})" for name in plan.tensors]
    calls = [sample(plan, shapes)]
    # What is made before a call, for it.
    masks = masks_with_ones(plan, shapes)
    if plan.broadcasts:
        # The last that has a gradient, of those after the first, and the last of all.
        own = [k for k, name in enumerate(plan.tensors) if k and name not in plan.dtypes]
        for k in dict.fromkeys([*own[-1:], len(shapes) - 1]):
            fewer = "shape[1:]"
            if isinstance(plan, PackedPlan):
                fewer = shapes[k].replace("*rows", "*rows[1:]")
            calls.append(sample(plan, [*shapes[:k], fewer, *shapes[k + 1 :]]))
    if any(a.type == "bool" for a in plan.settings):
        calls.append(sample(plan, shapes, switched=True))
    if plan.optional:
        calls.append(sample(plan, shapes, absent=True))
    is_plain = not is_bounded(plan) and plan.verified.numbers is not None
    comment = "# A value for each number." if is_plain else "# Where it is defined."
    lines = [f"    {line}" for call in calls for line in (*masks, f"yield {call}")]
    if (columns_needed := plan.verified.columns) == 1:
        comment = "# Of rows that have columns."
    elif columns_needed:
        comment = "# Of rows of one column nothing is left but rounding."
    condition = f"shape and shape[-1] >= {columns_needed}" if columns_needed else ""
    if plan.of_all and columns_needed:
        comment = "# Of tensors that have elements."
        if columns_needed > 1:
            comment = "# Of one element nothing is left but rounding."
        condition = f"math.prod(shape) >= {columns_needed}"
    if of_columns(plan):
        condition = condition or "shape"
    if of_many := plan.verified.columns_of_many:
        comment = "# Of many rows of few columns, some lose too much to rounding."
        given = condition or "shape"
        condition = f"{given} and (shape[-1] >= {of_many} or shape[0] < {MANY_ROWS // 10})"
    if isinstance(plan, PackedPlan):
        condition, sizes = packed_words.sizes_of_samples(plan)
        lines = [f"    {sizes}", *lines]
    if condition:
        lines = [f"    if {condition}:", *(f"    {line}" for line in lines)]
    return "\n".join([comment, "def samples(make, shape):", *lines, ""])


def masks_with_ones(plan: Plan, shapes: Sequence[str]) -> list[str]:
    """The lines that make masks and integers of which not every row has a result."""
    pairs = dict(zip(plan.tensors, shapes, strict=True))
    lines = []
    for name, variable in masks_of(plan).items():
        lines.append(f"{variable} = {made(plan, name, pairs[name])}")
        if (dtype := plan.dtypes.get(name)) is None:
            lines.append(f"{variable}[..., :1] = 1  # of zeros alone there is no result")
            continue
        for k, value in enumerate(plan.verified.needed[name]):
            value = bool(value) if dtype == "bool" else value
            line = f"{variable}[..., {f'{k}:{k + 1}' if k else ':1'}] = {value}"
            lines.append(f"{line}  # of a row without one there is no result")
    return lines


def masks_of(plan: Plan) -> dict[str, str]:
    """The variables of those that are made before a call."""
    verified, rows = plan.verified, plan.variants[0].rows
    masks = [
        name
        for name in plan.tensors
        if name in verified.needed
        or (verified.needs_ones and verified.ranges[name] == MASK and name not in rows)
    ]
    return all_free({name: name for name in masks}, ["make", "shape", "Sample"])


def made(plan: Plan, name: str, shape: str) -> str:
    low, high = plan.verified.ranges[name]
    if dtype := plan.dtypes.get(name):
        is_integer = dtype in INTEGERS
        least = f", low={int(low)}" if is_integer and low != INTEGER_RANGES[0][0] else ""
        return f"make({shape}, dtype=torch.{dtype}{of_columns(plan).get(name, least)})"
    bounds = ", dtype=sum_dtype(make.dtype)" if name in plan.variants[0].wide else ""
    bounds += "" if (low, high) == RANGES[0] else f", low={low}, high={high}"
    if (low, high) == MASK:  # finite differences would jump
        bounds += ", step=1.0, requires_grad=False"
    return f"make({shape}{bounds})"


def sample(plan: Plan, shapes: Sequence[str], switched: bool = False, absent: bool = False) -> str:
    numbers = plan.verified.numbers or {}
    values = []
    for a in plan.arguments:
        if a.is_tensor:
            given = made(plan, a.name, shapes[plan.tensors.index(a.name)])
            given = masks_of(plan).get(a.name, given)
            values.append("None" if absent and a.name in plan.optional else given)
        elif a.type == "bool":
            values.append(str((a.default == "True") != switched))
        elif a.name in numbers:
            values.append(repr(numbers[a.name]))
        else:
            # The value that the battery gives, of the one number there is.
            values.append(a.default or ("1" if a.type == "int" else "1.75"))
        if a.kwarg_only:
            values[-1] = f"{a.name}={values[-1]}"
    return f"Sample({', '.join(values)})"
