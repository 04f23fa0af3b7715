"""Batching rules where none follows from a line of shapes that was given."""

from __future__ import annotations

import re

from kinds import Kind, Options, notation
from places import backward_schema, backward_shapes
from schema import Schema

RULE = "by_example"


def with_rules(text: str, kind: Kind, schema: Schema, options: Options) -> str:
    """An ops.py, under stand-ins, that calls each operator for each example where it has to."""
    if options.shapes is None:
        return text
    backward = backward_schema(kind, schema), backward_shapes(kind, schema, options.shapes)
    lines = ((schema.text, options.shapes), backward)

    def register(found: re.Match[str]) -> str:
        ops = re.findall(r'"extension_cpp::\w+"', found[1])
        follows = [
            notation()["parse_notation"](*line).joins_batches
            for _, line in zip(ops, lines, strict=False)
        ]
        if all(follows):
            return found[0]
        rules = ["" if joins else f", {RULE}({op})" for op, joins in zip(ops, follows, strict=True)]
        calls = zip(ops, rules, strict=True)
        return "\n".join(f"registration.register_vmap({op}{rule})" for op, rule in calls)

    registered = re.sub(r"registration\.register_vmap\(([^()]*)\)", register, text)
    if registered == text:
        return text
    imported = f"from extension_cpp.batching import {RULE}\n"
    first = r"(?<=\n)from extension_cpp import .*\n"
    return re.sub(first, rf"\g<0>{imported}", registered, count=1)
