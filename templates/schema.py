"""Reads an operator's schema: which types there are, and what each is in C++ and in Python.

torch's own parser does the parsing. What it accepts and the stable ABI does not carry is refused
here, with what to use instead. (The stable ABI checks no types: whatever slipped through would be
read as other bits at run time.)
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import json
import keyword
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch


class Refusal(Exception):
    """A request that is not carried out; the message is for the user, and nothing was written."""


def stop(message: str) -> NoReturn:
    """Ends a tool that refuses, as argparse does where the arguments are wrong."""
    print(message, file=sys.stderr)
    raise SystemExit(2)


@dataclass(frozen=True)
class Type:
    """A type of the schema language.

    Attributes:
        cpp: the type of the C++ parameter, in both ABIs.
        hint: the type hint of the Python parameter.
        field: what the kernels take: a type of C++ for a number, None for what is folded into a
            number on the way.
        cpp_number: a number made of the argument `{0}`, C++.
        python_number: the same in Python.
        values: Python source of the n-th of a series of distinct values.
        describe: for the docstring.
    """

    cpp: str
    hint: str
    describe: str
    field: str | None = None
    cpp_number: str = "{0}"
    python_number: str = "{0}"
    values: Callable[[int], str] = repr


def one_of(*values: str) -> Callable[[int], str]:
    return lambda n: values[n % len(values)]


TENSOR = Type("const Tensor&", "Tensor", "shape, dtype and device of `{main}`.")
INT = Type(
    *("int64_t", "int", "an integer."),
    field="int64_t",
    cpp_number="static_cast<double>({0})",
    values=lambda n: str(n + 2),
)
LIST_NUMBERS = {
    "cpp_number": "std::accumulate({0}.begin(), {0}.end(), 0.0)",
    "python_number": "sum({0})",
}
INT_LIST = Type(
    *("IntArrayRef", "Sequence[int]", "integers."),
    **LIST_NUMBERS,
    values=lambda n: f"[{n + 1}, {n + 3}]",
)
NAMED = {
    "cpp_number": "static_cast<double>(python_name({0}).size())",
    "python_number": "len(str({0}))",
}

TYPES: dict[str, Type] = {
    "Tensor": TENSOR,
    "int": INT,
    "SymInt": INT,
    "int[]": INT_LIST,
    "SymInt[]": INT_LIST,
    "float": Type(
        *("double", "float", "a number."),
        field="A",
        values=lambda n: repr(round(0.3 + 0.2 * n, 1)),
    ),
    "bool": Type(
        *("bool", "bool", "a switch."),
        field="bool",
        cpp_number="({0} ? 1.0 : 0.0)",
        values=one_of("True", "False"),
    ),
    "float[]": Type(
        *("FloatArrayRef", "Sequence[float]", "numbers."),
        **LIST_NUMBERS,
        values=lambda n: f"[{0.2 + n:.1f}, {0.5 + n:.1f}]",
    ),
    "str": Type(
        *("const String&", "str", "a string."),
        cpp_number="static_cast<double>({0}.size())",
        python_number="len({0})",
        values=lambda n: f'"{"abcdefghij"[: n % 9 + 2]}"',
    ),
    "ScalarType": Type(
        *("ScalarType", "torch.dtype", "a dtype."),
        **NAMED,
        values=one_of("torch.bfloat16", "torch.int64", "torch.float32", "torch.int8"),
    ),
    "Device": Type(
        *("Device", "torch.device", "a device."),
        **NAMED,
        values=one_of('torch.device("cpu")', 'torch.device("meta")'),
    ),
    "Layout": Type(
        *("Layout", "torch.layout", "a layout."),
        cpp_number="({0} == Layout::Strided ? 1.0 : 2.0)",
        python_number="(1 if {0} == torch.strided else 2)",
        values=one_of("torch.sparse_coo", "torch.strided"),
    ),
    "MemoryFormat": Type(
        *("MemoryFormat", "torch.memory_format", "a memory format."),
        cpp_number="({0} == MemoryFormat::Contiguous ? 1.0 : 2.0)",
        python_number="(1 if {0} == torch.contiguous_format else 2)",
        values=one_of("torch.channels_last", "torch.contiguous_format"),
    ),
}


def optional(base: Type) -> Type:
    cpp = re.sub(r"\b(?!const\b)\w+", r"std::optional<\g<0>>", base.cpp)
    there = re.sub(r"\{0\}(\.?)", lambda match: "{0}->" if match[1] else "*{0}", base.cpp_number)
    return Type(
        cpp.replace("std::optional<IntArrayRef>", "OptionalIntArrayRef"),
        *(f"{base.hint} | None", f"{base.describe[:-1]}, or None."),
        cpp_number=f"({{0}}.has_value() ? {there} : -1.0)",
        python_number=f"(-1 if {{0}} is None else {base.python_number})",
        values=base.values,
    )


TYPES |= {f"{name}?": optional(base) for name, base in TYPES.items()}
TYPES["Tensor[]"] = Type("TensorList", "Sequence[Tensor]", "tensors like `{main}`.")

# What torch's parser takes and the ABIs do not carry, or not alike.
INSTEAD = {
    "Scalar": "float (or int)",
    "number": "float (or int)",
    "Scalar?": "float? (or int?)",
    "number?": "float? (or int?)",
    "complex": "two arguments of type float",
    "bool[]": "int[], of 0 and 1",
    "bool[]?": "int[]?, of 0 and 1",
    "Tensor?[]": "Tensor[]",
    "Tensor[]?": "Tensor[], which may be empty",
    "str[]": "one str, and split it",
    "ScalarType[]": "int[]",
    "Device[]": "int[]",
    "Generator": "int seed",
    "Generator?": "int? seed",
    "Any": "an argument for each thing that is needed",
}

# What to return instead of a result.
RESULTS = {
    "Tensor[]": "'(Tensor, Tensor, ...)', or one stacked tensor",
    "Tensor?": "an empty tensor instead of None",
}


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CPP_KEYWORDS = words(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t
    char16_t char32_t class compl concept const consteval constexpr constinit const_cast
    continue co_await co_return co_yield decltype default delete do double dynamic_cast else
    enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast requires return short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true try typedef typeid
    typename union unsigned using virtual void volatile wchar_t while xor xor_eq main std
    """
)
# Names that generated code uses where operators are in scope, and cannot give up.
TAKEN = words(
    """
    torch extension_cpp cuda cpu acc_t check python_name device_list ctx info in_dims inputs
    keyword_only_inputs
    """
)
# Of functions in torch and in registration/ that pass an operator's keyword arguments on as theirs.
NOT_BY_KEYWORD = frozenset(
    {"self", "keyset", "info", "in_dims", "interpreter", "vmap_function", "op"}
)
# The longest for which every generated line stays within 100 columns.
MAX_NAME = 45


def check_name(what: str, name: str) -> None:
    """Refuses what is no name in Python, or none that may stand in C++ with more underscores."""
    if name in ("l", "I", "O"):
        raise Refusal(
            f"{what} '{name}' looks like a digit, which linters refuse: choose another name"
        )
    if keyword.iskeyword(name):
        raise Refusal(f"{what} '{name}' is a keyword of Python: choose another name")
    if "__" in name or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise Refusal(
            f"{what} '{name}': a name starts with a letter and goes on with letters, digits and "
            f"single underscores"
        )
    if len(name) > MAX_NAME:
        raise Refusal(f"{what} '{name}' is longer than {MAX_NAME} characters")


def check_operator_name(name: str) -> None:
    check_name("the operator's name", name)
    if name in CPP_KEYWORDS:
        raise Refusal(f"the operator's name '{name}' is a keyword of C++: choose another name")
    if name != name.lower():
        raise Refusal(f"the operator's name '{name}': operators are written in lower case")
    if name in dir(builtins):
        raise Refusal(f"the operator's name '{name}' is a built-in of Python: choose another name")
    if name in TAKEN or name.endswith("_backward_backward"):
        raise Refusal(f"the operator's name '{name}' is used by the generated code: choose another")
    # Of the object through which operators are called, torch.ops.extension_cpp.
    if hasattr(torch._ops._OpNamespace, name) or name in vars(torch._ops._OpNamespace("")):
        raise Refusal(
            f"the operator's name '{name}' is an attribute that torch.ops gives every namespace: "
            f"choose another name"
        )
    if name == "my_op":
        raise Refusal("the operator's name 'my_op' is that of the templates: choose another")


@dataclass(frozen=True)
class Argument:
    """An argument of a schema.

    Attributes:
        type: as the schema spells it, without size and alias: `int[]?`.
        default: Python source, or None where there is none.
    """

    name: str
    type: str
    default: str | None
    kwarg_only: bool
    mutated: bool

    @property
    def info(self) -> Type:
        return TYPES[self.type]

    @property
    def is_tensor(self) -> bool:
        return self.type.startswith("Tensor")

    @property
    def cpp_parameter(self) -> str:
        return f"{'Tensor&' if self.mutated else self.info.cpp} {self.name}"

    @property
    def python_parameter(self) -> str:
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.name}: {self.info.hint}{default}"


@dataclass(frozen=True)
class Schema:
    """A schema that a template can be made of; `text` is what its source states."""

    text: str
    name: str
    arguments: list[Argument]
    outputs: int

    @property
    def main(self) -> Argument:
        """The first that is written to, else the first tensor that is always there."""
        plain = [a for a in self.arguments if a.type == "Tensor"]
        return next((a for a in plain if a.mutated), plain[0])

    @property
    def mutates(self) -> bool:
        return any(a.mutated for a in self.arguments)

    @property
    def settings(self) -> list[Argument]:
        """The arguments that are no tensors."""
        return [a for a in self.arguments if not a.is_tensor]


def parse(text: str) -> Schema:
    """Parses a schema.

    Raises:
        Refusal: torch's parser does not take it, or the templates do not; says why, and what to
            use instead.
    """
    text = one_line(text)
    try:
        parsed = torch._C.parse_schema(text)
    except IndexError:  # of std::stod and std::stoll
        raise Refusal("torch cannot read the schema: a number in it is out of range") from None
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise Refusal(f"torch cannot read the schema: {reason}") from None
    text = re.sub(r"^(\w+) \(", r"\1(", text)
    if "::" in parsed.name:
        raise Refusal(
            "write the schema without a namespace: the package has one for all its operators"
        )
    if parsed.overload_name:
        raise Refusal(f"overloads are not supported: call it {parsed.name}_{parsed.overload_name}")
    if "..." in str(parsed):
        raise Refusal("'...' is not supported: list the arguments, or use Tensor[]")
    check_operator_name(parsed.name)
    arguments = [_argument(a) for a in parsed.arguments]
    names = [a.name for a in arguments]
    for name in names:
        if names.count(name) > 1:
            raise Refusal(f"two arguments are called '{name}'")
    _check_returns(parsed, arguments)
    if all(a.type != "Tensor" for a in arguments):
        raise Refusal(
            "the schema has no argument of type Tensor, which gives an operator its device and "
            "dtype. Make the first tensor of a list, or an optional one, an argument of its own"
        )
    for argument in arguments:
        if argument.kwarg_only and argument.is_tensor:
            raise Refusal(
                f"{argument.name} is a tensor that can only be passed by keyword, for which "
                "autograd and vmap take no formulas: move it before the '*'"
            )
        if argument.kwarg_only and argument.name in NOT_BY_KEYWORD:
            raise Refusal(
                f"torch has functions with an argument '{argument.name}' of their own, so that "
                f"none of that name can be passed by keyword: move it before the '*'"
            )
    return Schema(text, parsed.name, arguments, len(parsed.returns))


STRING = r"""\"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""


def one_line(text: str) -> str:
    """The schema with single spaces between its words; strings stay as they are.

    Raises:
        Refusal: it has characters that do not come through torch and C++ as they are.
    """
    if not text.isascii():
        other = next(c for c in text if not c.isascii())
        raise Refusal(
            f"the schema holds {other!a}, which torch does not print and C++ counts as "
            f"several characters: keep to ASCII"
        )
    pieces = re.split(f"({STRING})", text, flags=re.S)
    for string in pieces[1::2]:
        if not string.isprintable():
            raise Refusal(
                f"the string {string!a} holds a control character: write it as an escape, "
                r"such as \n or \011"
            )
    pieces[::2] = [re.sub(r"\s+", " ", piece) for piece in pieces[::2]]
    return "".join(pieces).strip()


def _argument(parsed: torch._C.Argument) -> Argument:
    check_name("the argument's name", parsed.name)
    type_ = _spell(str(parsed.real_type))
    if type_ not in TYPES:
        instead = INSTEAD.get(type_)
        raise Refusal(
            f"{parsed.name}: the type '{type_}' is not supported"
            + (f"; use {instead}" if instead else ". The types there are: " + ", ".join(TYPES))
        )
    alias = parsed.alias_info
    if alias is not None and not alias.is_write:
        raise Refusal(
            f"{parsed.name}: an alias that is not written to, Tensor(a), belongs to views, which "
            "an operator of a library cannot return: return a new tensor, and write Tensor"
        )
    if alias is not None and type_ != "Tensor":
        raise Refusal(
            f"{parsed.name}: only a Tensor can be written to, not a {type_}: an argument "
            f"Tensor(a!) for each"
        )
    default = None
    if parsed.has_default_value():
        default = _default(parsed.name, type_, parsed)
    return Argument(parsed.name, type_, default, parsed.kwarg_only, alias is not None)


def _spell(type_: str) -> str:
    """`Optional[List[int]]` as the schema language has it: `int[]?`."""
    if match := re.fullmatch(r"Optional\[(.*)\]", type_):
        return f"{_spell(match[1])}?"
    if match := re.fullmatch(r"List\[(.*)\]", type_):
        return f"{_spell(match[1])}[]"
    return type_


def _default(name: str, type_: str, parsed: torch._C.Argument) -> str:
    """A default as Python writes it."""
    try:
        value = parsed.default_value
    except UnicodeDecodeError:
        raise Refusal(f"{name}: the default has bytes that are no text: keep to ASCII") from None
    base = type_.rstrip("?")
    if type_ == "Tensor":
        raise Refusal(f"a Tensor has no default: use 'Tensor? {name}=None'")
    if value is None and type_.endswith("?"):
        return "None"
    kinds = {"int": int, "SymInt": int, "float": float}
    if base in ("ScalarType", "Layout", "MemoryFormat"):
        if value in _enumerators(base):
            return f"torch.{_enumerators(base)[value]}"
    elif base == "Device" and isinstance(value, torch.device):
        index = "" if value.index is None else f", {value.index}"
        return f'torch.device("{value.type}"{index})'
    elif base == "bool":
        if value in (0, 1):
            return repr(bool(value))
    elif base == "str" and isinstance(value, str):
        if not value.isascii():
            raise Refusal(f"{name}: the default holds {value!a}: keep to ASCII")
        return json.dumps(value).replace("\x7f", "\\x7f")
    elif base.endswith("[]") and isinstance(value, list):
        kind = kinds.get(base[:-2], ())
        if all(type(item) is kind and _is_finite(item) for item in value):
            items = ", ".join(map(repr, value))
            return f"({items},)" if len(value) == 1 else f"({items})"
    elif type(value) is kinds.get(base) and _is_finite(value):
        return repr(value)
    raise Refusal(f"{name}: {value!r} is no default for the type '{type_}': calls would raise")


def _is_finite(value: object) -> bool:
    """What torch reads as a default; it reads no infinity, but a number may become one."""
    return not isinstance(value, float) or math.isfinite(value)


@functools.cache
def _enumerators(type_: str) -> dict[object, str]:
    """The names of a type's values that can be defaults, by the numbers that the parser gives."""
    python_types = {
        "ScalarType": torch.dtype,
        "Layout": torch.layout,
        "MemoryFormat": torch.memory_format,
    }
    values = [value for value in vars(torch).values() if isinstance(value, python_types[type_])]
    found: dict[object, str] = {}
    for name in (str(value).removeprefix("torch.") for value in values):
        with contextlib.suppress(RuntimeError):
            parsed = torch._C.parse_schema(f"f({type_} x={name}) -> ()")
            found[parsed.arguments[0].default_value] = name
    return found


def _check_returns(parsed: torch._C.FunctionSchema, arguments: list[Argument]) -> None:
    mutates = any(a.mutated for a in arguments)
    if mutates and parsed.returns:
        raise Refusal(
            "an operator that writes to an argument, Tensor(a!), returns nothing: '-> ()'. "
            "Autograd and torch.compile take "
            "no other; the public function may return what it wrote to"
        )
    if not mutates and not parsed.returns:
        raise Refusal(
            "the operator returns nothing and writes to nothing: mark what it writes to as "
            "'Tensor(a!)'"
        )
    for output in parsed.returns:
        type_ = _spell(str(output.type))
        if output.alias_info is not None:
            raise Refusal(
                "the operator returns a view of an argument: return a new tensor, 'Tensor'"
            )
        if type_ != "Tensor":
            spelled = f"'{type_}'" if type_ in RESULTS else f"of type '{type_}'"
            instead = RESULTS.get(type_, "a 0-d Tensor")
            raise Refusal(f"a result {spelled} is not supported: return {instead}")
