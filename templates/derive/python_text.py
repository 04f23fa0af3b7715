"""Functions in Python, on tensors: what the derivatives of the backward follow from."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from kinds import defined_in
from schema import words

from .body import Body, Branch, each, nodes_of
from .graph import (
    COLUMN,
    ELEMENT,
    ROW,
    TO_INTEGERS,
    Node,
    col,
    cols,
    in_order,
    is_const,
    whole_cols,
)
from .operations import CHOICE, OPERATIONS, OR, PRODUCT, SIGN, WHOLE, Form, composed
from .printing import Language, Printer
from .refusal import NotDerived, taken

# On numbers: as C++ computes of them, where Python's operators and its math raise.
OF_NUMBERS = {
    "abs": Form("abs({0})"),
    "not": Form("not {0}", CHOICE, (WHOLE,)),
    "div": Form("real_math.divide({0}, {1})"),
    "reciprocal": Form("real_math.divide(1, {0})"),
    "pow": Form("real_math.power({0}, {1})"),
    "rsqrt": Form("real_math.divide(1, real_math.sqrt({0}))"),
    "sigmoid": Form("1 / (1 + real_math.exp(-{0}))", PRODUCT, (SIGN,)),
    "exp2": Form("real_math.power(2, {0})"),
    "to_real": Form("float({0})"),
    "detach": Form("{0}"),
    "sign": Form("math.copysign(1, {0})"),
}
IN_MATH = words("atan tanh asinh erf erfc atan2 hypot copysign isnan isinf isfinite")
REAL_MATH = "real_math.py"
# Of these PyTorch takes tensors alone.
OF_TENSORS = words("maximum minimum fmax fmin atan2 hypot logaddexp logaddexp2")
SAME = words("add sub mul neg lt le gt ge eq ne and or")


def docstring(text: str) -> str:
    """An author's text as a docstring: raw where that suffices for its backslashes."""
    if '"""' in text or text.endswith(('"', "\\")):
        text = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"""{text}"""'
    raw = "r" if "\\" in text else ""
    return f'{raw}"""{text}"""'


def is_harmless(node: Node) -> bool:
    """Whether Python's operator does for whatever numbers come."""
    return node.op == "div" and is_const(node.args[1]) and bool(node.args[1].value)


class Python(Language):
    reserved = words(
        "and as assert async await break class continue def del elif else except finally for from "
        "global if import in is lambda nonlocal not or pass raise return try while with yield "
        "None True False torch math real_math F ctx dtype abs float"
    )

    def constant(self, value: float | bool) -> str:
        if isinstance(value, (bool, int)):
            return str(value)
        if not math.isfinite(value):
            return "math.nan" if math.isnan(value) else f"{'-' if value < 0 else ''}math.inf"
        is_integer = value == int(value) and abs(value) < 1e15 and repr(value) != "-0.0"
        return str(int(value)) if is_integer else repr(value)

    def form(self, node: Node) -> Form:
        if node.op == "where" and node.args[0].is_number:
            return self.branch(node)
        if node.op == "where" and node.args[1].is_number and node.args[2].is_number:
            # Of two numbers alone, PyTorch makes a tensor of its default dtype.
            if node.extent == ROW:
                full = f"torch.full_like({{0}}, {{1}}, dtype={self.like}.dtype)"
                return Form(f"torch.where({{0}}, {full}, {{2}})")
            return Form(f"torch.where({{0}}, torch.full_like({self.like}, {{1}}), {{2}})")
        if node.op == "col_sum":
            (terms,) = node.args
            if terms.is_number:
                return Form(f"torch.full_like({self.like}, {{0}}).sum_to_size(columns)")
            whole = "" if terms.extent == ELEMENT else f".expand_as({self.like})"
            return Form(f"{{0}}{whole}.sum_to_size(columns)", WHOLE, (WHOLE,))
        if node.op == "at" and node.args[0].op == "column":
            return Form("{0}[{1}]", WHOLE, (WHOLE,))
        if node.op in TO_INTEGERS and node.is_number:
            return Form("{0}", CHOICE, (CHOICE,))
        if node.op in ("to_real", "from_integer", "from_float8") and not node.is_number:
            return Form(f"{{0}}.to({self.like}.dtype)", WHOLE, (WHOLE,))
        if node.is_number and node.op not in SAME and not is_harmless(node):
            if node.op in OF_NUMBERS:
                return OF_NUMBERS[node.op]
            if node.op in IN_MATH or node.op in defined_in(REAL_MATH):
                module = "math" if node.op in IN_MATH else "real_math"
                text = ", ".join(f"{{{k}}}" for k in range(len(node.args)))
                return Form(f"{module}.{node.op}({text})")
            raise NotDerived(
                f"{OPERATIONS[node.op].word} of number arguments alone is not derived; make its "
                "value an argument, a number"
            )
        if node.op == "softplus" and [a.value for a in node.args[1:]] == [1.0, 20.0]:
            return Form("F.softplus({0})")
        if node.op == "logit":
            bounds = "" if node.args[1].value == 0 else ", {1}"
            return Form(f"torch.logit({{0}}{bounds})")
        form = OPERATIONS[node.op].python
        assert form is not None, f"{node.op} was not lowered"
        if node.op in OF_TENSORS and any(arg.is_number for arg in node.args):
            wrapped = [
                f"torch.full_like({self.like}, {{{k}}})" if arg.is_number else f"{{{k}}}"
                for k, arg in enumerate(node.args)
            ]
            return Form(form.text.format(*wrapped))
        return form

    def branch(self, node: Node) -> Form:
        """A choice by a number, of values that have the shape of both."""
        _, yes, no = node.args
        if not node.is_number and (yes.is_number or no.is_number):
            # By a tensor: gradients that are zero here still depend on those that come.
            like = self.like if node.extent == ELEMENT else "{2}" if yes.is_number else "{1}"
            mask = f"torch.full_like({like}, {{0}}, dtype=torch.bool)"
            return Form(f"torch.where({mask}, {{1}}, {{2}})")
        whole = ["" if a.extent == node.extent else f".expand_as({self.like})" for a in (yes, no)]
        held = [WHOLE if expanded else OR for expanded in whole]
        return Form(f"{{1}}{whole[0]} if {{0}} else {{2}}{whole[1]}", CHOICE, (OR, *held))

    def __init__(self, spelled: Mapping[str, str], like: str) -> None:
        super().__init__(spelled)
        self.like = like


# What generated code calls so.
MODULES = {
    "torch": "torch",
    "math": "math",
    "F": "torch.nn.functional",
    "checks": "extension_cpp.checks",
    "real_math": "extension_cpp.real_math",
    "registration": "extension_cpp.registration",
}


def scope() -> dict[str, Any]:
    """What printed functions call, to run them."""
    real_math = SimpleNamespace(**defined_in(REAL_MATH))
    return {"torch": torch, "math": math, "real_math": real_math, "F": torch.nn.functional}


@dataclass(frozen=True)
class InWide:
    """What is computed in float32 of half types, as some of its tensors and results are.

    Attributes:
        tensors: those that have the dtype of the operator.
        optional: those of them that may be None.
        rounded: whether a result is rounded to it, for each.
        says_dtype: the one of them that is there for its dtype alone; "" where there is none.
    """

    tensors: Sequence[str]
    optional: Collection[str]
    rounded: Sequence[bool]
    says_dtype: str = ""

    def lines(self, like: str) -> list[str]:
        """Those before anything is computed, of which `like` is one of the tensors."""
        dtype = [f"dtype = {self.says_dtype or like}.dtype"] if any(self.rounded) else []
        converted = [] if self.says_dtype else [f"{like} = {like}.to(sum_dtype({like}.dtype))"]
        lines = [*dtype, *converted]
        for x in self.tensors:
            is_there = f"{x} if {x} is None else " if x in self.optional else ""
            if x not in (like, self.says_dtype):
                lines.append(f"{x} = {is_there}{x}.to({like}.dtype)")
        return lines

    def results(self, results: Sequence[str]) -> list[str]:
        """What is returned of these expressions."""
        return [
            f"{parenthesised(result)}.to(dtype)" if is_rounded else result
            for result, is_rounded in zip(results, self.rounded, strict=True)
        ]


def called(source: str) -> set[str]:
    """The functions and modules whose names code needs."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {node.value.id} & MODULES.keys()
    return found


def function(
    name: str,
    parameters: Sequence[str],
    body: Body,
    names: Mapping[Node, str],
    spelling: Mapping[str, str],
    like: str,
    unsqueezed: Sequence[str] = (),
    otherwise: Mapping[str, int] | None = None,
    of_rows: Sequence[str | None] = (),
    summed_to: Mapping[str, bool] | None = None,
    is_backward: bool = False,
    first: Sequence[str] = (),
    counts: Sequence[int] = (),
    in_wide: InWide | None = None,
    flattened: Sequence[str] = (),
) -> str:
    """A function of tensors and numbers.

    Args:
        name: its name.
        parameters: as they are spelled.
        body: what it returns.
        names: of the author, for parts of it.
        spelling: of the arguments.
        like: a tensor of the dtype and shape of the results.
        unsqueezed: those without a dimension for the columns, which get one.
        otherwise: the numbers that tensors count as where they are None.
        of_rows: what becomes of a value for each row that is a result, for each of them; without,
            and where it is None, it is expanded.
        summed_to: the tensors to whose shapes the results are summed, one for each; and whether
            there is no such result where the tensor is None.
        is_backward: whether the results are gradients.
        first: lines before all others.
        counts: of how many results each tensor is put together that is returned.
        in_wide: what is converted, where that is to be.
        flattened: the tensors that become one row, where everything is reduced; results for each
            element get their shape back.

    Raises:
        NotDerived: an argument is called as what the function calls.
    """
    body = each(composed, body)
    names = dict(zip(composed([*names]), names.values(), strict=True))
    lines = [*first, *(f"{x} = {x}.unsqueeze(-1)" for x in unsqueezed)]
    if flattened:
        if "shape" in parameters:
            raise taken("the argument's name 'shape'")
        if any(node.extent & COLUMN for node in nodes_of(body)) or is_backward:
            lines.append(f"shape = {flattened[0]}.shape")
        lines += [f"{x} = {x}.flatten()" for x in flattened]
    if in_wide is not None:
        if "dtype" in parameters:
            raise taken("the argument's name 'dtype'")
        lines += in_wide.lines(like)
    # Of numbers nothing is detached.
    is_detached = any(node.op == "detach" for node in in_order(nodes_of(body)))
    for x, number in (otherwise or {}).items():
        value = f"torch.full_like({like}, {number})" if is_detached else number
        lines.append(f"{x} = {value} if {x} is None else {x}")
    if any(node.op == "col_sum" for node in nodes_of(body)):
        lines.append(f"columns = columns or {like}.shape[-1:]")
        parameters = [*parameters, "columns=None"]
    lines += statements(
        *(body, names, spelling, like, [*parameters, "columns"], of_rows, summed_to or {}),
        divides_by_zero=bool(of_rows) and not is_backward,
        counts=counts,
        in_wide=in_wide,
        shape="shape" if flattened else None,
    )
    text = "\n".join(
        [f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in lines), ""]
    )
    for hidden in sorted(called(text) & spelling.keys()):
        raise taken(f"the argument's name '{hidden}'")
    return text


def statements(
    body: Body,
    names: Mapping[Node, str],
    spelling: Mapping[str, str],
    like: str,
    taken: Sequence[str],
    of_rows: Sequence[str | None],
    summed_to: Mapping[str, bool],
    divides_by_zero: bool,
    counts: Sequence[int],
    in_wide: InWide | None,
    shape: str | None,
) -> list[str]:
    if isinstance(body, Branch):
        rest = (
            *(names, spelling, like, taken, of_rows, summed_to, divides_by_zero, counts),
            *(in_wide, shape),
        )
        return [
            f"if {spelling[body.switch]}:",
            *(f"    {line}" for line in statements(body.yes, *rest)),
            *statements(body.no, *rest),
        ]
    printer = Printer(Python(spelling, like), names, [*taken, *([shape] if shape else [])])
    lines = []
    if any(node.op == "cols" for node in in_order(body)):
        printer.taken.add("max")
        printer.bound[cols()] = printer.fresh("cols")
        # Of rows without columns gradients have no elements, or are sums of none; the forward
        # divides by zero.
        number = f"{like}.shape[-1]" if divides_by_zero else f"max(1, {like}.shape[-1])"
        lines.append(f"{printer.bound[cols()]} = {number}")
    if any(node.op == "col" for node in in_order(body)):
        printer.bound[col()] = printer.fresh("col")
        lines.append(
            f"{printer.bound[col()]} = torch.arange({like}.shape[-1], device={like}.device)"
        )
    printer.bound[whole_cols()] = f"{like}.shape[-1]"
    text = printer.text(body)
    lines += [f"{name} = {expression}" for _, name, expression in text.statements]
    each_of_rows = of_rows or [None] * len(body)
    results = [
        whole(node, result, like, of_row)
        for node, result, of_row in zip(body, text.results, each_of_rows, strict=True)
    ]
    if shape:
        results = [
            result if node.extent == ROW and of_row is not None else in_shape(result, shape)
            for node, result, of_row in zip(body, results, each_of_rows, strict=True)
        ]
    if counts:
        results = put_together(results, counts)
    for k, tensor in enumerate(summed_to):
        held = results[k]
        if not held.isidentifier():
            held = printer.fresh(f"grad_{tensor}")
            lines.append(f"{held} = {results[k]}")
        results[k] = f"{held}.sum_to_size({tensor}.shape)"
    if in_wide is not None:
        results = in_wide.results(results)
    for k, (tensor, is_optional) in enumerate(summed_to.items()):
        if is_optional:
            results[k] = f"None if {tensor} is None else {results[k]}"
    return [*lines, f"return {', '.join(results)}"]


def put_together(results: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Tensors of so many of the results each."""
    rest = iter(results)
    parts = [[next(rest) for _ in range(count)] for count in counts]
    return [f"torch.cat(({', '.join(own)}), -1)" if len(own) > 1 else own[0] for own in parts]


def parenthesised(expression: str) -> str:
    """With a method to be called of it."""
    is_call = re.fullmatch(r"\w+(\.\w+\(\w+\.shape\))?", expression)
    return expression if is_call else f"({expression})"


def in_shape(result: str, shape: str) -> str:
    is_held = isinstance(ast.parse(result, mode="eval").body, (ast.Name, ast.Call))
    return f"{result if is_held else f'({result})'}.reshape({shape})"


def whole(node: Node, result: str, like: str, of_rows: str | None) -> str:
    """A result that has the shape of the tensor that it is like, or of a sum."""
    if node.is_number and node.op != "col_sum":
        if of_rows is not None:
            shape = f"{like}.shape[:-1]" if of_rows else f"(*{like}.shape[:-1], 1)"
            return f"{like}.new_full({shape}, {result})"
        if is_const(node, 0):
            return f"torch.zeros_like({like})"
        return f"torch.full_like({like}, {result})"
    held = parenthesised(result)
    if node.extent == ROW and of_rows is not None:
        return f"{held}{of_rows}" if of_rows else result
    if node.extent == ROW and node.op != "col_sum":
        return f"{held}.expand_as({like})"
    return result
