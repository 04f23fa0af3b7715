"""A line of shapes that was given: whether the template's kernel is for it, and what it says.

A template reads its tensors as its own line says: all in one way, or a value for each row. Of other
lines its kernel would read and write what is not there: it gets a check of what it needs, until it
is edited. The docstring says the shapes that were given.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from element_types import in_formula, in_rows, with_elements
from kinds import LIST, Kind, Options, notation, sides
from places import backward_schema, backward_shapes, shapes
from schema import Argument, Refusal, Schema, names_in

# The shapes in the lines of the templates.
ROW, PER_ROW, ANY = "*rows n", "*rows", "*shape"


def with_dtypes(schema: Schema, options: Options) -> tuple[Schema, Options]:
    """The schema, with what the line that was given says of dtypes, and the options: without
    derivatives where nothing is left to have one.

    Raises:
        Refusal: the library would refuse the line when it is loaded.
    """
    if options.shapes is None:
        return schema, options
    try:
        given = notation()["parse_notation"](schema.text, options.shapes)
    except notation()["NotationError"] as error:
        raise Refusal(str(error)) from None
    integers = {
        a.name for a, s in zip(schema.tensors, given.inputs, strict=True) if _is_integer(given, s)
    }
    arguments = [replace(a, integer=a.name in integers) for a in schema.arguments]
    schema = with_elements(replace(schema, arguments=arguments), given)
    if schema.main.integer or any(_is_integer(given, shape) for shape in given.outputs[:1]):
        options = replace(options, no_grad=True)
    return schema, options


def _is_integer(given: Any, shape: Any) -> bool:
    """Whether a tensor holds integers, bool, or float8, of which there are no gradients either."""
    dtype = given.dtype_source(shape).dtype
    if dtype is None or dtype.is_complex:
        return False
    return dtype.itemsize == 1 or not dtype.is_floating_point


@dataclass(frozen=True)
class Unmet:
    """What a template's kernel needs of its tensors and the line does not say.

    Attributes:
        base: the argument whose shape the others should have; None: that of the first result.
        inputs: the arguments whose shape may be another, each with whether it has a value per row.
        outputs: the same of the results.
        last: whether `base` may be without the last dimension, which is needed.
    """

    base: int | None
    inputs: dict[int, bool]
    outputs: dict[int, bool]
    last: bool

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs or self.last)


def unmet(kind: Kind, schema: Schema, line: str) -> Unmet:
    """Of the operator itself."""
    given = notation()["parse_notation"](schema.text, line)
    outputs = [kind.outputs[min(k, len(kind.outputs) - 1)] for k in range(schema.outputs)]
    inputs = [kind.input] * len(given.inputs)
    return _unmet(kind, given, inputs, outputs, schema.tensors.index(schema.main))


def unmet_backward(kind: Kind, schema: Schema, backward: str, line: str) -> Unmet:
    """Of its backward operator, whose schema is given, too."""
    given = notation()["parse_notation"](backward, backward_shapes(kind, schema, line))
    inputs = kind.backward_inputs
    return _unmet(kind, given, inputs, [kind.input], inputs.index(kind.input))


def _unmet(
    kind: Kind, given: Any, inputs: Sequence[str], outputs: Sequence[str], main: int
) -> Unmet:
    each, results = given.inputs, [_dims(given, shape) for shape in given.outputs]
    own = [shape.partition(":")[0] for shape in outputs]
    if kind.input == ANY:  # on loops that broadcast
        like = given.outputs[0].like if results else main
        to = results[0] if results else each[main].dims
        wrong = [
            k
            for k, shape in enumerate(each)
            if not (k == like or _broadcasts(shape.dims, to, dots=bool(results) and not like))
        ]
        return Unmet(None if results else main, dict.fromkeys(wrong, False), {}, False)
    base_dims = each[main].dims
    # Tensors of `...` may differ.
    known = not any(dim.is_anything for dim in base_dims) and (
        not any(dim.symbol == "..." for dim in base_dims)
        or sum(any(dim.symbol == "..." for dim in shape.dims) for shape in each) == 1
    )

    def is_met(dims: Sequence[Any], template: str) -> bool:
        if template == ROW:
            return known and dims == base_dims
        return known and _ends_in_one(base_dims) and dims == base_dims[:-1]

    return Unmet(
        main,
        {
            k: template == PER_ROW
            for k, (shape, template) in enumerate(zip(each, inputs, strict=True))
            if k != main and not is_met(shape.dims, template)
        },
        {
            k: template == PER_ROW
            for k, (dims, template) in enumerate(zip(results, own, strict=True))
            if not is_met(dims, template)
        },
        (kind.lists or kind.name == "scan") and all(dim.is_star for dim in base_dims),
    )


def _dims(given: Any, shape: Any) -> tuple[Any, ...]:
    """Of a result."""
    return shape.dims if shape.like is None else given.inputs[shape.like].dims


def _ends_in_one(dims: Sequence[Any]) -> bool:
    return bool(dims) and not dims[-1].is_star and not dims[-1].is_anything


def _broadcasts(dims: Sequence[Any], to: Sequence[Any], dots: bool) -> bool:
    """Whether every tensor of the first shape broadcasts to every one of the second.

    Args:
        dims: the first shape.
        to: the second.
        dots: whether what `...` is in the first broadcasts to what it is in the second.
    """

    def fits(dim: Any, other: Any) -> bool:
        if dim.size == 1:
            return not other.is_star
        return dim == other and not dim.is_anything and (dots or dim.symbol != "...")

    pairs = zip(reversed(dims), reversed(to), strict=False)
    return len(dims) <= len(to) and all(fits(dim, other) for dim, other in pairs)


def check_line(kind: Kind, schema: Schema, options: Options) -> None:
    """Refuses a line from which one follows for the backward operator that is none, or one with
    sizes that the loops of the template do not know.

    Raises:
        Refusal: says what is wrong with that, and what to do instead.
    """
    if options.shapes and not kind.lists:
        for number in sizes_among(schema, schema.text, options.shapes):
            raise Refusal(
                f"--shapes \"{options.shapes}\": the loops of the template '{kind.name}' are for "
                f"sizes of tensors, and {number.name} is a number of the schema: start from a "
                "template with a kernel of your own, or call it otherwise in the line"
            )
    if not options.own_backward or schema.mutates:
        return
    line = options.shapes or shapes(kind, schema)
    parse, error_type = notation()["parse_notation"], notation()["NotationError"]
    own = backward_shapes(kind, schema, line)
    inputs, (result,) = sides(own)
    described = {"grad_output": "the gradient of the result", "mean": "the second result"}
    takes = [
        f'{described.get(name, schema.main.name)} ("{shape}")'
        for name, shape in zip(kind.backward_takes, inputs, strict=True)
    ]
    try:
        parse(backward_schema(kind, schema), own)
        return
    except error_type as error:
        reason = str(error).splitlines()[0].partition(": ")[2]
    raise Refusal(
        f'--shapes "{line}": '
        f"the template's backward operator would take {' and '.join(takes)}, and return the "
        f'gradient of {schema.main.name} ("{result}"): {reason}. Add --backward torch, for a '
        "backward made of PyTorch calls, or --no-grad"
    )


def works_as_it_is(kind: Kind, schema: Schema, options: Options) -> bool:
    """Whether what the template computes, and its derivatives, are for the line that was given."""
    if options.shapes is None:
        return True
    given = notation()["parse_notation"](schema.text, options.shapes)
    own = notation()["parse_notation"](schema.text, shapes(kind, schema))
    tensors, wanted = (*given.inputs, *given.outputs), (*own.inputs, *own.outputs)
    # The types of an elementwise formula say the dtypes of its inputs, and those of a functor for
    # rows of all but the first.
    said = [
        (kind.name == "elementwise" and in_formula(a) != "A")
        or (kind.by_rows and a is not schema.main and in_rows(a) is not None)
        for a in schema.tensors
    ]
    said += [False] * schema.outputs
    dtypes = [[(s.rule, s.dtype, s.source) for s in each] for each in (tensors, wanted)]
    needs = [unmet(kind, schema, options.shapes)]
    if options.own_backward and not schema.mutates:
        backward = backward_schema(kind, schema)
        needs.append(unmet_backward(kind, schema, backward, options.shapes))
    main = given.inputs[schema.tensors.index(schema.main)].dims
    if kind.input == ROW and not _ends_in_one(main):
        return False
    # Of the loops that broadcast the results are alike, too.
    alike = tensors if kind.input == ANY else given.inputs
    # Samples follow of sizes that have names.
    return (
        not any(needs)
        and all(own or a == b for own, a, b in zip(said, *dtypes, strict=True))
        and all(_dims(given, shape) == main for shape in alike)
        and all(dim.is_name for dim in main)
    )


def made(schema: Schema, line: str, values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Of samples whose first tensor has `shape`, as Python: a condition, empty where every shape
    will do that has a dimension; and each tensor, with the numbers that are sizes.

    Args:
        schema: it may have stand-ins for its arguments' names.
        line: its shapes.
        values: what is passed for the arguments.
    """
    given = notation()["parse_notation"](schema.text, line)
    first = given.inputs[0]
    count, star = len(first.dims), first.star
    conditions = []
    if star is None or first.single > 1:
        conditions.append(f"len(shape) {'==' if star is None else '>='} {first.single}")
    numbers = dict(zip(given.numbers, sizes_among(schema, schema.text, line), strict=True))
    of_first = {name for dim in first.dims for name in dim.names}
    # What the names stand for.
    sizes = {name: values[a.name] for name, a in numbers.items() if name not in of_first}
    sums = []
    for d, dim in enumerate(first.dims):
        size = f"shape[{d if star is None or d < star else d - count}]"
        if d == star:
            size = f"*shape[{d or ''}:{d + 1 - count or ''}]" if count > 1 else "*shape"
        same = str(dim.size) if dim.size is not None else sizes.get(dim.symbol, size)
        if dim.terms:
            sums.append((dim, size))
        elif same != size:
            conditions.append(f"{size} == {same}")
        elif not dim.is_anything:
            sizes[dim.symbol] = size
    # Of each sum one name follows. Beside others, numbers are as they are passed.
    for dim, size in sums:
        unknown = [name for name in dim.names if name not in sizes]
        for name in [name for name in unknown if name in numbers][: max(0, len(unknown) - 1)]:
            sizes[name] = values[numbers[name].name]
        if found := dim.open(sizes):
            times, name = found
            rest = _sum([size], dim, sizes, -1)
            sizes[name] = f"({rest}) // {times}" if abs(times) > 1 or times < 0 else rest
            conditions += [f"({rest}) % {times} == 0"] * (abs(times) > 1)
            less = dim.plus > 0 or any(t > 0 for t, other in dim.terms if other != name)
            conditions += [f"{sizes[name]} >= 0"] * (less or times < 0)
        else:
            conditions.append(f"{size} == {_sum([], dim, sizes)}")

    def source(shape: Any) -> str:
        parts = []
        for dim in shape.dims:
            for name in dim.names:
                sizes.setdefault(name, "2, 3" if dim.is_star else "3")
            anything = "2, 3" if dim.is_star else str(dim.size or 3)
            of_terms = _sum([], dim, sizes) if dim.terms else anything
            parts.append(sizes[dim.symbol] if dim.is_name else of_terms)
        text = ", ".join(parts)
        text = f"({text}{',' * (len(parts) == 1 and ',' not in text)})"
        if shape.dims == first.dims:
            text = "shape"
        elif len(parts) == 1 and parts[0].startswith("*"):
            text = parts[0][1:]
        own = given.dtype_source(shape)
        dtypes = {"exact": f", dtype={own.dtype}", "sum": ", dtype=sum_dtype(make.dtype)"}
        return f"make({text}{dtypes.get(own.rule.value, '')})"

    found = {a.name: sizes[name] for name, a in numbers.items()}
    for a, shape in zip(schema.tensors, given.inputs, strict=True):
        one = source(shape)
        found[a.name] = f"[{one}, {one}]" if a.type == LIST else one
    for dim in (dim for shape in (*given.inputs[1:], *given.outputs) for dim in shape.dims):
        if dim.plus < 0 or any(times < 0 for times, _ in dim.terms):
            size = _sum([], dim, sizes)
            conditions += [f"{size} >= 0"] * ("shape" in size)
    return " and ".join(dict.fromkeys(conditions)), found


def _sum(start: Sequence[str], dim: Any, sizes: Mapping[str, str], sign: int = 1) -> str:
    """A sum of which names are known, after what it starts with, as Python."""
    text = "".join(start)
    terms = [(sign * times, sizes[name]) for times, name in dim.terms if name in sizes]
    for times, size in [*terms, (sign * dim.plus, "1")]:
        part = f"({size})" if " " in size else size
        many = str(abs(times)) if size == "1" else f"{abs(times)} * {part}"
        if times:
            text += f" {'-' if times < 0 else '+'} {part if abs(times) == 1 else many}"
    return text.removeprefix(" + ").strip()


def sizes_among(schema: Schema, text: str, line: str) -> list[Argument]:
    """The arguments that are numbers and, in a line, sizes.

    Args:
        schema: it may have stand-ins for its arguments' names.
        text: that schema, or its backward operator's, under the names themselves.
        line: the shapes.
    """
    named = dict(zip(names_in(schema.text), schema.arguments, strict=True))
    return [named[name] for name in notation()["parse_notation"](text, line).numbers]


# ----- what the docstring says

WIDTH = 96
FLOATING = "float64, float32, float16 or bfloat16"


def documented(text: str, schema: Schema, options: Options) -> str:
    """An ops.py whose docstring says the shapes and dtypes of the line that was given."""
    if options.shapes is None:
        return text
    said = Said(schema, options)
    arguments = [schema.main, *(a for a in schema.arguments if a is not schema.main)]
    lines = "".join(_wrapped(f"{a.name}: {said.argument(a)}", "            ") for a in arguments)
    text = re.sub(r"(?<=    Args:\n)(?:        .*\n)+", lambda _: lines, text, count=1)
    return _with_returned(text, said.result()) if schema.outputs else text


def returning(text: str, schema: Schema, options: Options) -> str:
    """An ops.py whose function returns the first of several results, for one that returns all."""
    each = [Said(schema, options).result(k).removesuffix(".") for k in range(schema.outputs)]
    first, *others = each
    text = _with_returned(text, "; ".join([first, *(x[0].lower() + x[1:] for x in others)]) + ".")
    text = re.sub(r"\) -> Tensor:", f") -> tuple[{', '.join(['Tensor'] * schema.outputs)}]:", text)
    return re.sub(
        r"    # EDIT: what else .*\n(    return (?s:.*?\)))\[0\]\n", r"\1\n", text, count=1
    )


def _with_returned(text: str, said: str) -> str:
    returns = r"(?<=    Returns:\n)        A (?s:.*?)\.\n"
    return re.sub(returns, lambda _: _wrapped(said, "        "), text, count=1)


def _wrapped(text: str, hanging: str) -> str:
    return (
        textwrap.fill(
            text,
            WIDTH,
            initial_indent="        ",
            subsequent_indent=hanging,
            break_on_hyphens=False,
            break_long_words=False,
        )
        + "\n"
    )


class Said:
    """What a line of shapes says of each tensor, in words."""

    def __init__(self, schema: Schema, options: Options) -> None:
        self.schema = schema
        self.options = options
        self.given = notation()["parse_notation"](schema.text, options.shapes)
        self.main = schema.tensors.index(schema.main)
        self.sizes = sizes_among(schema, schema.text, options.shapes)
        shapes = (*self.given.inputs, *self.given.outputs)
        self.stars = {dim.symbol for shape in shapes for dim in shape.dims if dim.is_star}

    def shape(self, shape: Any) -> str:
        """As `(..., n)`; where several names stand for any number of dimensions, `(*rows, n)`."""
        alone = len(self.stars) == 1
        words = ["..." if dim.is_star and alone else dim.symbol for dim in _dims(self.given, shape)]
        return f"`({', '.join(words)}{',' if len(words) == 1 and words != ['...'] else ''})`"

    def name(self, k: int) -> str:
        return f"`{self.schema.tensors[k].name}`"

    def dtype(self, shape: Any, k: int | None = None) -> str:
        """Of argument k, or of a result."""
        rule = shape.rule.value
        leader = self.given.leader
        if rule == "" and k == leader:
            return FLOATING
        if rule == "exact":
            return str(shape.dtype).removeprefix("torch.")
        if rule == "any":
            return "any dtype"
        if rule == "argument":
            return f"the dtype of {self.name(shape.source)}"
        like = self.name(leader)
        if rule == "sum":
            return f"float64 where {like} is float64, else float32"
        if rule == "wide":
            return f"the dtype of {like}, or float32 where that is a half type"
        return f"the dtype of {like}"

    def argument(self, argument: Argument) -> str:
        if argument in self.sizes:
            return "an integer that is not negative."
        if not argument.is_tensor:
            return argument.info.describe
        k = self.schema.tensors.index(argument)
        shape, main = self.given.inputs[k], self.name(self.main)
        dtype = self.dtype(shape, k)
        text = f"of shape {self.shape(shape)}"
        if argument.type == LIST:
            most = "" if shape.most is None else f"at most {shape.most} "
            text = f"{most}tensors {text}"
        if argument.mutated:
            text += " and any layout in which no two elements share memory"
        elif k == self.main:
            text += " and any layout"
        if any(dim.symbol == "..." for dim in shape.dims) and len(self.given.inputs) > 1:
            text += f", {'which broadcast' if argument.type == LIST else 'which broadcasts'}"
        if k == self.main:
            devices = " or ".join(device.upper() for device in self.options.devices)
            text += f", on {devices}; {dtype}"
        elif dtype == f"the dtype of {main}":
            text += f", dtype and device of {main}"
        elif "," in dtype:
            text += f"; {dtype}; on the device of {main}"
        else:
            text += f", {'with ' * dtype.startswith('the ')}{dtype}, on the device of {main}"
        return text + (", or None." if argument.type.endswith("?") else ".")

    def result(self, k: int = 0) -> str:
        """By itself the first is what the public function returns."""
        shape = self.given.outputs[k]
        kept = ", in the layout on which the dense inputs agree, else contiguous"
        elementwise = self.given.elementwise
        text = f"A {'' if elementwise else 'contiguous '}tensor of shape {self.shape(shape)}"
        dtype = self.dtype(shape)
        text += f" with {dtype}" if dtype.startswith("the ") else f" in {dtype}"
        return f"{text}{kept if elementwise else ''}."
