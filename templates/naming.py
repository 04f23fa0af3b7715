"""Gives a new operator and its arguments their names, last of all.

Until then they go through the templates under stand-ins, which are no word of any template. So it
is known which names in the generated files are the operator's and which are not, and an argument
may have any name:

- in C++ one that is a keyword, a macro, or used there for something else gets an underscore, and
  an "op" the operator's function and functor;
- in Python, where the schema's names are public, the others give way: a variable gets an
  underscore, a function is imported under a name with one. What can do neither (`torch`, `len`) is
  refused as an argument's name.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import re
from collections.abc import Iterable, Mapping

from schema import CPP_KEYWORDS, Refusal, Schema, words
from torch.autograd.function import BackwardCFunction

# Object-like macros of the C library that are spelled like a variable.
MACROS = words("errno i386 linux math_errhandling sched_priority stderr stdin stdout unix")
# Macros are in capitals, or begin with a word in capitals; CUDA's begin with its name.
MACRO = re.compile(r"(?:[A-Z][A-Z0-9]+|[A-Z][A-Z0-9]*_\w*|cuda\w*|Cub\w*)(?<!_)")
# What the macros that the templates call expand to; and macros that are called as functions are.
EXPANDED = words(
    "c10 int32_t torch uint32_t alloca assert_perror issubnormal offsetof strdupa strndupa"
)

# Besides strings and comments a function whose arguments torch passes by keyword.
PYTHON_TEXT = r'"""(?s:.*?)"""|"(?:\\.|[^"\\\n])*"|#[^\n]*|\ndef _setup_context\((?s:.*?)\n\n'
CPP_TEXT = r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*(?s:.*?)\*/'


def is_macro(name: str) -> bool:
    return name in MACROS or MACRO.fullmatch(name) is not None


def identifiers(source: str) -> set[str]:
    """The names in C++ that a variable may hide: all but members and qualified ones."""
    code = re.sub(CPP_TEXT, " ", source)
    return set(re.findall(r"(?<![\w.])(?<!->)(?<!::)[A-Za-z_]\w*", code))


def camel(name: str) -> str:
    """The name of an operator's functor: of no other's, as operators are in lower case."""
    return re.sub(r"(?:^|_)([a-z])", lambda match: match[1].upper(), name)


def with_stand_ins(schema: Schema) -> tuple[Schema, dict[str, str], dict[str, str]]:
    """The schema under stand-ins; by stand-in the arguments' names, and those of the operator."""
    prefix = "zqarg"
    while prefix in schema.text.lower():
        prefix += "q"
    names = {f"{prefix}{k}zq": a.name for k, a in enumerate(schema.arguments)}
    arguments = [
        dataclasses.replace(a, name=stand_in)
        for a, stand_in in zip(schema.arguments, names, strict=True)
    ]
    name = f"{prefix}op"
    operator = {name: schema.name, camel(name): camel(schema.name)}
    return dataclasses.replace(schema, name=name, arguments=arguments), names, operator


def spell(
    files: dict[str, str], names: dict[str, str], operator: dict[str, str], shared: Iterable[str]
) -> dict[str, str]:
    """Replaces the stand-ins in an operator's files.

    Args:
        files: by name.
        names: of the arguments, by stand-in.
        operator: of the operator and its functor, by stand-in.
        shared: the names in C++ that these would hide or be taken for.

    Raises:
        Refusal: a name cannot be an argument's.
    """
    cpp = {file: text for file, text in files.items() if not file.endswith(".py")}
    used = set().union(*map(identifiers, cpp.values()))
    spelled = cpp_names(used, names, "{}_")
    for (stand_in, name), other in zip(operator.items(), ("op_{}", "Op{}"), strict=True):
        # By itself the operator's is that of its namespace.
        spelled |= cpp_names({*used, *shared, stand_in}, {stand_in: name}, other)
    names = names | operator
    public = next(iter(operator.values()))
    # Messages and comments speak of arguments as the schema does.
    return {
        file: replace_all(respell(text, CPP_TEXT, "|".join(spelled), spelled), names)
        if file in cpp
        else spell_python(file, text, names, public)
        for file, text in files.items()
    }


def replace_all(text: str, names: dict[str, str]) -> str:
    return re.sub("|".join(names), lambda match: names[match[0]], text)


def respell(text: str, kept: str, pattern: str, spelled: dict[str, str]) -> str:
    """Replaces what is found of a pattern in code; strings and comments are kept."""
    return re.sub(f"({kept})|{pattern}", lambda m: m[1] or spelled.get(m[0], ""), text)


def whole_words(names: Iterable[str]) -> str:
    """A pattern for names that are neither members nor methods."""
    return rf"(?<![\w.>:])(?:{'|'.join(map(re.escape, names))})(?!\w)"


def declared(source: str) -> set[str]:
    """What a header declares: in the lines of the first column, the word before all the rest."""
    return set(re.findall(r"^(?!template)\w.*?(\w+) ?(?:[(=;{[]|: )", source, re.M))


def cpp_names(used: Iterable[str], names: dict[str, str], other: str) -> dict[str, str]:
    """The C++ spelling of each name, of which others (`contiguous_x`) are derived.

    `other` is what becomes of a name that is taken.
    """
    stand_in = re.compile("|".join(names))
    derived = {name for name in used if stand_in.search(name)}
    taken = {*used, *CPP_KEYWORDS, *EXPANDED} - derived
    spelled = {}
    for key, name in names.items():
        forms = [form for form in derived if key in form]
        while any(f in taken or is_macro(f) for f in (form.replace(key, name) for form in forms)):
            name = other.format(name)
        spelled[key] = name
        taken |= {form.replace(key, name) for form in forms}
    return spelled


def names_of_module(tree: ast.Module, file: str) -> set[str]:
    """Names that its top level reads or binds; attributes are not among them."""
    code = dis.get_instructions(compile(tree, file, "exec"))
    return {each.argval for each in code if each.opname in ("LOAD_NAME", "STORE_NAME")}


def spell_python(file: str, text: str, names: dict[str, str], operator: str) -> str:
    """Arguments have their names; what else goes by one of these in a function gives way."""
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    imported = {alias.name for node in imports for alias in node.names}
    if operator not in imported and operator in names_of_module(tree, file):
        raise Refusal(f"{file} uses the name '{operator}' for something else: choose another")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    nodes = [node for f in functions for part in f.body for node in ast.walk(part)]
    variables = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.arg for f in functions for node in ast.walk(f.args) if isinstance(node, ast.arg)}
    bound |= {node.id for node in variables if isinstance(node.ctx, ast.Store)}
    modules = [a for node in tree.body if isinstance(node, ast.Import) for a in node.names]
    plain = {alias.asname or alias.name.split(".")[0] for alias in modules}
    used = bound | plain | {node.id for node in variables}
    own = {replace_all(name, names) for name in used if replace_all(name, names) != name}
    spelled: dict[str, str] = {}
    for name in sorted(own & used | imported & {operator}):
        if name not in bound | imported:
            raise Refusal(
                f"the argument's name '{name}' is used by the generated code: choose another"
            )
        spelled[name] = free(f"{name}_", used | own | set(spelled.values()))
    kept = in_context(names.values())
    attributes = {f"ctx.{stand_in}": f"ctx.{kept[name]}" for stand_in, name in names.items()}
    text = respell(replace_all(text, attributes), PYTHON_TEXT, whole_words(spelled), spelled)
    for name in sorted(imported & set(spelled)):
        alias = spelled[name]
        text = re.sub(rf"(?m)^(from .* import .*?)\b{alias}\b", rf"\1{name} as {alias}", text)
    return replace_all(text, names)


def in_context(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """What the context of autograd calls numbers: beside what it has itself, and what is taken."""
    return all_free({name: name for name in names}, {*dir(BackwardCFunction), *taken})


def all_free(wanted: Mapping[str, str], taken: Iterable[str]) -> dict[str, str]:
    """The names that are wanted for something, each with underscores where it is taken."""
    taken = {*taken}
    found: dict[str, str] = {}
    for key, name in wanted.items():
        others = {*wanted.values()} - {name}
        found[key] = free(name, taken | others if name in taken else ())
        taken.add(found[key])
    return found


def free(name: str, taken: Iterable[str]) -> str:
    taken = set(taken)
    while name in taken:
        name += "_"
    return name
