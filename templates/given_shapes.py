"""A line of shapes that was given: what is refused, and what to write instead."""

from __future__ import annotations

import functools
import re
import runpy
from typing import Any

from kinds import TEMPLATES, Kind, Options, sides
from places import backward_schema, backward_shapes, shapes
from schema import Refusal, Schema

PACKAGE = TEMPLATES.parent / "extension_cpp"


@functools.cache
def notation() -> dict[str, Any]:
    """What the package's notation.py defines: its library need not be built yet."""
    return runpy.run_path(str(PACKAGE / "notation.py"))


def _dims(given: Any, shape: Any) -> tuple[Any, ...]:
    """Of a result."""
    return shape.dims if shape.like is None else given.inputs[shape.like].dims


def check_line(kind: Kind, schema: Schema, options: Options) -> None:
    """Refuses a line that the library would refuse when it is loaded, or the package on import.

    Raises:
        Refusal: says what is wrong with the line, or with that of the backward operator, which
            follows from it, and what to write instead.
    """
    line = options.shapes or shapes(kind, schema)
    parse, error_type = notation()["parse_notation"], notation()["NotationError"]
    try:
        given = parse(schema.text, line)
    except error_type as error:
        raise Refusal(str(error)) from None
    asked = f'--shapes "{line}": '
    written = [shape for shape, a in zip(given.inputs, schema.tensors, strict=True) if a.mutated]
    what = "the result" if given.outputs else "what is written"
    stars = [_star(given, shape) for shape in given.outputs or written]
    if None in stars:
        raise Refusal(
            f"{asked}{what} has no dimensions for a batch; give it and a tensor *rows, which may "
            f"be none{_with_a_batch(schema, line)}"
        )
    if len({*stars}) > 1:
        raise Refusal(
            f"{asked}the results have different dimensions for a batch, {', '.join(stars)}; give "
            "all of them the same"
        )
    if not options.own_backward or schema.mutates:
        return
    own = backward_shapes(kind, schema, line)
    inputs, (result,) = sides(own)
    described = {"grad_output": "the gradient of the result", "mean": "the last result"}
    takes = [
        f'{described.get(name, schema.main.name)} ("{shape}")'
        for name, shape in zip(kind.backward_takes, inputs, strict=True)
    ]
    try:
        backward = parse(backward_schema(kind, schema), own)
        if _star(backward, backward.outputs[0]) is not None:
            return
        reason = "that has no dimensions for a batch"
    except error_type as error:
        reason = str(error).splitlines()[0].partition(": ")[2]
    raise Refusal(
        f"{asked}the template's backward operator would take {' and '.join(takes)}, and return the "
        f'gradient of {schema.main.name} ("{result}"): {reason}. Add --backward torch, for a '
        "backward made of PyTorch calls, or --no-grad"
    )


def _with_a_batch(schema: Schema, line: str) -> str:
    """The line whose results begin with any number of dimensions, where they began with one."""
    first = re.match(r"\s*([A-Za-z]\w*)", line.partition("->")[2] or line)
    if first is None:
        return ""
    starred = re.sub(rf"(?<![\w*:=]){first[1]}(?!\w)", f"*{first[1]}", line)
    try:
        given = notation()["parse_notation"](schema.text, starred)
    except notation()["NotationError"]:
        return ""
    has_batch = all(_star(given, shape) for shape in given.outputs)
    return f', as in "{starred}"' if has_batch else ""


def _star(given: Any, shape: Any) -> str | None:
    """What of a shape a batch joins."""
    dims = _dims(given, shape)
    return next((dim.symbol for dim in dims if dim.is_star and not dim.is_anything), None)
