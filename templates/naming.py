"""Gives the arguments of a new operator their names, last of all.

Until then they go through the templates under stand-ins, which are no word of any template. So it
is known which names in the generated files are the operator's arguments and which are not, and an
argument may have any name:

- in C++ one that is a keyword, a macro, or used there for something else gets an underscore;
- in Python, where the schema's names are public, the others give way: a variable gets an
  underscore, a function is imported under a name with one. What can do neither (`torch`, `len`) is
  refused as an argument's name.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable

from schema import CPP_KEYWORDS, Refusal, Schema, words
from torch.autograd.function import BackwardCFunction

# Object-like macros of the C library that are spelled like a variable.
MACROS = words("errno i386 linux math_errhandling sched_priority stderr stdin stdout unix")
# Macros are in capitals, or begin with a word in capitals; CUDA's begin with its name.
MACRO = re.compile(r"(?:[A-Z][A-Z0-9]+|[A-Z][A-Z0-9]*_\w*|cuda\w*|Cub\w*)(?<!_)")
# What the macros that the templates call expand to.
EXPANDED = frozenset(["c10", "int32_t", "torch", "uint32_t"])

CPP_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)


def is_macro(name: str) -> bool:
    return name in MACROS or MACRO.fullmatch(name) is not None


def identifiers(source: str) -> set[str]:
    """The names in C++ that a variable may hide: all but members and qualified ones."""
    code = CPP_TEXT.sub(" ", source)
    return set(re.findall(r"(?<![\w.])(?<!->)(?<!::)[A-Za-z_]\w*", code))


def with_stand_ins(schema: Schema) -> tuple[Schema, str, dict[str, str]]:
    """The schema with stand-ins for its arguments, one for its C++ function, names by stand-in."""
    prefix = "zqarg"
    while prefix in schema.text:
        prefix += "q"
    names = {f"{prefix}{k}zq": a.name for k, a in enumerate(schema.arguments)}
    arguments = [
        dataclasses.replace(a, name=stand_in)
        for a, stand_in in zip(schema.arguments, names, strict=True)
    ]
    return dataclasses.replace(schema, arguments=arguments), f"{prefix}_fn_zq", names


def spell(
    files: dict[str, str], names: dict[str, str], function: dict[str, str], shared: Iterable[str]
) -> dict[str, str]:
    """Replaces the stand-ins in an operator's files.

    Args:
        files: by name.
        names: of the arguments, by stand-in.
        function: the operator's name by the stand-in for its function in C++.
        shared: the names in C++ that such a function would hide or be taken for.

    Raises:
        Refusal: a name cannot be an argument's.
    """
    cpp = {file: text for file, text in files.items() if not file.endswith(".py")}
    used = set().union(*map(identifiers, cpp.values()))
    spelled = cpp_names(used, names) | cpp_names(used | set(shared), function, "_op")
    return {
        file: spell_cpp(text, names, spelled) if file in cpp else spell_python(text, names)
        for file, text in files.items()
    }


def replace_all(text: str, names: dict[str, str]) -> str:
    return re.sub("|".join(names), lambda match: names[match[0]], text) if names else text


def declared(source: str) -> set[str]:
    """What a header declares: the names that its lines have in the first column."""
    types = r"^(?:struct|class|enum class) (\w+)|^using (?:[\w:]+::)?(\w+)(?: =|;)"
    constants = r"^(?:inline |static )*(?:constexpr|const) [\w:<>, ]*?(\w+)(?:\[|\{| =)"
    functions = r"^[\w:][^\n(;={]*?(\w+)\("
    found = [n for names in re.findall(f"{types}|{functions}", source, re.M) for n in names if n]
    if re.search(r"^namespace extension_cpp \{", source, re.M):  # not cuda::, cpu::
        found += re.findall(constants, source, re.M)
    spaces = re.findall(r"^namespace ([\w:]+)", source, re.M)
    return {*found, *(name for space in spaces for name in space.split("::"))}


def cpp_names(used: Iterable[str], names: dict[str, str], suffix: str = "_") -> dict[str, str]:
    """The C++ spelling of each name, of which others (`contiguous_x`) are derived."""
    stand_in = re.compile("|".join(names))
    derived = {name for name in used if stand_in.search(name)}
    taken = {*used, *CPP_KEYWORDS, *EXPANDED} - derived
    spelled = {}
    for key, name in names.items():
        forms = {key, *(form for form in derived if key in form)}
        while any(f in taken or is_macro(f) for f in (form.replace(key, name) for form in forms)):
            name += suffix
        spelled[key] = name
        taken |= {form.replace(key, name) for form in forms}
    return spelled


def spell_cpp(text: str, names: dict[str, str], spelled: dict[str, str]) -> str:
    """Messages and comments speak of arguments as the schema does."""
    result, end = "", 0
    for match in CPP_TEXT.finditer(text):
        result += replace_all(text[end : match.start()], spelled) + replace_all(match[0], names)
        end = match.end()
    return result + replace_all(text[end:], spelled)


class Scope:
    """The names in a function of Python: those of the template, and those made of stand-ins."""

    def __init__(self, function: ast.FunctionDef, stand_ins: Iterable[str]) -> None:
        stand_in = re.compile("|".join(stand_ins))
        every = function.args
        parameters = [*every.posonlyargs, *every.args, *every.kwonlyargs]
        self.places: dict[str, list[ast.AST]] = {}
        self.bound = {p.arg for p in parameters}
        for p in parameters:
            self.places.setdefault(p.arg, []).append(p)
        for node in (node for statement in function.body for node in ast.walk(statement)):
            if isinstance(node, ast.Name):
                self.places.setdefault(node.id, []).append(node)
                if isinstance(node.ctx, ast.Store):
                    self.bound.add(node.id)
        own = {name for name in self.places if stand_in.search(name)}
        self.parameters = [p.arg for p in parameters if p.arg in own]
        self.variables = sorted(own - set(self.parameters))
        self.others = sorted(set(self.places) - own)


class Edits:
    """Replacements in a text, by the nodes of its syntax tree."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.lines = [line.encode() for line in text.splitlines(keepends=True)]
        self.edits: dict[tuple[int, int], tuple[int, str]] = {}
        # Before Python 3.12 what stands in an f-string has no position.
        strings = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
        self.fixed = {id(node) for string in strings for node in ast.walk(string)}

    def can(self, nodes: Iterable[ast.AST]) -> bool:
        return not any(id(node) in self.fixed for node in nodes)

    def add(self, node: ast.AST, old: str, new: str) -> None:
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        if isinstance(node, ast.Attribute):
            line, column = node.end_lineno, node.end_col_offset - len(old)  # type: ignore[operator]
        self.edits[line - 1, column] = len(old), new

    def apply(self) -> str:
        for (line, column), (length, new) in sorted(self.edits.items(), reverse=True):
            old = self.lines[line]
            self.lines[line] = old[:column] + new.encode() + old[column + length :]
        return b"".join(self.lines).decode()


def spell_python(text: str, names: dict[str, str]) -> str:
    tree = ast.parse(text)
    edits = Edits(text, tree)
    imports = {
        alias.name: alias
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    renamed_imports = set()
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        scope = Scope(function, names)
        arguments = {names[parameter] for parameter in scope.parameters}
        taken = arguments | set(scope.others)
        for name in arguments & set(scope.others):
            places = scope.places[name]
            if name in scope.bound and edits.can(places):
                other = free(name, taken)
                taken.add(other)
                for node in places:
                    edits.add(node, name, other)
            elif name in imports:
                renamed_imports.add(name)
            else:
                raise Refusal(
                    f"the argument's name '{name}' is used by the generated code: choose another"
                )
        for variable in scope.variables:
            name = free(replace_all(variable, names), taken)
            taken.add(name)
            for node in scope.places[variable]:
                if edits.can([node]):
                    edits.add(node, variable, name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in renamed_imports:
            edits.add(node, node.id, free(node.id, names.values()))
        elif isinstance(node, ast.Attribute) and node.attr in names:
            # A number that the context of autograd keeps: beside what it has itself.
            name = names[node.attr]
            own = isinstance(node.value, ast.Name) and node.value.id == "ctx"
            edits.add(node, node.attr, free(name, dir(BackwardCFunction) if own else ()))
    for name in renamed_imports:
        edits.add(imports[name], name, f"{name} as {free(name, names.values())}")
    return replace_all(edits.apply(), names)


def free(name: str, taken: Iterable[str]) -> str:
    taken = set(taken)
    while name in taken:
        name += "_"
    return name
