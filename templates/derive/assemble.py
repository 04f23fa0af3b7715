"""The files of a derived operator."""

from __future__ import annotations

from dataclasses import dataclass

from formatting import format_text

from .cpp_file import cpp_file
from .definition import COLUMNS, ELEMENTS, ROWS, SINGLE, Definition
from .derived import derive
from .ops_file import listed, ops_file
from .packed import Packs
from .packed_plan import PackedPlan
from .packed_words import said_of_shapes
from .parts import InParts, taken_apart
from .plan import Plan, shape_in_rows
from .refusal import NotDerived
from .spec_file import spec_file
from .variant import Variant, of_dtype
from .verify import Disagrees, verify


@dataclass
class Assembled:
    """An operator's files, by name, its schemas, and what its tensors are taken for."""

    files: dict[str, str]
    schemas: list[str]
    taken_for: list[str]


def assemble(definition: Definition) -> Assembled:
    """Derives an operator.

    Raises:
        NotDerived: that cannot be done; says why.
    """
    plan = planned(definition)
    files = {name: format_text(name, text) for name, text in texts(plan).items()}
    said = {"Shapes": shapes_in_words(plan), "Dtypes": dtypes_in_words(plan)}
    taken_for = [f"{what}: {words}" for what, words in said.items() if words]
    return Assembled(files, [op.schema for op in plan.declared], taken_for)


def planned(definition: Definition) -> Plan:
    """What is to be printed, once it agrees with the definition."""
    if not definition.written:
        return taken_apart(definition, planned_as_it_is)
    try:
        return planned_as_it_is(definition)
    except Packs:
        raise NotDerived(
            f"{definition.place}: it writes to its arguments, and takes parts of tensors; pass the "
            "parts, which are views, as tensors of their own"
        ) from None


def planned_as_it_is(definition: Definition) -> Plan:
    """The same of one of which it is known what tensors have several parts."""
    # As PyTorch's is, then as one that is equal to it: what a definition says twice is computed
    # once, and what a row has in common stands outside of its sums.
    for factored, nan_is_infinite in ((True, False), (False, False), (True, True)):
        variants = derive(definition, factored)
        try:
            verified = verify(definition, variants, nan_is_infinite)
        except Disagrees as error:
            refusal = error
            continue
        if isinstance(definition, InParts):
            check_not_wide(definition, variants[0])
            return PackedPlan(definition, variants, verified)
        return Plan(definition, variants, verified)
    raise refusal


def check_not_wide(definition: InParts, variant: Variant) -> None:
    if any(result.is_wide for result in variant.results):
        raise NotDerived(
            f"{definition.place}: tensors have several parts, and a result is float32 of half "
            f"types, which is not derived of parts; say .to({definition.whole.main}.dtype)"
        )


def texts(plan: Plan) -> dict[str, str]:
    """The files, not yet formatted."""
    return {
        "__init__.py": "",
        f"{plan.name}.cpp": cpp_file(plan),
        "ops.py": ops_file(plan),
        "spec.py": spec_file(plan),
    }


# What a tensor of rows has by its shape.
IN_WORDS = {
    ELEMENTS: "the shape of the rows",
    COLUMNS: "a value for each column",
    **dict.fromkeys(ROWS, "a value for each row"),
    **dict.fromkeys(SINGLE, "one number"),
}


def dtypes_in_words(plan: Plan) -> str:
    """Which results are float32 where the tensors are not; "" where none is."""
    results = [
        f"result {k}" if len(plan.results) > 1 else "the result"
        for k, result in enumerate(plan.results)
        if result.is_wide
    ]
    if not results or plan.written:
        return ""
    is_said = f"{' and '.join(results)} {'are' if results[1:] else 'is'} float32 of half types"
    return f"{is_said}, as the definition has it; .to({plan.main}.dtype) would round."


def shapes_in_words(plan: Plan) -> str:
    """What the tensors' shapes are taken for, and how to say it otherwise; "" of a single one."""
    if isinstance(plan, PackedPlan):
        return said_of_shapes(plan)
    if len(plan.tensors) == 1:
        return ""
    if plan.of_all:
        return f"{listed(plan.tensors)} have one shape, and everything is reduced that is."
    if not plan.is_of_rows:
        return f"{listed(plan.tensors)} {'broadcast' if plan.broadcasts else 'have one shape'}."
    given = [shape_in_rows(plan.variants[0], name) for name in plan.tensors]
    results = [of_dtype(result.shape, result.stored) for result in plan.results]
    names: dict[str, list[str]] = {}
    for name, shape in zip(plan.tensors, given, strict=True):
        names.setdefault(IN_WORDS[shape.partition(":")[0]], []).append(name)
    said = [f"{listed(n)} {'have' if n[1:] else 'has'} {what}" for what, n in names.items()]
    return (
        f"{', '.join(said)}. Where that is not so, say the shapes, as this line does, or the "
        'annotation of one, Annotated[Tensor, "*rows 1"]:\n'
        f'    --shapes "{", ".join(given)} -> {", ".join(results)}"'
    )
