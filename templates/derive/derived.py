"""What is derived of a definition: its formulas, and those of its gradients."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias

import torch

from .body import Branch, Leaf, branched, each, leaves, nodes_of
from .definition import COLUMNS, RESULT, SINGLE, Definition
from .differentiate import gradients
from .graph import (
    ELEMENT,
    FLOAT8,
    INTEGERS,
    ROW,
    WIDE,
    Node,
    add,
    in_order,
    is_const,
    make,
    plus,
    where,
)
from .operations import BRANCHES, UNDERIVED, lower
from .packed import PartsRecorder, check_counts
from .refusal import NotDerived, OverEverything, in_a_line, line_of, line_of_error, taken
from .rows_operations import as_found, with_variances
from .saved import OUTPUT, on_output
from .statistics import keep_statistics
from .trace import Index, Traced, Undecided, argument_of, trace, ways
from .variant import Result, Variant, another_shape, looks_at_rows, of_dtype, with_numbers
from .vocabulary import MAKING, unknown

# Of definitions with more optional tensors and switches than this, the source would be long.
MOST_VARIANTS = 8

# What stands for any other: what differs between two traces was made a constant on the way. Of
# numbers the first float, the step from one to the next, and the first integer; then others, which
# differ in sign, in parity and in what they are rounded to.
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NUMBERS = ((0.71, 0.13, 3), (1.37, 0.29, 8), (-2.6, 0.19, -6060))


def derive(definition: Definition, factored: bool = True) -> list[Variant]:
    """The variants of a definition: the one with all tensors first.

    Args:
        definition: of what.
        factored: whether sums of gradients have what is common to their terms outside, and what
            adds up to 0 is left out. That is shorter; but of a sum in which an infinity meets a
            zero it may be right where PyTorch has NaN.

    Raises:
        NotDerived: it cannot be derived.
    """
    try:
        return derived(definition, factored)
    except OverEverything as error:
        if definition.has_parts or definition.says_shapes:
            raise
        of_all = dataclasses.replace(definition, of_all=True)
        given, switches = cases_of(of_all)
        if not is_of_rows(of_all, given, switches):
            raise error from None
    return derived(of_all, factored)


def derived(definition: Definition, factored: bool) -> list[Variant]:
    """The same, of which it is known whether it reduces over everything."""
    check_identities(definition)
    check_state(definition)
    UNDERIVED.clear()
    BRANCHES.clear()
    optional, switches = definition.named("Tensor?"), definition.named("bool")
    if 2 ** (len(optional) + len(switches)) > MOST_VARIANTS:
        raise NotDerived(
            f"{definition.place}: {len(optional)} optional tensors and {len(switches)} switches "
            f"make more than {MOST_VARIANTS} formulas; split the function"
        )
    given, _ = cases_of(definition)
    is_row_wise = is_of_rows(definition, given, switches)
    shapes = other_shapes(definition, is_row_wise)
    if is_row_wise and definition.written:
        raise NotDerived(
            f"{definition.place}: it {looks_at(definition)}, and writes to "
            f"{' and '.join(map(repr, definition.written))}; return the new values"
        )
    for name in optional if is_row_wise else ():
        if shapes.get(name) != COLUMNS:
            raise no_parameter(definition, name)
    variants: list[Variant] = []
    for names in given:
        results = variants[0].results if variants else None
        variants.append(derive_variant(definition, names, switches, shapes, factored, results))
    if any(shapes_of(v.results) != shapes_of(variants[0].results) for v in variants):
        raise another_shape(definition.place)
    if is_row_wise:
        check_rows(definition, variants)
        keep_statistics(definition, variants[0])
        if definition.of_all:
            check_sums(definition, variants[0])
        variants = filled(definition, variants, switches)
    used = {*definition.written}.union(*(v.uses(v.forward) for v in variants))
    for name in definition.unused(used):
        raise NotDerived(
            f"{definition.place}: the result does not depend on the argument '{name}'; leave it out"
        )
    return variants


def cases_of(definition: Definition) -> tuple[list[list[str]], list[str]]:
    """Which optional tensors may be given together, and the switches."""
    optional = definition.named("Tensor?")
    given = [
        [name for name, is_given in zip(optional, flags, strict=True) if is_given]
        for flags in itertools.product((True, False), repeat=len(optional))
    ]
    return given, definition.named("bool")


def check_identities(definition: Definition) -> None:
    """Refuses to ask whether something is an object, of which no trace knows, but for None."""
    compared = [n for n in ast.walk(ast.parse(definition.source)) if isinstance(n, ast.Compare)]
    for node in compared:
        operands = [node.left, *node.comparators]
        for op, *pair in zip(node.ops, operands, operands[1:], strict=False):
            constants = [o.value for o in pair if isinstance(o, ast.Constant)]
            # Of arguments, perhaps: a comparison of numbers is no bool here.
            compares = any(
                isinstance(o, (ast.Compare, ast.BoolOp, ast.UnaryOp))
                and any(isinstance(part, ast.Name) for part in ast.walk(o))
                for o in pair
            )
            may_be = any(value in (None, ...) for value in constants)
            may_be |= any(type(value) is bool for value in constants) and not compares
            if isinstance(op, (ast.Is, ast.IsNot)) and not may_be:
                raise NotDerived(
                    f"{definition.place}: '{ast.unparse(node)}' asks whether two objects are one, "
                    "not whether they are equal; say == or !="
                )


# What says how the process stands, and not what a call is given.
STATE = (
    *("is_autocast_enabled", "is_grad_enabled", "is_inference_mode_enabled", "is_available"),
    *("get_default_dtype", "get_default_device", "get_autocast_dtype", "device_count"),
)


def check_state(definition: Definition) -> None:
    for name in STATE:
        if line := line_of_call(definition, name):
            raise NotDerived(
                f"{line}what {name} says is asked once, when the operator is made, and an operator "
                "computes the same whatever it is; leave it out, or make it an argument, a bool"
            )


def is_of_rows(
    definition: Definition, given: Sequence[Sequence[str]], switches: Sequence[str]
) -> bool:
    """Whether the definition looks at whole rows, in one of its cases at least."""
    # Of a row-wise function these have another shape, and say so. An elementwise one may call a
    # tensor as if it had.
    shapes = definition.other_shapes
    check_dtypes(definition, {n: shape for n, shape in shapes.items() if shape != COLUMNS})
    is_called = definition.dtypes.keys() - definition.said_shapes.keys()
    shapes = {n: shape for n, shape in shapes.items() if n not in is_called or shape != COLUMNS}
    for names, values in itertools.product(
        given, itertools.product((True, False), repeat=len(switches))
    ):
        tensors, absent = definition.tensors(names)
        constants = dict.fromkeys(absent) | dict(zip(switches, values, strict=True))
        results, _ = traced(definition, tensors, constants, shapes)
        if looks_at_rows([result.node for result in results]):
            return True
    return False


def other_shapes(definition: Definition, is_row_wise: bool) -> dict[str, str]:
    """Of the tensors that have not the rows' shape."""
    shapes = definition.other_shapes
    if is_row_wise:
        check_dtypes(definition, shapes)
        if "columns" in (a.name for a in definition.schema.arguments):
            raise taken("the argument's name 'columns'")
        return shapes
    if definition.written and (definition.shapes is not None or definition.said_shapes):
        raise NotDerived(
            f"{definition.place}: what writes to its arguments takes tensors of one shape; make a "
            "number, a float, of one that is a single one"
        )
    is_said = "--shapes" if definition.shapes is not None else "a shape in an annotation"
    if definition.shapes is not None or definition.said_shapes:
        raise NotDerived(
            f"{definition.place}: it is elementwise, of tensors that broadcast as they are given; "
            f"{is_said} is for functions that look at whole rows: leave it out"
        )
    return {}


def check_dtypes(definition: Definition, shapes: Mapping[str, str]) -> None:
    """Refuses single numbers of other dtypes than the rows', and codes of other shapes."""
    for name, shape in shapes.items():
        dtype = definition.dtypes.get(name)
        if dtype and (shape in SINGLE or dtype in FLOAT8):
            what = f"has a value for each {'column' if shape == COLUMNS else 'row'}"
            raise NotDerived(
                f"{definition.place}: it looks at whole rows, and '{name}' is {dtype} and "
                f"{'is one number' if shape in SINGLE else what}: these have the dtype of the "
                "rows; make it a Tensor, of zeros and ones for a mask, or give it the rows' shape"
                + ("" if name in definition.said_shapes else " and another name")
            )


def derive_variant(
    definition: Definition,
    given: Sequence[str],
    switches: Sequence[str],
    shapes: Mapping[str, str],
    factored: bool,
    called_as: Sequence[Result] | None = None,
) -> Variant:
    tensors, absent = definition.tensors(given)
    columns = [name for name in tensors if shapes.get(name) == COLUMNS]
    rows = {n: shapes[n] for n in tensors if n in shapes and n not in columns}
    names: dict[Node, str] = {}
    cases: list[list[Result]] = []

    def leaf(values: Mapping[str, bool]) -> Leaf:
        constants = {**values, **dict.fromkeys(absent)}
        traces, found = traced_alike(definition, tensors, constants, shapes)
        names.update({n: name for n, name in found.items() if n not in names})
        cases.append(
            [
                Result(
                    *(found.get(t.node, ""), t.node.extent == ROW, t.is_squeezed, t.node.dtype),
                    of_all=definition.of_all,
                )
                for t in traces
            ]
        )
        if shapes_of(cases[-1]) != shapes_of(cases[0]):
            raise another_shape(definition.place)
        return tuple(trace.node for trace in traces)

    forward = branched(switches, leaf)
    results = definition.renamed(named(definition, cases))
    if called_as is not None:
        pairs = zip(results, called_as, strict=True)
        results = [dataclasses.replace(own, name=other.name) for own, other in pairs]
    if definition.written:
        results = [
            dataclasses.replace(result, name=name, is_written=True)
            for result, name in zip(results, definition.written, strict=True)
        ]
    floating = [k for k, result in enumerate(results) if result.is_differentiable]
    given_gradients = [results[k].leaf for k in floating]
    dtypes = {n: dtype for n, dtype in definition.dtypes.items() if n in tensors}
    arguments = [argument_of(n, shapes.get(n, ""), dtypes.get(n, "")) for n in tensors]
    added, of = (add, with_variances) if factored else (plus, tuple)
    names = {of([node])[0]: name for node, name in names.items()} | names
    found = each(
        lambda leaf: tuple(
            gradients_of_ways(of([leaf[k] for k in floating]), given_gradients, arguments, added)
        ),
        forward,
    )
    forward, found = (each(as_found, body) for body in (forward, found))
    names = {as_found([node])[0]: name for node, name in names.items()}
    sums = [
        k
        for k, name in enumerate(tensors)
        if name in columns and not all(is_const(leaf[k], 0) for leaf in leaves(found))
    ]
    found = each(
        lambda leaf: tuple(make("col_sum", n) if k in sums else n for k, n in enumerate(leaf)),
        found,
    )
    variant = Variant(
        *(tensors, absent, results, forward, found, names, columns, rows),
        dtypes=dtypes,
        wide=[name for name in definition.wide if name in tensors],
        of_all=definition.of_all,
    )
    if not isinstance(forward, Branch) and len(forward) == 1 and floating:
        assert not isinstance(found, Branch)
        if (gradients_on_output := on_output(forward[0], found)) is not None:
            variant.gradients, variant.kept = gradients_on_output, {OUTPUT: 0}
    return variant


def shapes_of(results: Sequence[Result]) -> list[str]:
    return [f"{result.shape}:{result.dtype}" for result in results]


def named(definition: Definition, cases: Sequence[Sequence[Result]]) -> list[Result]:
    """The results, each by a name that the definition has for it in one of its cases."""
    if len(cases[0]) == 1:
        return [dataclasses.replace(cases[0][0], name=OUTPUT)]
    arguments = {a.name for a in definition.schema.arguments}
    own = [next((r.name for r in same if r.name), "") for same in zip(*cases, strict=True)]
    names = []
    for k, name in enumerate(own):
        is_plain = re.fullmatch(r"(?!_)(?!.*__)\w+", name, re.ASCII) and not RESULT.fullmatch(name)
        is_free = own.count(name) == 1 and not arguments & {name, f"grad_{name}"}
        names.append(name if is_plain and is_free else f"{OUTPUT}{k}")
    return [dataclasses.replace(r, name=n) for r, n in zip(cases[0], names, strict=True)]


def check_rows(definition: Definition, variants: Sequence[Variant]) -> None:
    """Refuses what is not row-wise, or not on the interface of rows."""
    first = variants[0]
    for node in (node for v in variants for node in nodes_of(v.forward)):
        if node.extent not in (ROW, ELEMENT):
            raise NotDerived(
                f"{definition.place}: the result has no rows; return what depends on them"
            )
    said = (definition.shapes or "").partition("->")[2].replace(f":{WIDE}", "").strip()
    shape = ", ".join(result.shape for result in first.results)
    with_dtypes = ", ".join(of_dtype(result.shape, result.dtype) for result in first.results)
    if said and re.sub(r" *, *", ", ", said) not in (shape, with_dtypes):
        raise NotDerived(
            f"{definition.place}: --shapes says {said}, and the result has the shape {with_dtypes}"
        )
    if first.computed and set(first.computed) <= set(first.columns):
        raise NotDerived(
            f"{definition.place}: of a function whose gradients are sums of columns alone there is "
            "no row-wise backward; start from --template kernel"
        )


def check_sums(definition: Definition, variant: Variant) -> None:
    """Refuses what is found of everything and is no sum."""
    done: dict[Node, Node] = {}
    used = [*nodes_of(variant.returned), *nodes_of(variant.of_kernel)]
    if any(node.op == "row_max" for node in in_order([lower(node, done) for node in used])):
        raise NotDerived(
            f"{definition.place}: the largest or smallest of everything is not derived, and what "
            "is made of it; compute it outside and pass it as an argument"
        )
    if any(result.of_row and result.dtype in INTEGERS for result in variant.results):
        raise NotDerived(
            f"{definition.place}: a sum over everything is a number of the arithmetic, which holds "
            "no integers beyond 2**24 in float32; return it as it is"
        )


def looks_at(definition: Definition) -> str:
    return "reduces over everything" if definition.of_all else "looks at whole rows"


def no_parameter(definition: Definition, name: str) -> NotDerived:
    if definition.of_all:
        return NotDerived(
            f"{definition.place}: it reduces over everything, of tensors of which none may be None "
            f"as '{name}' may; write a function for each case"
        )
    return NotDerived(
        f"{definition.place}: of row-wise functions an optional tensor is a parameter for each "
        f"column that counts as 1 or 0 where it is None, which '{name}' is not; write a function "
        "for each case"
    )


def filled(
    definition: Definition, variants: Sequence[Variant], switches: Sequence[str]
) -> list[Variant]:
    """The variants of a row-wise definition by one formula: with numbers for what is None."""
    first = variants[0]
    for name in definition.named("Tensor?"):
        (alone,) = [v for v in variants if v.absent == [name]]
        fitting = [k for k in (1, 0) if with_numbers(first, {name: k}).is_as(alone, switches)]
        if not fitting:
            raise no_parameter(definition, name)
        first.otherwise[name] = fitting[0]
    found = [first]
    for variant in variants[1:]:
        found.append(with_numbers(first, {name: first.otherwise[name] for name in variant.absent}))
        if not found[-1].is_as(variant, switches):
            raise NotDerived(
                f"{definition.place}: without {' and '.join(variant.absent)} it is another "
                "function than with ones and zeros for them; write a function for each case"
            )
    return found


def traced_alike(
    definition: Definition,
    tensors: list[str],
    constants: Mapping[str, object],
    shapes: Mapping[str, str],
) -> tuple[tuple[Traced, ...], dict[Node, str]]:
    """A trace that is the same with other numbers, and of other dtypes."""
    given = (definition, tensors, constants, shapes)
    results, found = traced(*given)
    for name in numbers_for(definition):
        for values in NUMBERS[1:]:
            try:
                others, _ = traced(*given, changed={name: values})
            except NotDerived:  # as an index is, that is out of range
                others = ()
            if not are_same(results, others):
                raise NotDerived(
                    f"{definition.place}: the number argument '{name}' becomes a constant on the "
                    "way, as the length of a loop does; make it a constant of the definition, or "
                    "compute with it by operators and functions of math"
                )
    for dtype in DTYPES[1:]:
        other, _ = traced(*given, dtype=dtype)
        if not are_same(results, other):
            if line := line_of_call(definition, "finfo"):
                raise NotDerived(
                    f"{line}this is another number for each dtype; write the number itself, "
                    'float("-inf") for what is masked out, or make it an argument, as eps is'
                )
            raise NotDerived(
                f"{definition.place}: what it computes depends on a dtype or a device, or on what "
                f"the function keeps outside of itself, {difference(results, other)}; write what "
                "holds for every dtype"
            )
    other, _ = traced(*given, is_carried=True)
    if not are_same(results, other):
        raise NotDerived(
            f"{definition.place}: what it uses of its file is not the same where it is taken along "
            f"into spec.py, {difference(results, other)}; define that by plain statements"
        )
    return results, found


def line_of_call(definition: Definition, name: str) -> str:
    """The first line of the function that calls something by this name, as refusals name it."""
    body = ast.parse(definition.file.read_text("utf-8")).body
    own = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == definition.name]
    calls = [n for n in ast.walk(own[-1]) if isinstance(n, ast.Call)] if own else []
    lines = [c.lineno for c in calls if ast.unparse(c.func).rpartition(".")[2] == name]
    return line_of(f"{definition.file}", min(lines)) if lines else ""


def are_same(results: Sequence[Traced], others: Sequence[Traced]) -> bool:
    return [result.node for result in results] == [other.node for other in others]


def difference(results: Sequence[Traced], others: Sequence[Traced]) -> str:
    pairs = zip(results, others, strict=True)
    a, b = next((a.node, b.node) for a, b in pairs if a.node is not b.node)
    while a.op == b.op and len(a.args) == len(b.args) and a.args:
        a, b = next((x, y) for x, y in zip(a.args, b.args, strict=True) if x is not y)
    return f"{shown(a)} here and {shown(b)} there"


def shown(node: Node, depth: int = 5) -> str:
    """An expression in so many operations, each of the one before."""
    if not node.args:
        return repr(node)
    inner = ", ".join(shown(arg, depth - 1) for arg in node.args) if depth else "..."
    return f"{node.op}({inner})"


def numbers_for(
    definition: Definition, changed: Mapping[str, tuple[float, float, int]] | None = None
) -> dict[str, float]:
    """Values of the number arguments; of those that are changed, others than usual."""
    numbers: dict[str, float] = {}
    for k, argument in enumerate(definition.schema.settings):
        first, step, integer = (changed or {}).get(argument.name, NUMBERS[0])
        if argument.type == "float":
            numbers[argument.name] = first + k * step
        elif argument.type == "int":
            numbers[argument.name] = integer + k
    return numbers


def gradients_of_ways(
    outputs: Sequence[Node],
    grads: Sequence[Node],
    arguments: Sequence[Node],
    added: Callable[..., Node],
) -> list[Node]:
    """The gradients of the outputs, of each way through branches on numbers by itself.

    Else that which is not taken, whose gradient is 0, would make NaN of what is infinite.
    """
    branch = next((o.args[0] for o in outputs if o.op == "where" and o.args[0] in BRANCHES), None)
    if branch is None:
        return gradients(outputs, grads, arguments, added)
    both = []
    for way in (1, 2):
        taken = [o.args[way] if o.op == "where" and o.args[0] is branch else o for o in outputs]
        both.append(gradients_of_ways(taken, grads, arguments, added))
    return [where(branch, a, b) for a, b in zip(*both, strict=True)]


# Of one definition.
MOST_BRANCHES = 5


P = ParamSpec("P")
# What a definition returns, and the names that it gives to parts of it.
Found: TypeAlias = tuple[tuple[Traced, ...], dict[Node, str]]


def both_ways(one_way: Callable[P, Found]) -> Callable[P, Found]:
    """A trace that takes branches on numbers both ways, whose results are choices then."""

    @functools.wraps(one_way)
    def traced(*args: P.args, **kwargs: P.kwargs) -> Found:
        ways.start()
        try:
            found = one_way(*args, **kwargs)
        except Undecided:
            pass
        except NotDerived:
            if not ways.undecided:
                raise
        if not ways.undecided:
            return found
        branch = ways.undecided[0]
        if len(ways.decided) == MOST_BRANCHES:
            raise branch.refusal(f"and there are more than {MOST_BRANCHES} of them")
        BRANCHES.add(branch.node)
        both = []
        for way in (True, False):
            ways.decided[branch.node] = way
            try:
                both.append(traced(*args, **kwargs))
            finally:
                del ways.decided[branch.node]
        (results, names), (others, more) = both
        chosen = []
        for a, b in zip(results, others, strict=True):
            other_shape = (a.extent, a.is_squeezed) != (b.extent, b.is_squeezed)
            no_choice = any(t.node.dtype or t.node.is_bool for t in (a, b))
            if other_shape or (a.node is not b.node and no_choice):
                raise branch.refusal(
                    "and gives masks, integers or other shapes, of which none is chosen"
                )
            node = where(branch.node, a.node, b.node)
            chosen.append(Traced.of(node, is_squeezed=a.is_squeezed, extent=a.extent))
        return tuple(chosen), {**more, **names}

    return traced


@both_ways
def traced(
    definition: Definition,
    tensors: list[str],
    constants: Mapping[str, object],
    shapes: Mapping[str, str] = {},
    dtype: torch.dtype = DTYPES[0],
    changed: Mapping[str, tuple[float, float, int]] | None = None,
    is_carried: bool = False,
) -> Found:
    numbers = numbers_for(definition, changed)
    function = definition.carried if is_carried else definition.function
    file = inspect.unwrap(function).__code__.co_filename
    try:
        given = (tensors, numbers, constants, dtype, file, shapes, definition.dtypes)
        result, names = trace(function, *given, recorder=PartsRecorder, of_all=definition.of_all)
    except NotDerived:
        raise
    except Exception as error:
        place = line_of_error(error, file) or f"{definition.place}: "
        # They take no stand-in for a size.
        made = re.match(r"(\w+)\(\)", str(error)) if isinstance(error, TypeError) else None
        if made and made[1] in MAKING:
            raise NotDerived(f"{place}{unknown(made[1])}") from None
        of_some = "; where that is for some numbers alone, leave it out" if ways.decided else ""
        told = f"{place}the definition does not run: {in_a_line(error)}".rstrip(": ")
        raise NotDerived(f"{told}{of_some}") from None
    results = result if isinstance(result, tuple) else (result,)
    if len(results) == definition.schema.outputs:
        check_counts(results)
    check_results(definition, results)
    for result in results:
        if result.extent == ELEMENT and result.node.extent == ROW:
            main = make("tensor", value=definition.main)
            result.node = make("expand", result.node, main)
        if result.counts:
            node = result.node
            node = node.args[0] if node.op == "to_real" else node
            result.node, result.counts = make(f"to_{result.counts}", node), ""
    for k, (result, said) in enumerate(zip(results, definition.result_dtypes, strict=False)):
        # Of float32 no trace knows: verify.py does.
        if said not in ("", WIDE) and said != result.node.dtype:
            raise NotDerived(
                f"{definition.place}: the annotation says that result {k} is {said}, and it is "
                f"{result.node.dtype or 'floating'}; write what it is"
            )
    return results, names


def check_results(definition: Definition, results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, Index):
            raise result.refusal
        if not isinstance(result, Traced):
            in_place = ""
            if result is None:
                in_place = "; return the new values, or annotate it with -> None, as one that "
                in_place += "writes them to its arguments"
            raise NotDerived(
                f"{definition.place}: the definition returns {type(result).__name__}; what is "
                f"derived returns a tensor or a tuple of tensors{in_place}"
            )
    if len(results) != definition.schema.outputs:
        wanted = "Tensor" if len(results) == 1 else f"tuple[{', '.join(['Tensor'] * len(results))}]"
        is_said = "return" in definition.function.__annotations__
        raise NotDerived(
            f"{definition.place}: the definition returns {len(results)} results, and "
            f"{'its annotation says' if is_said else 'without an annotation it would be'} "
            f"{definition.schema.outputs}; write -> {wanted}"
        )
