"""A definition: a function of a file, its arguments, its source."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib.util
import inspect
import io
import re
import symtable
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, ClassVar

import torch
from schema import Schema, parse
from torch import Tensor

from .graph import GRADIENT, INTEGERS, OTHER_DTYPES, WIDE
from .in_place import returning, written_by
from .refusal import NotDerived, in_a_line, taken
from .saved import OUTPUT

TYPES = {Tensor: "Tensor", float: "float", int: "int", bool: "bool"}
NOT_RUN_BY_A_CALL = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# What the functions of an ops.py use by these names.
TAKEN = {"torch", "checks", "registration", "ctx", "self", "keyword_only_inputs"}
TAKEN |= {"stand_in", "to_sum", "sum_dtype"}
# The results without names, and their gradients.
RESULT = re.compile(rf"(?:{GRADIENT}|{OUTPUT})\d*")

# Tensors of a row-wise function with these names have a value for each column, as torch's have.
PARAMETERS = ("weight", "bias", "gamma", "beta")
# What the tensors of one may be like: the rows, or with a value for each column, or for each row,
# or one number.
ELEMENTS, COLUMNS, ROWS, SINGLE = "*rows n", "n", ("*rows 1", "*rows"), ("()", "1")
SHAPES = {ELEMENTS, COLUMNS, *ROWS, *SINGLE}


@dataclass
class Definition:
    """A function that is to become an operator.

    Attributes:
        place: `softcap.py:softcap`.
        source: of the function and of what it uses, as it stands in a file of its own.
        carried: the function that this source defines.
        dtypes: of the tensors that have one of their own, by the annotation.
        wide: the tensors that are float32 beside half types.
        result_dtypes: the same of the results, "" where it says none.
        said_shapes: of some tensors, by the annotation.
        shapes: of the tensors, as --shapes says them; None where it says nothing.
        written: the tensors that it writes to, where it does. `function` and `carried` return what
            it would write then, and write to none.
        of_all: whether what it reduces is reduced over everything: of tensors of one shape.
    """

    place: str
    file: Path
    function: Callable[..., Any]
    schema: Schema
    source: str
    carried: Callable[..., Any]
    dtypes: Mapping[str, str]
    wide: Sequence[str]
    result_dtypes: Sequence[str]
    said_shapes: Mapping[str, str]
    shapes: str | None = None
    written: Sequence[str] = ()
    of_all: bool = False
    has_parts: ClassVar[bool] = False  # that parts.py takes apart

    @property
    def name(self) -> str:
        return self.schema.name

    def named(self, *types: str) -> list[str]:
        """The arguments that are of one of these types."""
        return [a.name for a in self.schema.arguments if a.type in types]

    @property
    def head(self) -> str:
        """The operator's schema, but for what it returns."""
        head = self.schema.text.rpartition("->")[0].rstrip()
        for k, name in enumerate(self.written):
            head = re.sub(rf"\bTensor {name}\b", f"Tensor({chr(ord('a') + k)}!) {name}", head)
        return head

    def tensors(self, given: Container[str]) -> tuple[list[str], list[str]]:
        """Those that are there, and those that are not, of the optional ones."""
        optional = self.named("Tensor?")
        absent = [name for name in optional if name not in given]
        return [n for n in self.named("Tensor", "Tensor?") if n not in absent], absent

    def unused(self, used: Container[str]) -> list[str]:
        """The arguments that are not among these."""
        return [a.name for a in self.schema.arguments if a.name not in used]

    def renamed(self, results: Sequence[Any]) -> list[Any]:
        """The results by other names, as parts of tensors have them (parts.py)."""
        return [*results]

    def shapes_that_broadcast(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        """Some for these tensors."""
        shapes = [(2, 1, 3), (4, 1), (3,), (1, 1), ()]
        return [shapes[k % len(shapes)] for k, _ in enumerate(names)]

    @property
    def main(self) -> str:
        """The first tensor of the operator's dtype, of which the results are."""
        others = {*self.dtypes, *self.wide}
        return next(n for n in self.named("Tensor", "Tensor?") if n not in others)

    def stored(self, name: str) -> str:
        """The dtype of a tensor, as a line of shapes has it; "" for the operator's."""
        return WIDE if name in self.wide else self.dtypes.get(name, "")

    @property
    def said_wide(self) -> dict[int, str]:
        """The results that are said to be float32 beside half types, and by what."""
        line = (self.shapes or "").partition("->")[2].split(",")
        found = {
            k: "--shapes" for k, shape in enumerate(line) if shape.strip().endswith(f":{WIDE}")
        }
        said = {k: "the annotation" for k, dtype in enumerate(self.result_dtypes) if dtype == WIDE}
        return found | said

    @property
    def says_shapes(self) -> bool:
        """Whether something is said of them that is for functions of rows alone."""
        return self.shapes is not None or bool({*self.said_shapes.values()} - {ELEMENTS})

    @property
    def other_shapes(self) -> dict[str, str]:
        """Of the tensors that have not the rows' shape, where the function is row-wise."""
        tensors = self.named("Tensor", "Tensor?")
        first = self.main
        if self.of_all:
            return {}
        if self.shapes is None:
            found = {name: COLUMNS for name in tensors if name in PARAMETERS}
            found |= self.said_shapes
            if self.said_shapes.get(first, ELEMENTS) != ELEMENTS:
                raise NotDerived(
                    f"{self.place}: '{first}' has the shape {found[first]}, and the first tensor "
                    f'that has no dtype of its own says what the rows are, "{ELEMENTS}"; put '
                    "another first, or leave the shape out if nothing looks at whole rows"
                )
            return {n: shape for n, shape in found.items() if n != first and shape != ELEMENTS}
        given = [" ".join(s.split()) for s in self.shapes.partition("->")[0].split(",")]
        if len(given) == len(tensors):
            ends = [f":{dtype}" if (dtype := self.stored(name)) else "" for name in tensors]
            given = [s.removesuffix(end) for s, end in zip(given, ends, strict=True)]
        found = dict(zip(tensors, given, strict=False))
        if len(given) != len(tensors) or found[first] != ELEMENTS or set(given) - SHAPES:
            raise NotDerived(
                f'--shapes "{self.shapes}": give "*rows n" for a tensor that has the rows\' shape, '
                'as the first has, "n" for a value for each column, "*rows 1", or "*rows" without '
                'that dimension, for a value for each row, and "()" or "1" for one number, '
                f"{len(tensors)} in all"
            )
        return {name: shape for name, shape in found.items() if shape != ELEMENTS}


def read(place: str, shapes: str | None = None) -> Definition:
    """Reads `file.py:function`.

    Raises:
        NotDerived: there is none, or none that has a schema.
    """
    path, colon, name = place.rpartition(":")
    if not colon or not name.isidentifier():
        raise NotDerived(f"--from {place}: give a file and a function in it, softcap.py:softcap")
    file = Path(path)
    if not file.is_file():
        raise NotDerived(f"--from {place}: there is no file {path}")
    try:
        module = run(file)
    except SystemExit:
        raise NotDerived(
            f"--from {place}: {file} ends the program when it is imported; put what does that "
            'under if __name__ == "__main__":'
        ) from None
    except Exception as error:
        raise NotDerived(f"--from {place}: {file} does not run: {in_a_line(error)}") from None
    if not hasattr(module, name):
        raise NotDerived(f"--from {place}: {path} has no function '{name}'")
    function = getattr(module, name)
    check_function(function, place)
    schema = parse(schema_text(function, place))
    found, result_dtypes = dtypes_of(function, [a.name for a in schema.tensors], place)
    wide = [name for name, dtype in found.items() if dtype == WIDE]
    dtypes = {name: dtype for name, dtype in found.items() if dtype != WIDE}
    for argument in schema.arguments:
        if argument.name in TAKEN or RESULT.fullmatch(argument.name):
            raise taken(f"the argument's name '{argument.name}'")
    own = [a for a in schema.tensors if a.name not in found]
    if not own:
        instead = "start from --template elementwise"
        if wide:
            instead = f"make '{wide[0]}' a Tensor, which float32 may be"
        raise NotDerived(
            f"--from {place}: no argument is a Tensor of any floating dtype, for which an "
            f"operator's formula is compiled; {instead}"
        )
    (first, *_) = own
    if first.type != "Tensor":
        raise NotDerived(
            f"--from {place}: '{first.name}' may be None, and the first tensor says what the "
            "result is like; put another first"
        )
    source = source_of(function, file)
    copy = carried(source, name, file)
    said = shapes_of(function, [a.name for a in schema.tensors])
    written: list[str] = []
    if typing.get_type_hints(function).get("return") is type(None):
        written = written_by(copy, schema, found, place)
        schema = parse(schema_text(function, place, len(written)))
        function, copy = (returning(f, written) for f in (function, copy))
        result_dtypes = [found.get(name, "") for name in written]
    return Definition(
        *(place, file, function, schema, source, copy, dtypes, wide, result_dtypes, said),
        *(shapes, written),
    )


def run(file: Path) -> types.ModuleType:
    """The file as a module, as if it were imported from its folder.

    Raises:
        Exception: what the file raises.
    """
    spec = importlib.util.spec_from_file_location(f"definition_of_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


def check_function(function: Any, place: str) -> None:
    if isinstance(function, torch.nn.Module) or (
        isinstance(function, type) and issubclass(function, torch.nn.Module)
    ):
        raise NotDerived(
            f"--from {place}: that is a torch.nn.Module; write what its forward computes as a "
            "function, with its parameters as arguments"
        )
    if isinstance(getattr(function, "__self__", function), type):
        raise NotDerived(
            f"--from {place}: that is of a class, not a function; write what it computes as a def "
            "with annotations: of a torch.autograd.Function what its forward does, without ctx, of "
            "which the derivative follows"
        )
    if not isinstance(function, types.FunctionType):
        made = " itself; take its decorator off" if hasattr(function, "__name__") else ""
        raise NotDerived(
            f"--from {place}: that is a {type(function).__name__}, not a function{made}"
        )
    if function.__name__ == "<lambda>":
        raise NotDerived(f"--from {place}: that is a lambda; write it as a def, with annotations")
    if function.__code__.co_flags & NOT_RUN_BY_A_CALL:
        raise NotDerived(
            f"--from {place}: that is a generator or a coroutine, which a call does not run; write "
            "it as a def that returns its results, without yield and async"
        )
    if hasattr(function, "__wrapped__") or function.__closure__:
        raise NotDerived(
            f"--from {place}: that is made by another function; write it as a def of its own, "
            "without a decorator; for @torch.no_grad() say `with torch.no_grad():` in it"
        )


def schema_text(function: Callable[..., Any], place: str, written: int = 1) -> str:
    """The schema that a function's signature says; of one that returns nothing so many results."""
    name = function.__name__
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise NotDerived(f"--from {place}: the annotations do not evaluate: {error}") from None
    arguments: list[str] = []
    signature = inspect.signature(function)
    check_annotations(signature, hints, name, place)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise NotDerived(f"--from {place}: '{parameter}' is not supported: list the arguments")
        if parameter.kind == parameter.POSITIONAL_ONLY:
            raise NotDerived(
                f"--from {place}: '{parameter.name}' cannot be passed by keyword, as operators' "
                "arguments can: leave out the '/'"
            )
        if parameter.kind == parameter.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        arguments.append(argument_text(parameter, hints, place))
    result = result_text(hints.get("return", Tensor), place, written)
    return f"{name}({', '.join(arguments)}) -> {result}"


def check_annotations(
    signature: inspect.Signature, hints: dict[str, Any], name: str, place: str
) -> None:
    """Every argument has one; where not, what they may be is said in one go."""
    given = signature.parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [p for p in given if p.name not in hints and p.kind not in several]
    if not missing:
        return
    guesses = {bool: bool, int: int, float: float, type(None): Tensor | None}
    likely = [
        parameter.replace(annotation=guesses.get(type(parameter.default), Tensor))
        if parameter in missing
        else parameter
        for parameter in given
    ]
    told = re.sub(r"torch\.(?=Tensor\b)", "", str(signature.replace(parameters=likely)))
    names = " and ".join(f"'{parameter.name}'" for parameter in missing)
    raise NotDerived(
        f"--from {place}: {names} {'has' if len(missing) == 1 else 'have'} no annotation: of "
        "Tensor, Tensor | None, float, int and bool say which, as in "
        f"def {name}{told}"
    )


# Of torch's own names for tensors of a dtype: torch.BoolTensor and the like.
NAMED = type(torch.BoolTensor)


def is_tensor(hint: Any) -> bool:
    return hint is Tensor or isinstance(hint, NAMED)


def dtype_of(hint: Any) -> torch.dtype | None:
    """The dtype that an annotation says, Annotated[Tensor, torch.bool] or torch.BoolTensor."""
    if isinstance(hint, NAMED):
        return hint.dtype
    said = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, torch.dtype)]
    inner = [hint.__origin__] if hasattr(hint, "__metadata__") else typing.get_args(hint)
    return next(iter([*said, *filter(None, map(dtype_of, inner))]), None)


def dtypes_of(
    function: Callable[..., Any], tensors: Sequence[str], place: str
) -> tuple[dict[str, str], list[str]]:
    """The dtypes of their own that some tensors have, and those of the results."""
    hints = typing.get_type_hints(function, include_extras=True)
    result = hints.get("return", Tensor)
    results = typing.get_args(result) if typing.get_origin(result) is tuple else [result]

    def name(hint: Any, what: str) -> str:
        dtype = dtype_of(hint)
        if dtype is None:
            metadata = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, type)]
            if said := [m.__name__ for m in metadata if m in (bool, int, float)]:
                raise NotDerived(
                    f"--from {place}: {what} is annotated with {said[0]}, which is no "
                    f"dtype: write torch.bool, or one of torch.{', torch.'.join(INTEGERS)}"
                )
            return ""
        own = str(dtype).removeprefix("torch.")
        if own in OTHER_DTYPES:
            return own
        is_named = any(isinstance(part, NAMED) for part in (hint, *typing.get_args(hint)))
        if dtype == torch.float32 and not is_named:
            return WIDE
        if dtype.is_floating_point:
            raise NotDerived(
                f"--from {place}: {what} is annotated as {dtype}; what is floating has the dtype "
                "of the call, any of the four: write Tensor, or Annotated[Tensor, torch.float32] "
                "for what is float32 beside half types, too"
            )
        raise NotDerived(
            f"--from {place}: {what} is annotated as {dtype}; beside Tensor there are "
            f"{', '.join(OTHER_DTYPES)}"
        )

    found = {tensor: name(hints[tensor], f"'{tensor}'") for tensor in tensors}
    return {k: v for k, v in found.items() if v}, [name(hint, "a result") for hint in results]


def shapes_of(function: Callable[..., Any], tensors: Sequence[str]) -> dict[str, str]:
    """The shapes that annotations say, as Annotated[Tensor, "*rows 1"] does; not other texts."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name in tensors:
        # Of an optional one the annotation may be that of the tensor, or of the whole.
        parts = (hints[name], *typing.get_args(hints[name]))
        said = [m for part in parts for m in getattr(part, "__metadata__", ())]
        texts = [m for m in said if isinstance(m, str)]
        shapes = [shape for text in texts if (shape := " ".join(text.split())) in SHAPES]
        if shapes:
            found[name] = shapes[0]
    return found


def result_text(hint: Any, place: str, written: int) -> str:
    if hint is type(None):
        hint = tuple[(Tensor,) * written] if written > 1 else Tensor  # type: ignore[misc]
    if is_tensor(hint):
        return "Tensor"
    results = typing.get_args(hint)
    if typing.get_origin(hint) is not tuple or len(results) < 2 or not all(map(is_tensor, results)):
        raise NotDerived(
            f"--from {place}: the results have the type {hint}; there are Tensor and "
            "tuple[Tensor, Tensor], of any length"
        )
    return f"({', '.join(['Tensor'] * len(results))})"


def instead_of(alternatives: Sequence[Any], name: str) -> str:
    """What to write for an argument of none of the types, or of several."""
    if len(alternatives) == 1 and alternatives[0] in (float, int):
        default = "float = 1.0" if alternatives[0] is float else "int = 1"
        return f"give it a number for its default, {name}: {default}, or add a switch, a bool"
    if alternatives == [bool]:
        return "make it a bool, True or False"
    return (
        "write a value that is always the same in the function, a choice of two as a bool, and "
        "each number of several as an argument of its own"
    )


def argument_text(parameter: inspect.Parameter, hints: dict[str, Any], place: str) -> str:
    name, default = parameter.name, parameter.default
    hint, optional = hints[name], False
    alternatives = [t for t in typing.get_args(hint) if t is not type(None)]
    if len(alternatives) == 1 and is_tensor(alternatives[0]):
        hint, optional = Tensor, True
    hint = Tensor if is_tensor(hint) else hint
    if hint not in TYPES:
        spoken = inspect.formatannotation(hint)
        alternatives = alternatives if type(None) in typing.get_args(hint) else []
        raise NotDerived(
            f"--from {place}: the argument '{name}' has the type {spoken}; "
            "there are Tensor, Tensor | None, float, int and bool; "
            f"{instead_of(alternatives, name)}"
        )
    text = f"{TYPES[hint]}{'?' if optional else ''} {name}"
    if default is parameter.empty:
        return text
    allowed = {float: (float, int), int: (int,), bool: (bool,)}.get(hint, ())
    if optional and default is None:
        return f"{text}=None"
    if default is None and hint is Tensor:
        raise NotDerived(
            f"--from {place}: '{name}' may be None, and its annotation does not say so: write "
            f"{name}: Tensor | None = None"
        )
    if default is None:
        raise NotDerived(
            f"--from {place}: the default of '{name}' is None, which is no number; "
            f"{instead_of([hint], name)}"
        )
    if type(default) not in allowed:
        raise NotDerived(
            f"--from {place}: the default of '{name}' is {default!r}, which is no literal of its "
            "type"
        )
    # Integers compare exactly with floats, however large they are.
    if not (abs(default) <= sys.float_info.max if hint is float else -(2**63) <= default < 2**63):
        raise NotDerived(
            f"--from {place}: the default of '{name}' is none that a schema can hold, a finite "
            "float or an integer of 64 bits; give it another, or leave it out and pass the number"
        )
    return f"{text}={float(default)!r}" if hint is float else f"{text}={default!r}"


# ----- the source

# No call changes these.
UNCHANGED = (bool, int, float, complex, str, type(None), types.FunctionType, types.ModuleType)
IMPORTS = (ast.Import, ast.ImportFrom)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def source_of(function: Callable[..., Any], file: Path) -> str:
    """The function as the person wrote it, after what it uses of its file.

    Raises:
        NotDerived: it uses what would not be there in another file.
    """
    text = file.read_text(encoding="utf-8")
    bound = names_bound_by_each(text)
    body = [*bound]
    scope = function.__globals__
    touching: dict[str, list[ast.stmt]] = {}
    for node in body:
        for name in bound[node] | names_changed(node, scope):
            touching.setdefault(name, []).append(node)
    needed: set[str] = set()
    taken: set[ast.stmt] = set()

    def take(node: ast.stmt) -> None:
        taken.add(node)
        for name in names_used(node) | bound[node]:
            need(name)

    def need(name: str) -> None:
        if name in needed:
            return
        needed.add(name)
        if name not in touching and name in scope and not hasattr(builtins, name):
            raise NotDerived(
                f"{file}: '{name}' is not defined by a statement of its own, so that it cannot be "
                "taken along into spec.py; define it above the function"
            )
        for node in touching.get(name, []):
            for other in on_the_lines_of(node, body):
                if other not in taken:
                    take(other)

    need(function.__name__)
    for node in body:
        for part in ast.walk(node) if node in taken else ():
            if isinstance(part, IMPORTS):
                check_import(part, file)
    kept = [node for node in body if node in taken]
    future = [node for node in body if getattr(node, "module", None) == "__future__"]
    imports = [node for node in kept if isinstance(node, IMPORTS) and node not in future]
    head = "\n".join(map(ast.unparse, [*future, *imports]))
    rest = source(text, [node for node in kept if not isinstance(node, IMPORTS)])
    return f"{head}\n\n\n{rest}\n"


def check_import(node: ast.Import | ast.ImportFrom, file: Path) -> None:
    """Refuses a module that is found beside the file alone."""
    modules = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
    for module in modules:
        root = module.partition(".")[0]
        level = getattr(node, "level", 0)
        if level or not (root in sys.stdlib_module_names or PathFinder.find_spec(root)):
            raise NotDerived(
                f"{file}:{node.lineno}: '{ast.unparse(node)}' is found beside the file alone, and "
                "not from spec.py; move what the function uses of it into the file"
            )


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def on_the_lines_of(node: ast.stmt, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """A statement, and those that semicolons put beside it."""
    first, last = first_line(node), last_line(node)
    return [s for s in statements if first_line(s) <= last and last_line(s) >= first]


def source(text: str, nodes: Sequence[ast.stmt]) -> str:
    """The lines of statements, and the comments above them."""
    lines = text.split("\n")  # as Python counts them, to which form feeds are none
    found, end = "", 0
    for node in nodes:
        first, last = first_line(node), last_line(node)
        while first > 1 and re.match(r"#(?!!)", lines[first - 2]):
            first -= 1
        if last > end:
            first = max(first, end + 1)
            apart = "" if not end else "\n" if first == end + 1 else "\n\n\n"
            found += apart + "\n".join(lines[first - 1 : last])
            end = last
    return found


@functools.lru_cache(1)
def names_bound_by_each(text: str) -> dict[ast.stmt, set[str]]:
    """Those of each statement of a file, in their order."""
    return {node: names_bound(node) for node in ast.parse(text).body}


def names_bound(node: ast.stmt) -> set[str]:
    """The names of the module to which a statement gives a value."""
    if of_main(node):
        return set()
    table = symtable.symtable(ast.unparse(node), "", "exec")
    bound = (s for s in table.get_symbols() if s.is_assigned() or s.is_imported())
    return {symbol.get_name() for symbol in bound}


def meanings(source: str) -> Iterator[tuple[str, str]]:
    """The names that a file binds, each with what it imports by that name, if anything."""
    for node in ast.parse(source).body:
        if isinstance(node, IMPORTS):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                root = alias.name if module or alias.asname else alias.name.partition(".")[0]
                yield alias.asname or root, f"{module}{root}"
        else:
            yield from ((name, "") for name in names_bound(node))


def names_changed(node: ast.stmt, scope: Mapping[str, Any]) -> set[str]:
    """Those whose value a statement changes, or may change by a call."""
    if of_main(node):
        return set()
    changed, called = set(), set()
    for part in executed(node):
        if isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
            changed.add(root(part))
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            called.add(root(part.func))
        elif (
            isinstance(part, ast.Expr)
            and isinstance(part.value, ast.Call)
            and root(part.value.func) != "print"
        ):
            called |= {root(arg) for arg in part.value.args}
    called = {name for name in called if not isinstance(scope.get(name), UNCHANGED)}
    return {n for n in changed | called if not isinstance(scope.get(n), types.ModuleType)}


def of_main(node: ast.stmt) -> bool:
    """Whether it is for the file as a script, `if __name__ == "__main__"`."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that run where it stands: not those of functions."""
    yield node
    if not isinstance(node, FUNCTIONS):
        for child in ast.iter_child_nodes(node):
            yield from executed(child)


def root(node: ast.expr) -> str:
    """The name of which an expression is a part, `a` of `a.b[0]`; none where there is no name."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def names_used(node: ast.AST) -> set[str]:
    """The names of the module that a statement, or the functions in it, look up."""
    tables = [symtable.symtable(ast.unparse(node), "", "exec")]
    found = {symbol.get_name() for symbol in tables[0].get_symbols()}
    while tables:
        table = tables.pop()
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        tables += table.get_children()
    for part in ast.walk(node):
        for annotation in (getattr(part, "annotation", None), getattr(part, "returns", None)):
            for text in ast.walk(annotation) if isinstance(annotation, ast.AST) else ():
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    # It may be an annotation in quotation marks.
                    with contextlib.suppress(SyntaxError):
                        found |= names_used(ast.parse(text.value, mode="eval").body)
    return found


def carried(source: str, name: str, file: Path) -> Callable[..., Any]:
    """The function as spec.py will have it.

    Raises:
        NotDerived: its source does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{file.stem}_in_spec.py"
        copy.write_text(source, encoding="utf-8")
        try:
            return getattr(run(copy), name)
        except Exception as error:
            raise NotDerived(
                f"{file}: what '{name}' uses of the file, taken along into spec.py, does not run "
                f"there: {in_a_line(error)}; define it by plain statements"
            ) from None


def summary(definition: Definition) -> tuple[str, dict[str, str]]:
    """What its docstring says: the text before the sections, and that of each argument."""
    text = inspect.getdoc(definition.function) or ""
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    first, *sections = re.split(
        r"(?m)^(?:Args|Arguments|Returns|Raises|Parameters|Shape)\b.*$", text
    )
    described = {}
    for name in [a.name for a in definition.schema.arguments]:
        pattern = rf"(?m)^\s*{name}\s*(?:\([^)]*\))?\s*:\s*(.+(?:\n\s{{8,}}.+)*)"
        if found := re.search(pattern, "\n".join(sections)):
            described[name] = " ".join(found[1].split())
    return first.strip(), described
