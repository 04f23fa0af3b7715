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
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

try:
    import torch
except ImportError:
    raise SystemExit(
        f"{Path(sys.argv[0]).name}: {sys.executable} has no torch, whose parser reads the schemas. "
        "Use an interpreter that has: `make build` sets up .venv/bin/python"
    ) from None


class Refusal(Exception):
    """A request that is not carried out; the message is for the user, and nothing was written."""


def refuse(subject: str, *reasons: tuple[object, str]) -> None:
    """Refuses for the first reason that is the case: pairs of that, and of what to say."""
    for is_so, reason in reasons:
        if is_so:
            raise Refusal(subject + reason)


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
        describe: for the docstring.
        number: what the kernels take, a number made of the argument `{0}`, C++.
        python_number: the same in Python.
        field: the C++ type of that number.
        values: a series of values, Python source, distinct but for tensors.
    """

    cpp: str
    hint: str
    describe: str
    number: str = "{0}"
    python_number: str = "{0}"
    field: str = "A"
    values: Sequence[str] = ()


SERIES = range(999)
SUM = ("std::accumulate({0}.begin(), {0}.end(), 0.0)", "sum({0})")
NAME_LENGTH = ("python_name({0}).size()", "len(str({0}))")

TYPES: dict[str, Type] = {
    "Tensor": Type(
        *("const Tensor&", "Tensor", "shape, dtype and device of `{main}`."),
        values=["make(shape)"],
    ),
    "int": Type(
        *("int64_t", "int", "an integer."), field="int64_t", values=[str(n + 2) for n in SERIES]
    ),
    "int[]": Type(
        *("IntArrayRef", "Sequence[int]", "integers.", *SUM),
        values=[f"[{n + 1}, {n + 3}]" for n in SERIES],
    ),
    "float": Type("double", "float", "a number.", values=[f"{0.3 + 0.2 * n:.1f}" for n in SERIES]),
    "bool": Type("bool", "bool", "a switch.", field="bool", values=["True", "False"]),
    "float[]": Type(
        *("FloatArrayRef", "Sequence[float]", "numbers.", *SUM),
        values=[f"[{0.2 + n:.1f}, {0.5 + n:.1f}]" for n in SERIES],
    ),
    "str": Type(
        *("const String&", "str", "a string.", "{0}.size()", "len({0})"),
        values=[f'"{"abcdefghij"[: n + 2]}"' for n in range(9)],
    ),
    "ScalarType": Type(
        *("ScalarType", "torch.dtype", "a dtype.", *NAME_LENGTH),
        values=["torch.bfloat16", "torch.int64", "torch.float32", "torch.int8"],
    ),
    "Device": Type(
        *("Device", "torch.device", "a device.", *NAME_LENGTH),
        values=['torch.device("cpu")', 'torch.device("meta")'],
    ),
    "Layout": Type(
        *("Layout", "torch.layout", "a layout."),
        *("({0} != Layout::Strided)", "({0} != torch.strided)"),
        values=["torch.sparse_coo", "torch.strided"],
    ),
    "MemoryFormat": Type(
        *("MemoryFormat", "torch.memory_format", "a memory format."),
        *("({0} != MemoryFormat::Contiguous)", "({0} != torch.contiguous_format)"),
        values=["torch.channels_last", "torch.contiguous_format"],
    ),
}
TYPES |= {"SymInt": TYPES["int"], "SymInt[]": TYPES["int[]"]}


def optional(base: Type) -> Type:
    cpp = re.sub(r"\b(?!const\b)\w+", r"std::optional<\g<0>>", base.cpp)
    there = re.sub(r"\{0\}(\.?)", lambda match: "{0}->" if match[1] else "*{0}", base.number)
    return Type(
        cpp.replace("std::optional<IntArrayRef>", "OptionalIntArrayRef"),
        *(f"{base.hint} | None", f"{base.describe[:-1]}, or None."),
        number=f"({{0}}.has_value() ? {there} : 0)",
        python_number=f"(0 if {{0}} is None else {base.python_number})",
        values=base.values,
    )


TYPES |= {f"{name}?": optional(base) for name, base in TYPES.items()}
TYPES["Tensor[]"] = Type(
    *("TensorList", "Sequence[Tensor]", "tensors like `{main}`."),
    values=["[make(shape), make(shape)]"],
)

# What torch's parser takes and the ABIs do not carry, or not alike.
INSTEAD = {
    "Scalar": "float{0} (or int{0})",
    "complex": "two arguments of type float",
    "bool[]": "int[]{0}, of 0 and 1",
    "Tensor?[]": "Tensor[]",
    "Tensor[]": "Tensor[], which may be empty",
    "str[]": "one str, and split it",
    "ScalarType[]": "int[]",
    "Device[]": "int[]",
    "Generator": "int{0} seed",
    "Any": "an argument for each thing that is needed",
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
# Of functions in torch and in registration/ that pass an operator's keyword arguments on as theirs.
NOT_BY_KEYWORD = {"self", "keyset", "info", "in_dims", "interpreter", "vmap_function", "op"}
# Of auto_functionalized in torch, which passes all arguments of operators that write by keyword.
NOT_WHERE_WRITTEN = {"mode", "dispatch_key"}
# The longest for which every generated line stays within 100 columns.
MAX_NAME = 45


def check_name(what: str, name: str) -> None:
    """Refuses what is no name in Python, or none that may stand in C++ with more underscores."""
    is_word = "__" not in name and re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)
    refuse(
        f"{what} '{name}'",
        (name in ("l", "I", "O"), " looks like a digit, which linters refuse: choose another name"),
        (keyword.iskeyword(name), " is a keyword of Python: choose another name"),
        (not is_word, ": a name starts with a letter, then letters, digits, single underscores"),
        (len(name) > MAX_NAME, f" is longer than {MAX_NAME} characters"),
    )


def check_operator_name(name: str) -> None:
    check_name("the operator's name", name)
    # Of the object through which operators are called, torch.ops.extension_cpp.
    namespace = torch._ops._OpNamespace("")
    given = {*dir(type(namespace)), *vars(namespace)}
    refuse(
        f"the operator's name '{name}'",
        (name != name.lower(), ": operators are written in lower case"),
        (name in dir(builtins), " is a built-in of Python: choose another name"),
        (name in given, " is an attribute that torch.ops gives every namespace: choose another"),
        (name in ("extension_cpp", "my_op"), " is the package's or the templates': choose another"),
    )


@dataclass(frozen=True)
class Argument:
    """An argument of a schema.

    Attributes:
        type: as the schema spells it, without size and alias: `int[]?`.
        default: Python source, or None where there is none.
        integer: a tensor of integers, bool or float8, as a line of shapes says, which has no
            gradient.
        leads: a tensor of the dtype T, as such a line says.
        element: what a kernel's pointer to the tensor points to.
        converted: whether it may be in another type, from which it is converted.
    """

    name: str
    type: str
    default: str | None
    kwarg_only: bool
    mutated: bool
    integer: bool = False
    leads: bool = False
    element: str = "T"
    converted: bool = False

    @property
    def info(self) -> Type:
        return TYPES[self.type]

    @property
    def is_tensor(self) -> bool:
        return self.type.startswith("Tensor")

    @property
    def part(self) -> str:
        """Behind an element of the tensor, of which a number is to be made."""
        return ".real()" * self.element.startswith("c10::complex")

    @property
    def cpp_parameter(self) -> str:
        return f"{'Tensor&' if self.mutated else self.info.cpp} {self.name}"

    @property
    def number(self) -> str:
        return self.info.number.format(self.name)

    @property
    def python_number(self) -> str:
        return self.info.python_number.format(self.name)

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
        """The first that is written to, else the first floating tensor that is always there; of
        them one of the dtype T, where a line of shapes says that there is one.
        """
        plain = [a for a in self.arguments if a.type == "Tensor"]
        return min(plain, key=lambda a: (not a.mutated, a.integer, not a.leads))

    @property
    def tensors(self) -> list[Argument]:
        return [a for a in self.arguments if a.is_tensor]

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
        if "Non-default positional argument" in reason:
            reason = "an argument needs a default, as one before it has one"
        if "INTERNAL ASSERT" in reason:  # of what a list holds
            reason = "a list's default holds what is no element of its type"
        raise Refusal(f"torch cannot read the schema: {reason}") from None
    text = re.sub(r"^(\w+) \(", r"\1(", text)
    if "::" in parsed.name:
        raise Refusal("write the schema without a namespace: there is one for all operators")
    if parsed.overload_name:
        raise Refusal(f"overloads are not supported: call it {parsed.name}_{parsed.overload_name}")
    if "..." in str(parsed):
        raise Refusal("'...' is not supported: list the arguments, or use Tensor[]")
    check_operator_name(parsed.name)
    arguments = [_argument(a) for a in parsed.arguments]
    new = all(r.type.str() == "Tensor" and r.alias_info is None for r in parsed.returns)
    if not new or bool(parsed.returns) == any(a.mutated for a in arguments):
        raise Refusal(
            "the result is not supported: an operator returns new tensors, 'Tensor' or "
            "'(Tensor, Tensor)', or nothing, '()', where it writes to an argument, 'Tensor(a!)'. "
            "A number is a 0-d Tensor, None an empty one, a list one that is stacked"
        )
    if all(a.type != "Tensor" for a in arguments):
        raise Refusal(
            "the schema has no argument of type Tensor, which gives an operator its device and "
            "dtype. Make the first tensor of a list, or an optional one, an argument of its own"
        )
    names = [a.name for a in arguments]
    writes = any(a.mutated for a in arguments)
    for k, argument in enumerate(arguments):
        name = argument.name
        if writes and name in NOT_WHERE_WRITTEN:
            raise Refusal(
                f"an operator that writes to an argument has none called '{name}': torch.compile "
                "passes its own argument of that name beside them; choose another name"
            )
        if names.count(name) > 1:
            raise Refusal(f"two arguments are called '{name}'")
        needed = argument.default is None and not argument.kwarg_only
        if needed and any(a.default is not None for a in arguments[:k]):
            raise Refusal(f"{name} needs a default, as an argument before it has one")
        if argument.kwarg_only and argument.is_tensor:
            raise Refusal(
                f"{name} is a tensor that can only be passed by keyword, for which autograd and "
                "vmap take no formulas: move it before the '*'"
            )
        if argument.kwarg_only and name in NOT_BY_KEYWORD:
            raise Refusal(
                f"torch has functions with an argument '{name}' of their own, so that none of that "
                f"name can be passed by keyword: move it before the '*'"
            )
    return Schema(text, parsed.name, arguments, len(parsed.returns))


def names_in(text: str, *types: str) -> list[str]:
    """The names of a schema's arguments, or of those of some types."""
    arguments = torch._C.parse_schema(text).arguments
    return [a.name for a in arguments if not types or a.real_type.str() in types]


def one_line(text: str) -> str:
    """The schema with single spaces between its words; strings stay as they are.

    Raises:
        Refusal: it has characters that do not come through torch and C++ as they are.
    """
    string = r"""\"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
    text = re.sub(rf"({string})|\s+", lambda match: match[1] or " ", text, flags=re.S).strip()
    if strange := re.search(r"[^ -~]", text):
        raise Refusal(
            f"the schema holds {strange[0]!a}, which does not come through torch and C++ as it "
            r"is: keep to ASCII, with escapes such as \n or \011 for control characters"
        )
    return text


def _argument(parsed: torch._C.Argument) -> Argument:
    name, type_, alias = parsed.name, parsed.real_type.str(), parsed.alias_info
    check_name("the argument's name", name)
    if type_ not in TYPES:
        instead = INSTEAD.get(type_.removesuffix("?"), f"one of: {', '.join(TYPES)}")
        instead = instead.format("?" if type_.endswith("?") else "")
        raise Refusal(f"{name}: the type '{type_}' is not supported; use {instead}")
    if alias is not None and alias.is_write and type_ in ("Tensor?", "Tensor[]"):
        instead = (
            "what is written to is always there: make an operator for each case"
            if type_ == "Tensor?"
            else "of what is written to, each tensor is an argument of its own"
        )
        raise Refusal(f"{name}: '{type_}' is only read: {instead}")
    if alias is not None and not (alias.is_write and type_ == "Tensor"):
        raise Refusal(
            f"{name}: the only alias there is is Tensor(a!), a tensor that is written to. Of a "
            "view, Tensor(a), a library's operator returns a new tensor; of a list, each is an "
            "argument"
        )
    default = _default(name, type_, parsed) if parsed.has_default_value() else None
    return Argument(name, type_, default, parsed.kwarg_only, alias is not None)


def _default(name: str, type_: str, parsed: torch._C.Argument) -> str:
    """A default as Python writes it."""
    try:
        value = parsed.default_value
    except UnicodeDecodeError:
        raise Refusal(f"{name}: the default has bytes that are no text: keep to ASCII") from None
    if type_ == "Tensor":
        raise Refusal(f"a Tensor has no default: use 'Tensor? {name}=None'")
    if value is None and type_.endswith("?"):
        return "None"
    base = type_.removesuffix("?")
    # That of the values, or of what is in the list: the last word of the type's hint.
    name_of_kind = re.findall(r"\w+", TYPES[base].hint)[-1]
    kind = getattr(builtins, name_of_kind, None) or getattr(torch, name_of_kind)
    is_list = isinstance(value, list)
    if not is_list:
        value = _enumerators(base, kind).get((type(value), value), value)
    for item in value if is_list else [value]:
        if is_list != base.endswith("[]") or type(item) is not kind:
            raise Refusal(
                f"{name}: {value!r} is no default for the type '{type_}': calls would raise"
            )
    if isinstance(value, str) and not value.isascii():
        raise Refusal(f"{name}: the default holds {value!a}: keep to ASCII")
    if kind is torch.device:
        return f'torch.device("{value}")'
    return json.dumps(value) if kind is str else repr(tuple(value) if is_list else value)


@functools.cache
def _enumerators(type_: str, kind: type) -> dict[tuple[type, object], object]:
    """What can be a default by its name, by what the parser gives; 1 is not True."""
    found: dict[tuple[type, object], object] = {}
    for value in (True, False) if kind is bool else vars(torch).values():
        if type(value) is kind:
            name = str(value).removeprefix("torch.")
            with contextlib.suppress(RuntimeError):
                parsed = torch._C.parse_schema(f"f({type_} x={name}) -> ()")
                default = parsed.arguments[0].default_value
                found[type(default), default] = value
    return found
