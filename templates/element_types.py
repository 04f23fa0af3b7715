"""What the pointers of a kernel point to, as a line of shapes says the dtypes of its tensors.

T is the dtype of the tensors without one of their own, for each of which a kernel is compiled. Of
other tensors the elements have one type, which C++ spells in its own way. What may come in one of
several dtypes, `:wide` and `:any`, is converted to the type of the arithmetic before the kernel is
called, which reads it in that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schema import Argument, Schema

OWN, ARITHMETIC = "T", "acc_t<T>"
# Those of which T may be.
FLOATING = {
    "float64": "double",
    "float32": "float",
    "float16": "Half",
    "bfloat16": "BFloat16",
}
FLOAT8 = ("Float8_e4m3fn", "Float8_e5m2")
# That the arithmetic converts.
NARROW = ("Half", "BFloat16", *FLOAT8)
SPELLED = {
    **FLOATING,
    "bool": "bool",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}
# In an elementwise formula (csrc/element_types.h), where it is not A.
IN_FORMULA = {
    ARITHMETIC: "SumType<A>",
    **{name: name for name in ("bool", "uint8_t", "int8_t", "int16_t", "int32_t", "int64_t")},
    **{name: name for name in ("float", "double", *NARROW)},
}


def in_formula(tensor: Argument) -> str:
    """The type of a tensor's elements in an elementwise formula."""
    # For an optional one another tensor may stand in.
    if tensor.converted or tensor.type != "Tensor":
        return "A"
    return IN_FORMULA.get(tensor.element, "A")


def of_other_floats(tensor: Argument) -> bool:
    """Whether its elements have a floating type that is not that of the operator's own dtype."""
    return not tensor.converted and tensor.element in (ARITHMETIC, *FLOATING.values())


def in_rows(tensor: Argument) -> tuple[str, str] | None:
    """What a functor for rows (csrc/rows.h) has of a tensor that is not of the rows' dtype: the
    type in memory, and that of an element in a lambda.
    """
    if tensor.converted or tensor.type != "Tensor":
        return None
    if tensor.element in (ARITHMETIC, *NARROW):
        return tensor.element.replace(ARITHMETIC, "A"), "A"
    return (tensor.element, tensor.element) if tensor.element in IN_FORMULA else None


def with_elements(schema: Schema, given: Any) -> Schema:
    """The schema, whose tensors have the types that a line says, which is parsed."""
    rules = [given.dtype_source(shape).rule.value for shape in given.inputs]
    leads = [a.type == "Tensor" and not r for a, r in zip(schema.tensors, rules, strict=True)]
    found = {}
    for a, shape, rule, first in zip(schema.tensors, given.inputs, rules, leads, strict=True):
        # Of T no more is known than of tensors that are always there.
        converted = rule in ("any", "wide") or (rule in ("", "sum") and not any(leads))
        element = ARITHMETIC if converted else _spelled(given.dtype_source(shape))
        found[a.name] = replace(a, leads=first, element=element, converted=converted)
    return replace(schema, arguments=[found.get(a.name, a) for a in schema.arguments])


def of_results(given: Any) -> Sequence[str]:
    """The types of the results' elements."""
    return [_spelled(given.dtype_source(shape)) for shape in given.outputs]


def _spelled(shape: Any) -> str:
    if shape.dtype is not None:
        return SPELLED[str(shape.dtype).removeprefix("torch.")]
    return ARITHMETIC if shape.rule.value else OWN
